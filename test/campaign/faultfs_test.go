package campaign

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/test/rig"
)

// faultVar says that this process is a file system: the directory that it shows. faultSeedVar is
// the seed by which it fails.
const (
	faultVar     = "GPULEDGER_CAMPAIGN_FAULTFS"
	faultSeedVar = "GPULEDGER_CAMPAIGN_FAULTFS_SEED"
)

// faultyIn is how many requests there are to one that fails with EIO.
const faultyIn = 40

// mostDescriptors is far from the limit of a process.
const mostDescriptors = 5000

// mountFaulty shows a directory's own files at the same place, through a file system whose requests
// fail at random. A program of its own serves it, so that the tests never wait for themselves.
func mountFaulty(t testing.TB, dir string, seed uint64) (unmount func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), faultVar+"="+dir, fmt.Sprintf("%s=%d", faultSeedVar, seed))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, "the file system is mounted", func() bool { return isFUSE(dir) })
	return func() {
		if n := entries(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid)); n > mostDescriptors {
			t.Errorf("the faulty file system has %d descriptors: it has failed with EMFILE, too", n)
		}
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func isFUSE(dir string) bool {
	var at syscall.Statfs_t
	const fuseMagic = 0x65735546 // linux/magic.h
	return syscall.Statfs(dir, &at) == nil && at.Type == fuseMagic
}

// serveFaulty is the program. The files are reached by a descriptor from before the mount.
func serveFaulty(dir string) error {
	seed, err := strconv.ParseUint(os.Getenv(faultSeedVar), 10, 64)
	if err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	files := &faulty{RawFileSystem: fs.NewNodeFS(newBelow(fd), &fs.Options{NullPermissions: true}),
		random: rand.New(rand.NewPCG(seed, 0))}
	server, err := fuse.NewServer(files, dir,
		&fuse.MountOptions{DirectMountStrict: true, AllowOther: true, FsName: "faulty"})
	if err != nil {
		return err
	}
	go func() {
		for range time.Tick(time.Second / 4) {
			runtime.GC() // which closes descriptors
		}
	}()
	server.Serve()
	return nil
}

// faulty returns EIO for some requests, in place of doing them. The seed decides the place of those
// that fail; which request comes there depends on the programs.
type faulty struct {
	fuse.RawFileSystem
	mu     sync.Mutex
	random *rand.Rand
}

func (f *faulty) fails() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(faultyIn) == 0
}

func (f *faulty) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if f.fails() {
		return 0, fuse.EIO
	}
	return f.RawFileSystem.Write(cancel, in, data)
}

func (f *faulty) Read(cancel <-chan struct{}, in *fuse.ReadIn, to []byte) (fuse.ReadResult, fuse.Status) {
	if f.fails() {
		return nil, fuse.EIO
	}
	return f.RawFileSystem.Read(cancel, in, to)
}

func (f *faulty) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.Fsync(cancel, in)
}

func (f *faulty) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.FsyncDir(cancel, in)
}

func (f *faulty) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.Rename(cancel, in, from, to)
}

func (f *faulty) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.Unlink(cancel, in, name)
}

func (f *faulty) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.Link(cancel, in, name, out)
}

func (f *faulty) Symlink(cancel <-chan struct{}, in *fuse.InHeader, target, name string,
	out *fuse.EntryOut) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.Symlink(cancel, in, target, name, out)
}

func (f *faulty) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.ReadDir(cancel, in, out)
}

func (f *faulty) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.ReadDirPlus(cancel, in, out)
}

func (f *faulty) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string,
	out *fuse.CreateOut) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.Create(cancel, in, name, out)
}

func (f *faulty) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.Open(cancel, in, out)
}

func (f *faulty) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if f.fails() {
		return fuse.EIO
	}
	return f.RawFileSystem.OpenDir(cancel, in, out)
}

// TestTheFaultyFileSystemFails, and keeps what it does not fail. Of a thousand tries some twenty
// give EIO; of two hundred only two did, once in several hundred runs.
func TestTheFaultyFileSystemFails(t *testing.T) {
	dir := t.TempDir()
	unmount := mountFaulty(t, dir, rig.Random(t, "seed").Uint64())
	const tries = 1000
	failures := 0
	for range tries {
		err := os.WriteFile(filepath.Join(dir, "draft"), []byte("whole"), 0o600)
		if err == nil {
			err = os.Rename(filepath.Join(dir, "draft"), filepath.Join(dir, "file"))
		}
		if errors.Is(err, syscall.EIO) {
			failures++
		}
	}
	unmount()
	text, err := os.ReadFile(filepath.Join(dir, "file"))
	if failures < 3 || failures > tries/2 || err != nil || string(text) != "whole" {
		t.Errorf("%d of %d failed; the file has %q, %v", failures, tries, text, err)
	}
	if left, _ := os.ReadDir(dir); strings.Contains(fmt.Sprint(left), "fuse_hidden") {
		t.Errorf("%v", left)
	}
}
