package watch

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestProgramsOfUsers: where grants open the device nodes to their users, the programs of a user
// count to the user's grants, without a binding: in a rootless container, too.
func TestProgramsOfUsers(t *testing.T) {
	const ada, bert = 60001, 60002
	rootless := "/user.slice/user-60001.slice/user@60001.service/user.slice/libpod-" +
		strings.Repeat("a", 64) + ".scope/container"
	const session = "/user.slice/session-1.scope"
	pod := "/kubepods/pod" + uid + "/" + id0
	runs := func(s *Input, pid int, uid uint32, cgroup string, memory grant.Bytes) *grant.ProcessUse {
		use := s.runs(pid, 0, cgroup, memory)
		p := s.Processes[pid]
		p.UID, p.Foreign, p.Rootless = uid, cgroup == rootless || cgroup == pod, cgroup == rootless
		s.Processes[pid] = p
		return use
	}
	mine := func(id grant.ID, mode grant.Mode, memory grant.Bytes) grant.Grant {
		return grant.Grant{ID: id, Owner: grant.Bearer, Mode: mode, User: ada, Source: grant.ByUser,
			GPUs: []grant.Share{{UUID: gpu0, Memory: memory}}}
	}
	const four = 4 * grant.GiB
	for name, c := range map[string]struct {
		grants []grant.Grant
		do     func(*Input)
		want   []string // KIND BYTES GRANT
		used   []string // by grant
		out    grant.Bytes
	}{
		"within its grant": {grants: []grant.Grant{mine(one, grant.Limit, four)},
			do:   func(s *Input) { runs(s, 7, ada, rootless, four) },
			used: []string{"g-aaaaaaaaaaaa 4GiB 1"}},
		"two programs": {grants: []grant.Grant{mine(one, grant.Limit, four)},
			do: func(s *Input) {
				runs(s, 7, ada, rootless, 2*grant.GiB)
				runs(s, 8, ada, session, 3*grant.GiB)
			},
			want: []string{"over-grant 1GiB g-aaaaaaaaaaaa"},
			used: []string{"g-aaaaaaaaaaaa 5GiB 2"}, out: grant.GiB},
		"two grants": {grants: []grant.Grant{mine(one, grant.Limit, four), mine(two, grant.Limit, four)},
			do:   func(s *Input) { runs(s, 7, ada, rootless, 9*grant.GiB) },
			want: []string{"over-grant 1GiB g-bbbbbbbbbbbb"},
			used: []string{"g-aaaaaaaaaaaa 4GiB 1", "g-bbbbbbbbbbbb 5GiB 0"}, out: grant.GiB},
		"the second of two grants is free": {
			grants: []grant.Grant{mine(one, grant.Limit, four), mine(two, grant.Limit, four)},
			do:     func(s *Input) { runs(s, 7, ada, rootless, four) },
			used:   []string{"g-aaaaaaaaaaaa 4GiB 1"}},
		"a whole GPU": {grants: []grant.Grant{mine(one, grant.Exclusive, 16*grant.GiB)},
			do:   func(s *Input) { runs(s, 7, ada, rootless, 9*grant.GiB) },
			used: []string{"g-aaaaaaaaaaaa 9GiB 1"}},
		"an amount that the driver hides": {grants: []grant.Grant{mine(one, grant.Limit, four)},
			do: func(s *Input) {
				runs(s, 7, ada, rootless, 0).Unmeasured = true
				s.Sample.GPUs[0].Used = grant.GiB
			},
			used: []string{"g-aaaaaaaaaaaa 0MiB 1"}},
		"a pod that runs with the user's uid": {grants: []grant.Grant{mine(one, grant.Limit, four)},
			do:   func(s *Input) { runs(s, 7, ada, pod, grant.GiB) },
			want: []string{"outside-ledger 1GiB "}, out: grant.GiB},
		"two uids on a GPU that is not granted": {
			grants: []grant.Grant{func() grant.Grant {
				g := mine(one, grant.Limit, four)
				g.GPUs[0].UUID = gpu1
				return g
			}()},
			do: func(s *Input) {
				runs(s, 7, ada, rootless, grant.GiB)
				runs(s, 8, bert, rootless, 2*grant.GiB)
			},
			want: []string{"outside-ledger 3GiB "}, out: 3 * grant.GiB},
		"another user": {grants: []grant.Grant{mine(one, grant.Limit, four)},
			do:   func(s *Input) { runs(s, 7, bert, rootless, grant.GiB) },
			want: []string{"outside-ledger 1GiB "}, out: grant.GiB},
		"a container with programs of two users": {grants: []grant.Grant{mine(one, grant.Limit, four)},
			do: func(s *Input) {
				runs(s, 7, ada, rootless, grant.GiB)
				runs(s, 8, bert, rootless, 2*grant.GiB)
			},
			want: []string{"outside-ledger 2GiB "},
			used: []string{"g-aaaaaaaaaaaa 1GiB 1"}, out: 2 * grant.GiB},
		"root": {grants: []grant.Grant{mine(one, grant.Limit, four)},
			do:   func(s *Input) { runs(s, 7, 0, rootless, grant.GiB) },
			want: []string{"outside-ledger 1GiB "}, out: grant.GiB},
		"a grant that a container uses": {
			grants: []grant.Grant{func() grant.Grant {
				g := mine(one, grant.Limit, four)
				g.Bindings = []grant.Binding{{Grant: one, Container: "c1", Cgroups: []string{"/pods/c1"}}}
				return g
			}()},
			do:   func(s *Input) { runs(s, 7, ada, rootless, grant.GiB) },
			want: []string{"outside-ledger 1GiB "}, out: grant.GiB},
		"a grant of another GPU": {
			grants: []grant.Grant{func() grant.Grant {
				g := mine(one, grant.Limit, four)
				g.GPUs[0].UUID = gpu1
				return g
			}()},
			do:   func(s *Input) { runs(s, 7, ada, rootless, grant.GiB) },
			want: []string{"outside-ledger 1GiB "}, out: grant.GiB},
		"permissions that anybody has": {grants: []grant.Grant{mine(one, grant.Limit, four)},
			do: func(s *Input) {
				runs(s, 7, ada, rootless, grant.GiB)
				s.UserNodes = false
			},
			want: []string{"outside-ledger 1GiB "}, out: grant.GiB},
		"a server of MPS with the uid": {grants: []grant.Grant{mine(one, grant.MPS, four)},
			do: func(s *Input) {
				runs(s, 7, ada, "/system.slice/gpuledgerd.service", grant.GiB)
				s.Serves = func(_ string, p grant.Process) bool { return p.PID == 7 }
			}},
		"an idle rootless container": {grants: []grant.Grant{mine(one, grant.Limit, four)},
			do: func(s *Input) {
				runs(s, 7, ada, rootless, 0)
				s.Sample.GPUs[0].Processes = nil
				s.Open = map[string][]grant.Process{gpu0: {s.Processes[7].Process}}
			}},
		"an idle one without a grant": {
			do: func(s *Input) {
				runs(s, 7, ada, rootless, 0)
				s.Sample.GPUs[0].Processes = nil
				s.Open = map[string][]grant.Process{gpu0: {s.Processes[7].Process}}
			},
			want: []string{"outside-ledger 0MiB "}},
	} {
		s := scene()
		s.Grants, s.UserNodes = c.grants, true
		c.do(&s)
		r := Compare(s)
		var found, used []string
		for _, f := range r.Findings {
			found = append(found, fmt.Sprintf("%s %s %s", f.Kind, f.Bytes, f.Grant))
		}
		for _, u := range r.Grants {
			used = append(used, fmt.Sprintf("%s %s %d", u.ID, u.Used, u.Processes))
		}
		if !slices.Equal(found, c.want) || !slices.Equal(used, c.used) || r.Outside()[gpu0] != c.out {
			t.Errorf("%s: %q, used %q, outside %s; want %q, %q, %s", name, found, used, r.Outside()[gpu0],
				c.want, c.used, c.out)
		}
	}
}

