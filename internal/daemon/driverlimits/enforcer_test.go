package driverlimits

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestOwnCgroup: a cgroup belongs to the container and holds no process of another one.
func TestOwnCgroup(t *testing.T) {
	h := host.Default()
	h.Proc = t.TempDir()
	put := func(pid, text string) {
		daemontest.Must(t, os.MkdirAll(filepath.Join(h.Proc, pid), 0o755))
		daemontest.Must(t, os.WriteFile(filepath.Join(h.Proc, pid, "cgroup"), []byte(text), 0o644))
	}
	own := strconv.Itoa(os.Getpid())
	put(own, "0::/system.slice/gpuledgerd.service\n")
	for text, want := range map[string]string{
		"0::/kubepods/pod1/c\n":                                   "/kubepods/pod1/c",
		"12:devices:/x\n1:name=systemd:/y\n0::/machine.slice/a\n": "/machine.slice/a",
		"0::/\n":                                "is not its own",
		"0::/../other\n":                        "is not its own",
		"0::/system.slice\n":                    "is gpuledgerd's, too",
		"0::/system.slice/gpuledgerd.service\n": "is gpuledgerd's, too",
		"12:devices:/x\n":                       "no cgroup of v2",
		"":                                      "no cgroup of v2",
	} {
		put("7", text)
		got, err := ownCgroupOf(h, 7)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if _, err := ownCgroupOf(h, 8); err == nil {
		t.Error("a process that is not there has a cgroup")
	}
}

// TestTheRecordIsOfOneBoot: a record that cannot be read is not treated as empty, because its
// limits have to be removed.
func TestTheRecordIsOfOneBoot(t *testing.T) {
	dir := t.TempDir()
	if l, err := loadRecord(dir, "b"); err != nil || len(l.List) != 0 {
		t.Errorf("without a file: %+v %v", l, err)
	}
	want := limitedCgroup{Cgroup: "/a", Inode: 7, Grant: "g-abcdefghijkl", RuntimeRoot: "/run/runc",
		Container: "c", GPUs: []grant.Share{{UUID: "GPU-0", Memory: grant.GiB}}}
	daemontest.Must(t, recordFile{List: []limitedCgroup{want}}.save(dir, "b"))
	if l, err := loadRecord(dir, "b"); err != nil || len(l.List) != 1 || l.List[0].Cgroup != "/a" ||
		l.List[0].GPUs[0].Memory != grant.GiB {
		t.Errorf("as written: %+v %v", l, err)
	}
	if l, err := loadRecord(dir, "another"); err != nil || len(l.List) != 0 {
		t.Errorf("of another boot: %+v %v", l, err)
	}
	for _, text := range []string{"", "{", `{"version":2,"boot_id":"b"}`} {
		daemontest.Must(t, os.WriteFile(filepath.Join(dir, recordName), []byte(text), 0o600))
		if _, err := loadRecord(dir, "b"); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

// TestTheRequestSocket answers requests of one line, and can be closed and opened again.
func TestTheRequestSocket(t *testing.T) {
	path := filepath.Join(daemontest.ShortDir(t), "limit.sock")
	var d requestSocket
	answer := func(_ context.Context, r cgmem.Call, peer int) error {
		if r.Op != cgmem.Set || peer != os.Getpid() {
			return errors.New("not that")
		}
		return nil
	}
	daemontest.Must(t, d.open(path, answer))
	daemontest.Must(t, d.open(path, answer)) // which is open
	for line, want := range map[string]string{
		`{"version":1,"op":"set"}`:   `{"version":1}`,
		`{"version":1,"op":"clear"}`: `{"version":1,"error":"not that"}`,
		`{"version":2,"op":"set"}`:   `{"version":1,"error":"gpuledgerd is of another version than the program that asks (1, not 2)"}`,
		`garbage`:                    `{"version":1,"error":"gpuledgerd cannot understand the request"}`,
		`{"version":1,"op":"set","container":"` + strings.Repeat("x", cgmem.MaxLine) + `"}`: "",
	} {
		conn, err := net.Dial("unix", path)
		daemontest.Must(t, err)
		_, _ = conn.Write([]byte(line + "\n"))
		got, _ := bufio.NewReader(conn).ReadString('\n')
		_ = conn.Close()
		if strings.TrimSpace(got) != want {
			t.Errorf("%.60s: %q, want %q", line, got, want)
		}
	}
	d.close()
	if err := cgmem.Listens(path); err == nil {
		t.Error("it is open")
	}
	daemontest.Must(t, d.open(path, answer))
	if err := cgmem.Listens(path); err != nil {
		t.Errorf("again: %v", err)
	}
	d.close()
}

// TestAReductionEndsWithItsProcess: until then the containers get no more than the smaller grant
// allows.
func TestAReductionEndsWithItsProcess(t *testing.T) {
	h := host.Default()
	self, err := h.Self()
	daemontest.Must(t, err)
	gone := self
	gone.Start++
	ledger := []grant.Share{{UUID: "GPU-0", Memory: 12 * grant.GiB}, {UUID: "GPU-1", Memory: grant.GiB}}
	to := []grant.Share{{UUID: "GPU-0", Memory: 2 * grant.GiB}, {UUID: "GPU-1", Memory: 2 * grant.GiB}}
	for name, c := range map[string]struct {
		l    reduction
		want grant.Bytes
	}{
		"no reduction":                   {reduction{}, 12 * grant.GiB},
		"it is being lowered":            {reduction{to, self}, 2 * grant.GiB},
		"the reducing process has ended": {reduction{to, gone}, 12 * grant.GiB},
	} {
		if got := c.l.apply(h, ledger); got[0].Memory != c.want || got[1].Memory != grant.GiB {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestTheSocketIsClosedWhileNoRequestCanSucceed: unless a container has limits. A create that finds
// no socket uses the shim.
func TestTheSocketIsClosedWhileNoRequestCanSucceed(t *testing.T) {
	s := newFakeDriver(t)
	ensure := func(open bool, what string) {
		t.Helper()
		if _ = s.Ensure(context.Background()); s.socket.isOpen() != open {
			t.Errorf("%s: the socket is open: %t", what, s.socket.isOpen())
		}
	}
	daemontest.Must(t, s.socket.open(s.n.Policy.LimitSocket(), s.handle))
	f := s.limited("c", "GPU-0")
	s.populate(f, true)
	s.hung = true
	ensure(true, "the driver does not answer, and a container is limited")
	s.known, s.answered = nil, true
	_ = s.setLimits(context.Background(), s.n, f.limits(s.n.Host, true)) // of a create that fails
	if stand, err := s.check(context.Background(), s.n, true); stand || err == nil {
		t.Errorf("the driver does not answer, and the next pass finds %t, %v", stand, err)
	}
	s.hung = false
	ensure(true, "it answers again")
	daemontest.Must(t, os.WriteFile(filepath.Join(s.n.Policy.RunDir, recordName), []byte("{"), 0o600))
	s.runDir = "" // another gpuledgerd
	ensure(false, "what is limited cannot be read")
}
