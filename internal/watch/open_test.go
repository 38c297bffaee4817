package watch

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

var fullIsGPU0 = map[uint64]string{unix.Mkdev(1, 7): gpu0}

// procOf is a /proc of these processes alone.
func procOf(t *testing.T, processes ...grant.Process) host.Host {
	t.Helper()
	dir := t.TempDir()
	for _, p := range processes {
		name := strconv.Itoa(p.PID)
		if err := os.Symlink("/proc/"+name, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return host.Host{Proc: dir}
}

// opener is a process with so many open files, the last of which is /dev/full if it has the GPU.
func opener(t *testing.T, files int, gpu bool) grant.Process {
	t.Helper()
	last := "/dev/null"
	if gpu {
		last = "/dev/full"
	}
	cmd := exec.Command("bash", "-c", fmt.Sprintf(`ulimit -n %d || exit; for ((i = 10; i < %[1]d - 1; i++)); do
		eval "exec $i</dev/zero"; done; eval "exec $i<>%[2]s"; echo done; exec sleep 1000`, files+11, last))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, cmd) })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the process with %d open files says %q (%v)", files, line, err)
	}
	p, _, err := host.Default().Process(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestALookInSteps: a process with very many open files, as any can have, comes after all others,
// and no step reads much more than it should. What an earlier look found of it stays until then.
func TestALookInSteps(t *testing.T) {
	large, none, small := opener(t, 2*manyFiles, true), opener(t, 1, false), opener(t, 1, true)
	h := procOf(t, large, none, small)
	l := NewLook(h, fullIsGPU0)
	if got := l.unread(); len(got) != 3 {
		t.Errorf("at the beginning unread are %v", got)
	}
	for len(l.rest) > 0 {
		if l.Step(1) {
			t.Fatal("it is done without the process with many files")
		}
	}
	if got := l.unread(); !slices.Equal(got, []int{large.PID}) || l.read != nil {
		t.Errorf("after the first files unread are %v", got)
	}
	before := map[string][]grant.Process{gpu0: {large, none}}
	inOrder := func(all ...grant.Process) map[string][]grant.Process {
		slices.SortFunc(all, func(a, b grant.Process) int { return a.PID - b.PID })
		return map[string][]grant.Process{gpu0: all}
	}
	if got := l.Known(nil); !reflect.DeepEqual(got, inOrder(small)) {
		t.Errorf("the first look has found %v, want %v", got, small)
	}
	if got := l.Known(before); !reflect.DeepEqual(got, inOrder(small, large)) {
		t.Errorf("a later look has found %v, want %v and %v", got, small, large)
	}
	steps := 0
	for ; !l.Step(1000); steps++ {
		if l.read == nil || !slices.Equal(l.unread(), []int{large.PID}) {
			t.Fatalf("in the middle of a process unread are %v", l.unread())
		}
	}
	want := inOrder(small, large)
	if got := l.Known(before); !reflect.DeepEqual(got, want) || steps < 5 || len(l.unread()) > 0 {
		t.Errorf("after %d more steps found are %v, want %v", steps, got, want)
	}
	for p, want := range map[grant.Process]bool{large: true, none: false, small: true} {
		if got := HasGPUOpen(h, fullIsGPU0, p.PID); got != want {
			t.Errorf("process %v has a GPU open: %v, want %v", p, got, want)
		}
	}
	if open, unread := OpenGPUs(h, fullIsGPU0); !reflect.DeepEqual(open, want) || len(unread) > 0 {
		t.Errorf("at once: %v and unread %v, want %v", open, unread, want)
	}
}

// TestHolders: an idle container that has a GPU open holds it. What a user of the node can make
// holds nothing, and is no finding, for any user could make thousands. The process must be the one
// that was found, and not a later one with its pid.
func TestHolders(t *testing.T) {
	container := func(u grant.User) grant.User { return u }
	for name, c := range map[string]struct {
		cgroup   string
		foreign  bool
		start    uint64
		identify func(grant.User) grant.User
		found    bool
	}{
		"a container":     {cgroup: "/docker/" + id0, start: 7, identify: container, found: true},
		"a later process": {cgroup: "/docker/" + id0, start: 6, identify: container},
		"of a user's cgroups": {cgroup: "/user.slice/libpod-" + id0 + ".scope", start: 7,
			identify: ofNodeUser},
		"a private pid namespace": {cgroup: "/user.slice/session-1.scope", foreign: true, start: 7,
			identify: ofNodeUser},
		"LXC's": {cgroup: "/lxc.payload.c1/x.service", foreign: true, start: 7, found: true,
			identify: func(u grant.User) grant.User { u.Cgroup = ""; return u }},
	} {
		s := scene()
		s.Processes[7] = ProcessInfo{Process: grant.Process{PID: 7, Start: 7}, Cgroup: c.cgroup,
			Foreign: c.foreign}
		s.Open, s.Identify = map[string][]grant.Process{gpu0: {{PID: 7, Start: c.start}}}, c.identify
		r := Compare(s)
		if held := len(r.Held()[gpu0]) > 0; held != c.found || len(r.Findings) > 0 != c.found {
			t.Errorf("%s: held %v, findings %+v", name, held, r.Findings)
		}
	}
}

func ofNodeUser(u grant.User) grant.User {
	u.OfNodeUser = true
	return u
}

// TestUseOfAUsersCgroups is found and counts as taken, but holds no GPU.
func TestUseOfAUsersCgroups(t *testing.T) {
	s := scene()
	s.runs(7, 0, "/user.slice/libpod-"+id0+".scope", grant.GiB)
	s.Identify = ofNodeUser
	if r := Compare(s); len(r.Findings) != 1 || len(r.Held()) > 0 || r.Outside()[gpu0] != grant.GiB {
		t.Errorf("held %v, findings %+v, outside %v", r.Held(), r.Findings, r.Outside())
	}
}

// TestHoldersAreBounded: the record of a container with very many processes stays small.
func TestHoldersAreBounded(t *testing.T) {
	s := scene()
	for pid := 1000; pid < 1000+2*MaxHolders; pid++ {
		s.runs(pid, 0, "/docker/"+id0, grant.MiB)
	}
	if held := Compare(s).Held(); len(held[gpu0]) != MaxHolders {
		t.Errorf("%d processes are recorded, want %d", len(held[gpu0]), MaxHolders)
	}
}
