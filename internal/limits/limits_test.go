package limits

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

const (
	uuid0 = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7"
	uuid1 = "MIG-00000000-fa4e-d41e-0000-0000000000ff"
)

func shares(first, second grant.Bytes) []grant.Share {
	return []grant.Share{{UUID: uuid0, Memory: first}, {UUID: uuid1, Memory: second}}
}

// TestTheLayoutIsTheShims compiles shim/record.h and compares the compiler's offsets with those of
// this package.
func TestTheLayoutIsTheShims(t *testing.T) {
	var r limitRecord
	var d device
	var h head
	var s slot
	var ours, c strings.Builder
	c.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"record.h\"\nint main(void) {\n")
	same := func(expression string, value uint64) {
		fmt.Fprintf(&c, "printf(\"%s=%%llu\\n\", (unsigned long long)(%s));\n", expression, expression)
		fmt.Fprintf(&ours, "%s=%d\n", expression, value)
	}
	field := func(structure, name string, offset uintptr) {
		same(fmt.Sprintf("offsetof(struct %s, %s)", structure, name), uint64(offset))
	}
	same("RECORD_LIMITS_MAGIC", limitsMagic)
	same("RECORD_REGION_MAGIC", regionMagic)
	same("RECORD_VERSION", version)
	same("RECORD_DEVICES", MaxDevices)
	same("RECORD_SLOTS", slots)
	same("RECORD_COUNTED", counted)
	same("RECORD_PAGE", page)
	same("RECORD_REGION_SIZE", regionSize)
	same("RECORD_SLOT(7)", page+7*slotSize)
	same("sizeof(struct record_device)", uint64(unsafe.Sizeof(d)))
	field("record_device", "uuid", unsafe.Offsetof(d.UUID))
	field("record_device", "bytes", unsafe.Offsetof(d.Bytes))
	field("record_device", "overhead", unsafe.Offsetof(d.Overhead))
	field("record_device", "share", unsafe.Offsetof(d.Share))
	field("record_device", "gate", unsafe.Offsetof(d.Gate))
	field("record_device", "context", unsafe.Offsetof(d.Context))
	same("RECORD_GATE(1500, 20000)", gateWord(1500*time.Microsecond, 20*time.Millisecond))
	same("RECORD_GATE(5000000, 5000000)", gateWord(5*time.Second, 5*time.Second))
	same("sizeof(struct record_limits)", uint64(unsafe.Sizeof(r)))
	field("record_limits", "magic", unsafe.Offsetof(r.Magic))
	field("record_limits", "version", unsafe.Offsetof(r.Version))
	field("record_limits", "devices", unsafe.Offsetof(r.Devices))
	field("record_limits", "id", unsafe.Offsetof(r.ID))
	field("record_limits", "generation", unsafe.Offsetof(r.Generation))
	field("record_limits", "beat", unsafe.Offsetof(r.Beat))
	field("record_limits", "device", unsafe.Offsetof(r.Device))
	same("sizeof(struct record_head)", uint64(unsafe.Sizeof(h)))
	field("record_head", "magic", unsafe.Offsetof(h.Magic))
	field("record_head", "version", unsafe.Offsetof(h.Version))
	field("record_head", "devices", unsafe.Offsetof(h.Devices))
	field("record_head", "id", unsafe.Offsetof(h.ID))
	field("record_head", "slots", unsafe.Offsetof(h.Slots))
	field("record_head", "slot_size", unsafe.Offsetof(h.SlotSize))
	field("record_head", "high", unsafe.Offsetof(h.High))
	same("sizeof(struct record_slot)", uint64(unsafe.Sizeof(s)))
	field("record_slot", "used", unsafe.Offsetof(s.Used))
	field("record_slot", "pid", unsafe.Offsetof(s.PID))
	field("record_slot", "claims", unsafe.Offsetof(s.Claims))
	c.WriteString("}\n")

	dir := t.TempDir()
	put(t, filepath.Join(dir, "layout.c"), []byte(c.String()))
	if out, err := exec.Command("cc", "-Wall", "-Werror", "-I../../shim", "-o", dir+"/layout",
		dir+"/layout.c").CombinedOutput(); err != nil {
		t.Fatalf("cannot compile: %v\n%s", err, out)
	}
	out, err := exec.Command(dir + "/layout").Output()
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != ours.String() {
		t.Errorf("C has\n%s\nGo has\n%s", out, ours.String())
	}
}

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func ensure(t *testing.T, dir string, s []grant.Share) {
	t.Helper()
	if err := Ensure(dir, s, 0, nil); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir string) *Limits {
	t.Helper()
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestEnsureMakesBothFilesForAnyUser(t *testing.T) {
	dir := t.TempDir()
	defer unix.Umask(unix.Umask(0o077))
	ensure(t, dir, shares(4*grant.GiB, grant.MiB))
	for name, mode := range map[string]os.FileMode{grant.LimitsFile: 0o444, grant.RegionFile: 0o666} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	r := open(t, dir).record
	if r.Devices != 2 || r.Generation != 1 || r.Device[0].Bytes != 4<<30 || r.Device[1].Bytes != 1<<20 ||
		r.Device[0].UUID[0] != 0xec || r.Device[1].UUID[15] != 0xff {
		t.Errorf("got %+v", r)
	}
}

// TestAChangeIsSeenThroughTheOldFile: a container's mount shows the file that existed when it
// started.
func TestAChangeIsSeenThroughTheOldFile(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, shares(4*grant.GiB, grant.GiB))
	container := open(t, dir)
	region := inode(t, filepath.Join(dir, grant.RegionFile))

	ensure(t, dir, shares(2*grant.GiB, grant.GiB))
	if got := container.record.Device[0].Bytes; got != 2<<30 || container.record.Generation != 2 {
		t.Errorf("after Ensure: %d bytes, generation %d", got, container.record.Generation)
	}
	l := open(t, dir)
	for _, err := range []error{l.Set(shares(2*grant.GiB, 3*grant.GiB), 0),
		l.SetOverhead(uuid1, 500*grant.MiB)} {
		if err != nil {
			t.Error(err)
		}
	}
	if d := container.record.Device[1]; d.Bytes != 3<<30 || d.Overhead != 500<<20 ||
		container.record.Generation != 4 {
		t.Errorf("after the setters: %+v, generation %d", d, container.record.Generation)
	}
	if inode(t, filepath.Join(dir, grant.RegionFile)) != region {
		t.Error("the region is another file: its users are forgotten")
	}
	if err := l.Set(shares(2*grant.GiB, 3*grant.GiB), 0); err != nil || container.record.Generation != 4 {
		t.Errorf("what is so already: %v, generation %d", err, container.record.Generation)
	}
	if b, err := l.Bytes(uuid1); err != nil || b != 3*grant.GiB {
		t.Errorf("read again: %v %v", b, err)
	}
	other := shares(1, 1)
	other[0].UUID = "GPU-00000000-0000-0000-0000-000000000000"
	for _, err := range []error{l.Set(other, 0), l.Set(other[:1], 0), l.SetOverhead(other[0].UUID, 1)} {
		if err == nil || !strings.Contains(err.Error(), "does not have these devices") {
			t.Errorf("a device that is not granted: %v", err)
		}
	}
}

