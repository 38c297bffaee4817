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

// The bounds of what one create looks at for the names that are listed. Of maxNames distinct names
// it keeps the text. It looks at the first maxListed of them wherever they lead, and of the others
// at those below the directories that the container mounts. A name that leads nowhere costs
// one system call. maxRoots and maxUsers are how many sockets that root, or users, have bound are
// then looked at for a daemon, some twenty system calls each.
const maxNames, maxListed, maxRoots, maxUsers = 200_000, 5_000, 10_000, 200

// candidates returns the directories that may be the pipe directory of an MPS daemon, each once: of
// the control sockets that /proc/net/unix lists as listening, and root's default paths. It keeps
// the names that it has not looked at for candidatesBelow.
//
// Any program on the node's network can bind as many sockets as it likes, and forge lines of the
// list, which then has any path (host.EachListening). So a name only says where to look: a
// directory counts by the socket that is there, and by the process that listens on it. The usual
// places and the directories of gpuledger's own daemons are looked at in any case: no user can make
// more of them. Sockets that root has bound, and names on other mounts, are never left out for
// those of users: no other process can be the node's daemon.
//
// What is left, each with the reason in the audit log (Seen.unlisted): with more than maxNames
// names (100,000 sockets or more), or a list of more than 256 MiB, a program can hide a daemon of
// root at an unusual place from a mount of a directory above it; with maxListed names it can hide
// one that was told a link, from a mount above the link's target; root in a container on the node's
// network can with maxRoots sockets of its own below the mount. That mount then passes. A mount of
// the daemon's directory itself is refused in any case.
func (ps *pipes) candidates() []string {
	sure, listed, err := ps.listed()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		ps.seen.unlisted = fmt.Sprintf("not all places were searched for MPS daemons: %v", err)
	}
	if len(listed) > maxListed {
		ps.tooMany(maxListed)
		listed, ps.seen.unseen = listed[:maxListed], listed[maxListed:]
	}
	return append(sure, ps.sorted(listed)...)
}

// candidatesBelow returns those of the names that were not looked at yet which are below a
// directory, or are the directory.
func (ps *pipes) candidatesBelow(top string) []string {
	var below []string
	ps.seen.unseen = slices.DeleteFunc(ps.seen.unseen, func(dir string) bool {
		is := hostpath.Within(dir, top)
		if is {
			below = append(below, dir)
		}
		return is
	})
	return ps.sorted(below)
}

// sorted returns those of the listed directories that have a socket, or may have one because they
// are on another mount. Those of users are the last, and only some of them.
func (ps *pipes) sorted(listed []string) []string {
	var roots, users, away []string
	tops := map[string]host.Top{}
	for _, dir := range listed {
		top, rest := ps.walkOf(dir)
		at, open := tops[top]
		if !open {
			at = host.OpenTop(top)
			if top != dir { // else it is for this name alone
				defer at.Close()
				tops[top] = at
			}
		}
		t, err := at.Status(filepath.Join(rest, controlSocket))
		if top == dir {
			at.Close()
		}
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
	return slices.Concat(ps.atMost(maxRoots, &ps.seen.roots, roots), away,
		ps.atMost(maxUsers, &ps.seen.users, users))
}

// atMost returns the first of some directories, so that this create has looked at no more than so
// many of their kind.
func (ps *pipes) atMost(most int, looked *int, dirs []string) []string {
	if len(dirs) > most-*looked {
		ps.tooMany(most)
		dirs = dirs[:most-*looked]
	}
	*looked += len(dirs)
	return dirs
}

// tooMany keeps for the audit log that not all names were looked at.
func (ps *pipes) tooMany(most int) {
	ps.seen.unlisted = fmt.Sprintf("more than %d directories have a listening socket called %s, by "+
		"/proc/net/unix: not all of them were searched for an MPS daemon", most, controlSocket)
}

// unsearched notes why a daemon of MPS may not have been found.
func unsearched(f *containerFacts) (found vectorResult) {
	if why := f.pipes.seen.unlisted; why != "" {
		found.note(why)
	}
	return found
}

// listed returns directories of listening control sockets by the names to which they were bound, at
// most maxNames. sure are those where only root makes sockets, and the usual places;
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
		case len(others) < maxNames:
			others = append(others, dir)
		default:
			ps.tooMany(maxNames)
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
