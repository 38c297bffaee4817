package hostpath

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/hostpath/hostpathtest"
)

// TestTheListOfMountsIsNotReadForUsualSources: it is long on a busy node.
func TestTheListOfMountsIsNotReadForUsualSources(t *testing.T) {
	hostpathtest.OwnMounts(t, "/var/lib")
	hostpathtest.MakePod(t)
	type row struct {
		sources func(s *scene) []string
		read    bool // the list is
		lent    bool // what is mounted below run_dir is looked up
		ours    bool // an alias is in the ledger's directories
	}
	rows := map[string]row{
		"a file system of its own that another one made": {
			func(s *scene) []string { return s.ForeignFileSystem() }, false, true, false},
		"a directory of volumes, behind what is not there": {func(s *scene) []string {
			return []string{"/var/lib/none/../kubelet"} // which no runtime can mount
		}, false, false, false},
		"a subPath": {func(s *scene) []string {
			return []string{s.Mount(s.Path("bundle"), hostpathtest.SubPath, "")}
		}, true, false, false},
		"a subPath of the grants' records": {func(s *scene) []string {
			return []string{s.Mount(s.Tmpfs(s.Path("run/limits")), hostpathtest.SubPath, "")}
		}, true, true, true},
	}
	for name, sources := range hostpathtest.UsualSources {
		rows[name] = row{func(s *scene) []string { return sources(s.NodeDir) }, false, false, false}
	}
	for name, c := range rows {
		s := newScene(t)
		sources, paths, ours := c.sources(s), New(s.node), false
		for _, source := range sources {
			found, err := paths.Elsewhere(paths.Resolve(source), true, false)
			s.Must(err)
			for _, a := range found {
				ours = ours || paths.InLedger(a.Path) && !a.Inside
			}
		}
		if (paths.mounts != nil) != c.read || (paths.lent != nil) != c.lent || ours != c.ours {
			t.Errorf("%s: the list is read: %v, what is lent is looked up: %v, an alias is ours: %v", name,
				paths.mounts != nil, paths.lent != nil, ours)
		}
		s.Unmount()
	}
}

// TestAKernelThatTellsNoMounts: Linux before 5.8 does not report in which mount a file is. Then
// every file on a device of the node's may be elsewhere, too.
func TestAKernelThatTellsNoMounts(t *testing.T) {
	s := newScene(t)
	paths := New(s.node)
	at := paths.Resolve(s.Path("bundle"))
	for mount, want := range map[uint64]bool{at.Mount: false, 0: true} {
		at.Mount = mount
		if got := paths.mayBeElsewhere(at, false); got != want {
			t.Errorf("mount %d: %v", mount, got)
		}
	}
	if at.Dev = 0; paths.mayBeElsewhere(at, false) {
		t.Error("on a device of its own")
	}
	// a pod's own, too
	at = Place{Exists: true,
		ResolvedFile: host.ResolvedFile{Path: "/var/lib/kubelet/pods/u/v", Dev: paths.Resolve("/").Dev}}
	if !paths.mayBeElsewhere(at, false) {
		t.Error("a pod's volume of an unknown mount is nowhere else")
	}
}

