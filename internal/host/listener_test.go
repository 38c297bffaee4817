package host

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
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

func TestEachListening(t *testing.T) {
	const columns = "00000000ece97c07: 00000002 00000000 00010000 0005 01 "
	list := filepath.Join(t.TempDir(), "unix")
	text := "Num       RefCount Protocol Flags    Type St Inode Path\n" +
		columns + "  717 /a/control\n" +
		columns + "15525855 /a//b/../c d/control\n" +
		columns + "7 /name with\n" + columns + "8 /forged/control\n" +
		columns + "7 @/abstract/control\n" + columns + "7 control\n" + columns + "7\n" + columns + "7 \n" +
		columns + "7 /a/control \n" + columns + "7 /a/xcontrol\n" + columns + "7 /a control\n" +
		columns + "x /inode/control\n" + columns + "/words/control\n" + columns + "7 8 /words/control\n" +
		"00000000ece97c07 00000002 00000000 00010000 0005 01 7 /number/control\n" +
		"0: 00000002 00000000 00000000 0005 01 7 /bound/control\n" +
		"0: 00000002 00000000 00030000 0005 01 7 /flags/control\n" +
		"0: 00000002 00000000 0x010000 0005 01 7 /flags/control\n" +
		"0: 00000002 00000000 10000 0005 01 7 /short/control\n" +
		"0: 00000002 00000000 00010000 5 01 7 /type/control\n" +
		"0: 00000002 00000000 00010000 0005 01 7 /without-newline/control"
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int]string{
		9: "/a/control /a/c d/control /forged/control /flags/control /without-newline/control",
		2: "/a/control /a/c d/control"} {
		var got []string
		err := EachListening(list, "control", func(path string) bool {
			got = append(got, path)
			return len(got) < most
		})
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("found %q (%v), want %s", got, err, want)
		}
	}
	if err := EachListening(list+"x", "control", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a list: %v", err)
	}
}

// TestAListThatIsTooLong is an error, so that no create reads one for seconds.
func TestAListThatIsTooLong(t *testing.T) {
	const line = "0000000000000000: 00000002 00000000 00010000 0005 01 7 /x/control\n"
	was := maxSockets
	t.Cleanup(func() { maxSockets = was })
	h := Host{Proc: t.TempDir()}
	process := filepath.Join(h.Proc, "5")
	list := filepath.Join(process, "net/unix")
	if err := errors.Join(os.MkdirAll(filepath.Join(process, "fd"), 0o700),
		os.MkdirAll(filepath.Join(process, "net"), 0o700),
		os.Symlink("socket:[8]", filepath.Join(process, "fd/3")),
		os.WriteFile(list, []byte(strings.Repeat(line, 3)), 0o600)); err != nil {
		t.Fatal(err)
	}
	for size, fails := range map[int]bool{2 * len(line): true, 3*len(line) - 1: true, 3 * len(line): false} {
		maxSockets = size
		seen := 0
		err := EachListening(list, "control", func(string) bool { seen++; return true })
		if (err != nil) != fails || fails && seen != 2 {
			t.Errorf("of %d bytes: %d sockets, %v", size, seen, err)
		}
		if holds, err := h.HoldsListener(5, "control"); holds || (err != nil) != fails {
			t.Errorf("of %d bytes: it holds one: %v, %v", size, holds, err)
		}
	}
}

// TestHoldsListener: any user can make the list longer than a program has memory, so it is read in
// pieces.
func TestHoldsListener(t *testing.T) {
	const columns = "0000000000000000: 00000002 00000000 00010000 0005 01 "
	long := strings.Repeat(columns+"1 @"+strings.Repeat("x", 107)+"\n", 33<<20/163)
	for name, c := range map[string]struct {
		list        string
		want, fails bool
	}{
		"its socket":                      {columns + "7 /x/control\n", true, false},
		"its socket, by a relative name":  {columns + "7 control\n", true, false},
		"its socket, in a long list":      {long + columns + "7 /x/control\n", true, false},
		"no other, in a long list":        {long, false, false},
		"another's":                       {columns + "9 /x/control\n", false, false},
		"another of its sockets":          {columns + "7 /x/other\n", false, false},
		"an abstract one":                 {columns + "7 @/x/control\n", false, false},
		"a directory in the list's place": {"", false, true},
	} {
		h := Host{Proc: t.TempDir()}
		process := filepath.Join(h.Proc, "5")
		if err := errors.Join(os.MkdirAll(filepath.Join(process, "fd"), 0o700),
			os.MkdirAll(filepath.Join(process, "net"), 0o700),
			os.Symlink("/dev/null", filepath.Join(process, "fd/0")),
			os.Symlink("socket:[7]", filepath.Join(process, "fd/3"))); err != nil {
			t.Fatal(err)
		}
		list := filepath.Join(process, "net/unix")
		err := os.Mkdir(list, 0o700)
		if c.list != "" {
			err = errors.Join(os.Remove(list), os.WriteFile(list, []byte(c.list), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		holds, err := h.HoldsListener(5, "control")
		runtime.ReadMemStats(&after)
		if holds != c.want || (err != nil) != c.fails {
			t.Errorf("%s: %v, %v", name, holds, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
			t.Errorf("%s: it took %d bytes of memory", name, used)
		}
	}
	for name, pid := range map[string]int{"this process": os.Getpid(), "one that has ended": 1 << 30} {
		if holds, err := Default().HoldsListener(pid, "other"); holds || err != nil {
			t.Errorf("%s: %v, %v", name, holds, err)
		}
	}
	t.Chdir(t.TempDir())
	l, err := net.Listen("unix", "control"+strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if holds, err := Default().HoldsListener(os.Getpid(), l.Addr().String()); !holds || err != nil {
		t.Errorf("its own: %v, %v", holds, err)
	}
}
