package inject

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/host"
)

// scene is a container as a runtime has it while hooks run: an init that waits in a mount namespace
// of its own, where the root file system is mounted and entered by nobody yet.
type scene struct {
	*testing.T
	dir, rootfs, canary string
	target              Target
}

func newScene(t *testing.T, setup string) *scene {
	if os.Geteuid() != 0 {
		t.Skip("needs root: what is injected into a live container is not tested")
	}
	dir := t.TempDir()
	s := &scene{T: t, dir: dir, rootfs: filepath.Join(dir, "rootfs"), canary: filepath.Join(dir, "canary")}
	for _, d := range []string{"rootfs/dev", "rootfs/proc", "rootfs/usr/lib", "rootfs/etc", "canary"} {
		s.must(os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	s.must(os.WriteFile(s.dir+"/library", []byte("the host's"), 0o644))
	script := "set -e; cd " + s.dir + "; mount --bind rootfs rootfs; mount -t tmpfs tmpfs rootfs/dev; " +
		setup + "; echo ready; exec cat"
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Stderr = os.Stderr
	// It ends with this process, by the end of its input. A signal at the parent's death would come
	// from the thread that starts it, and Into ends threads.
	_, piped := cmd.StdinPipe()
	s.must(piped)
	out, err := cmd.StdoutPipe()
	s.must(err, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the container does not come up: %q, %v", line, err)
	}
	s.target = Target{Host: host.Default(), PID: cmd.Process.Pid, Parent: os.Getpid(), Rootfs: s.rootfs}
	return s
}

func (s *scene) must(errs ...error) {
	s.Helper()
	for _, err := range errs {
		if err != nil {
			s.Fatal(err)
		}
	}
}

// inside is a path of the container, seen from here.
func (s *scene) inside(name string) string {
	return fmt.Sprintf("/proc/%d/root%s%s", s.target.PID, s.rootfs, name)
}

// untouched wants nothing of the host changed.
func (s *scene) untouched() {
	s.Helper()
	if entries, err := os.ReadDir(s.canary); err != nil || len(entries) > 0 {
		s.Errorf("the canary is touched: %v, %v", entries, err)
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if s.must(err); strings.Contains(string(info), s.dir) {
		s.Errorf("a mount has come to the host")
	}
}

func node(path string, minor int64) *cdispec.DeviceNode {
	mode := os.FileMode(0o666)
	return &cdispec.DeviceNode{Path: path, Type: "c", Major: 195, Minor: minor, FileMode: &mode}
}

func TestNodes(t *testing.T) {
	s := newScene(t, "mknod rootfs/dev/nvidia0 c 195 7; mknod rootfs/dev/old c 195 3; mkdir "+
		"rootfs/dev/pts; mount -t tmpfs tmpfs rootfs/dev/pts; mknod rootfs/dev/pts/ptmx c 5 2")
	defer unix.Umask(unix.Umask(0o077))
	change := Change{Remove: []string{"/dev/old", "/dev/none", "/dev/no/where"}, Nodes: []*cdispec.DeviceNode{
		node("/dev/nvidia0", 0), node("/dev/nvidia-caps/nvidia-cap1", 1)}}
	for range 2 { // the second time changes nothing
		found, err := Into(s.target, change)
		s.must(err)
		var got []string
		for _, n := range found.Nodes {
			got = append(got, fmt.Sprintf("%s %d:%d", n.Path, n.Major, n.Minor))
		}
		if len(got) != 2 || !strings.Contains(strings.Join(got, ","), "/dev/nvidia0 195:0") ||
			!strings.Contains(strings.Join(got, ","), "/dev/nvidia-caps/nvidia-cap1 195:1") {
			t.Errorf("found %v", got)
		}
	}
	var st unix.Stat_t
	if s.must(unix.Stat(s.inside("/dev/nvidia0"), &st)); st.Mode != unix.S_IFCHR|0o666 ||
		st.Rdev != unix.Mkdev(195, 0) || st.Uid != 0 {
		t.Errorf("%o %d", st.Mode, st.Rdev)
	}
	s.untouched()
}

// TestNodesAreNotMadeElsewhere: whatever is done to /dev, nothing is made outside the runtime's
// tmpfs.
func TestNodesAreNotMadeElsewhere(t *testing.T) {
	for name, setup := range map[string]string{
		"a link in place of /dev":                "umount rootfs/dev; rmdir rootfs/dev; ln -s ../canary rootfs/dev",
		"an absolute link":                       "umount rootfs/dev; rmdir rootfs/dev; ln -s $PWD/canary rootfs/dev",
		"the image's own directory":              "umount rootfs/dev",
		"a directory of the host":                "umount rootfs/dev; mount --bind canary rootfs/dev",
		"the host's /dev":                        "umount rootfs/dev; mount --rbind /dev rootfs/dev",
		"a read-only tmpfs":                      "mount -o remount,ro rootfs/dev",
		"a tmpfs without devices":                "mount -o remount,nodev rootfs/dev",
		"a link in place of a directory":         "ln -s ../../canary rootfs/dev/nvidia-caps",
		"a volume in place of a directory":       "mkdir rootfs/dev/nvidia-caps; mount --bind canary rootfs/dev/nvidia-caps",
		"a file in place of a directory":         "touch rootfs/dev/nvidia-caps",
		"a link in place of a node":              "mkdir rootfs/dev/nvidia-caps; ln -s ../../../canary/x rootfs/dev/nvidia-caps/nvidia-cap1",
		"a file in place of a node":              "mkdir rootfs/dev/nvidia-caps; touch rootfs/dev/nvidia-caps/nvidia-cap1",
		"a root file system that is not mounted": "umount -R rootfs",
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, setup)
			if found, err := Into(s.target, Change{Nodes: []*cdispec.DeviceNode{
				node("/dev/nvidia-caps/nvidia-cap1", 1)}}); err == nil {
				t.Errorf("it was made: %+v", found)
			}
			s.untouched()
		})
	}
}

