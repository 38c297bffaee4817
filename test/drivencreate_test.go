package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestADrivenCreateIsFoundInTheLedger: the hook that requests a limit finds the admitted create, or
// the container does not start, unless it would also start without a grant.
func TestADrivenCreateIsFoundInTheLedger(t *testing.T) {
	if rig.Under(t, rig.V2) {
		return
	}
	rig.Mount(t, "tmpfs", "/sys/bus/pci/devices", "tmpfs", 0, "mode=755") // the stand-in's GPUs are on no bus
	must(t, os.Mkdir("/sys/bus/pci/devices/0000:01:00.0", 0o755),
		os.Mkdir("/sys/bus/pci/devices/0000:02:00.0", 0o755))
	rig.Mount(t, "tmpfs", "/var/log", "tmpfs", 0, "mode=755") // a hook without a configuration records there
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"a relative root", relativeRoot},
		{"a runtime of another root", otherRoot},
		{"the configuration was removed", configurationGone},
		{"released by force", releasedBetween},
		{"a spec that is used again", specUsedAgain},
		{"restored", restoredIsNotDriven},
		{"nothing is enforced", hookErrsInReport},
		{"a limit that is not recorded", limitIsMissing},
	} {
		t.Run(c.name, c.test)
	}
}

// relativeRoot: runtimes change to the bundle before they call a hook, which then resolves a
// relative root there.
func relativeRoot(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	n.driven()
	b := n.holding("c", n.Grant("--memory", "4GiB"), "/bin/gpu 4096 4094")
	for _, root := range [][]string{{"--root", filepath.Base(n.Root)},
		{"--root=./" + filepath.Base(n.Root)}} {
		cmd := n.Wrapper()
		cmd.Args, cmd.Dir = append(append(cmd.Args[:1:1], root...), "run", "--bundle", b.Dir, b.ID),
			filepath.Dir(n.Root)
		if got := rig.Run(cmd); got.Stdout != "4096 MiB: 2\n4094 MiB: 0\n" {
			t.Errorf("%v: %+v", root, got)
		}
	}
}

// otherRoot: a script in the runtime's place makes it keep its state elsewhere. The ledger could
// not follow its containers.
func otherRoot(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	real, err := exec.LookPath("runc")
	must(t, err)
	script := n.Dir + "/runc"
	must(t, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nshift 2\nexec %s --root %s/elsewhere \"$@\"\n",
		real, n.Dir), 0o755))
	n.Write("config.toml", strings.Replace(read(t, n.Config), `path = ["runc"]`, `path = ["`+script+`"]`, 1))
	n.driven()
	r := n.Grant("--memory", "4GiB")
	n.refused(n.holding("c", r, "/bin/gpu 8192"), r, "whose runtime keeps its state in "+n.Dir+"/elsewhere")
}

// configurationGone between the admission and the hook: with it the run directory is unknown, and
// so the ledger.
func configurationGone(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	r := n.Grant("--memory", "4GiB")
	whole := read(t, n.Config)
	for name, text := range map[string]string{"broken": "[", "empty": ""} {
		d := n.driven()
		b, got := n.between(name, r, "/bin/gpu 8192", func() {
			d.End(syscall.SIGKILL) // which would be the daemon of this machine
			n.Write("config.toml", text)
		})
		n.Write("config.toml", whole)
		if got.Code == 0 || got.Stdout != "" || !strings.Contains(got.Stderr, "limit-unenforceable") {
			t.Errorf("%s: %+v", name, got)
		}
		n.untouched(b, r)
	}
}

// releasedBetween the admission and the hook: no grant counts what the container would have.
func releasedBetween(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	n.driven()
	r := n.Grant("--memory", "4GiB")
	b, got := n.between("c", r, "/bin/gpu 8192", func() { n.Must("release", "--force", string(r.ID)) })
	if got.Code == 0 || got.Stdout != "" || !strings.Contains(got.Stderr, "limit-unenforceable") ||
		b.Init() != 0 {
		t.Errorf("%+v", got)
	}
}

