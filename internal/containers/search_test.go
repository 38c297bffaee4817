package containers

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// A state that is not there is a container that is gone to one who would see it. To an agent in a
// pod, which has the runtime roots that it was given, it may be another engine's container that
// runs.
func TestAContainerThatIsNotSeenIsNotTakenForDead(t *testing.T) {
	const runs, zombie = "77 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 555",
		"77 (x) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 555"
	for name, row := range map[string]struct {
		cgroup, stat string // of another process
		root         bool   // is there
		inPod        bool   // another cgroup namespace
		hidden       bool   // processes are
		creator      uint64 // when it was started; that process was at 555
		reserved     bool   // before the container was made
		want         grant.Life
	}{
		"the node, and the root is there":        {root: true, want: grant.Dead},
		"the node, and the root is gone":         {want: grant.Dead},
		"a pod, and the root is there":           {root: true, inPod: true, want: grant.Dead},
		"a pod without the root":                 {inPod: true, want: grant.LifeUnknown},
		"a process in its cgroup":                {cgroup: "0::/../x/c", stat: runs, root: true, inPod: true, want: grant.LifeUnknown},
		"below its cgroup":                       {cgroup: "1:cpu:/\n0::/c/init", stat: runs, root: true, want: grant.LifeUnknown},
		"in a v1 cgroup":                         {cgroup: "4:memory:/a/c\n0::/", stat: runs, want: grant.LifeUnknown},
		"in its scope":                           {cgroup: "0::/system.slice/runc-c.scope", stat: runs, root: true, want: grant.LifeUnknown},
		"its monitor's scope":                    {cgroup: "0::/machine.slice/libpod-conmon-c.scope", stat: runs, root: true, want: grant.Dead},
		"one as old as its creator":              {cgroup: "0::/c", stat: runs, root: true, creator: 555, want: grant.LifeUnknown},
		"one older than its creator":             {cgroup: "0::/c", stat: runs, root: true, creator: 556, want: grant.Dead},
		"one older than who reserved for it":     {cgroup: "0::/c", stat: runs, root: true, creator: 556, reserved: true, want: grant.LifeUnknown},
		"another's cgroup":                       {cgroup: "0::/cc/c1", stat: runs, root: true, want: grant.Dead},
		"a zombie in its cgroup":                 {cgroup: "0::/c", stat: zombie, root: true, want: grant.Dead},
		"a process that has ended meanwhile":     {cgroup: "0::/c", root: true, want: grant.Dead},
		"a process in its cgroup, hidden":        {cgroup: "0::/c", hidden: true, root: true, want: grant.LifeUnknown},
		"a process of which nothing is readable": {cgroup: "0::/c", stat: "77", root: true, want: grant.LifeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			r, proc := New(host.Default()), t.TempDir()
			got := bound(t, filepath.Join(t.TempDir(), "root"))
			got.Creator.Start, got.Reserved = row.creator, row.reserved
			write := func(name, text string) { files{name: text}.write(t, proc) }
			write("1/ns/cgroup", "")
			write("self/ns/cgroup", "")
			if !row.inPod {
				if err := os.Remove(proc + "/self/ns/cgroup"); err != nil {
					t.Fatal(err)
				}
				if err := os.Link(proc+"/1/ns/cgroup", proc+"/self/ns/cgroup"); err != nil { // the same inode
					t.Fatal(err)
				}
			}
			if !row.hidden {
				write("1/cgroup", "0::/init.scope\n")
				if row.cgroup != "" {
					write("77/cgroup", row.cgroup+"\n")
				}
				if row.stat != "" {
					write("77/stat", row.stat)
				}
			}
			if row.root {
				if err := os.Mkdir(got.RuntimeRoot, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			r.Host.Proc = proc
			if r.Examine(&got); got.Life != row.want || got.Left != (row.want != grant.Dead) {
				t.Errorf("life %d, left %v; want %d", got.Life, got.Left, row.want)
			}
			// else nobody could create the first one there
			if life := r.Life(got.RuntimeRoot, "c"); life != grant.Dead {
				t.Errorf("the runtime is said to have it: life %d", life)
			}
		})
	}
}

// TestSearchesOfOneCreate: a reader for one create keeps what it found out about each binding, and
// finds out nothing new while searches are forbidden.
func TestSearchesOfOneCreate(t *testing.T) {
	proc := t.TempDir()
	texts := files{"1/cgroup": "0::/init.scope\n", "77/cgroup": "0::/runs\n", "77/stat": runningStat}
	texts.write(t, proc)
	node := New(host.Default())
	node.Host.Proc = proc
	r := node.ForOneCreate()
	root := t.TempDir()
	life := func(container string) grant.Life {
		b := bound(t, root)
		b.Container = container
		r.Examine(&b)
		if b.Left != (b.Life != grant.Dead) {
			t.Errorf("%s: life %d, left %v", container, b.Life, b.Left)
		}
		return b.Life
	}
	want := func(when string, lives map[string]grant.Life) {
		t.Helper()
		for container, want := range lives {
			if got := life(container); got != want {
				t.Errorf("%s: the life of %q is %d, want %d", when, container, got, want)
			}
		}
	}
	want("at first", map[string]grant.Life{"runs": grant.LifeUnknown, "gone": grant.Dead})
	allow := r.ForbidSearch()
	want("with searches forbidden", map[string]grant.Life{"runs": grant.LifeUnknown, "gone": grant.Dead,
		"new": grant.LifeUnknown})
	allow()
	if err := os.RemoveAll(filepath.Join(proc, "77")); err != nil {
		t.Fatal(err)
	}
	want("afterwards", map[string]grant.Life{"runs": grant.LifeUnknown, "gone": grant.Dead,
		"new": grant.Dead})
	r = node
	want("another create", map[string]grant.Life{"runs": grant.Dead})
}
