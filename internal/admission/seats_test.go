package admission

import (
	"errors"
	"slices"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// A placement grants what a seat shows as free, and refuses more.
func TestPlacementsGrantWhatSeatsShow(t *testing.T) {
	inv := inventory(6)
	inv.GPUs[4].Health = "fell off the bus"
	v := grant.View{Outside: map[string]grant.Bytes{"GPU-3": grant.GiB}, Grants: []grant.Grant{
		held("g-a", "bearer", grant.Limit, 30, 10*grant.GiB, 0),
		held("g-b", "bearer", grant.Exclusive, 0, 16*grant.GiB, 1),
		held("g-c", "bearer", grant.Timeslice, 0, grant.GiB, 2)}}
	p := grant.Policy{Pools: []grant.Pool{{GPUs: []string{"0-4"}},
		{GPUs: []string{"5"}, Modes: []grant.Mode{grant.Limit}}}}
	seats, err := Seats(v, inv, p)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range seats {
		for _, mode := range []grant.Mode{grant.Exclusive, grant.Timeslice, grant.Limit} {
			ask := Ask{Mode: mode, Owner: grant.Bearer, Names: []string{s.UUID()}}
			if mode != grant.Exclusive {
				ask.Memory, ask.Compute = s.Free, s.Compute
			}
			shares, err := Place(ask, "", v, inv, p)
			promised := s.Closed == "" && slices.Contains(s.Modes, mode) &&
				(mode != grant.Exclusive || s.Outside == 0)
			if promised != (err == nil) {
				t.Errorf("GPU %d in mode %s is promised: %v (%+v); placed: %v, %v", s.GPU.Index, mode,
					promised, s, shares, err)
			}
			if err == nil && mode == grant.Exclusive && shares[0].Memory != s.Space {
				t.Errorf("GPU %d has space for %s, and a grant of it whole has %s", s.GPU.Index,
					s.Space, shares[0].Memory)
			}
			if ask.Memory += grant.MiB; promised && mode != grant.Exclusive {
				var refusal *grant.Refusal
				if _, err := Place(ask, "", v, inv, p); !errors.As(err, &refusal) ||
					refusal.Code != grant.NoCapacity {
					t.Errorf("GPU %d has %s free, but %s more gives %v", s.GPU.Index, s.Free, grant.MiB, err)
				}
			}
		}
	}
	if seats[4].Closed == "" || len(seats[4].Modes) == 0 {
		t.Errorf("got %+v, want an unhealthy GPU closed, with the modes that it will have again", seats[4])
	}
}

// A GPU with an MPS daemon has room only for grants over the GPUs of that daemon.
func TestSeatsNameTheGPUsOfADaemon(t *testing.T) {
	v := grant.View{Grants: []grant.Grant{held("g-a", "bearer", grant.MPS, 0, 4*grant.GiB, 0, 1),
		held("g-b", "bearer", grant.MPS, 0, 4*grant.GiB, 2),
		held("g-c", "bearer", grant.Limit, 0, grant.GiB, 3)}}
	seats, err := Seats(v, inventory(5), grant.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{2, 2, 1, 0, 0} {
		if seats[i].Served != want {
			t.Errorf("GPU %d is served by a daemon over %d GPUs, want %d", i, seats[i].Served, want)
		}
	}
}