// specUsedAgain: the spec has the hook, and no longer requests a GPU.
func specUsedAgain(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	n.driven()
	b := n.holding("c", n.Grant("--memory", "4GiB"), "true")
	if got := b.Run(); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	var hooks *specs.Hooks
	edited(t, b, func(s *specs.Spec) { hooks = s.Hooks })
	again := n.Bundle("again", func(s *specs.Spec) { s.Hooks = hooks }, rig.Shell("echo started"))
	whole := read(t, n.Config)
	for name, text := range map[string]string{"whole": whole, "broken": "["} {
		n.Write("config.toml", text)
		if got := again.RealRun(); got.Stdout != "started\n" || len(hooks.CreateRuntime) != 1 {
			t.Errorf("a %s configuration: %+v, %+v", name, got, hooks)
		}
	}
	n.Write("config.toml", whole)
	// With its GPUs, and without an admission.
	if got := b.RealRun(); got.Code == 0 || !strings.Contains(got.Stderr, "limit-unenforceable") {
		t.Errorf("with a GPU: %+v", got)
	}
}

// restoredIsNotDriven: CRIU restores the cgroup after the hooks, although gpuledger's is in the
// spec.
func restoredIsNotDriven(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{Config: "[enforcement]\nshim = \"{shim}\"\nlimit = \"driver\"\n"})
	n.driven()
	b := n.holding("c", n.Grant("--memory", "4GiB"), "true")
	if got := b.Run(); got.Code != 0 || !strings.Contains(string(b.Config()), `"limit"`) {
		t.Fatalf("%+v", got)
	}
	setRuntime(t, n.Node, stub(t, n.Node, "runc version 1.5.2")) // an older one restores nothing on v2
	got := rig.Run(n.Wrapper("restore", "--bundle", b.Dir, "--image-path", n.Dir, b.ID))
	if got.Code == 0 || !strings.Contains(got.Stderr, "limit-unenforceable") ||
		!strings.Contains(got.Stderr, "restored from a checkpoint") {
		t.Errorf("%+v", got)
	}
}

// hookErrsInReport: an error before the hook knows its container stops no container if nothing is
// enforced, and the ledger records that nothing limits it.
func hookErrsInReport(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	n.driven()
	r := n.Grant("--memory", "4GiB")
	b := n.holding("c", r, "exec /bin/gpu serve")
	start(t, b)
	hook := func(stage, state string) rig.Result {
		cmd := exec.Command(rig.Binary(t, "gpuledger-hook"), stage)
		cmd.Env, cmd.Stdin = []string{"GPULEDGER_CONFIG=" + n.Config}, strings.NewReader(state)
		return rig.RunHook(cmd)
	}
	ofC := fmt.Sprintf(`{"id":"c","pid":%d,"bundle":%q}`, b.Init(), b.Dir)
	for _, stage := range []string{grant.LimitStage, "createRuntime"} {
		if got := hook(stage, "no state"); got.Code == 0 {
			t.Errorf("%s without a state: %+v", stage, got)
		}
	}
	// this test is not a runtime
	if got := hook(grant.LimitStage, ofC); got.Code == 0 || n.strengthOf(r) != "driver" {
		t.Errorf("enforced: %+v, %s", got, n.strengthOf(r))
	}
	n.Write("config.toml", strings.Replace(read(t, n.Config), "[enforcement]\n",
		"[policy]\nmode = \"report\"\n[enforcement]\n", 1))
	for _, stage := range []string{grant.LimitStage, "createRuntime"} {
		if got := hook(stage, "no state"); got.Code != 0 {
			t.Errorf("%s without a state, in report mode: %+v", stage, got)
		}
	}
	if got := hook(grant.LimitStage, ofC); got.Code != 0 || n.strengthOf(r) != "none" {
		t.Errorf("in report mode: %+v, %s", got, n.strengthOf(r))
	}
}

// limitIsMissing: the record of the limits is lost, and with it the limit of a container that the
// ledger lists as limited. It is set again. If it cannot be set, the ledger records that nothing
// limits the container.
func limitIsMissing(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	d := n.driven()
	r := n.Grant("--memory", "4GiB")
	start(t, n.holding("c", r, "exec /bin/gpu serve"))
	for _, c := range []struct{ wish, strength, limit, finding string }{
		{"", "driver", hard(4096), "had no limit; it is set"},
		{"fail", "none", lifted, "has no limit, and none can be set"},
	} {
		d.End(syscall.SIGKILL)
		must(t, os.Remove(n.Dir+"/run/driver-limits.json"))
		n.limit(0, "c", "max")
		n.Write("book/limits", c.wish)
		d = n.driven()
		rig.Eventually(t, c.finding, func() bool {
			return n.limit(0, "c") == c.limit && n.strengthOf(r) == c.strength &&
				strings.Contains(fmt.Sprint(findings(t, n.Node, "found", "limit-changed")), c.finding)
		})
	}
}
