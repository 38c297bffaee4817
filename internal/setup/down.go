package setup

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
)

// slowStart is how long setup waits for a unit that is starting. It is twice the time that systemd
// gives a unit by default. An engine with many containers needs a part of it.
const slowStart = 3 * time.Minute

// downError is an engine whose unit has failed, or that serves the kubelet no more. An engine that
// starts slowly is none.
type downError struct{ what string }

func (d *downError) Error() string { return d.what }

// failureOf waits until a unit runs or has failed, and returns a *downError if it has failed. Of a
// unit that is not managed here, or does not come to an end, nothing is known.
func (n *node) failureOf(unit string) error {
	if unit == "" {
		return nil
	}
	for end := time.Now().Add(slowStart); time.Now().Before(end); time.Sleep(time.Second / 2) {
		shown, err := n.shown(unit, "ActiveState,SubState,Result,NRestarts")
		switch state := shown["ActiveState"]; {
		case err != nil:
			return nil
		case hasFailed(shown):
			return &downError{fmt.Sprintf("%s has failed (%s)", unit, shown["Result"])}
		case state != "activating" && state != "deactivating":
			return nil
		}
	}
	return nil
}

// hasFailed reports whether systemd has given a unit up, or starts it again after it ended twice. A
// first end may be chance, and after a timeout the unit was only slow.
func hasFailed(shown map[string]string) bool {
	again, _ := strconv.Atoi(shown["NRestarts"]) // counts from the last start by hand
	return shown["ActiveState"] == "failed" ||
		strings.HasPrefix(shown["SubState"], "auto-restart") && again > 0 && shown["Result"] != "timeout"
}

// backedOut is the start of a mark's name. The mark says why edits were taken out of an engine's
// files again. The kubelet repeats a failed installation every few minutes, and each would end the
// engine for a while.
const backedOut = "/run/gpuledger-setup.backed-out-"

// backedOutBefore returns an error if the engine did not start with these edits, and nothing has
// changed since.
func (n *node) backedOutBefore(args []string) error {
	text, err := os.ReadFile(backedOut + args[0])
	if err != nil {
		return nil
	}
	key, why, _ := strings.Cut(string(text), "\n")
	p, err := n.preview(args)
	if err != nil || p.key() != key {
		return err
	}
	return fmt.Errorf("%s. That is not repeated before %s's files have changed, it was restarted, or "+
		"gpuledger is another version", why, args[0])
}

// markBackedOut records why edits were taken out again.
func (n *node) markBackedOut(args []string, why error) {
	p, err := n.preview(args)
	if err == nil {
		text := p.key() + "\n" + why.Error()
		err = host.ReplaceFile(backedOut+args[0], []byte(text), 0o600, host.Volatile)
	}
	if err != nil {
		say("cannot record that: %v", err)
	}
}

// backOut takes an installation's edits out of the files of an engine that does not start with
// them. Without the engine the kubelet starts no container, so no later run could do it.
func (n *node) backOut(args []string, unit string, failed error) error {
	engine := args[0]
	var down *downError
	if !errors.As(failed, &down) {
		return failed
	}
	say("%v: its files are put back", failed)
	_, kept := n.change(engine, "--undo")
	_ = n.run("systemctl", "reset-failed", unit) // systemd starts no unit that failed too often
	again := n.restart(unit, engine, "--undo")
	switch {
	case again == nil: // some distributions write the engine's file at the restart, so kept may be over
		failed = fmt.Errorf("cannot restart %s: %w; its files are as before, and it runs again", engine,
			failed)
		n.markBackedOut(args, failed)
		return failed
	case kept != nil:
		return fmt.Errorf("cannot restart %s: %w; its files could not be put back (%w), and it does not "+
			"start again: %w", engine, failed, kept, again)
	}
	return fmt.Errorf("cannot restart %s: %w; its files are as before, and with them: "+
		"%w", engine, failed, again)
}
