package setup

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
)

// restartDue is the start of a mark's name. The mark exists from before a change of an engine's
// files until the engine has read them, and has the sockets at which the engine served the kubelet
// before. If this program is killed in between, its next run restarts the engine. A boot has the
// same effect and removes the mark.
const restartDue = "/run/gpuledger-setup.restart-"

// change runs `gpuledger configure` of the node with args, which changes an engine's files.
func (n *node) change(args ...string) (preview, error) {
	p, err := n.preview(args)
	if err != nil {
		return p, err
	}
	if p.changes {
		due := restartDue + args[0]
		served := strings.Join(union(served(due), serving(args[0])), "\n")
		if err := host.ReplaceFile(due, []byte(served), 0o600, host.Volatile); err != nil {
			return p, err
		}
	}
	return p, n.run("gpuledger", append([]string{"configure"}, args...)...)
}

// served are the sockets that a mark has; none without it.
func served(due string) []string {
	text, _ := os.ReadFile(due)
	return strings.Fields(string(text))
}

// restart makes the engine read its files, if they have changed since it read them. The engine's
// containers go on. The error is a *downError if the engine's unit has failed since, or the engine
// serves the kubelet no more.
func (n *node) restart(unit string, args ...string) error {
	engine := args[0]
	due := restartDue + engine
	if !exists(due) {
		return nil
	}
	if engine != "docker" && !exists(systemdRuns) { // dockerd reads its file at a signal
		say("systemd does not run on this node: restart %s by hand; it goes on as before until then", engine)
		return os.Remove(due)
	}
	before := union(served(due), serving(engine)) // the engine may have come up since the mark was made
	err := n.run("gpuledger", append(append([]string{"configure"}, args...), "--restart")...)
	time.Sleep(n.settle)
	down := n.failureOf(unit)
	if down == nil {
		down = lost(unit, before)
	}
	if down != nil {
		return down
	}
	if err != nil {
		return err
	}
	return os.Remove(due)
}

// dropDefault undoes a configure that made gpuledger the default handler, because another
// configure does not take that back. It restarts nothing. Where a distribution writes its engine's
// file anew at the restart, the undo fails until then, but the default is gone from what gpuledger
// wrote.
func (n *node) dropDefault(engine string) error {
	args := []string{engine}
	p, err := n.preview(args)
	if err != nil || !p.stillDefault {
		return err
	}
	_, failed := n.change(engine, "--undo")
	if p, err = n.preview(args); err != nil || !p.stillDefault {
		return err
	}
	return fmt.Errorf("cannot take back that gpuledger is %s's default handler: %w", engine,
		cmp.Or(failed, errors.New("it is the default after an undo")))
}

// undo takes gpuledger's lines out of an engine's files and makes the engine read them. Some
// distributions of Kubernetes write their engine's file anew at a restart; there undo succeeds only
// after it.
func (n *node) undo(engine string) error {
	_ = os.Remove(backedOut + engine)
	p, failed := n.change(engine, "--undo")
	if !exists(restartDue + engine) {
		return failed
	}
	return n.restart(p.unit, engine, "--undo")
}

// preview is what a configure would do.
type preview struct {
	changes bool   // a file that the engine reads, or the engine has yet to read it
	unit    string // the engine's service of systemd; "" if there is none to restart

	// gpuledger is the default handler since an earlier configure, and this one leaves it so
	stillDefault bool

	pids  []int    // of the engine
	files []string // that configure writes
}

// key is another one after a change of an engine's files, after the engine's restart, and with
// another version of gpuledger.
func (p preview) key() string {
	sum := sha256.New()
	fmt.Fprintln(sum, p.pids)
	files := append(p.files, program)
	for _, pattern := range engineFiles {
		found, _ := filepath.Glob(pattern)
		files = append(files, found...)
	}
	for _, path := range files {
		text, _ := os.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// preview reads what `gpuledger configure` prints before it changes anything.
func (n *node) preview(args []string) (p preview, err error) {
	out, err := n.output("gpuledger", append(append([]string{"configure"}, args...), "--dry-run",
		"--json")...)
	var answer struct {
		Files   []struct{ Path, Action string }
		Waits   string
		Restart struct {
			Unit string
			PIDs []int
		}

		StillDefault bool `json:"still_default"`
	}
	// an undo that fails still prints what it would do
	if err != nil && json.Unmarshal(out, &answer) != nil {
		return p, err
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return p, fmt.Errorf("cannot understand what gpuledger configure %s prints: %w", args[0], err)
	}
	p.unit, p.pids, p.stillDefault = answer.Restart.Unit, answer.Restart.PIDs, answer.StillDefault
	p.changes = answer.Waits != "" // configure was undone by hand, and the engine has not read that
	for _, f := range answer.Files {
		p.files = append(p.files, f.Path)
		p.changes = p.changes ||
			f.Action != "keep" && f.Path != configFile && !strings.HasPrefix(f.Path, wrapper)
	}
	return p, nil
}

// engineFiles are the files and directories in which engines, k3s and RKE2 have their configuration
// and their hooks.
var engineFiles = []string{
	"/etc/containerd/*.toml", "/etc/containerd/*/*.toml",
	"/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*",
	"/etc/docker/daemon.json",
	"/etc/containers/containers.conf", "/etc/containers/containers.conf.d/*.conf",
	"/usr/share/containers/containers.conf",
	"/etc/containers/oci/hooks.d/*.json", "/usr/share/containers/oci/hooks.d/*.json",
	"/var/lib/rancher/*/agent/etc/containerd/*", "/var/lib/rancher/*/agent/etc/containerd/*/*",
}

// namedIn are the records of configure and the lines of engines' files that still name gpuledger's
// programs. An engine whose file names a missing program starts no container.
func namedIn(stateDir string) (places []string) {
	records, _ := filepath.Glob(filepath.Join(stateDir, "configure/*/record.json"))
	for _, record := range records {
		engine := filepath.Base(filepath.Dir(record))
		places = append(places, fmt.Sprintf("%s (`gpuledger configure %s --undo --restart`)", record, engine))
	}
	for _, pattern := range engineFiles {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			text, _ := os.ReadFile(file) // a directory has no text
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
