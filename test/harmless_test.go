package test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// scene is a node with three containers: one that reaches no GPU, one with a grant, and one that
// requests all GPUs.
type scene struct {
	*rig.Node
	reference         grant.Reference
	web, train, crypt *rig.Bundle
}

func newScene(t *testing.T) *scene {
	n := rig.NewNode(t, rig.Setup{})
	s := &scene{Node: n, reference: n.Grant("--memory", "4GiB")}
	s.web = n.Bundle("web", rig.Shell("exit 0"))
	s.train = n.Bundle("train", rig.Annotation("gpuledger.dev/grant", s.reference.String()))
	s.crypt = n.Bundle("crypt", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	return s
}

func (s *scene) path(name string) string { return filepath.Join(s.Dir, name) }

// check runs the three: the first starts whatever is broken; the others get the code, or "" if they
// start.
func (s *scene) check(t *testing.T, train, crypt string) {
	t.Helper()
	before := s.web.Config()
	if r := s.web.Run(); r.Code != 0 || r.Stderr != "" {
		t.Errorf("a container that reaches no GPU: %+v", r)
	}
	if !bytes.Equal(s.web.Config(), before) {
		t.Error("the config.json of a container that reaches no GPU was changed")
	}
	for b, code := range map[*rig.Bundle]string{s.train: train, s.crypt: crypt} {
		before := b.Config()
		r := b.Create()
		if code == "" {
			if r.Code != 0 {
				t.Errorf("%s does not start: %+v", b.ID, r)
			}
			continue
		}
		wantRefused(t, r, code)
		if !bytes.Equal(b.Config(), before) {
			t.Errorf("the config.json of %s was changed", b.ID)
		}
	}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestHarmNoContainerWithoutAGPU breaks one thing at a time. A container that reaches no GPU starts
// each time, with its spec unchanged to the byte. One that would reach a GPU is refused with a
// sentence, or gets its grant if that can still be proven.
func TestHarmNoContainerWithoutAGPU(t *testing.T) {
	for _, c := range []struct {
		name         string
		breakIt      func(t *testing.T, s *scene)
		train, crypt string
	}{
		{"nothing", func(*testing.T, *scene) {}, "", "visible-devices-all"},
		{"configuration with an unknown key", func(t *testing.T, s *scene) {
			s.Write("config.toml", "nonsense = 1\n")
		}, "config-invalid", "config-invalid"},
		{"configuration full of bytes", func(t *testing.T, s *scene) {
			s.Write("config.toml", "\x00\xff\x1b[2J")
		}, "config-invalid", "config-invalid"},
		{"named configuration is missing", func(t *testing.T, s *scene) {
			s.Config = s.path("missing.toml")
		}, "config-invalid", "config-invalid"},
		{"configuration cannot be read", func(t *testing.T, s *scene) {
			s.Config = s.Dir
		}, "config-invalid", "config-invalid"},
		{"entries of the ledger are garbage", func(t *testing.T, s *scene) {
			s.Write("state/grants/"+string(s.reference.ID)+".json", "\x00garbage{{")
			s.Write("state/grants/g-aaaaaaaaaaaa.json", strings.Repeat("[", 100_000))
			s.Write("state/grants/notes", "hello")
		}, "ledger-unreadable", "visible-devices-all"},
		{"the ledger's directories are files", func(t *testing.T, s *scene) {
			for _, dir := range []string{"state/grants", "state/owners", "state/gpus",
				"run/bindings", "run/grants"} {
				must(t, os.RemoveAll(s.path(dir)))
				s.Write(dir, "")
			}
		}, "ledger-unreadable", "visible-devices-all"},
		{"an entry of a newer version", func(t *testing.T, s *scene) {
			s.Write("state/grants/"+string(s.reference.ID)+".json", `{"version":99}`)
		}, "ledger-unreadable", "visible-devices-all"},
		{"state directory is missing", func(t *testing.T, s *scene) {
			must(t, os.RemoveAll(s.path("state")))
		}, "inventory-missing", "inventory-missing"},
		{"state directory is read-only", func(t *testing.T, s *scene) {
			rig.ReadOnly(t, s.path("state"))
		}, "", "visible-devices-all"}, // a binding lives in the run directory
		{"run directory is missing", func(t *testing.T, s *scene) {
			must(t, os.RemoveAll(s.path("run")))
		}, "", "visible-devices-all"},
		{"run directory is read-only", func(t *testing.T, s *scene) {
			rig.ReadOnly(t, s.path("run"))
		}, "ledger-unreadable", "visible-devices-all"},
		{"both are missing and cannot be made", func(t *testing.T, s *scene) {
			config := strings.NewReplacer(s.path("state"), s.path("file/state"), s.path("run"),
				s.path("file/run")).Replace(read(t, s.Config))
			s.Write("file", "")
			s.Write("config.toml", config)
		}, "inventory-missing", "inventory-missing"},
		{"disk is full", func(t *testing.T, s *scene) {
			s.Write("config.toml", strings.Replace(read(t, s.Config), s.path("audit.jsonl"),
				s.path("run/audit.jsonl"), 1))
			rig.Small(t, s.path("state"))
			rig.Small(t, s.path("run"))
		}, "ledger-unreadable", "visible-devices-all"},
		{"inventory is missing", func(t *testing.T, s *scene) {
			must(t, os.Remove(s.path("state/inventory.json")))
		}, "inventory-missing", "inventory-missing"},
		{"inventory is garbage", func(t *testing.T, s *scene) {
			s.Write("state/inventory.json", "\x00{{{")
		}, "inventory-missing", "inventory-missing"},
		{"inventory is of another boot", func(t *testing.T, s *scene) {
			rig.Reboot(t)
		}, "inventory-stale", "inventory-stale"},
		{"inventory is of another source", func(t *testing.T, s *scene) {
			s.Write("config.toml", strings.Replace(read(t, s.Config), `source = "simulated"`,
				`source = "nvml"`, 1))
		}, "inventory-stale", "inventory-stale"},
		{"audit file cannot be written", func(t *testing.T, s *scene) {
			must(t, os.RemoveAll(s.path("audit.jsonl")), os.Mkdir(s.path("audit.jsonl"), 0o700))
		}, "", "visible-devices-all"},
		{"bundle is read-only", func(t *testing.T, s *scene) {
			rig.ReadOnly(t, s.path("bundles"))
		}, "injection-impossible", "visible-devices-all"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// a broken configuration means the default paths
			rig.Mount(t, "tmpfs", "/var/log", "tmpfs", 0, "")
			s := newScene(t)
			c.breakIt(t, s)
			s.check(t, c.train, c.crypt)
		})
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// TestLockHeldForEver: a create without a grant never takes the lock; one with a grant gets an
// answer.
func TestLockHeldForEver(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	lock, err := os.OpenFile(s.path("run/lock"), os.O_RDWR, 0)
	must(t, err)
	defer lock.Close()
	must(t, flock(lock))
	s.check(t, "ledger-unreadable", "visible-devices-all")
	for _, command := range []string{"grants", "gpus", "inspect"} {
		s.Must(command)
	}
	must(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_UN))
	if r := s.train.Create(); r.Code != 0 {
		t.Errorf("when the lock is free again: %+v", r)
	}
}

// TestRefusalLeavesTheGrantFree: a binding is undone if the create is refused afterwards.
func TestRefusalLeavesTheGrantFree(t *testing.T) {
	s := newScene(t)
	rig.ReadOnly(t, s.path("bundles"))
	wantRefused(t, s.train.Create(), "injection-impossible")
	if got := s.State(s.reference.ID); got != grant.Free {
		t.Errorf("state %q", got)
	}
}

// TestUnreadableLedgerAndIdentity: a pod's container may own a grant that cannot be read. If it
// requests nothing else it starts without a GPU, and that is recorded.
func TestUnreadableLedgerAndIdentity(t *testing.T) {
	for name, breakIt := range map[string]func(*rig.Node, grant.ID){
		"damaged entry": func(n *rig.Node, id grant.ID) { n.Write("state/grants/"+string(id)+".json", "{") },
		"owners is a file": func(n *rig.Node, _ grant.ID) {
			must(t, os.RemoveAll(n.Dir+"/state/owners"))
			n.Write("state/owners", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
			id := n.Grant("--memory", "1GiB", "--owner", "pod:u1/train").ID
			breakIt(n, id)
			b := n.Bundle("c", rig.Identity("u1", "default", "p", "train"), rig.Shell("exit 0"))
			before := b.Config()
			if r := b.Run(); r.Code != 0 || !bytes.Equal(b.Config(), before) {
				t.Errorf("%+v", r)
			}
			if audit := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(audit, `"verdict":"pass"`) ||
				!strings.Contains(audit, "without the GPUs") {
				t.Errorf("audit: %s", audit)
			}
			greedy := n.Bundle("g", rig.Identity("u1", "default", "p", "train"),
				rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
			wantRefused(t, greedy.Create(), "ledger-unreadable")
		})
	}
}

// TestReboot: grants survive it, bindings do not, and no container gets a GPU by a snapshot of the
// previous boot.
func TestReboot(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	reference := n.Grant("--memory", "4GiB")
	b := n.Bundle("c", rig.Annotation("gpuledger.dev/grant", reference.String()))
	if r := b.Create(); r.Code != 0 {
		t.Fatal(r)
	}
	rig.Reboot(t)
	if got := n.State(reference.ID); got != grant.Free {
		t.Errorf("state %q after the reboot", got)
	}
	d := n.Bundle("d", rig.Annotation("gpuledger.dev/grant", reference.String()))
	wantRefused(t, d.Create(), "inventory-stale")
	if r := n.CLI("gpus"); r.Code != 0 || !strings.Contains(r.Stderr,
		"warning: the inventory was taken before the node was booted\nhint: run `gpuledger "+
			"inventory refresh`") {
		t.Errorf("gpus: %+v", r)
	}
	n.Must("check")
	n.Must("inventory", "refresh")
	if r := d.Create(); r.Code != 0 {
		t.Errorf("after the refresh: %+v", r)
	}
	if got := n.State(reference.ID); got != grant.Bound {
		t.Errorf("state %q", got)
	}
}

func flock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX) }
