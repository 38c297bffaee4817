package request

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/hostpath/hostpathtest"
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Where the kubelet and an engine keep volumes for a container.
const (
	pod, subPath = hostpathtest.Pod, hostpathtest.SubPath
	volume       = "/var/lib/docker/volumes/v/_data"
)

// TestSourcesThatAreElsewhereToo: what is mounted among a container's own places is what it is
// where it comes from.
func TestSourcesThatAreElsewhereToo(t *testing.T) {
	hostpathtest.OwnMounts(t, "/var/lib", "/run")
	by := func(source string) func(*scene) {
		return func(s *scene) {
			if below, found := strings.CutPrefix(source, "T"); found {
				source = s.Dir + below
			}
			s.bind(s.Mount(source, subPath, ""), "/x")
		}
	}
	never := func(path string) []string {
		return []string{"gpu-socket | mount:/x | " + subPath + " (which is " + path + ") | never"}
	}
	itself := []string{"gpu-socket | mount:/x | " + subPath + " | never"}
	open := func(setup func(*scene)) func(*scene) {
		return func(s *scene) { setup(s); s.addRules("allow c 195:* rw") }
	}
	every := "gpu-device-rule | rule:13 | c 195:* rw | never | -rule:c 195:*"
	for _, c := range []struct {
		name  string
		setup func(*scene)
		hits  []string
		root  bool
	}{
		{"run_dir", by("T/run"), never("T/run"), true},
		{"state_dir", by("T/state"), never("T/state"), true},
		{"a directory below it", func(s *scene) { s.Mkdir("state/grants"); by("T/state/grants")(s) },
			never("T/state/grants"), false},
		{"a file below it", func(s *scene) { by(s.Touch("state/inventory.json"))(s) },
			never("T/state/inventory.json"), false},
		{"a directory in what is mounted", func(s *scene) {
			s.Mkdir("state/grants")
			by("T/state")(s)
			s.spec.Mounts[4].Source += "/grants"
		},
			[]string{"gpu-socket | mount:/x | " + subPath + "/grants (which is T/state/grants) | never"},
			false},
		{"what is not there yet in it", func(s *scene) { by("T/run")(s); s.spec.Mounts[4].Source += "/none" },
			[]string{"gpu-socket | mount:/x | " + subPath + "/none (which is T/run/none) | never"}, false},
		{"a mount of a mount", func(s *scene) {
			by(s.Mount(s.Path("run"), pod+"/volumes/kubernetes.io~local-volume/v", ""))(s)
		}, never("T/run"), true},
		{"run_dir, whose path has blanks and more", func(s *scene) {
			s.node.Policy.RunDir = s.Mkdir("a \\ b\n\tc")
			by(s.node.Policy.RunDir)(s)
		}, never("T/a \\ b\n\tc"), true},
		{"run_dir, as Docker's volume", func(s *scene) { s.bind(s.Mount(s.Path("run"), volume, ""), "/x") },
			[]string{"gpu-socket | mount:/x | " + volume + " (which is T/run) | never"}, true},
		{"run_dir, by a mount of the administrator's", func(s *scene) {
			s.Mount(s.Dir, s.Path("bundle/all"), "")
			s.bind(s.Path("bundle/all/run"), "/x")
		},
			[]string{"gpu-socket | mount:/x | T/bundle/all/run (which is T/run) | never"}, true},
		{"a state_dir that is on another disk by a mount", func(s *scene) {
			s.Mount(s.Mkdir("disk/state"), s.Path("state"), "")
			s.bind(s.Path("disk/state"), "/x")
		},
			[]string{"gpu-socket | mount:/x | T/disk/state (which is T/state) | never"}, true},
		{"the directory above it on that disk", func(s *scene) {
			s.Mount(s.Mkdir("disk/state"), s.Path("state"), "")
			s.bind(s.Path("disk"), "/x")
		}, nil, true},
		{"an overlay over it", func(s *scene) {
			s.Mount(s.Path("state"), subPath, "")
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Options: []string{"lowerdir=/usr:" + subPath}})
		}, []string{"gpu-socket | mount:/x | lowerdir=/usr:" + subPath + " (which is T/state) | never"},
			true},
		{"a root file system in it", func(s *scene) {
			s.spec.Root = &specs.Root{Path: s.Mount(s.Path("run"), subPath, "")}
		}, []string{"gpu-socket | root | " + subPath + " | never"}, true},

		{"a parent of both", by("T"), nil, true},
		{"the node's root", by("/"), nil, true},
		{"the node's root as a user's, perhaps with /proc in it",
			func(s *scene) { by("/")(s); s.nobody() }, nil, true},
		{"/etc as a user's", func(s *scene) { by("/etc")(s); s.nobody() }, nil, false},
		{"/etc", by("/etc"), nil, true},
		{"/etc, read only", func(s *scene) { s.bind(s.Mount("/etc", subPath, ""), "/x", "ro") }, nil, false},
		{"cgroups", by("T/sys/fs/cgroup"), nil, true},
		{"a hierarchy of cgroups", func(s *scene) {
			s.node.Host.Sys = "/sys"
			hierarchy := "/sys/fs/cgroup"
			if exists(hierarchy + "/devices") { // of version 1, each a file system
				hierarchy += "/devices"
			}
			by(hierarchy)(s)
		}, nil, true},
		{"cgroups of version 2 beside those of 1", func(s *scene) {
			by(s.Mount("cgroup2", s.Path("sys/fs/cgroup/unified"), "cgroup2"))(s)
		}, nil, true},
		{"an engine's socket", func(s *scene) {
			l, err := net.Listen("unix", "/run/docker.sock")
			s.Must(err)
			s.T.Cleanup(func() { _ = l.Close() })
			by("/run/docker.sock")(s)
		}, nil, true},
		{"the root file system", func(s *scene) {
			s.spec.Root = &specs.Root{Path: s.Mount("/", subPath, "")}
		}, nil, true},

		{"an MPS daemon's directory", func(s *scene) { by(s.daemon("data/mps"))(s) }, itself, false},
		{"an MPS daemon's directory, with a dead socket", func(s *scene) {
			by(s.deadMPS("data/mps"))(s)
		}, nil, false},
		{"one that is a file system of its own", func(s *scene) {
			s.Mount("tmpfs", s.Path("run/mps/0a1b/pipe"), "tmpfs")
			by(s.daemon("run/mps/0a1b/pipe"))(s)
		}, itself, false},
		{"its socket", func(s *scene) { by(s.daemon("data/mps") + "/control")(s) },
			never("T/data/mps/control"), false},
		{"the socket of one that is a file system of its own", func(s *scene) {
			s.Mount("tmpfs", s.Path("run/mps/0a1b/pipe"), "tmpfs")
			by(s.daemon("run/mps/0a1b/pipe") + "/control")(s)
		}, never("T/run/mps/0a1b/pipe/control"), false},
		{"its shared memory, which is a file system of its own", func(s *scene) {
			by(s.Mount("tmpfs", s.Path("run/mps/0a1b/shm"), "tmpfs"))(s)
		}, never("T/run/mps/0a1b/shm"), false},
		{"the directory of one that has not begun to listen", func(s *scene) {
			by(s.Mount("tmpfs", s.Path("run/mps/0a1b/pipe"), "tmpfs"))(s)
		}, never("T/run/mps/0a1b/pipe"), false},
		{"the room of the grants' records", func(s *scene) {
			by(s.Mount("tmpfs", s.Path("run/limits"), "tmpfs"))(s)
		}, never("T/run/limits"), false},
		{"a grant's in it", func(s *scene) {
			s.Mount("tmpfs", s.Path("run/limits"), "tmpfs")
			by(s.Mkdir("run/limits/g1"))(s)
		}, never("T/run/limits/g1"), false},
		{"a record in it", func(s *scene) {
			s.Mount("tmpfs", s.Path("run/limits"), "tmpfs")
			s.Mkdir("run/limits/g1")
			by(s.Touch("run/limits/g1/limits"))(s)
		}, never("T/run/limits/g1/limits"), false},
		{"a GPU's node", func(s *scene) { by(s.mknod("dev/nvidia0", 195, 0))(s) },
			[]string{"gpu-bind-mount | mount:/x | " + subPath + " (c 195:0) | node=nvidia/0 | -mount:/x"},
			false},
		{"/dev, all GPUs open", open(by("T/dev")), []string{
			every, "gpu-bind-mount | mount:/x | " + subPath + " | drop"}, false},
		{"/dev, nothing open", by("T/dev"), nil, false},

		{"a pod's directory, in which run_dir is mounted", func(s *scene) {
			s.Mount(s.Path("run"), subPath, "")
			s.bind(pod, "/x", "ro")
		}, nil, true},
		{"all pods' directories, with one below state_dir", func(s *scene) {
			s.Mount(s.Mkdir("state/grants"), subPath, "")
			s.bind("/var/lib/kubelet/pods", "/x", "ro")
		}, nil, true},
		{"Docker's directory of such a volume", func(s *scene) {
			s.Mount(s.Path("run"), volume, "")
			s.bind("/var/lib/docker/volumes/v", "/x")
		}, nil, true},
		{"the same, not what is mounted there", func(s *scene) {
			s.Mount(s.Path("run"), volume, "")
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "bind", Source: "/var/lib/docker/volumes/v",
				Options: []string{"bind"}})
		}, nil, false},

		{"a directory of anybody's", by("T/bundle"), nil, false},
		{"a configuration map's file", func(s *scene) {
			s.Must(errors.Join(os.MkdirAll(pod+"/volumes/kubernetes.io~configmap/v", 0o755),
				os.WriteFile(pod+"/volumes/kubernetes.io~configmap/v/f", nil, 0o600)))
			by(pod + "/volumes/kubernetes.io~configmap/v/f")(s)
		}, nil, false},
		{"one file of /etc", by("/etc/passwd"), nil, false},
		{"a pod's directory, in which others are mounted", func(s *scene) {
			s.Mount("tmpfs", pod+"/volumes/kubernetes.io~projected/token", "tmpfs")
			s.Mount(s.Path("bundle"), subPath, "")
			s.bind(pod, "/x", "ro")
		}, nil, false},
		{"a pod's directory, in which run_dir is mounted and covered", func(s *scene) {
			s.Mount(s.Path("run"), subPath, "")
			s.Mount("tmpfs", pod+"/volume-subpaths", "tmpfs")
			s.bind(pod, "/x", "ro")
		}, nil, false},
		{"what was run_dir before another one was mounted over it", func(s *scene) {
			by("T/run")(s)
			s.Mount("tmpfs", s.Path("run"), "tmpfs")
		}, nil, false},
	} {
		s := newScene(t)
		c.setup(s)
		if got := s.hits(); !slices.Equal(got, c.hits) {
			t.Errorf("%s: found\n  %s\nwant\n  %s", c.name, strings.Join(got, "\n  "),
				strings.Join(c.hits, "\n  "))
		}
		way := func(w string) bool { return w == "mount:/x" || w == "root" }
		if r := s.find(); slices.ContainsFunc(r.NodeRoot, way) != c.root {
			t.Errorf("%s: node-root %q", c.name, r.NodeRoot)
		}
		s.Unmount()
	}
}

