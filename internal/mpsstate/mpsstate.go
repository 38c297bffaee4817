// Package mpsstate reads and writes state.json, in which gpuledgerd records what it knows of each
// MPS daemon: its process, its servers, their limits, or why it is not ready. A create reads the
// file without asking gpuledgerd. It also asks the kernel whether those processes still run:
// gpuledgerd may have ended, or may not have noticed yet that a daemon has. Package mps runs the
// daemons.
package mpsstate

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// version is the version of the file that gpuledgerd writes about an MPS daemon.
const version = 1

// maxState bounds that file, in bytes.
const maxState = 64 << 10

// Read returns what gpuledgerd wrote about the daemon in a directory. It returns false for a file
// of another boot or version.
func Read(h host.Host, dir string) (grant.MPSDaemon, bool) {
	return readFrom(h, filepath.Join(dir, "state.json"))
}

func readFrom(h host.Host, path string) (grant.MPSDaemon, bool) {
	var s state
	data, err := host.ReadFile(path, maxState)
	if err != nil || tokens.Whole(data, s.read) != nil || s.Version != version {
		return grant.MPSDaemon{}, false
	}
	boot, err := h.BootID()
	return grant.MPSDaemon(s), err == nil && boot == s.BootID
}

// Write replaces that file.
func Write(h host.Host, dir string, m grant.MPSDaemon) error {
	return writeTo(h, filepath.Join(dir, "state.json"), m)
}

func writeTo(h host.Host, path string, m grant.MPSDaemon) (err error) {
	m.Version = version
	if m.BootID, err = h.BootID(); err != nil {
		return err
	}
	data, err := state(m).encode()
	if err != nil {
		return fmt.Errorf("internal error: cannot encode the state of an MPS daemon: %w", err)
	}
	return host.ReplaceFile(path, append(data, '\n'), 0o600, host.Volatile)
}

// ForGrants returns the daemons of grants in mode mps. It asks the kernel whether they run, because
// gpuledgerd may have ended.
func ForGrants(h host.Host, run string, grants []grant.Grant) (daemons []grant.MPSDaemon) {
	for _, g := range grants {
		if g.Mode != grant.MPS {
			continue
		}
		if m, known := daemonIn(h, grant.MPSDir(run, grant.MPSName(g.UUIDs()))); known {
			daemons = append(daemons, m)
		}
	}
	return daemons
}

// All returns all daemons of the node, for a container that has no grant yet.
func All(h host.Host, run string) (daemons []grant.MPSDaemon) {
	names, _ := os.ReadDir(grant.MPSDir(run, ""))
	for _, name := range names {
		if m, known := daemonIn(h, grant.MPSDir(run, name.Name())); known {
			daemons = append(daemons, m)
		}
	}
	return daemons
}

// Serves reports whether a process is a server of one of gpuledgerd's MPS daemons for a GPU:
// gpuledgerd knows it, or the daemon, which starts its servers itself, has started it since.
func Serves(h host.Host, run, uuid string, p grant.Process) bool {
	names, _ := os.ReadDir(grant.MPSDir(run, ""))
	for _, name := range names {
		m, known := Read(h, grant.MPSDir(run, name.Name()))
		if known && slices.Contains(m.GPUs, uuid) && (slices.Contains(m.Servers, p) ||
			Descends(h, p, m.Daemon)) {
			return true
		}
	}
	return false
}

// maxDepth is how many parents of a process are followed.
const maxDepth = 8

// Descends reports whether a process is a descendant of another, and both still run.
func Descends(h host.Host, p, of grant.Process) bool {
	above, _, err := h.Process(of.PID)
	if err != nil || above != of {
		return false
	}
	now, parent, err := h.Process(p.PID)
	if err != nil || now != p {
		return false
	}
	for range maxDepth {
		if parent == of.PID {
			return true
		}
		if parent <= 1 {
			return false
		}
		if _, parent, err = h.Process(parent); err != nil {
			return false
		}
	}
	return false
}

func daemonIn(h host.Host, dir string) (grant.MPSDaemon, bool) {
	m, known := Read(h, dir)
	if !known || m.Problem != "" {
		return m, known
	}
	for _, p := range append([]grant.Process{m.Daemon}, m.Servers...) {
		if runs, err := h.Runs(p); err != nil || !runs {
			m.Problem = fmt.Sprintf("its process %d has ended", p.PID)
		}
	}
	privileged, _, _ := Socket(PrivilegedPath(dir))
	switch socket, mode, is := Socket(SocketPath(dir)); {
	case !is:
		// A client that finds no daemon goes on without one, with the whole GPU (NVIDIA's
		// documentation of MPS).
		m.Problem = "it has no control socket"
	case m.Socket != [2]uint64{} && m.Socket != socket:
		m.Problem = OtherSocket
	case m.Privileged != [2]uint64{} && m.Privileged != privileged:
		m.Problem = OtherPrivileged
	case m.Anybody && (mode&0o002 == 0 ||
		!searchable(filepath.Dir(SocketPath(dir)))): // one of its clients is root in its container
		m.Problem = "users other than root do not reach its control socket"
	}
	return m, true
}

// OtherSocket is the problem of a daemon whose control socket was replaced. Any of its clients can
// do that.
const OtherSocket = "its control socket was replaced by another"

// OtherPrivileged is the same for the socket to which programs of root connect first.
const OtherPrivileged = "its control socket for root was replaced by another"

// Socket returns device, inode and mode of a socket. While its daemon lives, no other file gets the
// inode.
func Socket(path string) (which [2]uint64, mode uint32, is bool) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return [2]uint64{uint64(st.Dev), st.Ino}, st.Mode, err == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// SocketPath is where clients look for the control socket of the daemon in a directory.
func SocketPath(dir string) string { return filepath.Join(dir, "pipe/control") }

// PrivilegedPath is where NVIDIA's control program looks first, if root runs it.
func PrivilegedPath(dir string) string { return filepath.Join(dir, "pipe/control_privileged") }

// searchable reports whether all users may look up names in a directory.
func searchable(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Mode&0o001 != 0
}
