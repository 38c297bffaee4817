package layout

import (
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Unmakeable finds a place of an image where nothing is and where the container's runtime can make
// nothing to mount over, and says why; "" where there is none. That is so on a file system that is
// mounted read-only, and in a user namespace in directories of users whom it does not know: its
// root is nobody there.
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

// writable reports whether the user namespace's root can make something in a directory, or in the
// last one on the way to it that is there. What cannot be told is left to the runtime.
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

// mayWrite is the kernel's rule for a root of a user namespace: it is root where it knows both the
// owner and the group (capable_wrt_inode_uidgid, kernel/capability.c), else it is one user among
// others.
func (i Image) mayWrite(st unix.Stat_t) bool {
	const write = 0o3 // and search
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
