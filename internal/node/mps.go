package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// mpsVersion is the version of the file that gpuledgerd writes about an MPS daemon.
const mpsVersion = 1

// maxMPS bounds that file, in bytes.
const maxMPS = 64 << 10

// MPSState is what gpuledgerd wrote about the daemon in a directory. Of another boot or another version nothing is known.
func (n *Node) MPSState(dir string) (grant.MPSDaemon, bool) {
	var m grant.MPSDaemon
	data, err := host.ReadFile(filepath.Join(dir, "state.json"), maxMPS)
	if err != nil || json.Unmarshal(data, &m) != nil || m.Version != mpsVersion {
		return grant.MPSDaemon{}, false
	}
	boot, err := n.Host.BootID()
	return m, err == nil && boot == m.BootID
}

// SetMPSState replaces it.
func (n *Node) SetMPSState(dir string, m grant.MPSDaemon) (err error) {
	m.Version = mpsVersion
	if m.BootID, err = n.Host.BootID(); err != nil {
		return err
	}
	data, err := json.Marshal(m, jsontext.WithIndent("  "), json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("internal error: cannot encode the state of an MPS daemon: %w", err)
	}
	return host.ReplaceFile(filepath.Join(dir, "state.json"), append(data, '\n'), 0o600, host.Volatile)
}

// daemonsOf are the daemons of grants. Whether they run is asked of the kernel: gpuledgerd may be dead, or not have noticed yet.
func daemonsOf(n *Node, grants []grant.Grant) (daemons []grant.MPSDaemon) {
	for _, g := range grants {
		if g.Mode != grant.MPS {
			continue
		}
		if m, known := daemonIn(n, grant.MPSDir(n.Policy.RunDir, grant.MPSName(g.UUIDs()))); known {
			daemons = append(daemons, m)
		}
	}
	return daemons
}

// allDaemons are the daemons of the node, for a container whose grant is still to be placed.
func allDaemons(n *Node) (daemons []grant.MPSDaemon) {
	names, _ := os.ReadDir(grant.MPSDir(n.Policy.RunDir, ""))
	for _, name := range names {
		if m, known := daemonIn(n, grant.MPSDir(n.Policy.RunDir, name.Name())); known {
			daemons = append(daemons, m)
		}
	}
	return daemons
}

// MPSServes reports whether a process is a server of one of gpuledgerd's MPS daemons for a GPU: one that it knows, or one that the daemon,
// which starts its servers itself, has started since.
func (n *Node) MPSServes(uuid string, p grant.Process) bool {
	names, _ := os.ReadDir(grant.MPSDir(n.Policy.RunDir, ""))
	for _, name := range names {
		m, known := n.MPSState(grant.MPSDir(n.Policy.RunDir, name.Name()))
		if known && slices.Contains(m.GPUs, uuid) && (slices.Contains(m.Servers, p) || isChild(n, p, m.Daemon)) {
			return true
		}
	}
	return false
}

// isChild reports whether one process was started by another and both are there.
func isChild(n *Node, p, of grant.Process) bool {
	above, _, err := n.Host.Process(of.PID)
	if err != nil || above != of {
		return false
	}
	now, parent, err := n.Host.Process(p.PID)
	return err == nil && now == p && parent == of.PID
}

func daemonIn(n *Node, dir string) (grant.MPSDaemon, bool) {
	m, known := n.MPSState(dir)
	if !known || m.Problem != "" {
		return m, known
	}
	for _, p := range append([]grant.Process{m.Daemon}, m.Servers...) {
		if runs, err := n.Host.Runs(p); err != nil || !runs {
			m.Problem = fmt.Sprintf("its process %d has ended", p.PID)
		}
	}
	switch socket, mode, is := MPSSocket(dir); {
	case !is: // a client that finds no daemon goes on without one, with the whole GPU (NVIDIA's documentation of MPS)
		m.Problem = "it has no control socket"
	case m.Socket != [2]uint64{} && m.Socket != socket:
		m.Problem = OtherSocket
	case m.Anybody && (mode&0o002 == 0 || !searchable(filepath.Dir(MPSSocketPath(dir)))): // one of its clients is root in its container
		m.Problem = "users other than root do not reach its control socket"
	}
	return m, true
}

// OtherSocket is the problem of a daemon whose clients, or one of them, has put another socket where new ones look for it.
const OtherSocket = "its control socket was replaced by another"

// MPSSocket is which file the control socket of the daemon in a directory is, by device and inode, and its mode. The daemon keeps the
// inode from being another file's for as long as it lives.
func MPSSocket(dir string) (which [2]uint64, mode uint32, is bool) {
	var st unix.Stat_t
	err := unix.Lstat(MPSSocketPath(dir), &st)
	return [2]uint64{uint64(st.Dev), st.Ino}, st.Mode, err == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// MPSSocketPath is where clients look for it.
func MPSSocketPath(dir string) string { return filepath.Join(dir, "pipe/control") }

// searchable reports whether anybody may look for a name in a directory.
func searchable(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Mode&0o001 != 0
}