// A node of the host that is mounted in the place stays the host's.
func TestNodeInPlaceOfAMount(t *testing.T) {
	s := newScene(t, "mknod hosts c 1 3; touch rootfs/dev/nvidia0; mount --bind hosts rootfs/dev/nvidia0")
	_, err := Into(s.target, Change{Nodes: []*cdispec.DeviceNode{node("/dev/nvidia0", 0)}})
	var its, hosts unix.Stat_t
	s.must(unix.Stat(s.dir+"/hosts", &hosts))
	if e := unix.Stat(s.inside("/dev/nvidia0"), &its); err == nil &&
		(e != nil || its.Rdev != unix.Mkdev(195, 0)) || hosts.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("%v; the container's is %d, the host's %d", err, its.Rdev, hosts.Rdev)
	}
	s.untouched()
}

func TestMounts(t *testing.T) {
	s := newScene(t, "ln -s usr/lib rootfs/lib; mkdir rootfs/canary; ln -s /../../../../canary rootfs/odd; "+
		"mkdir -p hostdir; echo x >hostdir/y")
	file := func(path string, options ...string) *cdispec.Mount {
		return &cdispec.Mount{HostPath: s.dir + "/library", ContainerPath: path,
			Options: append(options, "bind", "nosuid", "nodev")}
	}
	change := Change{Mounts: []*cdispec.Mount{file("/lib/libcuda.so.1", "ro"),
		file("/opt/new/dir/lib.so"), file("/odd/x"),
		{HostPath: s.dir + "/hostdir", ContainerPath: "/etc/dir", Options: []string{"rbind", "ro"}}}}
	_, err := Into(s.target, change)
	s.must(err)
	for path, want := range map[string]string{"/usr/lib/libcuda.so.1": "the host's",
		"/opt/new/dir/lib.so": "the host's", "/canary/x": "the host's", "/etc/dir/y": "x\n"} {
		if got, err := os.ReadFile(s.inside(path)); string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if err := os.WriteFile(s.inside("/usr/lib/libcuda.so.1"), []byte("changed"), 0o644); err != unix.EROFS &&
		!strings.Contains(fmt.Sprint(err), "read-only") {
		t.Errorf("a read-only mount was written: %v", err)
	}
	if seen, _ := os.ReadFile(s.rootfs + "/usr/lib/libcuda.so.1"); len(seen) > 0 {
		t.Error("the mount is in the host's namespace")
	}
	s.untouched()
}

func TestMountsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		setup, path, source, option string
	}{
		"a link in the place":           {"ln -s ../canary/x rootfs/etc/lib.so", "/etc/lib.so", "library", "ro"},
		"a directory in the place":      {"mkdir rootfs/etc/lib.so", "/etc/lib.so", "library", "ro"},
		"a file in a directory's place": {"touch rootfs/etc/dir", "/etc/dir", "canary", "ro"},
		"a file on the way":             {"touch rootfs/etc/dir", "/etc/dir/lib.so", "library", "ro"},
		"a link to nowhere on the way":  {"ln -s nowhere rootfs/etc/dir", "/etc/dir/lib.so", "library", "ro"},
		"a link to itself on the way":   {"ln -s loop rootfs/etc/loop", "/etc/loop/lib.so", "library", "ro"},
		"/proc":                         {"mount -t proc proc rootfs/proc", "/proc/version", "library", "ro"},
		"a place shared with the host":  {"mount --make-shared rootfs", "/etc/lib.so", "library", "ro"},
		"a source that is not there":    {":", "/etc/lib.so", "nothing", "ro"},
		"an option that is not known":   {":", "/etc/lib.so", "library", "idmap"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, c.setup)
			if _, err := Into(s.target, Change{Mounts: []*cdispec.Mount{
				{HostPath: s.dir + "/" + c.source, ContainerPath: c.path,
					Options: []string{c.option}}}}); err == nil {
				t.Error("it was mounted")
			}
			s.untouched()
		})
	}
}

