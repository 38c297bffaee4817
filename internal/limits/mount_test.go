package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// newMount mounts the file system of Mount in a mount namespace of the test's own thread.
func newMount(t *testing.T) (root string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that one container takes no space from others is not shown")
	}
	root = filepath.Join(t.TempDir(), "limits")
	runtime.LockOSThread() // and never unlocked: the thread ends with its mount namespace
	mustDo(t, errors.Join(unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")))
	mustDo(t, Mount(root))
	t.Cleanup(func() { mustDo(t, unix.Unmount(root, unix.MNT_DETACH)) })
	return root
}

func statfs(t *testing.T, root string) (st unix.Statfs_t) {
	t.Helper()
	mustDo(t, unix.Statfs(root, &st))
	return st
}

// regionOf opens the region of a grant, as a container's mount does.
func regionOf(t *testing.T, root, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(root, name, grant.RegionFile), os.O_RDWR, 0)
	mustDo(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// fill makes a region as large as the file system allows.
func fill(t *testing.T, root string, f *os.File) {
	t.Helper()
	st := statfs(t, root)
	mustDo(t, unix.Fallocate(int(f.Fd()), 0, regionSize, int64(st.Bavail)*st.Bsize))
	if st = statfs(t, root); st.Bavail != 0 {
		t.Fatalf("there are %d blocks free", st.Bavail)
	}
}

func full(t *testing.T, root, name string) {
	t.Helper()
	if err := Ensure(filepath.Join(root, name), shares(1, 1), 0, nil); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the file system is not full: %v", err)
	}
}

// TestSpaceBesideUnlinkedFiles: a process that has the region of an ended grant open can
// fill the file system, and nothing there can be cut. Unlinked reports it. Enlarge makes the file
// system larger and keeps its mode, flags and files.
func TestSpaceBesideUnlinkedFiles(t *testing.T) {
	root := newMount(t)
	ensure(t, filepath.Join(root, "lives"), shares(5, 6))
	ensure(t, filepath.Join(root, "over"), shares(1, 1))
	held := regionOf(t, root, "over")
	mustDo(t, Remove(filepath.Join(root, "over")))
	unlinked := func(what string, want int64) {
		t.Helper()
		if mib, inodes := Unlinked(root); mib != want || inodes > 10 {
			t.Errorf("%s: %d MiB and %d inodes have no name", what, mib, inodes)
		}
	}
	unlinked("a region of the usual size", 0)
	fill(t, root, held)
	full(t, root, "next")
	if grown, left := Trim(root); grown != nil || left != nil {
		t.Errorf("cut %v, left %v", grown, left)
	}
	unlinked("a region that fills the file system", 127)
	before := statfs(t, root)
	mustDo(t, Enlarge(root, 16*grant.MiB))
	after := statfs(t, root)
	if more := int64(after.Blocks-before.Blocks) * after.Bsize; more != 16<<20 ||
		after.Files-before.Files != 1024 || after.Flags != before.Flags {
		t.Errorf("%d bytes and %d inodes more, flags %x and then %x", more, after.Files-before.Files,
			before.Flags, after.Flags)
	}
	if info, err := os.Stat(root); err != nil || info.Mode() != 0o700|fs.ModeDir {
		t.Errorf("the mount is %v %v", info.Mode(), err)
	}
	ensure(t, filepath.Join(root, "next"), shares(1, 1))
	if b, err := open(t, filepath.Join(root, "lives")).Bytes(uuid1); err != nil || b != 6 {
		t.Errorf("the limits of another: %s %v", b, err)
	}
	mustDo(t, held.Close())
	unlinked("when it is gone", 0)
}

// TestPagesBehindTheEndAreFreed: a file of normal size can still fill the file system
// (FALLOC_FL_KEEP_SIZE).
func TestPagesBehindTheEndAreFreed(t *testing.T) {
	root := newMount(t)
	ensure(t, filepath.Join(root, "a"), shares(1, 1))
	f, st := regionOf(t, root, "a"), statfs(t, root)
	mustDo(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, regionSize, int64(st.Bavail)*st.Bsize))
	full(t, root, "next")
	if grown, left := Trim(root); !slices.Equal(grown, []string{"a"}) || left != nil {
		t.Errorf("cut %v, left %v", grown, left)
	}
	ensure(t, filepath.Join(root, "next"), shares(1, 1))
	if grown, left := Trim(root); grown != nil || left != nil {
		t.Errorf("of the usual size, cut %v, left %v", grown, left)
	}
}

