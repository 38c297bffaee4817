package limits

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestAccount: an open account reads what is written after it was opened, reports a damaged region,
// and works again after the repair.
func TestAccount(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, shares(1<<30, 1<<30))
	a, err := OpenAccount(dir)
	mustDo(t, err)
	defer a.Close()
	path := filepath.Join(dir, grant.RegionFile)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	mustDo(t, err)
	defer f.Close()
	fill := func(high int, used uint64) {
		for i := range high {
			write(t, f, i, slot{Used: [MaxDevices]uint64{used, 2 * used}, PID: 7})
		}
		_, err := f.WriteAt(binary.NativeEndian.AppendUint32(nil, uint32(high)),
			int64(unsafe.Offsetof(head{}.High)))
		mustDo(t, err)
	}
	lock := func(start, slots int64, kind int16) {
		mustDo(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK,
			&unix.Flock_t{Type: kind, Start: start, Len: slots}))
	}
	reads := func(what string, want grant.Bytes) {
		t.Helper()
		if first, _, err := a.Used(uuid0); err != nil || first != want {
			t.Errorf("%s: %d of the first device are used (%v), want %d", what, first, err, want)
		}
		if second, _, err := a.Used(uuid1); err != nil || second != 2*want {
			t.Errorf("%s: %d of the second device are used (%v), want %d", what, second, err, 2*want)
		}
	}
	reads("no process", 0)
	fill(3, 10)
	reads("no process is alive", 0)
	lock(0, 3, unix.F_WRLCK)
	reads("three", 30)
	fill(200, 5)
	lock(0, 200, unix.F_WRLCK)
	reads("more than before", 1000)
	lock(100, 100, unix.F_UNLCK)
	reads("a hundred have ended", 500)
	fill(2, 5)
	reads("the head has less", 10)
	for name, size := range map[string]int64{"nothing": 0, "less than the head": page - 1, "the head": page,
		"half a slot": page + slotSize/2} {
		mustDo(t, os.Truncate(path, size))
		if size >= page {
			fill(0, 0)
			_, err := f.WriteAt(binary.NativeEndian.AppendUint32(nil, slots),
				int64(unsafe.Offsetof(head{}.High)))
			mustDo(t, err)
		}
		if used, _, err := a.Used(uuid0); err == nil {
			t.Errorf("cut to %s: %d are used", name, used)
		}
	}
	if !a.Current() {
		t.Error("its files were replaced")
	}
	ensure(t, dir, shares(1<<30, 1<<30)) // the same file
	fill(3, 10)
	reads("put right", 30)
	mustDo(t, a.SetOverhead(uuid1, 77))
	if r := open(t, dir).record; r.Device[0].Overhead != 0 || r.Device[1].Overhead != 77 {
		t.Errorf("the overheads are %d and %d", r.Device[0].Overhead, r.Device[1].Overhead)
	}
	if _, _, err := a.Used("GPU-00000000-0000-0000-0000-000000000000"); err == nil {
		t.Error("a device that is not the grant's is reported")
	}
}

// TestAReplacedAccountIsNotCurrent: Current is false after either file was replaced or removed.
func TestAReplacedAccountIsNotCurrent(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"another limits file": func(t *testing.T, dir string) { ensure(t, dir, shares(1, 1)[:1]) },
		"another region": func(t *testing.T, dir string) {
			mustDo(t, os.Rename(filepath.Join(dir, grant.RegionFile), filepath.Join(dir, "old")))
			ensure(t, dir, shares(1, 1))
		},
		"gone": func(t *testing.T, dir string) { mustDo(t, Remove(dir)) },
		"removed and made again": func(t *testing.T, dir string) {
			mustDo(t, os.Rename(dir, dir+".old"))
			ensure(t, dir, shares(1, 1))
		},
		"a link in its place": func(t *testing.T, dir string) {
			moveAndLink(t, filepath.Join(dir, grant.RegionFile))
		},
		"a link to the limits": func(t *testing.T, dir string) {
			moveAndLink(t, filepath.Join(dir, grant.LimitsFile))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "grant")
			ensure(t, dir, shares(1, 1))
			a, err := OpenAccount(dir)
			mustDo(t, err)
			defer a.Close()
			if !a.Current() {
				t.Fatal("it is not current from the beginning")
			}
			change(t, dir)
			if a.Current() {
				t.Error("it is taken for the grant's")
			}
		})
	}
}

func moveAndLink(t *testing.T, path string) {
	t.Helper()
	mustDo(t, os.Rename(path, path+".moved"))
	mustDo(t, os.Symlink(path+".moved", path))
}