// TestOnlyTheRuntimesOwn: a pid that is another's, or of a process that shares our mounts, is not
// changed.
func TestOnlyTheRuntimesOwn(t *testing.T) {
	s := newScene(t, ":")
	for name, target := range map[string]Target{
		"another's child": {Host: s.target.Host, PID: s.target.PID, Parent: 1, Rootfs: s.rootfs},
		"ourselves":       {Host: s.target.Host, PID: os.Getpid(), Parent: os.Getppid(), Rootfs: s.rootfs},
		"nobody":          {Host: s.target.Host, PID: 1 << 30, Parent: os.Getpid(), Rootfs: s.rootfs},
		"zero":            {Host: s.target.Host, PID: 0, Parent: os.Getpid(), Rootfs: s.rootfs},
		"another rootfs":  {Host: s.target.Host, PID: s.target.PID, Parent: os.Getpid(), Rootfs: s.canary},
	} {
		if _, err := Into(target, Change{Nodes: []*cdispec.DeviceNode{node("/dev/nvidia0", 0)}}); err == nil {
			t.Errorf("%s was changed", name)
		}
	}
	// a mount in which nothing can be made
	shares := Target{Host: s.target.Host, PID: os.Getpid(), Parent: os.Getppid(), Rootfs: "/proc"}
	if _, err := Into(shares, Change{Nodes: []*cdispec.DeviceNode{node("/dev/nvidia0", 0)}}); err == nil ||
		!strings.Contains(err.Error(), "mount namespace of its own") {
		t.Errorf("of a process that shares our mounts: %v", err)
	}
	if found, err := Into(s.target, Change{Close: rulesOf(false, "c 195:* rw")}); err == nil {
		t.Errorf("the rules of our own cgroup were changed: %+v", found)
	}
	s.untouched()
}
