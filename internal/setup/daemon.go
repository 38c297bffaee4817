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
	if err := n.run("systemctl", "enable", daemonUnit); err != nil {
		return err
	}
	if n.runsOlderDaemon() {
		return n.run("systemctl", "restart", daemonUnit)
	}
	return n.run("systemctl", "start", daemonUnit)
}

// runsOlderDaemon reports whether the daemon that runs is another file than the one that is
// installed: that was put there by rename.
func (n *node) runsOlderDaemon() bool {
	out, err := n.output("systemctl", "show", "--property=MainPID", "--value", daemonUnit)
	pid := strings.TrimSpace(string(out))
	if err != nil || pid == "" || pid == "0" {
		return false
	}
	runs, err := os.Stat("/proc/" + pid + "/exe") // of a file that is removed, too
	if err != nil {
		return false
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
