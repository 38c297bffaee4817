package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/test/rig"
)

// atOnce runs f for 0 to n-1 at the same time and returns the results.
func atOnce[T any](n int, f func(i int) T) []T {
	results, gate, running := make([]T, n), make(chan struct{}), sync.WaitGroup{}
	for i := range n {
		running.Go(func() {
			<-gate
			results[i] = f(i)
		})
	}
	close(gate)
	running.Wait()
	return results
}

// torture is how often a test that depends on chance tries it: the usual number, or TORTURE_ROUNDS.
func torture(usual int) int {
	if rounds, err := strconv.Atoi(os.Getenv("TORTURE_ROUNDS")); err == nil && rounds > 0 {
		return rounds
	}
	return usual
}

func TestOfTwoContainersWithOneGrantOneStarts(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	g := n.Grant("--memory", "4GiB")
	wins := map[string]int{}
	rounds, began := max(200, torture(200)), time.Now()
	for round := range rounds {
		rivals := []*rig.Bundle{n.Bundle("a", with(g), rig.Light), n.Bundle("b", with(g), rig.Light)}
		results := atOnce(2, func(i int) rig.Result { return rivals[i].Create() })
		winner := slices.IndexFunc(results, func(r rig.Result) bool { return r.Code == 0 })
		if winner < 0 || results[1-winner].Code == 0 {
			t.Fatalf("round %d: %+v, want exactly one to start", round, results)
		}
		isRefused(t, results[1-winner], grant.GrantInUse)
		all := n.Grants()
		if len(all) != 1 || len(all[0].Bindings) != 1 || all[0].Bindings[0].Container != rivals[winner].ID ||
			all[0].Bindings[0].PID != rivals[winner].Init() {
			t.Fatalf("round %d: %q has won and the ledger has %+v", round, rivals[winner].ID, all)
		}
		rivals[winner].End()
		wins[rivals[winner].ID]++
	}
	n.CheckSound("at the end")
	t.Logf("%d rounds in %v, won by %v", rounds, time.Since(began).Round(time.Millisecond), wins)
}

const contenders = 64

func TestConcurrentGrantsTakeExactlyTheCapacity(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.Must("gpus") // the binary is built by now
	began := time.Now()
	results := atOnce(contenders, func(int) rig.Result { return patiently(n, "grant", "--memory", "1GiB") })
	took := time.Since(began)
	codes := map[int]int{}
	for _, r := range results {
		codes[r.Code]++
	}
	const fit = 2 * 15 // 16160 MiB are 15 GiB and a rest
	if codes[0] != fit || codes[5] != contenders-fit || len(n.Grants()) != fit {
		t.Errorf("exit statuses %v and %d grants, want %d of 0 and the others 5", codes, len(n.Grants()), fit)
	}
	n.CheckSound("at the end")
	t.Logf("%d processes that grant at once: %v", contenders, took.Round(time.Millisecond))
}

// For requests of many sizes the winners are not predictable. But a refused one must not fit at the
// end either, when nothing was released.
func TestARefusedGrantDoesNotFitAtTheEnd(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	sizes := []string{"512MiB", "1GiB", "3GiB", "6GiB"}
	ask := func(i int) []string {
		args := []string{"grant", "--memory", sizes[i%len(sizes)], "--gpus", strconv.Itoa(1 + i/4%2),
			"--compute", strconv.Itoa(1 + i%7)}
		return append(args, "--place", []string{"binpack", "spread"}[i/8%2])
	}
	results := atOnce(contenders, func(i int) rig.Result { return patiently(n, ask(i)...) })
	granted := 0
	for i, r := range results {
		switch r.Code {
		case 0:
			granted++
		case 5:
			if again := n.CLI(ask(i)...); again.Code != 5 {
				t.Errorf("%v was refused (%s) and fits at the end: %+v", ask(i), r.Stderr, again)
			}
		default:
			t.Errorf("%v: %+v", ask(i), r)
		}
	}
	if granted == 0 || granted == contenders || len(n.Grants()) != granted {
		t.Errorf("%d of %d were granted and %d are in the ledger", granted, contenders, len(n.Grants()))
	}
	n.CheckSound("at the end")
}

