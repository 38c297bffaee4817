package main

import (
	"errors"
	"testing"

	"github.com/gpuledger/gpuledger/internal/configure"
)

// TestADockerdThatDoesNotSay if it has read its file is a note, and after an undo an error.
func TestADockerdThatDoesNotSay(t *testing.T) {
	unknown := &configure.UnknownError{PID: 7, Err: errors.New("no socket")}
	for _, row := range []struct {
		undo          bool
		err           error
		fails, prints bool
	}{
		{false, unknown, false, true},
		{true, unknown, true, false},
		{false, errors.New("it ended"), true, false},
		{true, nil, false, false},
	} {
		var a configureAnswer
		err := a.reloaded(row.undo, row.err)
		if (err != nil) != row.fails || (len(a.Notes) > 0) != row.prints {
			t.Errorf("undo %v, %v: got %v, notes %q", row.undo, row.err, err, a.Notes)
		}
	}
}
