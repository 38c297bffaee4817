//go:build failpoint

package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv("FAILPOINT_TEST_HELPER") != "" {
		Hit("ledger/put-renamed")
		Hit("ledger/locked")
		Hit("ledger/locked")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestHitKillsAtTheChosenPass(t *testing.T) {
	for value, killed := range map[string]bool{
		"ledger/locked": true, "ledger/locked:2": true, "ledger/locked:3": false,
		"ledger/put-linked": false, "": false,
	} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "FAILPOINT_TEST_HELPER=1", Variable+"="+value)
		var exit *exec.ExitError
		err := cmd.Run()
		got := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if got != killed || !killed && err != nil {
			t.Errorf("%s=%q: killed %v (%v), want %v", Variable, value, got, err, killed)
		}
	}
}
