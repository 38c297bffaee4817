package nodeacl

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
)

const anna, bert = 60001, 60002

// devices is a directory of device nodes that has no other user's, and one in it that is
// /dev/null's: an open shows what the kernel allows.
func devices(t *testing.T) (node access, runDir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP: needs root: device nodes with access lists are not seen here")
	}
	dir := t.TempDir()
	if err := unix.Mount("devices", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Skipf("SKIP: no tmpfs here (%v): device nodes with access lists are not seen", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	for d := dir; d != "/tmp" && d != "/"; d = filepath.Dir(d) { // users pass
		must(t, os.Chmod(d, 0o755))
	}
	node = access{Path: filepath.Join(dir, "nvidia0"), Major: 1, Minor: 3, User: anna}
	must(t, unix.Mknod(node.Path, unix.S_IFCHR|0o660, int(unix.Mkdev(1, 3))))
	must(t, os.Chmod(node.Path, 0o660))
	return node, t.TempDir()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// opens reports whether a user can open a file.
func opens(t *testing.T, path string, uid uint32) bool {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", ": <>"+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd.Run() == nil
}

func listOf(t *testing.T, a access) acl {
	t.Helper()
	fd, list, err := open(a)
	must(t, err)
	unix.Close(fd)
	return list
}

// TestUsersOpenTheirNodes: while it is wanted, and nobody else.
func TestUsersOpenTheirNodes(t *testing.T) {
	node, run := devices(t)
	before := listOf(t, node)
	ofBert := node
	ofBert.User = bert
	for _, want := range [][]access{{node}, {node, ofBert}, {ofBert}, nil} {
		for range 2 { // a second pass changes nothing
			must(t, apply(run, want))
			for _, a := range []access{node, ofBert} {
				if got := opens(t, a.Path, a.User); got != slices.Contains(want, a) {
					t.Errorf("uid %d opens it: %v, want of %v", a.User, got, want)
				}
			}
		}
	}
	if after := listOf(t, node); !slices.Equal(before, after) {
		t.Errorf("%v is left of %v", after, before)
	}
}

// TestEntriesOfOthersStay: those of a seat, and the mode.
func TestEntriesOfOthersStay(t *testing.T) {
	node, run := devices(t)
	fd, list, err := open(node)
	must(t, err)
	defer unix.Close(fd)
	seat := list.with(bert)
	seat[seat.of(maskTag, noID)].Perm = 0o4 // bert may read alone
	must(t, seat.write(fd))
	must(t, apply(run, []access{node}))
	if !opens(t, node.Path, anna) || opens(t, node.Path, bert) {
		t.Errorf("the user does not open it, or the mask has widened another's entry: %v", listOf(t, node))
	}
	must(t, apply(run, nil))
	if listOf(t, node).of(userTag, bert) < 0 || opens(t, node.Path, anna) {
		t.Errorf("%v", listOf(t, node))
	}
	ofSeat := node
	ofSeat.User = bert
	must(t, apply(run, []access{ofSeat}))
	must(t, apply(run, nil))
	if listOf(t, node).of(userTag, bert) < 0 {
		t.Error("an entry that was there before is gone")
	}
}

// TestNodesComeBack: closed by their mode, and open to the user again in the next pass; also after
// a program of the driver has set the mode, which is the mask then.
func TestNodesComeBack(t *testing.T) {
	node, run := devices(t)
	must(t, apply(run, []access{node}))
	must(t, os.Remove(node.Path))
	must(t, apply(run, []access{node}))
	must(t, unix.Mknod(node.Path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	if opens(t, node.Path, anna) || opens(t, node.Path, bert) {
		t.Error("a new node is open before the pass")
	}
	must(t, apply(run, []access{node}))
	must(t, os.Chmod(node.Path, 0o600))
	must(t, apply(run, []access{node}))
	if !opens(t, node.Path, anna) || opens(t, node.Path, bert) {
		t.Errorf("%v", listOf(t, node))
	}
}

// TestKilledHalfWay: what was recorded before a kill is taken back, whether it was written or not.
func TestKilledHalfWay(t *testing.T) {
	node, run := devices(t)
	must(t, write(filepath.Join(run, "user-nodes.json"), []access{node}))
	must(t, apply(run, nil))
	must(t, apply(run, []access{node}))
	must(t, apply(run, nil)) // as by the next daemon: nothing is kept in memory
	if opens(t, node.Path, anna) {
		t.Error("it is open after the grant")
	}
}

// fullDisk is a simulator whose disk has no space.
type fullDisk struct{}

func (fullDisk) Random() (r [16]byte)   { return r }
func (fullDisk) After(host.Step, error) {}
func (fullDisk) Before(s host.Step) error {
	if s.Kind == host.Creates || s.Kind == host.Writes {
		return unix.ENOSPC
	}
	return nil
}

// TestAFullRunDirectoryKeepsNoNodeOpen: what is recorded beyond what is open is taken back later.
func TestAFullRunDirectoryKeepsNoNodeOpen(t *testing.T) {
	node, run := devices(t)
	ofBert := node
	ofBert.User = bert
	both := []access{node, ofBert}
	must(t, apply(run, both))
	host.Simulated = fullDisk{}
	err := apply(run, nil)
	host.Simulated = nil
	if !errors.Is(err, unix.ENOSPC) || opens(t, node.Path, anna) || opens(t, node.Path, bert) {
		t.Errorf("%v, and the node is open: %v", err, listOf(t, node))
	}
	if ours, err := recorded(recordOf(run)); err != nil || !slices.Equal(ours, both) {
		t.Errorf("recorded is %v (%v)", ours, err)
	}
	must(t, apply(run, nil))
	if ours, err := recorded(recordOf(run)); err != nil || len(ours) != 0 {
		t.Errorf("recorded is %v (%v)", ours, err)
	}
}

// TestOtherFilesAreNotOpened: links and other nodes at the path.
func TestOtherFilesAreNotOpened(t *testing.T) {
	node, run := devices(t)
	secret := filepath.Join(filepath.Dir(node.Path), "secret")
	must(t, unix.Mknod(secret, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))) // of the same number
	file := filepath.Join(filepath.Dir(node.Path), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for name, put := range map[string]func() error{
		"a symlink":    func() error { return os.Symlink(secret, node.Path) },
		"a hard link":  func() error { return os.Link(file, node.Path) },
		"another node": func() error { return unix.Mknod(node.Path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))) },
	} {
		must(t, os.Remove(node.Path))
		must(t, put())
		if err := apply(run, []access{node}); !errors.Is(err, errOther) {
			t.Errorf("%s: %v", name, err)
		}
		if opens(t, secret, anna) || opens(t, node.Path, anna) {
			t.Errorf("%s: it is open", name)
		}
		must(t, apply(run, nil))
	}
}

// TestWanted: of users, for grants that live.
func TestWanted(t *testing.T) {
	now := time.Now()
	given := grant.Grant{User: anna, GPUs: []grant.Share{{UUID: "GPU-1"}}}
	inv := grant.Inventory{GPUs: []grant.GPU{{UUID: "GPU-0"}, {UUID: "GPU-1", Index: 1, Minor: 3}},
		Majors: map[string]int{"nvidia": 195, "nvidia-uvm": 508}}
	for name, c := range map[string]struct {
		change func(*grant.Grant)
		want   string
	}{
		"a user's": {nil, "nvidiactl nvidia-uvm nvidia-uvm-tools nvidia3"},
		"root's":   {func(g *grant.Grant) { g.User = 0 }, ""},
		"expired":  {func(g *grant.Grant) { g.Expires = now.Add(-time.Second) }, ""},
		"released": {func(g *grant.Grant) { g.Draining = true }, ""},
		"expired, and a program goes on": {func(g *grant.Grant) {
			g.Expires, g.Bindings = now.Add(-time.Second), []grant.Binding{{Life: grant.Alive}}
		}, ""},
		"of no GPU": {func(g *grant.Grant) { g.GPUs[0].UUID = "GPU-9" },
			"nvidiactl nvidia-uvm nvidia-uvm-tools"},
	} {
		g := given
		g.GPUs = slices.Clone(given.GPUs)
		if c.change != nil {
			c.change(&g)
		}
		var got []string
		o := grants.Overview{View: grant.View{Now: now, Grants: []grant.Grant{g}}, Inventory: inv}
		for _, a := range wanted(o, host.Default()) {
			got = append(got, strings.TrimPrefix(a.Path, "/dev/"))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestTheDriverOpensNodesToUsers again, where its options say so: that is an error.
func TestTheDriverOpensNodesToUsers(t *testing.T) {
	h := host.Host{Proc: t.TempDir()}
	must(t, os.MkdirAll(filepath.Join(h.Proc, "driver/nvidia"), 0o755))
	for params, want := range map[string]string{
		"DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 432\n":    "",
		"DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n":    "mode 0666 whenever",
		"DeviceFileUID: 1000\nDeviceFileGID: 0\nDeviceFileMode: 384\n": "mode 0600 and owner 1000 whenever",
	} {
		must(t, os.WriteFile(filepath.Join(h.Proc, "driver/nvidia/params"),
			[]byte("ModifyDeviceFiles: 1\n"+params), 0o644))
		err := opened(h)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", params, err)
		}
	}
}

// TestWithoutAnInventoryOnlyWhatIsOverIsTakenBack: it says which nodes there are. One that is out
// of date still names the node of a GPU whose grant is over, where the user has another grant.
func TestWithoutAnInventoryOnlyWhatIsOverIsTakenBack(t *testing.T) {
	run, now := t.TempDir(), time.Now()
	given := `[{"path":"/dev/nvidia0","major":195,"minor":0,"user":60001},` +
		`{"path":"/dev/nvidia3","major":195,"minor":3,"user":60001},` +
		`{"path":"/dev/nvidia3","major":195,"minor":3,"user":60002}]`
	must(t, os.WriteFile(recordOf(run), []byte(given), 0o600))
	of := []grant.Share{{UUID: "GPU-3"}}
	o := grants.Overview{View: grant.View{Now: now, Grants: []grant.Grant{{User: anna, GPUs: of},
		{User: bert, GPUs: of, Expires: now.Add(-time.Second)}}}}
	for name, c := range map[string]struct {
		gpus []grant.GPU
		want string
	}{
		"missing":                 {nil, "0 3"},
		"without the granted GPU": {[]grant.GPU{{UUID: "GPU-0"}}, "0 3"},
		"out of date":             {[]grant.GPU{{UUID: "GPU-0"}, {UUID: "GPU-3", Index: 1, Minor: 3}}, "3"},
	} {
		o.Inventory.GPUs = c.gpus
		still, err := stillGiven(run, o, wanted(o, host.Default()))
		var got []string
		for _, a := range still {
			if got = append(got, fmt.Sprint(a.Minor)); a.User != anna {
				t.Errorf("%s: user %d has %s", name, a.User, a.Path)
			}
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: the nodes %v (%v), want %s", name, got, err, c.want)
		}
	}
}
