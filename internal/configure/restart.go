package configure

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
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

// RestartOf finds how the options' engine runs on this machine.
func RestartOf(o Options) Restart {
	name := o.Engine
	e := engines[name]
	r := Restart{PIDs: []int{}, engine: name}
	if e.daemon == "" {
		return r
	}
	if distribution := (&Plan{options: o, system: filetree.System{Root: o.Root}}).distribution(); distribution != nil {
		if e.unit = distribution.unit(); e.unit == "" {
			r.self = true
			return r
		}
	}
	r.PIDs = append(r.PIDs, processes(e.daemon)...)
	if _, err := os.Stat("/run/systemd/system"); err == nil { // sd_booted(3)
		r.Unit = e.unit
		r.Command = "systemctl " + r.verb() + " " + e.unit
	} else if name == grant.Docker && len(r.PIDs) == 1 {
		r.Command = "kill -HUP " + strconv.Itoa(r.PIDs[0])
	}
	return r
}

// verb is the command for systemctl. dockerd reads runtimes, default-runtime and features at a
// reload. The other engines read theirs at start. Neither verb ends containers.
func (r Restart) verb() string {
	if r.engine == grant.Docker {
		return "reload"
	}
	return "restart"
}

// Do restarts the engine.
func (r *Restart) Do() error {
	switch {
	case engines[r.engine].daemon == "", r.self:
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

func (r Restart) pids() string { return strings.Trim(fmt.Sprint(r.PIDs), "[]") }

// Hint says what is left to do; "" if nothing is.
func (r Restart) Hint() string {
	switch {
	case engines[r.engine].daemon == "", r.Done, r.self:
		return ""
	case r.Command != "":
		return "for " + string(r.engine) + " to read it: " + r.Command
	case len(r.PIDs) > 0:
		return "for " + string(r.engine) + " to read it, restart its process (pid " + r.pids() + ")"
	}
	return string(r.engine) + " reads it when it starts"
}

// noteOthers adds a note for a running engine that reads another file than the configured one.
func (p *Plan) noteOthers() {
	if p.options.Root != "/" || engines[p.options.Engine].daemon == "" {
		return
	}
	for _, pid := range processes(engines[p.options.Engine].daemon) {
		if file := readBy(pid); file != "" && file != p.mainFile() {
			p.note("%s (pid %d) reads %s, not %s: name it by --file", p.options.Engine, pid, file,
				p.mainFile())
		}
	}
}

// configOf is the file that a daemon's arguments name, by -c or --config of containerd and CRI-O,
// or --config-file of dockerd.
func configOf(args []string) string {
	for i, arg := range args {
		name, value, found := strings.Cut(arg, "=")
		if !slices.Contains([]string{"-c", "--config", "-config", "--config-file"}, name) {
			continue
		}
		if found {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// processes are those with a program's name in this mount namespace, without their own children. A
// child that has not yet executed another program has its parent's name.
func processes(name string) []int {
	all := processesNamed(name)
	return slices.DeleteFunc(slices.Clone(all), func(pid int) bool {
		_, parent, err := host.Default().Process(pid)
		return err == nil && slices.Contains(all, parent)
	})
}

func processesNamed(name string) []int {
	var pids []int
	ours, _ := os.Readlink("/proc/self/ns/mnt")
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range files {
		dir := filepath.Dir(path)
		comm, err := os.ReadFile(path)
		ns, _ := os.Readlink(dir + "/ns/mnt")
		pid, e := strconv.Atoi(filepath.Base(dir))
		if err == nil && e == nil && ns == ours && strings.TrimSpace(string(comm)) == name {
			pids = append(pids, pid)
		}
	}
	return pids
}