// TestNothingIsUnlinkedWithoutTheMount: if the mount failed, the directory is on the node's
// /run, and what fills that file system belongs to the node.
func TestNothingIsUnlinkedWithoutTheMount(t *testing.T) {
	run := newMount(t) // a tmpfs
	root := filepath.Join(run, "limits")
	mustDo(t, os.Mkdir(root, 0o700))
	mustDo(t, os.WriteFile(filepath.Join(run, "journal"), make([]byte, 40<<20), 0o600))
	if mib, inodes := Unlinked(root); mib != 0 || inodes != 0 {
		t.Errorf("%d MiB and %d inodes", mib, inodes)
	}
}

// TestRemoveOfAnImmutableRegion: a container with CAP_LINUX_IMMUTABLE can make its region
// immutable, or one to which can only be added. Remove removes it all the same.
func TestRemoveOfAnImmutableRegion(t *testing.T) {
	root := newMount(t)
	for name, flag := range map[string]int{"immutable": immutable, "append-only": appendOnly} {
		dir := filepath.Join(root, name)
		ensure(t, dir, shares(1, 1))
		f := regionOf(t, root, name)
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flag); err != nil {
			t.Skipf("misses a kernel whose tmpfs has flags, and CAP_LINUX_IMMUTABLE (%v): that the file is "+
				"removed is not shown", err)
		}
		if err := os.Remove(f.Name()); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: it can be removed: %v", name, err)
		}
		if err := Remove(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if kept := Kept(root); kept != nil {
		t.Errorf("kept %v", kept)
	}
}

// TestFilesWithANameAreNotUnlinked: files with a name can be cut, or reported with their grant.
func TestFilesWithANameAreNotUnlinked(t *testing.T) {
	root := newMount(t)
	ensure(t, filepath.Join(root, "a"), shares(1, 1))
	fill(t, root, regionOf(t, root, "a"))
	if mib, inodes := Unlinked(root); mib != 0 || inodes != 0 {
		t.Errorf("%d MiB and %d inodes", mib, inodes)
	}
}

// attributes sets attributes on a region, with names and values of the given sizes in bytes, until
// there are enough or the file system is full.
func attributes(t *testing.T, f *os.File, enough, name, value int) (set int) {
	t.Helper()
	for ; set < enough; set++ {
		err := unix.Fsetxattr(int(f.Fd()), fmt.Sprintf("user.%0*d", name-len("user."), set),
			make([]byte, value), 0)
		if errors.Is(err, unix.ENOTSUP) {
			t.Skip(
				"this kernel's tmpfs has no attributes user.*: that those of a region are taken off " +
					"is not shown")
		}
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		mustDo(t, err)
	}
	return set
}