// TestAnotherOrderOfDevices: a boot can change the order of a grant's GPUs. A container that starts
// then must find the region that the others count in, and a change must reach them.
func TestAnotherOrderOfDevices(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, shares(4*grant.GiB, grant.GiB))
	container := open(t, dir)
	id, region := container.record.ID, inode(t, filepath.Join(dir, grant.RegionFile))
	for i, change := range []func(s []grant.Share) error{
		func(s []grant.Share) error { return Ensure(dir, s, 0, nil) },
		func(s []grant.Share) error { return open(t, dir).Set(s, 0) },
	} {
		first, second := grant.Bytes(5+i)*grant.GiB, grant.Bytes(2+i)*grant.GiB
		s := shares(first, second)
		s[0], s[1] = s[1], s[0]
		if err := change(s); err != nil {
			t.Error(err)
		}
		if err := Ensure(dir, s, 0, nil); err != nil { // it says so already
			t.Error(err)
		}
		d := container.record.Device
		if grant.Bytes(d[0].Bytes) != first || grant.Bytes(d[1].Bytes) != second {
			t.Errorf("change %d: a container reads %+v", i, d[:2])
		}
	}
	if r := open(t, dir).record; r.ID != id || inode(t, filepath.Join(dir, grant.RegionFile)) != region {
		t.Error("a container that runs has other files than the next one")
	}
}

