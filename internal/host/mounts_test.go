package host

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMounts(t *testing.T) {
	h := Host{Proc: t.TempDir()}
	file := filepath.Join(h.Proc, "thread-self/mountinfo")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]Mount{
		"": nil,
		"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n36 27 0:30 /a\\040b\\134\\012 /mnt/\\011x\\043 rw " +
			"shared:5 master:1 - tmpfs none rw\n": {
			{27, 1, unix.Mkdev(254, 0), "/", "/"}, {36, 27, unix.Mkdev(0, 30), "/a b\\\n", "/mnt/\tx#"}},
		"36 27 259:1048575 /x\\04 /\\999\\ rw\n": {{36, 27, unix.Mkdev(259, 1048575), `/x\04`, `/\999\`}},
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := h.Mounts(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %+v (%v), want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"\n", "27 1 254 / / rw\n", "a 1 254:0 / / rw\n", "27 -1 254:0 / / rw\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := h.Mounts(); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
	if _, err := (Host{Proc: t.TempDir()}).Mounts(); err == nil {
		t.Error("there is no list")
	}
}

// TestTheMountOfAFile: the mount that Resolve reports is in the list of mounts, with the device of
// the file system.
func TestTheMountOfAFile(t *testing.T) {
	mounts, err := Default().Mounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{"/", "/proc", "/dev"} {
		got, err := Resolve(point)
		near, e := ResolveLinkless(point)
		if err == nil && got.Mount == 0 {
			t.Skip("misses Linux 5.8: the kernel does not report in which mount a file is")
		}
		device, mount := MountOf(point)
		if err != nil || e != nil || near != got || device != got.Dev || mount != got.Mount {
			t.Fatalf("%s: %+v (%v), %+v (%v), %d %d", point, got, err, near, e, device, mount)
		}
		i := slices.IndexFunc(mounts, func(m Mount) bool { return m.ID == got.Mount })
		if i < 0 || mounts[i].Point != point {
			t.Errorf("%s is in mount %d, which is not there: %+v", point, got.Mount, mounts)
		}
	}
	if device, mount := MountOf("/nowhere"); device != 0 || mount != 0 {
		t.Errorf("nowhere is %d, %d", device, mount)
	}
	var old ResolvedFile
	if err := old.statOld(unix.AT_FDCWD, "/dev/null", 0); err != nil {
		t.Fatal(err)
	}
	var now ResolvedFile
	if err := now.stat(unix.AT_FDCWD, "/dev/null", 0); err != nil {
		t.Fatal(err)
	}
	if old.Mount = now.Mount; old != now || now.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("before Linux 4.11: %+v, now %+v", old, now)
	}
}
