package request

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/hostpath"
)

// The bounds of what one create looks at for the names that are listed: maxListed directories for a
// socket, and maxPipes of those for a daemon. Each of the former takes some six system calls.
const maxListed, maxPipes = 1000, 200

// candidates returns the directories that may be the pipe directory of an MPS daemon, each once: of
// the control sockets that /proc/net/unix lists as listening, and root's default paths.
//
// Any program on the node's network can bind as many sockets as it likes, and forge lines of the
// list, which then has any path (host.EachListening). So a name only says where to look: a
// directory counts by the socket that is there, and by the process that listens on it. Where there
// are too many names, the usual places and the directories of gpuledger's own daemons are looked at
// in any case: no user can make more of them. Then come sockets that root has bound, since no other
// process can be the node's daemon, and those of users last.
//
// What is left: a program with more than maxListed names can hide a daemon of root at an unusual
// place from a mount of a directory above it. That mount then passes, and the audit log has the
// reason (Seen.unlisted). A mount of the daemon's directory itself is refused as before.
func (ps *pipes) candidates() []string {
	sure, listed, err := ps.listed()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		ps.seen.unlisted = fmt.Sprintf("only the usual places were searched for MPS daemons: %v", err)
	}
	if len(listed) > maxListed {
		ps.tooMany(maxListed)
		listed = listed[:maxListed]
	}
	var roots, users, away []string
	for _, dir := range listed {
		top, rest := ps.walkOf(dir)
		t, err := host.ResolveWithin(top, filepath.Join(rest, controlSocket))
		switch {
		case errors.Is(err, unix.EXDEV): // another mount is not touched
			away = append(away, dir)
		case err != nil || !t.IsSocket():
		case t.UID == 0:
			roots = append(roots, dir)
		default:
			users = append(users, dir)
		}
	}
	dirs := slices.Concat(sure, roots, away, users)
	if len(dirs) > maxPipes {
		ps.tooMany(maxPipes)
		dirs = dirs[:maxPipes]
	}
	return dirs
}

// tooMany keeps for the audit log that not all names were looked at.
func (ps *pipes) tooMany(most int) {
	ps.seen.unlisted = fmt.Sprintf("more than %d directories have a listening socket called %s, by "+
		"/proc/net/unix: not all of them were searched for an MPS daemon", most, controlSocket)
}

// listed returns directories of listening control sockets by the names to which they were bound, at
// most one more than maxListed. sure are those where only root makes sockets, and the usual places;
// after an error, all that there may be of these.
func (ps *pipes) listed() (sure, others []string, err error) {
	mps := grant.MPSDir(ps.runDir, "")
	own, _ := host.Names(mps) // no such directory: gpuledger has no daemon
	seen := map[string]bool{}
	err = host.EachListening(filepath.Join(ps.host.Proc, "net/unix"), controlSocket, func(path string) bool {
		if hostpath.Within(path, "/var/run") {
			path = path[len("/var"):]
		}
		dir := filepath.Dir(path)
		isOurs := ps.ofOurDaemon(dir) && slices.Contains(own, filepath.Base(filepath.Dir(dir)))
		switch {
		case seen[dir]:
			return true
		case isOurs || slices.Contains(mpsDefaults, dir):
			sure = append(sure, dir)
		case len(others) <= maxListed:
			others = append(others, dir)
		default:
			return true
		}
		seen[dir] = true
		return true
	})
	for _, dir := range mpsDefaults {
		if !seen[dir] && (err != nil || hostpath.Within(dir, rootsOwn)) {
			sure = append(sure, dir)
		}
	}
	if err != nil {
		for _, name := range own {
			if dir := filepath.Join(mps, name, "pipe"); !seen[dir] {
				sure = append(sure, dir)
			}
		}
	}
	return sure, others, err
}

// walkOf returns the mount on which a listed directory is walked to, and the rest of its path.
func (ps *pipes) walkOf(dir string) (top, rest string) {
	top = localMounts[slices.IndexFunc(localMounts,
		func(mount string) bool { return hostpath.Within(dir, mount) })]
	if ps.ofOurDaemon(dir) {
		top = dir
	}
	return top, hostpath.Below(dir, top)
}
