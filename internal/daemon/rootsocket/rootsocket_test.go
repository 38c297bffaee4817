package rootsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAnotherUserIsNotAnswered: not even if the mode of the socket was changed.
func TestAnotherUserIsNotAnswered(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to become another user: that the socket distinguishes users is not shown")
	}
	dir, err := os.MkdirTemp("/tmp", "") // other users get into this one, whatever TMPDIR is
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "status.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
			_ = conn.Close()
		}
	}()
	for uid, want := range map[int]string{0: "hello", 65534: ""} {
		if got, err := connect(path, uid); err != nil || got != want {
			t.Errorf("user %d reads %q (%v), want %q", uid, got, err, want)
		}
	}
}

// connect reads what another user receives from a socket, in a thread that becomes that user and
// ends.
func connect(path string, uid int) (text string, err error) {
	var done sync.WaitGroup
	done.Go(func() {
		runtime.LockOSThread()
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
			err = e
			return
		}
		fd, e := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err = e; err != nil {
			return
		}
		defer unix.Close(fd)
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return
		}
		buffer := make([]byte, 16)
		n, e := unix.Read(fd, buffer)
		text, err = string(buffer[:max(n, 0)]), e
	})
	done.Wait()
	return text, err
}

// TestPeerPID: the process that connected is this one, and only unix sockets know it.
func TestPeerPID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if pid, err := PeerPID(conn); err != nil || pid != os.Getpid() {
		t.Errorf("connected has %d (%v), want %d", pid, err, os.Getpid())
	}
	one, two := net.Pipe()
	defer one.Close()
	defer two.Close()
	if pid, err := PeerPID(one); err == nil {
		t.Errorf("a pipe comes from process %d", pid)
	}
}
