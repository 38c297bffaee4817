package watch

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestKeptProcessUsers: a comparison with users from an earlier one has the same result as without.
func TestKeptProcessUsers(t *testing.T) {
	cgroups := []string{"/pods/c1", "/pods/c1/below", "/pods/c2", "/pods/c3", "/docker/" + id0,
		"/docker/" + id0 + "/below", "/user.slice", "", "/lxc/box"}
	for round := range 50 {
		r := rand.New(rand.NewPCG(uint64(round), 1))
		s := scene()
		for pid := 1; pid <= 30; pid++ {
			p := ProcessInfo{Process: grant.Process{PID: pid, Start: uint64(pid)},
				Command: fmt.Sprint("program ", pid), Cgroup: cgroups[r.IntN(len(cgroups))],
				Foreign: r.IntN(3) == 0}
			if s.Processes[pid] = p; r.IntN(5) == 0 {
				delete(s.Processes, pid)
			}
		}
		cast := NewProcessUsers(s.Grants, s.Processes, false)
		for sample := range 5 {
			for i := range s.Sample.GPUs {
				g := &s.Sample.GPUs[i]
				g.Used, g.Processes = 0, nil
				for range r.IntN(20) {
					p := grant.ProcessUse{PID: 1 + r.IntN(30), Memory: grant.Bytes(r.IntN(1024)) * grant.MiB,
						Compute: r.IntN(3) - 1}
					if r.IntN(4) == 0 {
						p.Device = "MIG-" + g.UUID
					}
					g.Used += p.Memory
					g.Processes = append(g.Processes, p)
				}
			}
			s.Users = nil
			want := Compare(s)
			s.Users = cast
			if got := Compare(s); !reflect.DeepEqual(got, want) {
				t.Fatalf("round %d, sample %d: with the cast of others\n%+v\nwithout\n%+v",
					round, sample, got, want)
			}
		}
	}
}
