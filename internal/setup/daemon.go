package setup

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

const (
	daemonUnit = "gpuledgerd.service"
	daemon     = "/usr/bin/gpuledgerd"
)

// daemonOptions is written once; after that it is the administrator's file. The options that setup
// writes make gpuledgerd's NRI plugin record only. The node is set up for the runtime that engines
// call; otherwise the plugin would judge the other containers too.
const (
	daemonOptions  = "/etc/default/gpuledgerd"
	observeOptions = "# Written by gpuledger-setup: beside gpuledger-runtime the NRI plugin records only.\n" +
		"GPULEDGERD_OPTIONS=--nri observe\n"
)

// startDaemon makes gpuledgerd run the installed program, now and at the next boot.
func (n *node) startDaemon() error {
	if !exists(daemonOptions) {
		if err := os.MkdirAll("/etc/default", 0o755); err != nil {
			return err
		}
		if err := host.ReplaceFile(daemonOptions, []byte(observeOptions), 0o644, host.Durable); err != nil {
			return err
		}
	}
	if !exists(systemdRuns) {
		say("systemd does not run on this node: start `gpuledgerd --nri observe` by hand; " +
			"containers are guarded without it, and mode mps, the watch and metrics are not there")
		return nil
	}
	unit, err := n.shown(daemonUnit, "MainPID,UnitFileState")
	switch {
	case err != nil:
		return err
	case unit["UnitFileState"] == "masked":
		say("%s is masked on this node: it is left so", daemonUnit)
		return nil
	}
	if unit["UnitFileState"] != "enabled" { // enable does a daemon-reload in any case
		if err := n.run("systemctl", "enable", daemonUnit); err != nil {
			return err
		}
	}
	if runsOther(unit["MainPID"]) {
		return n.run("systemctl", "restart", daemonUnit)
	}
	return n.run("systemctl", "start", daemonUnit)
}

// shown are properties of a unit, as systemctl shows them.
func (n *node) shown(unit, properties string) (map[string]string, error) {
	out, err := n.output("systemctl", "show", "--property="+properties, unit)
	values := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = value
	}
	return values, err
}

// runsOther reports whether the daemon's process runs another file than the installed one. A new
// file is put there by rename.
func runsOther(pid string) bool {
	runs, err := os.Stat("/proc/" + pid + "/exe") // also for a file that is removed
	if err != nil {
		return false // no such process: pid 0 says that nothing runs
	}
	installed, err := os.Stat(daemon)
	return err == nil && !os.SameFile(runs, installed)
}

// stopDaemon ends gpuledgerd, as the removal of a package does, and takes back the access to GPUs
// that it has given to users: no other program knows what that is.
func (n *node) stopDaemon() error {
	if exists(systemdRuns) {
		if err := n.run("systemctl", "disable", "--now", daemonUnit); err != nil {
			unit, unknown := n.shown(daemonUnit, "MainPID")
			if unknown != nil || unit["MainPID"] != "0" { // else there is no such unit, or it has ended
				return err
			}
		}
	}
	n.stopMPS()
	if exists(daemon) {
		if err := n.run(daemon, "close-nodes"); err != nil {
			fmt.Fprintf(os.Stderr, "%v; users keep the access to GPUs that they were given until the "+
				"next boot\n", err)
		}
	}
	if text, _ := os.ReadFile(daemonOptions); string(text) == observeOptions {
		removeFile(daemonOptions)
	}
	return nil
}

// stopMPS ends the MPS daemons that gpuledgerd has left, unless a container may use one: its CUDA
// contexts would end with the daemon, and containers go on through a removal. A container's grant
// can be one that cannot be read.
func (n *node) stopMPS() {
	if !exists(systemdRuns) {
		return
	}
	type listedGrant struct {
		Mode  grant.Mode
		State grant.State
	}
	var listed struct{ Grants []listedGrant }
	_, err := n.output(program, "check")
	var out []byte
	if err == nil {
		out, err = n.output(program, "grants", "--json")
	}
	if err == nil {
		err = json.Unmarshal(out, &listed)
	}
	inUse := slices.ContainsFunc(listed.Grants, func(g listedGrant) bool {
		return g.Mode == grant.MPS && g.State != grant.Free
	})
	if err != nil || inUse {
		say("MPS daemons stay until the next boot: containers may use them")
		return
	}
	_ = n.run("systemctl", "stop", "gpuledger-mps@*.service")
}