func TestEnsureReplacesForeignFiles(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"other devices": func(t *testing.T, dir string) { ensure(t, dir, shares(1, 1)[:1]) },
		"half a file":   func(t *testing.T, dir string) { put(t, filepath.Join(dir, grant.LimitsFile), make([]byte, 100)) },
		"no magic":      func(t *testing.T, dir string) { put(t, filepath.Join(dir, grant.LimitsFile), make([]byte, page)) },
		"a region only": func(t *testing.T, dir string) { put(t, filepath.Join(dir, grant.RegionFile), []byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			spoil(t, dir)
			ensure(t, dir, shares(7, 8))
			if r := open(t, dir).record; r.Devices != 2 || r.Device[1].Bytes != 8 {
				t.Errorf("got %+v", r)
			}
			if _, err := Use(dir); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLimitsTheShimLacksAreRefused(t *testing.T) {
	for name, s := range map[string][]grant.Share{
		"no device":        nil,
		"too many devices": make([]grant.Share, MaxDevices+1),
		"an old MIG name":  {{UUID: "MIG-GPU-ec6f3a93-0db3-4679-0464-05f9944454e7/1/0"}},
		"no UUID":          {{UUID: "GPU-standin-0"}},
		"no digits":        {{UUID: "GPU-ec6f3a93-0db3-4679-0464-05f9944454eX"}},
	} {
		dir := t.TempDir()
		if err := Ensure(dir, s, 0, nil); err == nil ||
			!strings.HasPrefix(err.Error(), "cannot limit the grant in "+dir) {
			t.Errorf("%s: got %v", name, err)
		}
		if files, _ := os.ReadDir(dir); len(files) > 0 {
			t.Errorf("%s: it left %v", name, files)
		}
	}
}

// write writes a slot into the region, as a process does.
func write(t *testing.T, f *os.File, i int, s slot) {
	t.Helper()
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, s); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b.Bytes(), int64(page+i*slotSize)); err != nil {
		t.Fatal(err)
	}
}

// TestUse: only slots with a held lock count, only up to the number in the head, and Use changes
// nothing.
func TestUse(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, shares(1<<30, 1<<30))
	path := filepath.Join(dir, grant.RegionFile)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, pid := range []uint32{11, 12, 13, 14} {
		write(t, f, i, slot{Used: [MaxDevices]uint64{uint64(i) * 10, 5}, PID: pid})
	}
	write(t, f, 2, slot{PID: 13}) // uses nothing
	for _, i := range []int64{0, 2, 3} {
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: i,
			Len: 1}); err != nil {
			t.Fatal(err)
		}
	}
	high := func(n uint32) {
		if _, err := f.WriteAt(binary.NativeEndian.AppendUint32(nil, n),
			int64(unsafe.Offsetof(head{}.High))); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		high uint32
		want []ProcessMemory
	}{
		{0, nil},
		{3, []ProcessMemory{{11, []grant.Bytes{0, 5}}}},
		{1 << 31, []ProcessMemory{{11, []grant.Bytes{0, 5}}, {14, []grant.Bytes{30, 5}}}},
	} {
		high(tt.high)
		before, _ := os.ReadFile(path)
		got, err := Use(dir)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("high %d: got %v %v, want %v", tt.high, got, err, tt.want)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
			t.Error("reading changed the region")
		}
	}
	if err := os.Truncate(path, page); err != nil {
		t.Fatal(err)
	}
	if _, err := Use(dir); err == nil {
		t.Error("a region that the container truncated was read")
	}
}

// TestEnsureRepairsARegionInUse: a container can write anything into its region. The next Ensure
// restores its size, its pages and its head in the same file. It counts every slot, because the
// number of used slots is lost.
func TestEnsureRepairsARegionInUse(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"cut to nothing": func(t *testing.T, path string) { mustDo(t, os.Truncate(path, 0)) },
		"cut":            func(t *testing.T, path string) { mustDo(t, os.Truncate(path, page+5*slotSize)) },
		"grown":          func(t *testing.T, path string) { mustDo(t, os.Truncate(path, 1<<30)) },
		"zeroed":         func(t *testing.T, path string) { mustDo(t, os.WriteFile(path, make([]byte, regionSize), 0)) },
		"for root alone": func(t *testing.T, path string) { mustDo(t, os.Chmod(path, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ensure(t, dir, shares(1, 1))
			path := filepath.Join(dir, grant.RegionFile)
			before, id := inode(t, path), open(t, dir).record.ID
			spoil(t, path)
			ensure(t, dir, shares(1, 1))
			var h head
			content, err := os.ReadFile(path)
			mustDo(t, err)
			copy(bytesOf(&h), content)
			info, err := os.Stat(path)
			mustDo(t, err)
			if inode(t, path) != before || len(content) != regionSize || info.Mode() != 0o666 ||
				h.Magic != regionMagic || h.ID != id || h.Devices != 2 {
				t.Errorf("%v, %d bytes, head %+v", info.Mode(), len(content), h)
			}
			kept := name == "cut" || name == "grown" || name == "for root alone" // the head is still intact
			if kept && (h.High != 0 || h.Slots != slots|counted) ||
				!kept && (h.High != slots || h.Slots != slots) {
				t.Errorf("%d slots count, and the head says %#x", h.High, h.Slots)
			}
		})
	}
}

