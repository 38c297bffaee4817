package engines

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Restart is what makes an engine read its configuration again.
type Restart struct {
	Command string `json:"command"` // to run by hand; "" if there is nothing to do
	Unit    string `json:"unit"`    // the service of systemd; "" if systemd manages no services here
	PIDs    []int  `json:"pids"`    // of the engine's processes
	Done    bool   `json:"done"`

	engine grant.Engine
	self   bool // the engine reads its configuration by itself
}

// RestartOf finds how an engine runs on this machine.
func RestartOf(in Installation) Restart {
	e := in.Of()
	r := Restart{PIDs: []int{}, engine: in.Engine}
	if e.Daemon == "" {
		return r
	}
	if distribution := in.Distribution(); distribution != nil {
		if e.Unit = distribution.unit(); e.Unit == "" {
			r.self = true
			return r
		}
	}
	r.PIDs = append(r.PIDs, processes(e.Daemon, "mnt")...)
	if _, err := os.Stat("/run/systemd/system"); err == nil { // sd_booted(3)
		r.Unit = e.Unit
		r.Command = "systemctl " + r.verb() + " " + e.Unit
	} else if in.Engine == grant.Docker && len(r.PIDs) == 1 {
		r.Command = "kill -HUP " + strconv.Itoa(r.PIDs[0])
	}
	return r
}

// verb is the command for systemctl. dockerd reads runtimes and default-runtime at a reload, too,
// if its file names them; see configure.Reload. (Docker 25 to 28.2 reads features.cdi only when it
// starts, as docs/engines.md says.) The other engines read theirs at start. Neither verb ends
// containers.
func (r Restart) verb() string {
	if r.engine == grant.Docker {
		return "reload"
	}
	return "restart"
}

// Do restarts the engine. It leaves a Docker alone that does not run. Another engine is started: it
// may have failed with the files that were there before.
func (r *Restart) Do() error {
	switch {
	case Of(r.engine).Daemon == "", r.self:
		return nil
	case r.engine == grant.Docker && r.Unit != "" && len(r.PIDs) == 0 && isStopped(r.Unit):
		r.Command = "" // systemd refuses to reload it, and it reads its file when it starts
		return nil
	case r.Unit != "":
		if out, err := exec.Command("systemctl", r.verb(), r.Unit).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot %s %s: %w: %s", r.verb(), r.Unit, err, strings.TrimSpace(string(out)))
		}
	case r.engine == grant.Docker && len(r.PIDs) == 1:
		if err := unix.Kill(r.PIDs[0], unix.SIGHUP); err != nil {
			return fmt.Errorf("cannot make dockerd (pid %d) read its configuration: %w", r.PIDs[0], err)
		}
	case len(r.PIDs) > 0:
		return fmt.Errorf(
			"cannot restart %s: systemd does not run here; restart its process (pid %s) as it was started",
			r.engine, r.pids())
	default:
		return errors.New("cannot restart " + string(r.engine) + ": it does not run here")
	}
	r.Done = true
	return nil
}

// isStopped reports whether systemd says that a unit is not active.
func isStopped(unit string) bool {
	var status *exec.ExitError
	return errors.As(exec.Command("systemctl", "is-active", "--quiet", unit).Run(), &status)
}

func (r Restart) pids() string { return strings.Trim(fmt.Sprint(r.PIDs), "[]") }

// Hint says what is left to do; "" if nothing is.
func (r Restart) Hint() string {
	switch {
	case Of(r.engine).Daemon == "", r.Done, r.self:
		return ""
	case r.Command != "":
		return "for " + string(r.engine) + " to read it: " + r.Command
	case len(r.PIDs) > 0:
		return "for " + string(r.engine) + " to read it, restart its process (pid " + r.pids() + ")"
	}
	return string(r.engine) + " reads it when it starts"
}
