package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Who is in a container's cgroup has its device rules, and so its GPUs. So each binding has a link
// by the name of each cgroup that its container may get: a create asks for those on the way to its
// own, and for no other, however many bindings there are.

func (l *Ledger) cgroupsDir() string { return filepath.Join(l.Run, "cgroups") }
func (l *Ledger) createsDir() string { return filepath.Join(l.Run, "creates") }

func (l *Ledger) cgroupLink(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(l.cgroupsDir(), hex.EncodeToString(sum[:])[:keyDigits])
}

// occupy links cgroups, by paths from the root of each hierarchy, and units, by names without a
// path, to a binding. The links stay when the binding goes, and mean nothing then.
func (tx *Tx) occupy(key string, cgroups []string) error {
	if len(cgroups) == 0 {
		return nil
	}
	err := ensureDir(tx.l.cgroupsDir())
	for _, path := range cgroups {
		if err == nil {
			err = replaceLink("../bindings/"+key+".json", tx.l.cgroupLink(path))
		}
	}
	return err
}

// unoccupy takes those of the links away that still lead to the binding.
func (tx *Tx) unoccupy(key string, cgroups []string) {
	for _, path := range cgroups {
		if target, _ := os.Readlink(tx.l.cgroupLink(path)); target == "../bindings/"+key+".json" {
			_ = os.Remove(tx.l.cgroupLink(path))
		}
	}
}

// Occupies reports whether any container was bound in this boot that is to be found by its cgroup.
// It costs one system call.
func (l *Ledger) Occupies() bool {
	_, err := os.Lstat(l.cgroupsDir())
	return err == nil
}

// Occupied reports whether a cgroup or unit is that of a container with a binding that may be
// alive, but for the caller's own, or below such a cgroup, but for those that one may be below.
func (tx *Tx) Occupied(cgroups []string, own func(grant.Binding) bool,
	mayBeBelow func(b grant.Binding, path string) bool) bool {
	for _, cgroup := range cgroups {
		for path := cgroup; path != "/" && path != "."; path = filepath.Dir(path) {
			target, err := os.Readlink(tx.l.cgroupLink(path))
			if err != nil {
				continue
			}
			b, err := tx.load(strings.TrimSuffix(filepath.Base(target), ".json"))
			switch {
			case errors.Is(err, fs.ErrNotExist):
				continue
			case err != nil: // whose it is cannot be told
				return true
			case own(b), !slices.Contains(b.Occupies, path), path != cgroup && mayBeBelow(b, path):
				continue
			}
			if tx.l.Containers.Examine(&b); b.Life != grant.Dead {
				return true
			}
		}
	}
	return false
}

// OccupiedBelow reports whether a container with a binding that may be alive, but for the caller's
// own, is in a cgroup below one of these. It reads all bindings.
func (tx *Tx) OccupiedBelow(cgroups []string, own func(grant.Binding) bool) bool {
	for _, key := range tx.keys("") {
		b, err := tx.load(key)
		below := err == nil && !own(b) && slices.ContainsFunc(b.Occupies, func(path string) bool {
			return slices.ContainsFunc(cgroups, func(above string) bool {
				return strings.HasPrefix(path, strings.TrimSuffix(above, "/")+"/")
			})
		})
		if !below {
			continue
		}
		if tx.l.Containers.Examine(&b); b.Life != grant.Dead {
			return true
		}
	}
	return false
}

// inFlight is how long a create of another pid namespace is taken to be under way: whether it still
// is cannot be asked from here.
const inFlight = time.Minute

// Announce records that the calling process creates a container in cgroups, until that process
// ends: the real runtime keeps its pid. Who binds a container later looks for it there, where the
// cgroup is still empty.
func (l *Ledger) Announce(cgroups []string) error {
	name, err := l.announcement()
	if err == nil {
		err = ensureDir(l.createsDir())
	}
	if err != nil {
		return err
	}
	l.Announced(nil) // of creates that are over
	return host.ReplaceFile(filepath.Join(l.createsDir(), name), []byte(strings.Join(cgroups, "\x00")),
		0o600, host.Volatile)
}

// announcement names the calling process.
func (l *Ledger) announcement() (string, error) {
	self, err := l.Host.Self()
	if err != nil {
		return "", err
	}
	pids, err := l.Containers.Here.PIDNS()
	return fmt.Sprintf("%d-%d-%d", pids, self.PID, self.Start), err
}

// Announced reports whether another process creates a container in one of the cgroups, or below it.
// It forgets creates whose process has ended.
func (l *Ledger) Announced(cgroups []string) bool {
	names, _ := host.Names(l.createsDir()) // if there is no directory: none
	if len(names) == 0 {
		return false
	}
	own, err := l.announcement()
	if err != nil {
		return false
	}
	found := false
	for _, name := range names {
		path := filepath.Join(l.createsDir(), name)
		if name == own || name[0] == '.' {
			continue
		}
		if !l.underWay(name, path) {
			_ = os.Remove(path)
			continue
		}
		data, err := host.ReadRegular(path, maxFile)
		found = found || err == nil && anyWithin(strings.Split(string(data), "\x00"), cgroups)
	}
	return found
}

// anyWithin reports whether one of several paths is one of several others, or below it.
func anyWithin(paths, others []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		return slices.ContainsFunc(others, func(other string) bool {
			return path == other || strings.HasPrefix(path, other+"/")
		})
	})
}

// underWay reports whether the process of an announcement may still run.
func (l *Ledger) underWay(name, path string) bool {
	words := strings.Split(name, "-")
	if len(words) != 3 {
		return false
	}
	ns, _ := strconv.ParseUint(words[0], 10, 64)
	pid, err := strconv.Atoi(words[1])
	start, _ := strconv.ParseUint(words[2], 10, 64)
	if pids, e := l.Containers.Here.PIDNS(); e != nil || ns != pids {
		var st unix.Stat_t
		return unix.Lstat(path, &st) == nil && time.Since(time.Unix(st.Mtim.Unix())) < inFlight
	}
	runs, unknown := l.Host.Runs(grant.Process{PID: pid, Start: start})
	return err == nil && (runs || unknown != nil)
}

// repairOccupied makes each binding have its links, takes those away that lead nowhere, and forgets
// creates that are over.
func (s *survey) repairOccupied() {
	l, linked := s.tx.l, map[string]string{}
	for key, b := range s.bindings {
		for _, path := range b.Occupies {
			linked[l.cgroupLink(path)] = key
		}
	}
	for _, name := range s.list(l.cgroupsDir()) {
		path := filepath.Join(l.cgroupsDir(), name)
		target, err := os.Readlink(path)
		key := strings.TrimSuffix(filepath.Base(target), ".json")
		switch _, broken := s.broken[key]; {
		case err != nil, broken:
		case linked[path] == "":
			s.remove(path, "link of a cgroup to a binding that is gone")
		case linked[path] == key:
			delete(linked, path)
		}
	}
	for path, key := range linked {
		err := ensureDir(l.cgroupsDir())
		if err == nil {
			err = replaceLink("../bindings/"+key+".json", path)
		}
		s.repaired(path, "the link of a cgroup to its binding is missing", err)
	}
	l.Announced(nil)
}