// TestARegionOfAnOlderVersionStays: its processes may be of an older shim, which does not count the
// changes of its slot. So no later Ensure says that all of them do.
func TestARegionOfAnOlderVersionStays(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, shares(1, 1))
	path := filepath.Join(dir, grant.RegionFile)
	content, err := os.ReadFile(path)
	mustDo(t, err)
	var h head
	copy(bytesOf(&h), content)
	h.Slots, h.High = slots, 5
	copy(content, bytesOf(&h))
	mustDo(t, os.WriteFile(path, content, 0))
	ensure(t, dir, shares(1, 1))
	ensure(t, dir, shares(2, 2))
	if is, err := os.ReadFile(path); err != nil || !bytes.Equal(is, content) {
		t.Errorf("the region is another (%v)", err)
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	ensure(t, dir, shares(1, 1))
	content, err = os.ReadFile(path)
	mustDo(t, err)
	if copy(bytesOf(&h), content); h.Slots != slots|counted || h.High != 0 {
		t.Errorf("a new one has the head %+v", h)
	}
}

// TestARegionThatIsNoFile: a link in the region's place is refused, because it could lead to
// another file.
func TestARegionThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, shares(1, 1))
	path, elsewhere := filepath.Join(dir, grant.RegionFile), filepath.Join(t.TempDir(), "elsewhere")
	mustDo(t, os.Remove(path))
	mustDo(t, os.Symlink(elsewhere, path))
	if err := Ensure(dir, shares(1, 1), 0, nil); err == nil || inodeOf(elsewhere) != 0 {
		t.Errorf("%v; the link's target is %d", err, inodeOf(elsewhere))
	}
	mustDo(t, os.Remove(path))
	mustDo(t, unix.Mkfifo(path, 0o666))
	if err := Ensure(dir, shares(1, 1), 0, nil); err == nil {
		t.Error("a pipe was taken for a region")
	}
}

func inodeOf(path string) uint64 {
	var st unix.Stat_t
	_ = unix.Lstat(path, &st)
	return st.Ino
}

// TestTrimAndRemove: Trim names and cuts regions that have grown. Remove leaves nothing of a grant,
// whatever is in its directory.
func TestTrimAndRemove(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"a", "b"} {
		ensure(t, filepath.Join(root, name), shares(1, 1))
	}
	mustDo(t, os.Truncate(filepath.Join(root, "b", grant.RegionFile), 1<<20))
	grown, left := Trim(root)
	again, _ := Trim(root)
	if !reflect.DeepEqual(grown, []string{"b"}) || left != nil || again != nil {
		t.Errorf("grown %v and %v, then %v", grown, left, again)
	}
	put(t, filepath.Join(root, "a", ".limits.123"), []byte("a write that was interrupted"))
	for range 2 {
		mustDo(t, Remove(filepath.Join(root, "a")))
	}
	if kept := Kept(root); !reflect.DeepEqual(kept, []string{"b"}) {
		t.Errorf("kept %v", kept)
	}
	if Kept(filepath.Join(root, "nowhere")) != nil {
		t.Error("a directory that is not there has names")
	}
}

