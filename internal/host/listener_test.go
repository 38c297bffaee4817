package host

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListener: it finds the process that listens, for each kind of socket and a path of any
// length. For anything else it is an error.
func TestListener(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // a socket's path is short
	for _, network := range []string{"unix", "unixpacket"} {
		l, err := net.Listen(network, network)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var st unix.Stat_t
		pid, file, err := Listener(dir + "/" + network)
		if e := unix.Stat(network, &st); e != nil || err != nil || pid != os.Getpid() ||
			file != [2]uint64{uint64(st.Dev), st.Ino} {
			t.Errorf("%s: process %d, %v, %v, %v", network, pid, file, err, e)
		}
	}
	if err := errors.Join(os.Symlink("unix", "link"), os.WriteFile("file", nil, 0o600),
		unix.Mkfifo("fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	gone, err := net.ListenUnix("unix", &net.UnixAddr{Name: "gone", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	gone.SetUnlinkOnClose(false)
	_ = gone.Close()
	full, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err = errors.Join(err, unix.Bind(full, &unix.SockaddrUnix{Name: "full"}),
		unix.Listen(full, 0)); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(full)
	waits, err := net.Dial("unix", "full")
	if err != nil {
		t.Fatal(err)
	}
	defer waits.Close()
	for name, want := range map[string]error{"link": unix.ENOTSOCK, "file": unix.ENOTSOCK,
		"fifo": unix.ENOTSOCK, "none": unix.ENOENT, "gone": unix.ECONNREFUSED, "full": unix.EAGAIN} {
		if pid, _, err := Listener(dir + "/" + name); !errors.Is(err, want) {
			t.Errorf("%s: process %d, %v", name, pid, err)
		}
	}
}