func TestConcurrentGrantsContainersAndChecks(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	s := &storm{t: t, n: n}
	workers := []func(name string){s.containers, s.containers, s.containers, s.grants, s.grants,
		s.checks, s.owners}
	atOnce(len(workers), func(i int) struct{} {
		workers[i](fmt.Sprintf("w%d", i))
		return struct{}{}
	})
	for _, problem := range s.problems {
		t.Error(problem)
	}
	n.CheckSound("after the storm")
	for _, g := range n.Grants() {
		if g.State != grant.Free {
			t.Errorf("all containers have ended and grant %s is %s", g.ID, g.State)
		}
		n.Must("release", string(g.ID))
	}
	n.CheckSound("when all is released")
	if all := free(t, n); slices.ContainsFunc(all, func(f grant.Bytes) bool { return f != 16160*grant.MiB }) {
		t.Errorf("all is released and free are %v", all)
	}
	t.Logf("%d steps", s.steps)
}

// free lists what is free on each GPU.
func free(t *testing.T, n *rig.Node) []grant.Bytes {
	t.Helper()
	var out struct{ GPUs []struct{ Free grant.Bytes } }
	if err := json.Unmarshal([]byte(n.Must("gpus", "--json")), &out); err != nil {
		t.Fatal(err)
	}
	var all []grant.Bytes
	for _, g := range out.GPUs {
		all = append(all, g.Free)
	}
	return all
}

// storm is what many workers do to one node at once.
type storm struct {
	t        *testing.T
	n        *rig.Node
	mu       sync.Mutex
	steps    int
	problems []string
}

const stormSteps = 12

// want records a program's result if it is not an allowed one.
func (s *storm) want(what string, r rig.Result, codes ...int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps++
	if !slices.Contains(codes, r.Code) || strings.Contains(r.Stderr, "internal") ||
		strings.Contains(r.Stderr, "panic") {
		s.problems = append(s.problems, fmt.Sprintf("%s: %+v, want a status of %v", what, r, codes))
	}
	return r.Code == 0
}

// patiently calls the command line, again if a busy machine did not let it have the ledger's lock
// in time.
func patiently(n *rig.Node, args ...string) rig.Result {
	for range 10 {
		if r := n.CLI(args...); !strings.Contains(r.Stderr, "cannot lock the ledger within") {
			return r
		}
	}
	return n.CLI(args...)
}

func (s *storm) cli(args ...string) rig.Result { return patiently(s.n, args...) }

// containers takes a grant, runs a container with it, and releases a grant while another exists.
func (s *storm) containers(name string) {
	for i := range stormSteps {
		r := s.cli("grant", "--memory", "3GiB", "--label", name)
		reference, err := grant.ParseReference(strings.TrimSpace(r.Stdout))
		if !s.want("grant", r, 0, 5) || err != nil {
			continue
		}
		b := s.n.Bundle(fmt.Sprintf("%s-%d", name, i%3), with(reference), rig.Light)
		s.want("create", createsAtLast(b), 0)
		if i%2 == 0 {
			s.want("release", s.cli("release", string(reference.ID)), 0)
		}
		b.KillInit()
		s.want("delete", rig.Run(s.n.Wrapper("delete", b.ID)), 0)
		if i%4 == 1 {
			s.want("release", s.cli("release", string(reference.ID)), 0)
		}
	}
}

func (s *storm) grants(name string) {
	random := rig.Random(s.t, name)
	for range 2 * stormSteps {
		size := fmt.Sprintf("%dMiB", 2*(1+random.IntN(1024)))
		r := s.cli("grant", "--memory", size, "--gpus", strconv.Itoa(1+random.IntN(2)), "--label", name)
		if reference, err := grant.ParseReference(strings.TrimSpace(r.Stdout)); s.want("grant", r, 0, 5) &&
			err == nil {
			s.want("update", s.cli("grant", "--update", string(reference.ID), "--memory", "2GiB"), 0, 5)
			s.want("release", s.cli("release", string(reference.ID)), 0)
		}
	}
}

