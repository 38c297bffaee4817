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