// TestPositionsThatAreUnknown: a file of an unknown mount or device is at no other one's place.
func TestPositionsThatAreUnknown(t *testing.T) {
	s := newScene(t)
	paths := New(s.node)
	paths.anchored = []position{{device: 5}, {mount: 3}}
	disk := unix.Mkdev(8, 1)
	for _, c := range []struct {
		name     string
		target   host.ResolvedFile
		pipeLike bool
		want     bool
	}{
		{"a pipe directory of an unknown mount", host.ResolvedFile{Path: "/pipe", Dev: disk}, true, true},
		{"a pipe directory in a mount of the node's", host.ResolvedFile{Path: "/pipe", Dev: disk, Mount: 3},
			true, false},
		{"another directory of an unknown mount", host.ResolvedFile{Path: "/pipe", Dev: disk}, false, false},
		{"a file of an unknown device", host.ResolvedFile{Path: s.Dir, Mount: 7}, false, false},
		{"a file on a device of the node's", host.ResolvedFile{Path: s.Dir, Dev: 5, Mount: 7}, false, true},
	} {
		if got := paths.mayBeElsewhere(Place{ResolvedFile: c.target, Exists: true},
			c.pipeLike); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	for _, path := range []string{"/proc", "/none", s.Path("none")} {
		if paths.isOnShared(host.ResolvedFile{Path: path}) {
			t.Errorf("%s is on a file system that other places show", path)
		}
	}
}

// TestADiskIsOfNoSharedKind: what kind of file system it has is not asked.
func TestADiskIsOfNoSharedKind(t *testing.T) {
	hostpathtest.OwnMounts(t)
	s := newScene(t)
	volume := New(s.node).Resolve(s.Mount("tmpfs", s.Path("volume"), "tmpfs"))
	for device, asks := range map[uint64]bool{volume.Dev: true, unix.Mkdev(8, 1): false} {
		paths := New(s.node)
		volume.Dev = device
		if paths.mayBeElsewhere(volume, false) || (paths.lent != nil) != asks {
			t.Errorf("device %#x: what is lent is looked up: %v", device, paths.lent != nil)
		}
	}
	s.Unmount()
}

// TestEachPositionOnce: each place of each container is compared with them.
func TestEachPositionOnce(t *testing.T) {
	s := newScene(t)
	for _, daemon := range []string{"a", "b"} { // in one mount, as everything in the scene
		s.Mkdir("run/mps/" + daemon + "/pipe")
		s.Mkdir("run/mps/" + daemon + "/shm")
	}
	paths := New(s.node)
	anchored := paths.anchorPositions()
	for i, at := range anchored {
		if slices.Contains(anchored[:i], at) {
			t.Errorf("%+v is there twice: %+v", at, anchored)
		}
	}
	// 0 is for the grants' records, which have no file system here
	if lent, want := paths.lentDevices(), []uint64{0, paths.Resolve(s.Dir).Dev}; !slices.Equal(lent, want) {
		t.Errorf("lent are the devices %v, want %v", lent, want)
	}
}

// TestPlacesOfContainers: which paths of the node are a container's own, and where volumes are
// mounted.
func TestPlacesOfContainers(t *testing.T) {
	for path, want := range map[string]bool{"/var/lib/docker/volumes/v": true,
		"/var/lib/docker/volumes": false, "/var/lib/docker": false, "/": false,
		"/var/lib/kubelet/pods/u/volumes": true, "/var/lib/kubelet/podsx": false,
		"/run/containerd/io.containerd.grpc.v1.cri/sandboxes": true} {
		if isPrivatePlace(path) != want {
			t.Errorf("%s is a container's: %v", path, !want)
		}
	}
	const pods, docker, podman = "/var/lib/kubelet/pods", "/var/lib/docker/volumes",
		"/var/lib/containers/storage/volumes"
	for path, want := range map[string]bool{"/": false, "/var": true, "/var/lib/kubelet": true, pods: true,
		pods + "/u": true, pods + "/u/volumes": true, pods + "/u/volumes/csi": true,
		pods + "/u/volumes/csi/v": false, docker: true, docker + "/v": true, docker + "/v/_data": false,
		podman + "/v": true, podman + "/v/_data": false, "/etc": false, "/var/lib/docker/overlay2": false} {
		if mayHoldVolumes(path) != want {
			t.Errorf("%s may hold volumes: %v", path, !want)
		}
	}
	for _, c := range []struct {
		path, bundle string
		want         bool
	}{
		{pods + "/u", "/b", true}, {"/b/x", "/b", true}, {"/b", "/b", true}, {"/data", "/b", false},
		{"/data", "/", false}, {"/data", ".", false}, {".", ".", false}, {pods + "/u", ".", true},
	} {
		if IsPrivate(c.path, c.bundle) != c.want {
			t.Errorf("%s is private to the container of %s: %v", c.path, c.bundle, !c.want)
		}
	}
}
