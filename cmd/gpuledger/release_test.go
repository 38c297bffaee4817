package main

import (
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestEachErrorOfAReleaseIsTold: the first is the command's, each other one is printed, also those
// of what is done after a release.
func TestEachErrorOfAReleaseIsTold(t *testing.T) {
	var out, errOut strings.Builder
	app := cli.NewApp()
	app.Writer, app.ErrWriter = &out, &errOut
	c := cli.NewContext(app, flag.NewFlagSet("release", flag.ContinueOnError), nil)
	first := errors.New("a is held")
	release := func(id grant.ID) (grant.Grant, error) {
		if id == "a" {
			return grant.Grant{}, first
		}
		return grant.Grant{ID: id}, nil
	}
	after := func(id grant.ID) error { return errors.New("the file of " + string(id) + " stays") }
	if err := releaseEach(c, []grant.ID{"a", "b", "c"}, release, after); err != first {
		t.Errorf("it returns %v", err)
	}
	if want := "gpuledger: the file of b stays\ngpuledger: the file of c stays\n"; errOut.String() != want {
		t.Errorf("it prints %q, want %q", errOut.String(), want)
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d are released: %q", n, out.String())
	}
}

// TestUnprintedGrantThatStays: what cannot be released either is named with the way to release it.
func TestUnprintedGrantThatStays(t *testing.T) {
	full, locked := errors.New("no space left on device"), &grant.Refusal{Code: "c", Message: "it is locked"}
	for _, c := range []struct {
		name    string
		release releaser
		want    string
	}{
		{"a ledger that is locked", func(grant.ID) (grant.Grant, error) { return grant.Grant{}, locked },
			"; refused (c): it is locked; grant g-a is in the ledger and its reference is lost: " +
				"gpuledger release g-a"},
		{"a grant that a container has found by its owner", func(id grant.ID) (grant.Grant, error) {
			return grant.Grant{ID: id, Draining: true, Bindings: []grant.Binding{{Container: "c"}}}, nil
		}, "; grant g-a is draining: container c still uses it"},
	} {
		err := printOrRelease("g-a", func() error { return full }, c.release)
		var refusal *grant.Refusal
		if !errors.Is(err, full) || errors.As(err, &refusal) ||
			err.Error() != "cannot print the answer: no space left on device"+c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	release := func(grant.ID) (grant.Grant, error) { return grant.Grant{}, errors.New("it is released") }
	if err := printOrRelease("g-a", func() error { return nil }, release); err != nil {
		t.Errorf("a grant that is printed: %v", err)
	}
}