// owners requests the same owner's grant again and again: there is at most one.
func (s *storm) owners(string) {
	const owner = "pod:7a1c0000-0000-4000-8000-000000000002/main"
	for range stormSteps {
		results := atOnce(2, func(int) rig.Result {
			return s.cli("grant", "--memory", "256MiB", "--owner", owner)
		})
		granted := 0
		for _, r := range results {
			if s.want("grant to an owner", r, 0, 5) {
				granted++
				s.want("release", s.cli("release", strings.TrimSpace(r.Stdout)), 0)
			}
		}
		if granted > 1 {
			s.want("two grants to one owner at once", rig.Result{Code: -1}, 0)
		}
	}
}

func (s *storm) checks(string) {
	for range 2 * stormSteps {
		s.want("check", s.cli("check"), 0)
		s.want("inspect", s.cli("inspect"), 0)
	}
}

// TestTheLedgerChangesUnderAnEdit: a spec is edited before the ledger is locked. The decision then
// counts only if it is still the same; nothing is bound to a container that has the edits of
// another decision.
func TestTheLedgerChangesUnderAnEdit(t *testing.T) {
	n := adopting(t, "")
	b := n.Bundle("c", inPod("train"), written("train", "memory", "12GiB"))
	guard := node.Open(n.Config, host.Default())
	admit := func(meanwhile func(edits int)) node.Decision {
		edits := 0
		return guard.Admit(node.Create{Caller: request.Caller{
			Container: grant.Container{Engine: grant.Containerd, RuntimeRoot: n.Root,
				ID: b.ID, Bundle: b.Dir}},
			Config: b.Config(), Edit: func(config []byte, v grant.Verdict) ([]byte, error) {
				edits++
				meanwhile(edits)
				return edit.OCI(config, v)
			}})
	}
	var taken []grant.Reference
	d := admit(func(edits int) {
		if edits == 1 {
			taken = append(taken, n.Grant("--memory", "8GiB", "--gpu", "0"))
		}
	})
	if d.Kind != grant.Admit || !d.Bound || d.Grant.GPUs[0].Index != 1 ||
		bytes.Contains(d.Config, []byte(`"/dev/nvidia0"`)) ||
		!bytes.Contains(d.Config, []byte(`"/dev/nvidia1"`)) {
		t.Errorf("the GPU that it would have adopted is taken meanwhile: %+v\n%s", d.Verdict, d.Config)
	}
	must(t, guard.Unbind(grant.Container{RuntimeRoot: n.Root, ID: b.ID}))

	d = admit(func(edits int) {
		if edits == 1 {
			taken = append(taken, n.Grant("--memory", "8GiB", "--gpu", "1"))
		}
	})
	if d.Code != grant.NoCapacity || d.Bound || d.Config != nil {
		t.Errorf("all room is taken meanwhile: %+v", d)
	}
	n.Must("release", string(taken[0].ID))
	n.Must("release", string(taken[1].ID))

	d = admit(func(edits int) { // each time the other GPU
		if len(taken) > 0 && edits > 1 {
			n.Must("release", string(taken[len(taken)-1].ID))
		}
		taken = append(taken, n.Grant("--memory", "8GiB", "--gpu", strconv.Itoa((edits+1)%2)))
	})
	if d.Code != grant.LedgerUnreadable || d.Bound {
		t.Errorf("the ledger never stands still: %+v", d.Verdict)
	}
	n.Must("release", string(taken[len(taken)-1].ID))
	if got := n.Grants(); len(got) != 0 {
		t.Errorf("left: %+v", got)
	}
	n.CheckSound("at the end")
}