// TestAttributesTakeNoSpaceFromOthers: a process that may write to a region may set attributes on
// it, and they count as inodes of the file system.
func TestAttributesTakeNoSpaceFromOthers(t *testing.T) {
	root := newMount(t)
	dir := filepath.Join(root, "a")
	ensure(t, dir, shares(1, 1))
	path := filepath.Join(dir, grant.RegionFile)
	f := regionOf(t, root, "a")
	const endless = 1 << 20
	attributes(t, f, endless, 16, 60000)
	attributes(t, f, endless, 17, 1)
	full(t, root, "next")
	if grown, left := Trim(root); !reflect.DeepEqual(grown, []string{"a"}) || left != nil {
		t.Errorf("taken off from %v, left to %v", grown, left)
	}
	if size, err := unix.Llistxattr(path, nil); size != 0 || err != nil {
		t.Errorf("there are names of %d bytes (%v)", size, err)
	}
	if grown, left := Trim(root); grown != nil || left != nil {
		t.Errorf("then from %v, left to %v", grown, left)
	}
	ensure(t, filepath.Join(root, "next"), shares(1, 1))

	attributes(t, f, 300, 255, 1) // more than 64 KiB of names, which no kernel lists
	attributes(t, f, endless, 17, 20000)
	attributes(t, f, endless, 18, 1)
	full(t, root, "another")
	if grown, left := Trim(root); grown != nil || !reflect.DeepEqual(left, []string{"a"}) {
		t.Errorf("of too many: taken off from %v, left to %v", grown, left)
	}
	mustDo(t, Enlarge(root, 16*grant.MiB))
	ensure(t, filepath.Join(root, "another"), shares(1, 1))
	mustDo(t, f.Close())
	mustDo(t, Remove(dir))
	if grown, left := Trim(root); grown != nil || left != nil {
		t.Errorf("with the grant they are removed: %v %v", grown, left)
	}
}

// TestAttributesOfTheNodesStay: Trim keeps the attributes by which the node labels its files.
func TestAttributesOfTheNodesStay(t *testing.T) {
	root := newMount(t)
	ensure(t, filepath.Join(root, "a"), shares(1, 1))
	path := filepath.Join(root, "a", grant.RegionFile)
	err := unix.Lsetxattr(path, "trusted.label", []byte("x"), 0)
	if errors.Is(err, unix.ENOTSUP) {
		t.Skip("this kernel's tmpfs has no attributes: that the node's own are kept is not shown")
	}
	mustDo(t, err)
	if grown, left := Trim(root); grown != nil || left != nil {
		t.Errorf("taken off from %v, left to %v", grown, left)
	}
	if size, err := unix.Lgetxattr(path, "trusted.label", nil); size != 1 || err != nil {
		t.Errorf("it has %d bytes (%v)", size, err)
	}
}

// TestEnlargeWithoutTheRightToMount: without the right to mount, Enlarge fails and its error has
// the command to run.
func TestEnlargeWithoutTheRightToMount(t *testing.T) {
	root := newMount(t)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has, less [2]unix.CapUserData
	mustDo(t, unix.Capget(&header, &has[0]))
	less = has
	less[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	mustDo(t, unix.Capset(&header, &less[0]))
	err := Enlarge(root, 16*grant.MiB)
	mustDo(t, unix.Capset(&header, &has[0]))
	if !errors.Is(err, fs.ErrPermission) ||
		!strings.Contains(err.Error(), "`mount -o remount,size=150994944,nr_inodes=9216 "+root+"`") {
		t.Errorf("got %v", err)
	}
	if err := Enlarge(filepath.Dir(root), 16*grant.MiB); err == nil {
		t.Error("the file system around it was made larger")
	}
}

// TestEnlargeWithoutABound: an administrator can have mounted the file system without a
// bound.
func TestEnlargeWithoutABound(t *testing.T) {
	root := newMount(t)
	mustDo(t, unix.Unmount(root, 0))
	mustDo(t, unix.Mount("tmpfs", root, "tmpfs", mountFlags, "size=0,nr_inodes=0,mode=0700"))
	mustDo(t, Enlarge(root, 16*grant.MiB))
	mib, inodes := Unlinked(root)
	if st := statfs(t, root); st.Blocks != 0 || st.Files != 0 || mib != 0 || inodes != 0 {
		t.Errorf("it has %d blocks and %d inodes, of which %d MiB and %d have no name", st.Blocks,
			st.Files, mib, inodes)
	}
}
