package doctor

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/gpuledger/gpuledger/internal/host"
)

// The kernel's list of sockets shows whether another program listens on the daemon's port, whatever
// the listener answers.
func TestListenerIsTheDaemonOrAnotherProgram(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // not earlier: the garbage collector closes a listener that is not used any more
	six, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		six = l // this machine has no IPv6
	}
	defer six.Close()
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	// a connection, which is not a listener, on a port that is its own
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	self, others := os.Getpid(), []uint32{uint32(os.Geteuid())}
	for name, row := range map[string]struct {
		address string
		pid     int
		want    Listening
	}{
		"the daemon":           {l.Addr().String(), self, Listening{Ours: true}},
		"by IPv6":              {six.Addr().String(), self, Listening{Ours: true}},
		"another than it":      {l.Addr().String(), other.Process.Pid, Listening{Others: others}},
		"no daemon, and one":   {l.Addr().String(), 0, Listening{Others: others}},
		"at every address":     {":" + port, self, Listening{Ours: true}},
		"at another address":   {"127.0.0.2:" + port, self, Listening{}},
		"no listener":          {conn.LocalAddr().String(), self, Listening{}},
		"a socket of a path":   {"unix:/run/gpuledger/status.sock", self, Listening{}},
		"off":                  {"", self, Listening{}},
		"what is no address":   {"9836", self, Listening{}},
		"a daemon that is not": {l.Addr().String(), -1, Listening{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := listening(row.address, row.pid, host.Default()); got.Ours != row.want.Ours ||
				!slices.Equal(got.Others, row.want.Others) {
				t.Errorf("%+v, want %+v", got, row.want)
			}
		})
	}
}

// TestListenersAtAnAddress: listeners are found at the address or at all addresses of its family,
// and no others.
func TestListenersAtAnAddress(t *testing.T) {
	written := func(address string) string { // in the kernel's notation
		text := ""
		bytes := netip.MustParseAddr(address).AsSlice()
		for ; len(bytes) > 0; bytes = bytes[4:] {
			text += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(bytes))
		}
		return text
	}
	const every, four, six, mapped = "", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"
	for _, c := range []struct {
		configured, local string
		want              bool
	}{
		{four, four, true}, {four, "192.0.2.2", false}, {four, "0.0.0.0", true}, {four, mapped, true},
		{four, "::", true}, {four, six, false}, {four, "127.0.0.1", false},
		{six, six, true}, {six, "2001:db8::2", false}, {six, "::", true}, {six, "0.0.0.0", false},
		{six, "::1", false}, {six, four, false},
		{every, four, true}, {every, six, true}, {every, "::", true}, {"0.0.0.0", four, true},
		{"::", "127.0.0.1", true}, {"fe80::1%lo", "fe80::1", true}, {"fe80::1%lo", "fe80::2", false},
	} {
		line := "0: " + written(c.local) +
			":266C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 4711 1"
		inode, uid, found := listens(line, addressesOf(c.configured), 9836)
		if found != c.want || found && (inode != "4711" || uid != 1000) {
			t.Errorf("%s is configured, and a program listens at %s: %v %s %d", c.configured, c.local,
				found, inode, uid)
		}
	}
	if _, _, found := listens(
		"0: 0100007F:266C 00000000:0000 01 00000000:00000000 00:00000000 00000000 1000 0 4711 1", nil,
		9836); found {
		t.Error("a connection listens")
	}
}
