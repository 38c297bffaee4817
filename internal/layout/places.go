package layout

import (
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Unmakeable returns a missing place of an image at which the runtime cannot make a mount point,
// and why; "" if there is none. That is so on a file system that is mounted read-only. It is also
// so in a user namespace, in directories of users that it does not map: its root has no rights
// there.
func Unmakeable(i Image, places []string) (place, why string, err error) {
	r, err := open(i)
	if err != nil {
		return "", "", err
	}
	defer r.root.Close()
	readOnly := r.readOnly()
	if !readOnly && len(i.UIDs) == 0 {
		return "", "", nil
	}
	writable := map[string]bool{}
	for _, place := range places {
		if f, err := host.OpenInRoot(r.root, place); err == nil {
			f.Close()
			continue
		}
		if readOnly {
			return place, "is read-only", nil
		}
		dir := filepath.Dir(place)
		if _, known := writable[dir]; !known {
			writable[dir] = r.writable(dir)
		}
		if !writable[dir] {
			return place, "belongs to users who are not in its user namespace", nil
		}
	}
	return "", "", nil
}

// writable reports whether the user namespace's root can create files in a directory, or in its
// last parent that exists. If that is unknown it is true, and the runtime finds out.
func (r reader) writable(dir string) bool {
	for {
		f, err := host.OpenInRoot(r.root, dir)
		if err != nil {
			if dir == "/" {
				return true
			}
			dir = filepath.Dir(dir)
			continue
		}
		var st unix.Stat_t
		err = unix.Fstat(int(f.Fd()), &st)
		f.Close()
		return err != nil || r.mayWrite(st)
	}
}

// mayWrite reports whether the kernel lets the root of a user namespace write. Root has root's
// rights if it knows both the owner and the group (capable_wrt_inode_uidgid, kernel/capability.c),
// otherwise a normal user's.
func (i Image) mayWrite(st unix.Stat_t) bool {
	const write = 0o3 // write and search permission
	switch {
	case knows(i.UIDs, st.Uid) && knows(i.GIDs, st.Gid):
		return true
	case isRoot(i.UIDs, st.Uid):
		return st.Mode>>6&write == write
	case isRoot(i.GIDs, st.Gid):
		return st.Mode>>3&write == write
	}
	return st.Mode&write == write
}

func knows(ids []specs.LinuxIDMapping, host uint32) bool {
	return slices.ContainsFunc(ids,
		func(m specs.LinuxIDMapping) bool { return host >= m.HostID && host-m.HostID < m.Size })
}

// isRoot reports whether a user or group of the node is the namespace's root.
func isRoot(ids []specs.LinuxIDMapping, host uint32) bool {
	return slices.ContainsFunc(ids,
		func(m specs.LinuxIDMapping) bool { return m.ContainerID == 0 && m.HostID == host && m.Size > 0 })
}