// TestTooManyLocks: Use stops reading a region that a container made slow to read. A region with
// any number of honest processes is never that slow.
func TestTooManyLocks(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, shares(grant.GiB, grant.GiB))
	f, err := os.OpenFile(filepath.Join(dir, grant.RegionFile), os.O_RDWR, 0)
	mustDo(t, err)
	defer f.Close()
	for i := range slots {
		write(t, f, i, slot{Used: [MaxDevices]uint64{1}})
	}
	_, err = f.WriteAt(binary.NativeEndian.AppendUint32(nil, slots), int64(unsafe.Offsetof(head{}.High)))
	mustDo(t, err)
	mustDo(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: slots}))
	if used, err := Use(dir); err != nil || len(used) != slots {
		t.Errorf("of %d processes %d are reported (%v)", slots, len(used), err)
	}
	t.Run("the program's other work", func(t *testing.T) { honestBesideWork(t, dir) })
	defer func(before time.Duration) { slowest = before }(slowest)
	slowest = 0 // any time counts as too long
	r, err := openRegion(dir)
	mustDo(t, err)
	defer r.close()
	read := 0
	if err := r.each(func(int, slot) { read++ }); !errors.Is(err, ErrSlow) ||
		!strings.Contains(err.Error(), "too many locks") || read != 1 {
		t.Errorf("a slow one: %v, after %d slots", err, read)
	}
}

// honestBesideWork reads a region while the program computes something else for longer than a read
// may take.
func honestBesideWork(t *testing.T, dir string) {
	spent := func() time.Duration {
		var now unix.Timespec
		mustDo(t, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now))
		return time.Duration(now.Nano())
	}
	r, err := openRegion(dir)
	mustDo(t, err)
	defer r.close()
	read, before := 0, spent()
	err = r.each(func(int, slot) {
		if read++; read > 1 {
			return
		}
		done := make(chan bool)
		go func() {
			for spent() < before+2*slowest {
			}
			close(done)
		}()
		<-done
	})
	if err != nil || read != slots {
		t.Errorf("%v, after %d slots", err, read)
	}
}

// TestAShareAloneIsAChange: a new share is written when the bytes stay the same.
func TestAShareAloneIsAChange(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	for _, percent := range []int{0, 50, 25, 25, 0} {
		mustDo(t, Ensure(dir, shares(1, 1), percent, nil))
		for i, d := range open(t, dir).record.Device[:2] {
			if d.Share != uint64(percent) {
				t.Errorf("device %d has %d %%, want %d", i, d.Share, percent)
			}
		}
	}
}

// TestALinkIsNoLimitsFile: the target of the link is not read, and a file replaces the link.
func TestALinkIsNoLimitsFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	ensure(t, dir, shares(1, 1))
	path := filepath.Join(dir, grant.LimitsFile)
	mustDo(t, os.Rename(path, path+".moved"))
	mustDo(t, os.Symlink(path+".moved", path))
	ensure(t, dir, shares(1, 1))
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v (%v)", info, err)
	}
}

// TestALimitsFileThatCannotBeOpenedStays: containers may have it mapped. A program that runs is
// what root cannot open for writing, either.
func TestALimitsFileThatCannotBeOpenedStays(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, grant.LimitsFile)
	sleep, err := exec.LookPath("sleep")
	mustDo(t, err)
	program, err := os.ReadFile(sleep)
	mustDo(t, err)
	mustDo(t, os.WriteFile(path, program, 0o700))
	cmd := exec.Command(path, "1000")
	mustDo(t, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	if err := Ensure(dir, shares(1, 1), 0, nil); !errors.Is(err, unix.ETXTBSY) {
		t.Errorf("%v, want ETXTBSY", err)
	}
	if now, err := os.ReadFile(path); err != nil || len(now) != len(program) {
		t.Errorf("it was replaced by %d bytes (%v)", len(now), err)
	}
}

// TestASocketIsNoLimitsFile: a file replaces it.
func TestASocketIsNoLimitsFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, grant.LimitsFile)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	mustDo(t, err)
	defer unix.Close(fd)
	mustDo(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	ensure(t, dir, shares(1, 1))
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v (%v)", info, err)
	}
}

