package setup

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
)

// restartDue begins the name of a mark that is there from before an engine's files change until the
// engine has read them: where this program is killed in between, it restarts the engine the next
// time. A boot does that, too, and takes the mark away.
const restartDue = "/run/gpuledger-setup.restart-"

// change has the node's gpuledger change an engine's files: args are those of `gpuledger
// configure`.
func (n *node) change(args ...string) error {
	changes, err := n.changes(args)
	if err != nil {
		return err
	}
	if changes {
		if err := host.ReplaceFile(restartDue+args[0], nil, 0o600, host.Volatile); err != nil {
			return err
		}
	}
	return n.run("gpuledger", append([]string{"configure"}, args...)...)
}

// restart has the engine read its files, where they have been changed since it did. Its containers
// live on.
func (n *node) restart(args ...string) error {
	engine := args[0]
	due := restartDue + engine
	if !exists(due) {
		return nil
	}
	if engine != "docker" && !exists(systemdRuns) { // dockerd reads its file at a signal
		say("systemd does not run on this node: restart %s by hand; it goes on as before until then", engine)
		return os.Remove(due)
	}
	err := n.run("gpuledger", append(append([]string{"configure"}, args...), "--restart")...)
	time.Sleep(n.settle)
	if err != nil {
		return err
	}
	return os.Remove(due)
}

// undo takes what configure has written out of an engine's files and has the engine read them.
// Where a distribution of Kubernetes writes its engine's file anew at a restart, undo succeeds only
// after that.
func (n *node) undo(engine string) error {
	failed := n.change(engine, "--undo")
	if !exists(restartDue + engine) {
		return failed
	}
	return n.restart(engine, "--undo")
}

// changes reports whether a configure would change a file that the engine reads, or the engine has
// yet to read it.
func (n *node) changes(args []string) (bool, error) {
	out, err := n.output("gpuledger", append(append([]string{"configure"}, args...), "--dry-run",
		"--json")...)
	var answer struct {
		Files []struct{ Path, Action string }
		Waits string
	}
	// an undo that fails says all the same what it would do
	if err != nil && json.Unmarshal(out, &answer) != nil {
		return false, err
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return false, fmt.Errorf("cannot understand what gpuledger configure %s prints: %w", args[0], err)
	}
	if answer.Waits != "" { // somebody has undone it by hand, and the engine has not read that
		return true, nil
	}
	for _, f := range answer.Files {
		if f.Action != "keep" && f.Path != configFile && !strings.HasPrefix(f.Path, wrapper) {
			return true, nil
		}
	}
	return false, nil
}

// engineFiles are where engines look for their configuration and their hooks, and where k3s and
// RKE2 write it for theirs.
var engineFiles = []string{
	"/etc/containerd/*.toml", "/etc/containerd/*/*.toml",
	"/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*",
	"/etc/docker/daemon.json",
	"/etc/containers/containers.conf", "/etc/containers/containers.conf.d/*.conf",
	"/usr/share/containers/containers.conf",
	"/etc/containers/oci/hooks.d/*.json", "/usr/share/containers/oci/hooks.d/*.json",
	"/var/lib/rancher/*/agent/etc/containerd/*", "/var/lib/rancher/*/agent/etc/containerd/*/*",
}

// namedIn are the places that still name our programs: what configure keeps for an engine, and
// lines of the engines' files. An engine that names a program which is not there starts no
// container any more.
func namedIn(stateDir string) (places []string) {
	records, _ := filepath.Glob(filepath.Join(stateDir, "configure/*/record.json"))
	for _, record := range records {
		engine := filepath.Base(filepath.Dir(record))
		places = append(places, fmt.Sprintf("%s (`gpuledger configure %s --undo --restart`)", record, engine))
	}
	for _, pattern := range engineFiles {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			text, _ := os.ReadFile(file) // a directory has none
			for i, line := range strings.Split(string(text), "\n") {
				line, _, _ = strings.Cut(line, "#")
				if strings.Contains(line, "gpuledger-runtime") || strings.Contains(line, "gpuledger-hook") {
					places = append(places, fmt.Sprintf("%s:%d", file, i+1))
				}
			}
		}
	}
	return places
}
