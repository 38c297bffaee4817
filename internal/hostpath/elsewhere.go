package hostpath

import (
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// A path identifies a file of the node only until the file is mounted at another path, too. The
// kubelet does this for each subPath and each local volume, and Docker for a volume with o=bind.
// The source that the runtime gets is then a path among the container's own, and can show any file
// of the node. docs/adr/0018 says what is looked up, when, and what it costs.

// Alias is another place of a file.
type Alias struct {
	Place
	// Inside says that it is the place of something below the file. A container that gets the place
	// itself gets a directory above that, too.
	Inside bool
}

// pathQuestion is a file, and whether what is mounted below it was asked for, too.
type pathQuestion struct {
	path     string
	inside   bool
	pipeLike bool
}

// Elsewhere returns the other places of a file that a container gets. It leaves out those among
// what engines make for containers, where nothing governs the node. recursive says that the
// container gets what is mounted below the file, too; pipeLike, that it looks like the pipe
// directory of an MPS daemon. An error says that the places are unknown.
func (s *Paths) Elsewhere(p Place, recursive, pipeLike bool) ([]Alias, error) {
	inside := recursive && p.Exists && p.IsDir() && mayHoldVolumes(p.Path)
	asked := pathQuestion{p.Path, inside, pipeLike}
	if known, found := s.elsewhere[asked]; found {
		return known, nil
	}
	var found []Alias
	if inside || s.mayBeElsewhere(p, pipeLike) {
		mounts, err := s.readMounts()
		if err != nil {
			return nil, err
		}
		found = mounts.aliases(p, inside)
	}
	s.elsewhere[asked] = found
	return found, nil
}

// volumeDirs are the directories in which the kubelet and engines mount volumes. names is how many
// names below each the volumes are.
var volumeDirs = []guard{
	{path: "/var/lib/kubelet/pods", names: 4}, {path: "/var/lib/docker/volumes", names: 2},
	{path: "/var/lib/containers/storage/volumes", names: 2},
}

// mayHoldVolumes reports whether volumes are mounted below a directory. Below other directories
// only the administrator mounts, and they are not searched: every container with a directory of the
// node would take longer. Below "/" volumes add nothing, since "/" has their other places, too.
func mayHoldVolumes(path string) bool {
	return path != "/" && slices.ContainsFunc(volumeDirs, func(v guard) bool {
		return Within(v.path, path) ||
			Within(path, v.path) && strings.Count(Below(path, v.path), "/")+1 < v.names
	})
}

// anchors are the directories that hold what governs the node or a GPU, and that may be file
// systems of their own.
var anchors = []string{
	"/", "/run", "/usr", "/etc", "/tmp", "/var", "/var/lib", "/var/lib/kubelet", "/var/lib/containerd",
	"/var/lib/docker", "/var/lib/containers", "/proc", "/sys",
}

// position is a file system, by its device, and a mount of it. A mount of 0 is unknown.
type position struct{ device, mount uint64 }

// mayBeElsewhere reports whether a file can also be at a place that governs the node. Nearly always
// it can answer without the list of mounts, which is long. What the kubelet or an engine keeps of
// the container is in the same mount as their directory of all containers. Any other source is in
// one of the node's few mounts. A volume that is a file system of its own is on a device where
// nothing else is, unless it is one of the ledger's.
func (s *Paths) mayBeElsewhere(p Place, pipeLike bool) bool {
	t := p.ResolvedFile
	if !p.Exists { // then the directory counts in which it would be
		t, _, _ = parting(p.Path)
	}
	private := slices.IndexFunc(privateDirs, func(dir string) bool { return Within(p.Path, dir) })
	if private >= 0 && t.Mount != 0 && s.position(privateDirs[private]).mount == t.Mount {
		return false
	}
	nodes := false // it is in one of the node's mounts
	for _, at := range s.anchorPositions() {
		switch {
		case at.mount == t.Mount && t.Mount != 0:
			nodes = true
		case at.device == t.Dev && t.Dev != 0:
			return true
		}
	}
	switch {
	case nodes:
		return false
	case t.IsSocket(), pipeLike:
		// a socket that is mounted alone loses its name, and the directory may be the whole of a
		// file system
		return true
	}
	// what the ledger has is known by its path
	return unix.Major(t.Dev) == 0 && !isFresh(p.Path) && !s.InLedger(p.Path) && s.isOnShared(t)
}

// isOnShared reports whether a file that is on no disk and on no anchor's device may be elsewhere,
// too. Each subvolume of btrfs has a device of its own. So has each hierarchy of cgroups of version
// 1, and that of version 2 beside them. What gpuledger lends to containers is on small file systems
// below its run directory.
func (s *Paths) isOnShared(t host.ResolvedFile) bool {
	var st unix.Statfs_t
	_ = unix.Statfs(t.Path, &st) // after an error the type is 0
	switch st.Type {
	case unix.BTRFS_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return true
	case unix.TMPFS_MAGIC:
		return slices.Contains(s.lentDevices(), t.Dev)
	}
	return false
}

// lentDevices returns the devices of what gpuledger mounts below its run directory: the file system
// of the grants' records, and the directory and the shared memory of each MPS daemon. They are
// looked up once, and only for a tmpfs that may be one of them.
func (s *Paths) lentDevices() []uint64 {
	if s.lent != nil {
		return s.lent
	}
	mps, dirs := grant.MPSDir(s.node.Policy.RunDir, ""), []string{s.node.Policy.LimitsRoot()}
	names, _ := host.Names(mps) // if there is no such directory: none
	for _, name := range names {
		dirs = append(dirs, filepath.Join(mps, name, "pipe"), filepath.Join(mps, name, "shm"))
	}
	s.lent = []uint64{}
	for _, dir := range dirs {
		if device, _ := host.MountOf(dir); !slices.Contains(s.lent, device) { // 0 if it does not exist
			s.lent = append(s.lent, device)
		}
	}
	return s.lent
}

// fresh are where the kubelet and engines mount file systems that they have just made, which are
// nowhere else: nearly every container has one. Between dir and rest is one name.
var fresh = []struct{ dir, rest string }{
	{"/var/lib/kubelet/pods", "volumes/kubernetes.io~projected"},
	{"/var/lib/kubelet/pods", "volumes/kubernetes.io~secret"},
	{"/var/lib/kubelet/pods", "volumes/kubernetes.io~empty-dir"},
	{"/var/lib/kubelet/pods", "volumes/kubernetes.io~downward-api"},
	{"/run/containerd/io.containerd.grpc.v1.cri/sandboxes", "shm"},
	{"/var/lib/docker/containers", "mounts/shm"},
	{"/run/containers/storage/overlay-containers", "userdata/shm"},
	{"/var/lib/containers/storage/overlay-containers", "userdata/shm"},
}

// isFresh reports whether a path is in one of fresh.
func isFresh(path string) bool {
	for _, f := range fresh {
		if Within(path, f.dir) {
			if _, rest, _ := strings.Cut(Below(path, f.dir), "/"); Within(rest, f.rest) {
				return true
			}
		}
	}
	return false
}

// position looks up the position of a directory.
func (s *Paths) position(dir string) position {
	at, known := s.positions[dir]
	if !known {
		at.device, at.mount = host.MountOf(dir)
		s.positions[dir] = at
	}
	return at
}

// anchorPositions returns the positions of the anchors and of this node's own such directories,
// each once.
func (s *Paths) anchorPositions() []position {
	if s.anchored == nil {
		h := s.node.Host
		own := append(s.ledgerDirs(), h.Dev, filepath.Join(h.Sys, "fs/cgroup"))
		for _, dir := range slices.Concat(anchors, own) {
			if at := s.position(dir); !slices.Contains(s.anchored, at) {
				s.anchored = append(s.anchored, at)
			}
		}
	}
	return s.anchored
}

// readMounts reads the list of mounts, once.
func (s *Paths) readMounts() (*mountTable, error) {
	if s.mounts == nil {
		list, err := s.node.Host.Mounts()
		if err != nil {
			return nil, err
		}
		s.mounts = newMountTable(list)
	}
	return s.mounts, nil
}
