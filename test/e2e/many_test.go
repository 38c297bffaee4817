//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// many creates 200 containers at once with 100 grants: 100 with a grant each, 50 with a grant that
// another one uses too, and 50 with a forged one. Of two with the same grant, the first to come
// runs. No grant is used twice. When all are gone, nothing is left.
func many(s *site, c ctr) {
	t := s.T
	const grants, shared, forged = 100, 50, 50
	var references []string
	for range grants {
		references = append(references, s.granted("--memory", "256MiB").String())
	}
	references = append(references, references[:shared]...)
	for i := range forged {
		references = append(references,
			fmt.Sprintf("g-%s.%032x", strings.Repeat(string(rune('a'+i%26)), 12), i))
	}
	results := make([]rig.Result, len(references))
	each(len(references), func(i int) {
		results[i] = rig.Run(exec.Command(c.path, "run", "--detach", "--null-io",
			"--runc-binary", s.runtime(),
			"--annotation", "gpuledger.dev/grant="+references[i], image, many1(i), "/bin/sleep", "10000"))
	})
	t.Cleanup(func() { c.removeAll(s) })
	if !runEachOnce(t, references, results, grants, grants+shared) {
		s.explainDoubles(c, references, results)
		return
	}
	bound := 0
	for _, g := range s.Grants() {
		if g.State != grant.Bound || len(g.Bindings) != 1 {
			t.Errorf("grant %s is %s with the bindings %+v, want it bound by one container", g.ID,
				g.State, g.Bindings)
		}
		bound++
	}
	if bound != grants {
		t.Errorf("the ledger lists %d grants, want %d", bound, grants)
	}
	c.removeAll(s)
	eventually(t, "all grants are free", func() bool {
		for _, g := range s.Grants() {
			if g.State != grant.Free || len(g.Bindings) > 0 {
				return false
			}
		}
		return true
	})
}

// explainDoubles prints what is known of containers that run with the same grant.
func (s *site) explainDoubles(c ctr, references []string, results []rig.Result) {
	tasks := s.command(c.path, "tasks", "list").Stdout
	audit, _ := os.ReadFile(s.Dir + "/audit.jsonl")
	for i := range references {
		j := slices.Index(references[:i], references[i])
		if j < 0 || results[i].Code != 0 || results[j].Code != 0 {
			continue
		}
		id, _, _ := strings.Cut(references[i], ".")
		for _, line := range strings.Split(tasks+string(audit), "\n") {
			if strings.Contains(line, id) || strings.HasPrefix(line, many1(i)+" ") ||
				strings.HasPrefix(line, many1(j)+" ") {
				s.T.Log(line)
			}
		}
	}
}

func many1(i int) string { return fmt.Sprintf("many-%d", i) }

// runEachOnce wants of the containers with one reference exactly one to run, none of those from
// `forged` on, and the others to be refused as they must.
func runEachOnce(t testing.TB, references []string, results []rig.Result, grants, forged int) bool {
	t.Helper()
	users := map[string]int{}
	for i, r := range results {
		want := grant.GrantInUse
		if i >= forged {
			want = grant.GrantNotFound
		}
		switch {
		case r.Code == 0 && i < forged:
			users[references[i]]++
		case r.Code == 0 || !strings.Contains(r.Stderr, fmt.Sprintf("refused (%s)", want)):
			t.Errorf("container %d: %+v, want it to run or to be refused as %s", i, r, want)
		}
	}
	for _, reference := range references[:grants] {
		if users[reference] != 1 {
			t.Errorf("%d containers run with grant %s, want 1", users[reference], reference)
		}
	}
	return !t.Failed()
}

// removeAll kills and removes every container of the default namespace.
func (c ctr) removeAll(s *site) {
	for _, id := range strings.Fields(s.command(c.path, "tasks", "list", "-q").Stdout) {
		_ = s.command(c.path, "tasks", "kill", "--signal", "KILL", id)
	}
	eventually(s.T, "all containers are removed", func() bool {
		ids := strings.Fields(s.command(c.path, "containers", "list", "-q").Stdout)
		if len(ids) == 0 {
			return true
		}
		if tasks := strings.Fields(s.command(c.path, "tasks", "list", "-q").Stdout); len(tasks) > 0 {
			_ = s.command(c.path, append([]string{"tasks", "delete", "--force"}, tasks...)...)
		}
		_ = s.command(c.path, append([]string{"containers", "delete"}, ids...)...)
		return false
	})
}

// each calls f for all of 0..n-1 at once.
func each(n int, f func(int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}