// TestTheListOfMountsIsNotAskedForUsualSources: it is long on a busy node. Without the list Find
// notes each source for which it asks.
func TestTheListOfMountsIsNotAskedForUsualSources(t *testing.T) {
	hostpathtest.OwnMounts(t, "/var/lib", "/run")
	hostpathtest.MakePod(t)
	type row struct {
		sources func(s *scene) []string
		asked   bool
	}
	rows := map[string]row{
		"a file system of its own that another one made": {
			func(s *scene) []string { return s.ForeignFileSystem() }, false},
		"a daemon's directory in the ledger's, by its path": {func(s *scene) []string {
			s.Tmpfs(s.Path("run/mps/0a1b/pipe"))
			return []string{s.mps("run/mps/0a1b/pipe")}
		}, false},
		"root's usual directory of a daemon, by its path": {func(s *scene) []string {
			dir := s.Tmpfs("/run/nvidia-mps")
			s.Must(errors.Join(unix.Mknod(dir+"/control", unix.S_IFSOCK|0o600, 0),
				os.WriteFile(dir+"/control_lock", nil, 0o600)))
			return []string{dir}
		}, false},
		"an image that looks like a daemon's directory": {func(s *scene) []string {
			s.Mkdir("bundle/rootfs")
			s.Tmpfs(s.Path("bundle/rootfs"))
			s.rooted()
			s.mps("bundle/rootfs")
			return nil
		}, false},
		"an image elsewhere, on a file system of its own": {func(s *scene) []string {
			s.spec.Root = &specs.Root{Path: s.Tmpfs(s.Path("image"))}
			return nil
		}, false},
		"a daemon's directory on a file system of its own": {func(s *scene) []string {
			s.Tmpfs(s.Path("own"))
			return []string{s.mps("own")}
		}, true},
		"a subPath": {func(s *scene) []string {
			return []string{s.Mount(s.Path("bundle"), subPath, "")}
		}, true},
	}
	for name, sources := range hostpathtest.UsualSources {
		rows[name] = row{func(s *scene) []string { return sources(s.NodeDir) }, false}
	}
	for name, c := range rows {
		s := newScene(t)
		for _, source := range c.sources(s) {
			s.bind(source, "/x")
		}
		s.Must(os.Remove(s.Path("proc/thread-self")))
		noted := s.find().Noted
		asked := slices.ContainsFunc(noted, func(text string) bool {
			return strings.Contains(text, "another place")
		})
		if asked != c.asked {
			t.Errorf("%s: asked for the list: %v; noted %q", name, asked, noted)
		}
		s.Unmount()
	}
}

// TestWithoutTheListOfMounts: a source that may be anything starts, and is recorded as that.
func TestWithoutTheListOfMounts(t *testing.T) {
	hostpathtest.OwnMounts(t, "/var/lib")
	s := newScene(t)
	s.bind(s.Mount(s.Path("bundle"), subPath, ""), "/x")
	s.Must(os.Remove(s.Path("proc/thread-self")))
	if r := s.find(); !slices.Contains(r.NodeRoot, "mount:/x") || len(r.Hits) > 0 || len(r.Noted) != 1 ||
		!strings.HasPrefix(r.Noted[0], "mount:/x may be another place of the node: cannot read the list "+
			"of mounts: ") {
		t.Errorf("node-root %q, hits %v, noted %q", r.NodeRoot, r.Hits, r.Noted)
	}
	s.Unmount()
}
