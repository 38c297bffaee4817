package campaign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/test/rig"
)

// below is a file of another directory, by a descriptor of it (O_PATH). go-fuse's loopback has the
// file's path instead: of 465,351 reads of four files, each replaced a thousand times a second, it
// did not find 464,504.
type below struct {
	fs.Inode
	fd int
}

// newBelow is the node of a descriptor. The collector closes it: where go-fuse has a node of the
// file already it drops the new one without a call.
func newBelow(fd int) *below {
	b := &below{fd: fd}
	runtime.AddCleanup(b, func(fd int) { _ = unix.Close(fd) }, fd)
	return b
}

var (
	_ fs.NodeLookuper       = (*below)(nil)
	_ fs.NodeGetattrer      = (*below)(nil)
	_ fs.NodeSetattrer      = (*below)(nil)
	_ fs.NodeOpener         = (*below)(nil)
	_ fs.NodeOpendirHandler = (*below)(nil)
	_ fs.NodeCreater        = (*below)(nil)
	_ fs.NodeMkdirer        = (*below)(nil)
	_ fs.NodeLinker         = (*below)(nil)
	_ fs.NodeSymlinker      = (*below)(nil)
	_ fs.NodeReadlinker     = (*below)(nil)
	_ fs.NodeUnlinker       = (*below)(nil)
	_ fs.NodeRmdirer        = (*below)(nil)
	_ fs.NodeRenamer        = (*below)(nil)
	_ fs.NodeStatfser       = (*below)(nil)
)

// path names the file whatever happens to its name.
func (b *below) path() string { return fmt.Sprintf("/proc/self/fd/%d", b.fd) }

// child is the node of a descriptor. All that are made of one file are one to the kernel, by its
// number, or two locks of one file would not exclude each other.
func (b *below) child(ctx context.Context, fd int, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		_ = unix.Close(fd)
		return nil, fs.ToErrno(err)
	}
	out.FromStat(&stat)
	return b.NewInode(ctx, newBelow(fd), fs.StableAttr{Mode: stat.Mode, Ino: stat.Ino}), 0
}

func (b *below) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	fd, err := unix.Openat(b.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fs.ToErrno(err)
	}
	return b.child(ctx, fd, out)
}

func (b *below) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	var stat syscall.Stat_t
	err := syscall.Fstat(b.fd, &stat)
	out.FromStat(&stat)
	return fs.ToErrno(err)
}

// Setattr sets what gpuledger sets: permissions, owner, size and times.
func (b *below) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn,
	out *fuse.AttrOut) syscall.Errno {
	file, err := unix.Open(b.path(), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == unix.EISDIR {
		file, err = unix.Open(b.path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return fs.ToErrno(err)
	}
	opened := fs.NewLoopbackFile(file)
	defer opened.(fs.FileReleaser).Release(ctx)
	if errno := opened.(fs.FileSetattrer).Setattr(ctx, in, out); errno != 0 {
		return errno
	}
	return b.Getattr(ctx, f, out)
}

func (b *below) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	fd, err := unix.Open(b.path(), int(flags)&^(unix.O_NOFOLLOW|unix.O_APPEND|fuse.FMODE_EXEC), 0)
	if err != nil {
		return nil, 0, fs.ToErrno(err)
	}
	return fs.NewLoopbackFile(fd), 0, 0
}

func (b *below) OpendirHandle(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	entries, errno := fs.NewLoopbackDirStream(b.path())
	return entries, 0, errno
}

func (b *below) Create(ctx context.Context, name string, flags, mode uint32,
	out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	flags = flags&^unix.O_APPEND | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_CLOEXEC
	file, err := unix.Openat(b.fd, name, int(flags), mode)
	if err != nil {
		return nil, nil, 0, fs.ToErrno(err)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", file), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(file)
		return nil, nil, 0, fs.ToErrno(err)
	}
	node, errno := b.child(ctx, fd, out)
	if errno != 0 {
		_ = unix.Close(file)
		return nil, nil, 0, errno
	}
	return node, fs.NewLoopbackFile(file), 0, 0
}

func (b *below) Mkdir(ctx context.Context, name string, mode uint32,
	out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if err := unix.Mkdirat(b.fd, name, mode); err != nil {
		return nil, fs.ToErrno(err)
	}
	return b.Lookup(ctx, name, out)
}

func (b *below) Link(ctx context.Context, target fs.InodeEmbedder, name string,
	out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	from, ok := target.(*below)
	if !ok {
		return nil, syscall.EXDEV
	}
	if err := unix.Linkat(unix.AT_FDCWD, from.path(), b.fd, name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return nil, fs.ToErrno(err)
	}
	return b.Lookup(ctx, name, out)
}

func (b *below) Symlink(ctx context.Context, target, name string,
	out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if err := unix.Symlinkat(target, b.fd, name); err != nil {
		return nil, fs.ToErrno(err)
	}
	return b.Lookup(ctx, name, out)
}

func (b *below) Readlink(context.Context) ([]byte, syscall.Errno) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(b.fd, "", target)
	return target[:max(n, 0)], fs.ToErrno(err)
}

func (b *below) Unlink(_ context.Context, name string) syscall.Errno {
	return fs.ToErrno(unix.Unlinkat(b.fd, name, 0))
}

func (b *below) Rmdir(_ context.Context, name string) syscall.Errno {
	return fs.ToErrno(unix.Unlinkat(b.fd, name, unix.AT_REMOVEDIR))
}

func (b *below) Rename(_ context.Context, name string, parent fs.InodeEmbedder, as string,
	flags uint32) syscall.Errno {
	to, ok := parent.(*below)
	if !ok {
		return syscall.EXDEV
	}
	return fs.ToErrno(unix.Renameat2(b.fd, name, to.fd, as, uint(flags)))
}

func (b *below) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	var stat syscall.Statfs_t
	err := syscall.Fstatfs(b.fd, &stat)
	out.FromStatfsT(&stat)
	return fs.ToErrno(err)
}

// TestFilesThatAreReplacedAreFound: each of a reader's tries gives the whole file or EIO, while
// others replace it. And a lock of the file excludes a lock by another opening of it.
func TestFilesThatAreReplacedAreFound(t *testing.T) {
	dir := t.TempDir()
	file, draft := filepath.Join(dir, "file"), filepath.Join(dir, "draft")
	must(t, os.WriteFile(file, []byte("whole"), 0o600))
	defer mountFaulty(t, dir, rig.Random(t, "seed").Uint64())()
	var over atomic.Bool
	var writer sync.WaitGroup
	writer.Go(func() {
		for !over.Load() {
			if os.WriteFile(draft, []byte("whole"), 0o600) == nil {
				_ = os.Rename(draft, file)
			}
		}
	})
	whole := 0
	for range 20000 {
		switch text, err := os.ReadFile(file); {
		case err == nil && string(text) == "whole":
			whole++
		case !errors.Is(err, syscall.EIO):
			t.Fatalf("%q, %v", text, err)
		}
	}
	over.Store(true)
	writer.Wait()
	if whole < 10000 {
		t.Errorf("only %d were read", whole)
	}
	locks := func() error {
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
		for errors.Is(err, syscall.EIO) {
			f, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
		}
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if first, second := locks(), locks(); first != nil || second != syscall.EWOULDBLOCK {
		t.Errorf("the first locks: %v; the second: %v", first, second)
	}
}
