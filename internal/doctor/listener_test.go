package doctor

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Whoever has taken the daemon's port is told from the daemon by the kernel's list of sockets, whatever it answers.
func TestListeningIsTheDaemonsOrAnothers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // and not before: who is not used any more is closed with the garbage
	six, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		six = l // no IPv6 here
	}
	defer six.Close()
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	conn, err := net.Dial("tcp", l.Addr().String()) // no listener, on a port of its own
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
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
		"nobody":               {conn.LocalAddr().String(), self, Listening{}},
		"a socket of a path":   {"unix:/run/gpuledger/status.sock", self, Listening{}},
		"off":                  {"", self, Listening{}},
		"what is no address":   {"9836", self, Listening{}},
		"a daemon that is not": {l.Addr().String(), -1, Listening{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := listening(row.address, row.pid, host.Default()); got.Ours != row.want.Ours || !slices.Equal(got.Others, row.want.Others) {
				t.Errorf("%+v, want %+v", got, row.want)
			}
		})
	}
}