// TestTheLargestProgramIsNamed: a user's programs have nothing to do with each other, and what is
// done about a grant that is exceeded is done to the one that is named.
func TestTheLargestProgramIsNamed(t *testing.T) {
	for _, order := range [][]int{{7, 8}, {8, 7}} {
		s := scene()
		s.UserNodes = true
		s.Grants = []grant.Grant{{ID: one, Owner: grant.Bearer, Mode: grant.Limit, User: 60001,
			GPUs: []grant.Share{{UUID: gpu0, Memory: 4 * grant.GiB}}}}
		for _, pid := range order {
			s.runs(pid, 0, "/user.slice/session-1.scope", map[int]grant.Bytes{7: 10, 8: 1}[pid]*grant.GiB)
			p := s.Processes[pid]
			p.UID = 60001
			s.Processes[pid] = p
		}
		r := Compare(s)
		if len(r.Findings) != 1 || r.Findings[0].User.Processes[0].PID != 7 ||
			r.Findings[0].Bytes != 7*grant.GiB {
			t.Errorf("%v: %+v", order, r.Findings)
		}
	}
}

// TestTheUserOfAProcessIsReadAgain: a program begins as root, and goes on as a user. Another one is
// in a user namespace, as those of a rootless engine.
func TestTheUserOfAProcessIsReadAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to start a process that becomes another user's")
	}
	starts := func(script string) (pid int, input io.Closer) {
		cmd := exec.Command("sh", "-c", script)
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd.Process.Pid, in
	}
	drops, input := starts("read line; exec setpriv --reuid 60001 --clear-groups sleep 1000")
	inside, _ := starts("exec unshare --user sleep 1000")
	c := ProcessTable{Host: host.Default(), UserNodes: true}
	defer c.Close()
	if p := c.Lookup([]int{drops})[drops]; p.UID != 0 || p.Rootless {
		t.Errorf("at first: %+v", p)
	}
	_ = input.Close()
	before, deadline := c.Changes(), time.Now().Add(time.Minute)
	for c.Lookup([]int{drops})[drops].UID != 60001 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if p := c.Lookup([]int{drops})[drops]; p.UID != 60001 || c.Changes() == before {
		t.Errorf("later: %+v", p)
	}
	for !c.Lookup([]int{inside})[inside].Rootless && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
		c.remove(inside)
	}
	if p := c.Lookup([]int{inside})[inside]; !p.Rootless {
		t.Errorf("in a user namespace: %+v", p)
	}
}
