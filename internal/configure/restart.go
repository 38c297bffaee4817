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

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Restart is what makes an engine read its configuration again.
type Restart struct {
	Command string `json:"command"` // to give by hand; "" where nothing is to be done
	Unit    string `json:"unit"`    // of systemd; "" where it manages no services here
	PIDs    []int  `json:"pids"`    // of the engine's processes
	Done    bool   `json:"done"`

	engine grant.Engine
	self   bool // it reads its configuration by itself
}

// RestartOf looks for the engine of some options as it runs on this machine.
func RestartOf(o Options) Restart {
	name := o.Engine
	e := engines[name]
	r := Restart{PIDs: []int{}, engine: name}
	if e.daemon == "" {
		return r
	}
	if place := (&Plan{options: o, system: system{root: o.Root}}).place(); place != nil {
		if e.unit = place.unit(); e.unit == "" {
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

// verb: dockerd takes runtimes, default-runtime and features over when it is told to reload; the others read theirs at start.
// No engine's restart ends containers.
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
		return fmt.Errorf("cannot restart %s: systemd does not run here; restart its process (pid %s) as it was started", r.engine, r.pids())
	default:
		return errors.New("cannot restart " + string(r.engine) + ": it does not run here")
	}
	r.Done = true
	return nil
}

func (r Restart) pids() string { return strings.Trim(fmt.Sprint(r.PIDs), "[]") }

// Hint says what is left to do; "" if nothing.
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

// noteOthers tells of an engine that runs here and reads another file than the one that is configured.
func (p *Plan) noteOthers() {
	if p.options.Root != "/" || engines[p.options.Engine].daemon == "" {
		return
	}
	for _, pid := range processes(engines[p.options.Engine].daemon) {
		if file := readBy(pid); file != "" && file != p.mainFile() {
			p.note("%s (pid %d) reads %s, not %s: name it by --file", p.options.Engine, pid, file, p.mainFile())
		}
	}
}

// configOf is the file that a daemon's arguments name: -c and --config of containerd and CRI-O, --config-file of dockerd.
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

// processes are those of a program's name that see the same files as we, without their own children: one that has forked and
// not yet run another program has its parent's name.
func processes(name string) []int {
	all := named(name)
	return slices.DeleteFunc(slices.Clone(all), func(pid int) bool {
		_, parent, err := host.Default().Process(pid)
		return err == nil && slices.Contains(all, parent)
	})
}

func named(name string) []int {
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
