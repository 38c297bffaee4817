package node_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestAnIDWhoseContainerHasNotEnded: the refusal says what of the earlier container is there.
func TestAnIDWhoseContainerHasNotEnded(t *testing.T) {
	for name, c := range map[string]struct{ events, want string }{
		"a process is left": {"populated 1\n",
			`processes of the earlier container of the id "c" are left in its cgroup /earlier`},
		"its cgroup is not seen": {"",
			`cannot tell whether the earlier container of the id "c" has ended`},
		"it has ended": {"populated 0\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(t)
			g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
			h := m.node.Host
			h.Sys = m.dir + "/sys"
			m.must(os.MkdirAll(h.Sys+"/fs/cgroup/earlier", 0o755))
			if c.events != "" {
				m.must(os.WriteFile(h.Sys+"/fs/cgroup/earlier/cgroup.events", []byte(c.events), 0o644))
			}
			m.node = node.Open(filepath.Join(m.dir, "config.toml"), h)
			create := m.referring("c", reference)
			m.must(m.node.Ledger.Update(func(tx *ledger.Tx) error {
				return tx.Bind(grant.Binding{Grant: g.ID, RuntimeRoot: create.Container.RuntimeRoot,
					Container: "c", Creator: grant.Process{PID: endedPID, Start: 1},
					Cgroups: []string{"/earlier"}})
			}))
			d := m.node.Admit(create)
			if bound := c.want == ""; d.Bound != bound || !bound && d.Code != grant.GrantInUse ||
				d.Message != c.want {
				t.Errorf("%s (%s) %s, want %q", d.Kind, d.Code, d.Message, c.want)
			}
		})
	}
}

// endedPID is above the kernel's limit of pids, so no process has it.
const endedPID = 1<<22 + 1
