package cgmem

import (
	"bufio"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// served returns a socket on which each connection gets serve's answer to its line; with nil it
// never answers.
func served(t *testing.T, serve func(line string) string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "s-") // a socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				line, err := bufio.NewReader(conn).ReadString('\n')
				if err != nil || serve == nil {
					_, _ = conn.Read(make([]byte, 1)) // until the client closes the connection
					return
				}
				_, _ = conn.Write([]byte(serve(line)))
			}()
		}
	}()
	return dir + "/s"
}

func TestAsk(t *testing.T) {
	var received string
	socket := served(t, func(line string) string { received = line; return `{"version":1}` + "\n" })
	if err := Ask(socket, Call{Op: Set, RuntimeRoot: "/run/runc", Container: "c", PID: 7},
		time.Minute); err != nil {
		t.Error(err)
	}
	if want := `{"version":1,"op":"set","runtime_root":"/run/runc","container":"c","pid":7}` +
		"\n"; received != want {
		t.Errorf("gpuledgerd receives %q, want %q", received, want)
	}
	for answer, want := range map[string]string{
		`{"version":1,"error":"no such grant"}` + "\n": "no such grant",
		`{"version":2}` + "\n":                         "of another version",
		"{}\n":                                         "of another version",
		"no JSON\n":                                    "cannot be understood",
		`{"version":1}`:                                "it has hung up",
		"":                                             "it has hung up",
		strings.Repeat("x", 2*MaxLine) + "\n":          "it says too much",
		`{"version":1,"version":1}` + "\n":             "cannot be understood",
		`{"version":1,"error":"` + "\xff" + `"}` + "\n": "cannot be understood",
	} {
		socket := served(t, func(string) string { return answer })
		if err := Ask(socket, Call{Op: Clear}, time.Minute); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", answer, err, want)
		}
	}
}

// TestAskIsNotHeldUp: neither a process that accepts a connection and sends nothing, nor one that
// accepts none, blocks Ask.
func TestAskIsNotHeldUp(t *testing.T) {
	if err := Ask(served(t, nil), Call{Op: Clear}, 50*time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "timed out") {
		t.Errorf("silence: %v", err)
	}
	if err := Ask(served(t, nil), Call{Op: Clear}, 0); err == nil {
		t.Error("no time at all is enough")
	}
	if err := Listens("/tmp/missing/socket"); err == nil || !strings.Contains(err.Error(),
		"gpuledgerd does not answer at /tmp/missing/socket: no such file or directory") {
		t.Errorf("without a socket: %v", err)
	}
	if err := Listens(served(t, nil)); err != nil {
		t.Errorf("with a socket: %v", err)
	}
	if err := Listens("/" + strings.Repeat("x", 200)); err == nil {
		t.Error("a name that no socket has")
	}
}
