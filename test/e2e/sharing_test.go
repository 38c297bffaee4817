//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// sharing is what users of one machine do without an administrator: two share a GPU, a third one is
// told who has it, a fourth asks for too much; the first one leaves, and the third one starts.
func sharing(t *testing.T, s *site, cl client) {
	dir := filepath.Join(s.dir, "sharing-"+cl.name())
	must(t, os.MkdirAll(dir, 0o755))
	asking := func(user, memory string) container {
		return container{name: cl.name() + "-" + user, binds: []bind{{dir, "/sharing"}},
			env:    []string{"GPULEDGER_MEMORY=" + memory, "GPULEDGER_GPU=0"},
			script: ": >/sharing/" + user + "; while [ ! -e /sharing/" + user + ".ends ]; do sleep 0.1; done"}
	}
	ended := map[string]chan result{}
	begins := func(user, memory string) {
		ended[user] = make(chan result, 1)
		go func() { ended[user] <- cl.run(s, asking(user, memory)) }()
		eventually(t, user+" runs", func() bool { return there(filepath.Join(dir, user)) })
	}
	leaves := func(user string) {
		writeFile(t, filepath.Join(dir, user+".ends"), "")
		if r := <-ended[user]; r.Code != 0 {
			t.Errorf("%s: %+v", user, r)
		}
	}
	asked := func() (n int) {
		for _, g := range s.Grants() {
			if g.Source == "asked" {
				n++
			}
		}
		return n
	}
	begins("anna", "10GiB")
	begins("bert", "4GiB")
	s.isRefused(t, cl.run(s, asking("carl", "8GiB")), grant.NoCapacity, "0:10GiB")
	s.isRefused(t, cl.run(s, asking("dora", "64GiB")), grant.NoCapacity,
		"for 64GiB on a GPU in mode limit: GPU 0 has 1824MiB")
	if n := asked(); n != 2 {
		t.Errorf("%d have a share, want 2: %+v", n, s.Grants())
	}
	leaves("anna")
	eventually(t, "her share is free", func() bool { return asked() == 1 })
	begins("carl", "8GiB")
	leaves("bert")
	leaves("carl")
	eventually(t, "nothing is granted", func() bool { return asked() == 0 })
	s.CheckSound("after all have left")
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
