package setup

import (
	"os"
	"strings"

	"github.com/gpuledger/gpuledger/internal/host"
)

const (
	daemonUnit = "gpuledgerd.service"
	daemon     = "/usr/bin/gpuledgerd"
)

// daemonOptions is the administrator's, once it is there. What we write into it has gpuledgerd
// leave containers to the runtime that engines call, which is what the node is set up with: its NRI
// plugin would judge the others, too.
const (
	daemonOptions  = "/etc/default/gpuledgerd"
	observeOptions = "# Written by gpuledger-setup: beside gpuledger-runtime the NRI plugin records only.\n" +
		"GPULEDGERD_OPTIONS=--nri observe\n"
)

// startDaemon has gpuledgerd run, as the program that is installed now, and at the next boot.
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
	unit, err := n.daemonUnit()
	switch {
	case err != nil:
		return err
	case unit["UnitFileState"] == "masked":
		say("%s is masked on this node: it is left so", daemonUnit)
		return nil
	}
	if err := n.run("systemctl", "enable", daemonUnit); err != nil {
		return err
	}
	if runsOther(unit["MainPID"]) {
		return n.run("systemctl", "restart", daemonUnit)
	}
	return n.run("systemctl", "start", daemonUnit)
}

// daemonUnit is what systemd says of the daemon's unit.
func (n *node) daemonUnit() (map[string]string, error) {
	out, err := n.output("systemctl", "show", "--property=MainPID,UnitFileState", daemonUnit)
	unit := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		unit[name] = value
	}
	return unit, err
}

// runsOther reports whether the daemon's process is of another file than the one that is installed,
// which was put there by rename.
func runsOther(pid string) bool {
	runs, err := os.Stat("/proc/" + pid + "/exe") // of a file that is removed, too
	if err != nil {
		return false // 0: nothing runs
	}
	installed, err := os.Stat(daemon)
	return err == nil && !os.SameFile(runs, installed)
}

// stopDaemon ends gpuledgerd, as removing a package does.
func (n *node) stopDaemon() {
	if exists(systemdRuns) {
		_ = n.run("systemctl", "disable", "--now", daemonUnit)
	}
	if text, _ := os.ReadFile(daemonOptions); string(text) == observeOptions {
		removeFile(daemonOptions)
	}
}