// TestALeaseDelaysNoEnsure: the owner of a file can make the kernel delay an open for writing by 45
// s, repeatedly. Root of a container owns both files. Ensure must not wait, must not replace files
// in use, and must report what it could not change.
func TestALeaseDelaysNoEnsure(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "a")
	ensure(t, dir, shares(grant.GiB, grant.GiB))
	lease := func(file string, kind int) *os.File {
		f, err := os.Open(filepath.Join(dir, file))
		mustDo(t, err)
		t.Cleanup(func() { f.Close() })
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind); err != nil {
			t.Skipf("this file system has no leases (%v): that Ensure waits for none is not shown", err)
		}
		return f
	}
	signal.Ignore(unix.SIGIO) // the kernel's signal to give the lease back
	defer signal.Reset(unix.SIGIO)

	inode := inodeOf(filepath.Join(dir, grant.LimitsFile))
	held := lease(grant.LimitsFile, unix.F_RDLCK)
	if _, err := Open(dir); !errors.Is(err, ErrLeased) {
		t.Errorf("an open beside a lease: %v", err)
	}
	if _, err := OpenAccount(dir); !errors.Is(err, ErrLeased) {
		t.Errorf("the account's: %v", err)
	}
	mustDo(t, Ensure(dir, shares(grant.GiB, grant.GiB), 0, nil)) // the values that the files already have
	if err := Ensure(dir, shares(grant.GiB, 2*grant.GiB), 0, nil); !errors.Is(err, ErrLeased) ||
		inodeOf(filepath.Join(dir, grant.LimitsFile)) != inode {
		t.Errorf("limits that a container has in use are made anew: %v", err)
	}
	held.Close()
	mustDo(t, Ensure(dir, shares(grant.GiB, 2*grant.GiB), 0, nil))

	mustDo(t, os.Truncate(filepath.Join(dir, grant.RegionFile), 1<<20))
	held = lease(grant.RegionFile, unix.F_WRLCK)
	if grown, left := Trim(root); grown != nil || !reflect.DeepEqual(left, []string{"a"}) {
		t.Errorf("a region with a lease: cut %v, left %v", grown, left)
	}
	if _, err := Use(dir); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("it is read: %v", err)
	}
	if err := Ensure(dir, shares(grant.GiB, grant.GiB), 0, nil); !errors.Is(err, ErrLeased) {
		t.Errorf("it is put right: %v", err)
	}
	held.Close()
	if grown, _ := Trim(root); !reflect.DeepEqual(grown, []string{"a"}) {
		t.Errorf("without a lease: %v", grown)
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAShareOfTime: the share is written before the container exists, and a gate is valid for one
// share only.
func TestAShareOfTime(t *testing.T) {
	dir := t.TempDir()
	two := shares(4*grant.GiB, grant.GiB)
	if err := Ensure(dir, two, 30, nil); err != nil {
		t.Fatal(err)
	}
	l, container := open(t, dir), open(t, dir)
	is := func(what string, share, gate0, gate1 uint64) {
		t.Helper()
		r := container.record
		if r.Device[0].Share != share || r.Device[1].Share != share || r.Device[0].Gate != gate0 ||
			r.Device[1].Gate != gate1 || container.Share() != int(share) {
			t.Errorf("%s: %+v", what, r.Device[:2])
		}
	}
	is("at the start", 30, 0, 0)
	if err := l.SetGate(uuid1, 3*time.Millisecond, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	is("with a gate", 30, 0, 20000<<32|3000)
	if err := Ensure(dir, two, 30, nil); err != nil {
		t.Fatal(err)
	}
	is("for another container of the grant", 30, 0, 20000<<32|3000)
	if err := l.Set(two, 40); err != nil || container.record.Generation != 2 {
		t.Errorf("%v, generation %d", err, container.record.Generation)
	}
	is("of another share", 40, 0, 0)
	if err := l.Set(two, 0); err != nil {
		t.Fatal(err)
	}
	is("taken off", 0, 0, 0)
	if l.Beat(); container.record.Beat != 1 {
		t.Errorf("the beat is %d", container.record.Beat)
	}
	if err := l.SetGate("GPU-00000000-0000-0000-0000-000000000000", time.Millisecond,
		time.Second); err == nil {
		t.Error("a gate on a GPU that is not the grant's")
	}
}

// A container can punch holes into its region. If the file system is full meanwhile, a program that
// writes there would be killed.
func TestARegionWithHolesGetsItsPagesBack(t *testing.T) {
	dir := t.TempDir()
	want := []grant.Share{{UUID: "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7", Memory: grant.GiB}}
	mustDo(t, Ensure(dir, want, 0, nil))
	path := filepath.Join(dir, grant.RegionFile)
	blocks := func() int64 {
		var st unix.Stat_t
		mustDo(t, unix.Stat(path, &st))
		return st.Blocks
	}
	whole := blocks()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	mustDo(t, err)
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
		page, 4*page); err != nil {
		t.Skipf("this file system has no holes (%v): that a region gets its pages back is not shown", err)
	}
	if blocks() >= whole {
		t.Fatal("there is no hole")
	}
	if mustDo(t, Ensure(dir, want, 0, nil)); blocks() < whole {
		t.Errorf("%d blocks of %d", blocks(), whole)
	}
}
