package test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestNRIRace: of containers that are created at once with one grant, exactly one gets it, through
// NRI or through the wrapper.
func TestNRIRace(t *testing.T) {
	n, e, _ := nriNode(t, "")
	g := n.Grant("--memory", "4GiB", "--gpu", "1")
	ids := []string{"a", "b", "c", "d", "e", "f"}
	for round := range torture(4) {
		got := atOnce(len(ids), func(i int) error {
			b := n.Bundle(ids[i], holding(g), with(g), rig.Light)
			if i%3 > 0 {
				return e.CreateIn(rig.PodOf(ids[i]), b)
			}
			if r := b.Create(); r.Code != 0 {
				return &grant.UsageError{Message: r.Stderr}
			}
			return nil
		})
		winners := 0
		for i, err := range got {
			switch {
			case err == nil:
				winners++
			case !strings.Contains(err.Error(), "refused ("+string(grant.GrantInUse)+")"):
				t.Errorf("round %d: container %s: %v", round, ids[i], err)
			}
		}
		if winners != 1 {
			t.Fatalf("round %d: %d containers got the grant, want 1: %v", round, winners, got)
		}
		for _, id := range ids {
			n.Bundle(id).End()
			must(t, e.Remove(id))
		}
		becomesFree(t, n, g.ID)
	}
	n.CheckSound("after the races")
}

// TestNRIAndTheWrapper: if the engine calls both, the wrapper takes over the reservation, under any
// runtime root.
func TestNRIAndTheWrapper(t *testing.T) {
	n, e, d := nriNode(t, "")
	g := n.Grant("--memory", "4GiB", "--gpu", "1")
	for _, root := range []string{"known", "not known"} {
		t.Run("the root is "+root, func(t *testing.T) {
			if root == "not known" {
				d.End(syscall.SIGTERM)
				e.Restart()
				n.Daemon("--runtime-root", n.Dir+"/elsewhere")
			}
			e.Connected()
			b := n.Bundle("both", holding(g), with(g))
			must(t, e.Create(b))
			succeeds(t, b.Create())
			isRefused(t, n.Bundle("another", with(g)).Create(), grant.GrantInUse)
			wantNRIRefusal(t, e.Create(n.Bundle("third", holding(g))), grant.GrantInUse)
			must(t, e.Begin(b))
			succeeds(t, b.Start())
			if pid := pidOf(t, n, g.ID); pid != b.Init() {
				t.Errorf("the grant is bound to process %d, the container's is %d", pid, b.Init())
			}
			if bound := n.Grants()[0].Bindings; len(bound) != 1 {
				t.Errorf("the grant has %d bindings, want 1: %v", len(bound), bound)
			}
			b.KillInit()
			becomesFree(t, n, g.ID)
			b.End()
			must(t, e.Remove(b.ID))
		})
	}
	n.CheckSound("at the end")
}

// TestNRIAsks: a container that asks has one grant, entered when it is announced. It is found again
// when the container starts, and by the wrapper if the engine calls both.
func TestNRIAsks(t *testing.T) {
	n, e, d := nriNode(t, asks("containerd", ""))
	ask := rig.Env("GPULEDGER_MEMORY=4GiB")
	for _, c := range []struct {
		name   string
		create func(*rig.Bundle) rig.Result
		root   string // that gpuledgerd assumes, if not the runtime's
	}{
		{"NRI alone", (*rig.Bundle).RealCreate, ""},
		{"NRI and the wrapper", (*rig.Bundle).Create, ""},
		{"NRI and the wrapper, the root is not known", (*rig.Bundle).Create, "/elsewhere"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root != "" {
				d.End(syscall.SIGTERM)
				e.Restart()
				n.Daemon("--runtime-root", n.Dir+c.root)
				e.Connected()
			}
			b := n.Bundle("asking", ask)
			must(t, e.Create(b))
			announced := n.Grants()
			succeeds(t, c.create(b))
			must(t, e.Begin(b))
			succeeds(t, b.Start())
			held := n.Grants()
			if len(held) != 1 || len(announced) != 1 || held[0].ID != announced[0].ID ||
				held[0].Source != grant.Asked || len(held[0].Bindings) != 1 {
				t.Errorf("announced: %+v\nstarted: %+v", announced, held)
			}
			b.KillInit()
			holdsNothing(t, n)
			b.End()
			must(t, e.Remove(b.ID))
		})
	}
	must(t, e.Create(n.Bundle("never", ask)))
	if held := n.Grants(); len(held) != 1 {
		t.Errorf("announced: %+v", held)
	}
	must(t, e.Remove("never"))
	rig.Eventually(t, "what was announced and never created is not counted", func() bool {
		return len(n.Grants()) == 0
	})
	n.CheckSound("at the end")
}

// TestNRIAfterARestart: a restarted daemon takes over the existing containers, and reports what is
// outside the ledger.
func TestNRIAfterARestart(t *testing.T) {
	n, e, d := nriNode(t, "")
	running, waiting := n.Grant("--memory", "4GiB", "--gpu", "1"), n.Grant("--memory", "4GiB", "--gpu", "1")
	r, w := n.Bundle("runs", holding(running)), n.Bundle("waits", holding(waiting))
	plain, stray := n.Bundle("plain"), n.Bundle("stray", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	must(t, e.Create(r), e.Create(w), e.Create(plain))
	for _, b := range []*rig.Bundle{r, plain, stray} {
		succeeds(t, rig.Run(n.Real("create", "--bundle", b.Dir, b.ID)))
	}
	must(t, e.Begin(r), e.Begin(plain))
	d.End(syscall.SIGKILL)
	wantState(t, n, running.ID, "its container runs, after the end of all others", grant.Bound)
	wantState(t, n, waiting.ID, "no process holds it any more", grant.Free)
	n.Must("release", string(running.ID))
	e.List(e.Now(r), e.Now(w), e.Now(plain), e.Now(stray))
	e.Lost()
	n.Daemon()
	e.Connected()
	rig.Eventually(t, "the daemon is in step", func() bool {
		return strings.Contains(read(t, n.Dir+"/gpuledgerd.log"), "1 outside the ledger")
	})
	wantState(t, n, running.ID, "it is released, its container runs", grant.Draining)
	wantState(t, n, waiting.ID, "it is held again for the container that has not started", grant.Bound)
	wantNRIRefusal(t, e.CreateIn(rig.PodOf("another"), n.Bundle("thief", holding(waiting))), grant.GrantInUse)
	wantObserved(t, n, "stray", grant.VisibleDevicesAll)
	succeeds(t, rig.Run(n.Real("create", "--bundle", w.Dir, w.ID)))
	must(t, e.Begin(w))
	if pid := pidOf(t, n, waiting.ID); pid != w.Init() {
		t.Errorf("the grant is bound to process %d, the container's is %d", pid, w.Init())
	}
}

// TestNRIWithoutPIDs: with an engine that reports no process, the runtime's state is used.
func TestNRIWithoutPIDs(t *testing.T) {
	n, e, d := nriNode(t, "")
	e.NoPIDs = true
	g := n.Grant("--memory", "4GiB", "--gpu", "1")
	b := n.Bundle("c", holding(g))
	must(t, e.Create(b))
	succeeds(t, rig.Run(n.Real("create", "--bundle", b.Dir, b.ID)))
	must(t, e.Begin(b))
	must(t, os.Rename(n.Root, n.Root+".away")) // only the process is left to show it
	d.End(syscall.SIGKILL)
	wantState(t, n, g.ID, "its process runs", grant.Bound)
	must(t, os.Rename(n.Root+".away", n.Root))
	b.KillInit()
	becomesFree(t, n, g.ID)
}

// TestNRIAfterAFailedCreate: the engine announces a container, and its runtime's create fails. No
// event of that follows. The kubelet makes the container anew, with another id.
func TestNRIAfterAFailedCreate(t *testing.T) {
	n, e, _ := nriNode(t, "")
	g := n.Grant("--memory", "4GiB", "--gpu", "1")
	users := func() (ids []string) {
		for _, b := range n.Grants()[0].Bindings {
			ids = append(ids, b.Container)
		}
		return ids
	}
	attempt := func(i int) *rig.Bundle { return n.Bundle("attempt-"+string(rune('0'+i)), holding(g)) }
	must(t, e.Create(attempt(0)))
	other := rig.PodOf("another")
	wantNRIRefusal(t, e.CreateIn(other, n.Bundle("of-another-pod", holding(g))), grant.GrantInUse)
	second := attempt(1)
	must(t, e.Create(second))
	if got := users(); !slices.Equal(got, []string{second.ID}) {
		t.Errorf("after the second attempt the grant is used by %q, want that alone", got)
	}
	for _, end := range []func() error{
		func() error { return e.StopPod(other) }, func() error { return e.RemovePod(other) },
		func() error { return e.StopPod(rig.Pod()) },
	} {
		if n.State(g.ID) != grant.Bound {
			t.Fatal("the end of another pod has freed the grant")
		}
		must(t, end())
	}
	wantState(t, n, g.ID, "its pod is stopped", grant.Free)

	third := attempt(2)
	must(t, e.Create(third))
	must(t, e.RemovePod(rig.Pod()))
	wantState(t, n, g.ID, "its pod is removed", grant.Free)

	made := attempt(3)
	must(t, e.Create(made))
	succeeds(t, made.RealCreate())
	keeps := func(when string) {
		t.Helper()
		wantNRIRefusal(t, e.Create(attempt(4)), grant.GrantInUse)
		must(t, e.StopPod(rig.Pod()), e.RemovePod(rig.Pod()))
		if got := users(); !slices.Equal(got, []string{made.ID}) {
			t.Errorf("%s, and the grant is used by %q", when, got)
		}
	}
	keeps("the runtime has made the container")
	must(t, e.Begin(made))
	keeps("the container runs")
	n.CheckSound("at the end")
}

// wantObserved wants a line of the audit log about a container that could only be recorded.
func wantObserved(t *testing.T, n *rig.Node, id string, code grant.Code) {
	t.Helper()
	for _, line := range strings.Split(read(t, n.Dir+"/audit.jsonl"), "\n") {
		if strings.Contains(line, `"container":"`+id+`"`) && strings.Contains(line, `"mode":"observed"`) &&
			strings.Contains(line, `"code":"`+string(code)+`"`) {
			return
		}
	}
	t.Errorf("the audit log has nothing about %s:\n%s", id, read(t, n.Dir+"/audit.jsonl"))
}

// TestNRIAfterTheEngineRestarts: the daemon reconnects by itself, and the engine's absence harms no
// container.
func TestNRIAfterTheEngineRestarts(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	d := n.Daemon()
	rig.Eventually(t, "the daemon reports what it lacks", func() bool {
		return strings.Contains(d.Log(), "cannot reach the engine's NRI")
	})
	e := n.NRI()
	e.Connected()
	g := n.Grant("--memory", "4GiB")
	must(t, e.Create(n.Bundle("kept", holding(g))))
	e.Stop()
	wantState(t, n, g.ID, "the engine is away", grant.Bound)
	e.Start()
	e.Connected()
	rig.Eventually(t, "a container that the engine no longer lists leaves its grant free",
		func() bool { return n.State(g.ID) == grant.Free })
	wantNRIRefusal(t, e.Create(n.Bundle("all", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))),
		grant.VisibleDevicesAll)
}

// TestNRIStopsAtTheStart what was created while the plugin was not connected, and what was changed
// after its answer.
func TestNRIStopsAtTheStart(t *testing.T) {
	n, e, _ := nriNode(t, "")
	all := n.Bundle("all", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	succeeds(t, rig.Run(n.Real("create", "--bundle", all.Dir, all.ID)))
	wantNRIRefusal(t, e.Begin(all), grant.VisibleDevicesAll)

	g := n.Grant("--memory", "4GiB", "--gpu", "1")
	later := n.Bundle("later", holding(g))
	must(t, e.Create(later))
	// as CDI or another plugin could
	later.WriteConfig([]byte(strings.Replace(string(later.Config()), `"minor":255`, `"minor":0`, 1)))
	succeeds(t, rig.Run(n.Real("create", "--bundle", later.Dir, later.ID)))
	wantNRIRefusal(t, e.Begin(later), grant.GPUDeviceRule)
	later.End()
	must(t, e.Remove(later.ID))

	unedited := n.Bundle("unedited", holding(g), rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	succeeds(t, rig.Run(n.Real("create", "--bundle", unedited.Dir, unedited.ID)))
	wantNRIRefusal(t, e.Begin(unedited), grant.InjectionImpossible)
	wantState(t, n, g.ID, "no container got it", grant.Free)
}

// TestNRICannotStopCRIOAtTheStart: CRI-O gets the error, logs it and starts the container. So the
// refusal is recorded as one that was not enforced, and what it holds stays held.
func TestNRICannotStopCRIOAtTheStart(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "cri-o", Config: "[daemon]\nlisten = \"\"\ninterval = \"50ms\"\n"})
	e := n.NRIOf("cri-o", "1.34.0")
	e.NoPIDs = true
	d := n.Daemon("--nri-socket", e.Socket())
	e.Connected()
	all := n.Bundle("all", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	succeeds(t, all.RealCreate())
	wantNRIRefusal(t, e.Begin(all), grant.VisibleDevicesAll)
	wantObserved(t, n, "all", grant.VisibleDevicesAll)

	g := n.Grant("--memory", "4GiB", "--gpu", "1")
	later := n.Bundle("later", holding(g))
	must(t, e.Create(later))
	// as CDI or another plugin could
	later.WriteConfig([]byte(strings.Replace(string(later.Config()), `"minor":255`, `"minor":0`, 1)))
	succeeds(t, later.RealCreate())
	wantNRIRefusal(t, e.Begin(later), grant.GPUDeviceRule)
	wantObserved(t, n, "later", grant.GPUDeviceRule)
	must(t, e.StopPod(rig.Pod()))
	wantState(t, n, g.ID, "its container runs", grant.Bound)

	if log := d.Log(); strings.Count(log, "(observed): gpuledger: refused") != 2 {
		t.Errorf("gpuledgerd does not log what it could not stop:\n%s", log)
	}
	if audit := read(t, n.Dir+"/audit.jsonl"); strings.Count(audit, `"verdict":"refuse"`) !=
		strings.Count(audit, `"mode":"observed"`) {
		t.Errorf("a refusal counts as enforced:\n%s", audit)
	}
}

// TestNRIReadsCapabilitiesAtTheStart: NRI does not report them, and one of them can undo what
// enforces a limit.
func TestNRIReadsCapabilitiesAtTheStart(t *testing.T) {
	n, e, _ := nriNode(t, "[policy]\nminimum_strength = \"library\"\n")
	g := n.Grant("--mode", "exclusive", "--gpu", "1")
	able := n.Bundle("able", holding(g), func(s *specs.Spec) {
		s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
	})
	must(t, e.Create(able))
	succeeds(t, rig.Run(n.Real("create", "--bundle", able.Dir, able.ID)))
	wantNRIRefusal(t, e.Begin(able), grant.LimitUnenforceable)
	able.End()
	must(t, e.Remove(able.ID))
	plain := n.Bundle("plain", holding(g))
	must(t, e.Create(plain))
	succeeds(t, rig.Run(n.Real("create", "--bundle", plain.Dir, plain.ID)))
	must(t, e.Begin(plain))
}

// TestNRIObserves: beside the wrapper it changes and refuses nothing, and reports what went around
// the wrapper.
func TestNRIObserves(t *testing.T) {
	n, e, _ := nriNode(t, "", "--nri", "observe")
	g := n.Grant("--memory", "4GiB")
	b := n.Bundle("good", holding(g), with(g))
	must(t, e.Create(b))
	wantState(t, n, g.ID, "an observer holds nothing", grant.Free)
	succeeds(t, b.Create())
	must(t, e.Begin(b))
	around := n.Bundle("around", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	must(t, e.Create(around))
	succeeds(t, rig.Run(n.Real("create", "--bundle", around.Dir, around.ID)))
	must(t, e.Begin(around))
	wantObserved(t, n, "around", grant.VisibleDevicesAll)
	if audit := read(t, n.Dir+"/audit.jsonl"); strings.Count(audit, `"mode":"observed"`) != 1 {
		t.Errorf("more than one container was observed:\n%s", audit)
	}
}

// TestNRIFollowsTheConfiguration that is in force when a container is created.
func TestNRIFollowsTheConfiguration(t *testing.T) {
	rig.Mount(t, "tmpfs", "/var/log", "tmpfs", 0, "") // a broken configuration means the default paths
	n, e, d := nriNode(t, "")
	sound := read(t, n.Config)
	n.Write("config.toml", strings.Replace(sound, "[audit]", "[policy]\nmode = \"report\"\n[audit]", 1))
	must(t, e.Create(n.Bundle("reported", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))))
	if !strings.Contains(d.Log(), "visible-devices-all") {
		t.Error("the daemon's log has nothing about what it would refuse")
	}
	n.Write("config.toml", strings.Replace(sound, "[audit]",
		"[policy]\nmode = \"report\"\nungranted = \"hide\"\n[audit]", 1))
	kept := n.Bundle("kept", rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Shell("echo $NVIDIA_VISIBLE_DEVICES"))
	before := kept.Config()
	must(t, e.Create(kept))
	succeeds(t, rig.Run(n.Real("create", "--bundle", kept.Dir, kept.ID)))
	must(t, e.Begin(kept))
	if audit := read(t, n.Dir+"/audit.jsonl"); !bytes.Contains(kept.Config(),
		[]byte("NVIDIA_VISIBLE_DEVICES=all")) || strings.Contains(audit, "injection-impossible") {
		t.Errorf("what is hidden is hidden without being enforced:\n%s\n%s\n%s", before, kept.Config(), audit)
	}
	n.Write("config.toml", sound+"nonsense = 1\n")
	must(t, e.Create(n.Bundle("plain")))
	wantNRIRefusal(t, e.Create(n.Bundle("all", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))), grant.ConfigInvalid)
	n.Write("config.toml", sound)
	n.Must("disable")
	must(t, e.Create(n.Bundle("all", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))))
	n.Must("enable")
	wantNRIRefusal(t, e.Create(n.Bundle("all", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))),
		grant.VisibleDevicesAll)
}

// TestNRIWithABrokenConfigurationAtTheStart: gpuledgerd starts, and refuses until the file is
// correct.
func TestNRIWithABrokenConfigurationAtTheStart(t *testing.T) {
	rig.Mount(t, "tmpfs", "/var/log", "tmpfs", 0, "") // a broken configuration means the default audit log
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	sound, sockets := read(t, n.Config), n.Dir+"/run/*.sock"
	n.Write("config.toml", sound+"keeep = 1\n")
	e, d := n.NRI(), n.Daemon()
	e.Connected()
	must(t, e.Create(n.Bundle("plain")))
	wantNRIRefusal(t, e.Create(n.Bundle("all", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))), grant.ConfigInvalid)
	rig.Eventually(t, "the daemon reports what is wrong", func() bool {
		return strings.Contains(d.Log(), "keeep")
	})
	if open, _ := filepath.Glob(sockets); len(open) > 0 {
		t.Errorf("it serves by the defaults, at %q", open)
	}
	n.Write("config.toml", sound)
	rig.Eventually(t, "the daemon does its other work", func() bool {
		open, _ := filepath.Glob(sockets)
		return len(open) > 0
	})
	wantNRIRefusal(t, e.Create(n.Bundle("all", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))),
		grant.VisibleDevicesAll)
}

// TestNRIWithoutAnAnswer measures what NRI does with a plugin that does not answer in time or is
// not there. docs/nri.md has the same in words: if this fails after an update of NRI, they have to
// change.
func TestNRIWithoutAnAnswer(t *testing.T) {
	required := adaptation.WithDefaultValidator(&validator.DefaultValidatorConfig{
		Enable: true, RequiredPlugins: []string{"gpuledger"}, TolerateMissingAnnotation: "tolerate"})
	for _, c := range []struct {
		name   string
		engine []adaptation.Option
		args   []string
		// the engine's error at the create that gets no answer, and at the one after it; "" if it
		// goes on
		first, next string
		tolerant    bool // a pod may declare that it can start without
	}{
		{name: "by default the engine goes on without it"},
		{name: "a failing request stops that one create", args: []string{"--nri-fail-request"},
			first: "failed to handle CreateContainer request"},
		{name: "a required plugin stops the creates after it", engine: []adaptation.Option{required},
			next: `required plugin "gpuledger" not present`, tolerant: true},
		{name: "both stop all", engine: []adaptation.Option{required}, args: []string{"--nri-fail-request"},
			first: "failed to handle CreateContainer request",
			next:  `required plugin "gpuledger" not present`, tolerant: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
			e := n.NRI(c.engine...)
			d := n.Daemon(c.args...)
			e.Connected(len(c.engine))
			d.Signal(syscall.SIGSTOP)
			rig.Eventually(t, "the daemon stands still", func() bool { return d.Stands() })
			adaptation.SetPluginRequestTimeout(time.Second) // until the next server starts
			for i, want := range []string{c.first, c.next} {
				err := e.Create(n.Bundle("all", rig.Env("NVIDIA_VISIBLE_DEVICES=all")))
				if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("create %d gets %v, want %q", i+1, err, want)
				}
			}
			if c.tolerant {
				container, pod := e.Now(n.Bundle("all")), rig.Pod()
				pod.Annotations["tolerate"] = "true"
				if _, err := e.AskIn(pod, container); err != nil {
					t.Errorf("a pod that tolerates the absence gets %v", err)
				}
			}
		})
	}
}

// TestNRILosesRemovals measures why package adjust sets variables to nothing and puts /dev/null
// over nodes: the server drops a plugin's removals from the environment and from the devices.
func TestNRILosesRemovals(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	e := n.NRI()
	stop := e.Plugin(func(a *api.ContainerAdjustment) {
		a.RemoveEnv("A")
		a.RemoveDevice("/dev/x")
		a.RemoveMount("/x")
		a.RemoveAnnotation("x")
	})
	defer stop()
	e.Connected()
	a, err := e.Ask(e.Now(n.Bundle("c", rig.Env("A=1"), device("/dev/x", 1, 3), bind("/etc", "/x"),
		rig.Annotation("x", "1"))))
	must(t, err)
	if len(a.Env) != 0 || len(a.Linux.Devices) != 0 || len(a.Mounts) != 1 || len(a.Annotations) != 1 {
		t.Errorf("of four removals the engine gets %v", a)
	}
}

func TestDaemon(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	daemon := func(args ...string) rig.Result {
		return rig.Run(n.Command(rig.Binary(t, "gpuledgerd"), args...))
	}
	for _, c := range []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"--help", 0, "--config FILE", ""}, {"--version", 0, "gpuledgerd version ", ""},
		{"man", 0, ".TH gpuledgerd 8", ""},
		{"--nonsense", 2, "", "gpuledgerd: cannot understand the arguments: "},
		{"stay", 2, "", `gpuledgerd: cannot understand "stay"`},
		{"--nri maybe", 2, "", `gpuledgerd: cannot understand --nri "maybe"`},
		{"--log-level loud", 2, "", "gpuledgerd: cannot understand --log-level"},
	} {
		r := daemon(strings.Fields(c.args)...)
		if r.Code != c.code || !strings.Contains(r.Stdout, c.stdout) ||
			!strings.HasPrefix(r.Stderr, c.stderr) || c.stderr != "" && strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("gpuledgerd %s: %+v, want status %d, %q and %q in one line", c.args, r, c.code,
				c.stdout, c.stderr)
		}
	}
	first := n.Daemon("--nri", "off")
	rig.Eventually(t, "it is started", func() bool { return strings.Contains(first.Log(), "started") })
	if r := daemon(); r.Code != 1 || !strings.HasPrefix(r.Stderr,
		"gpuledgerd: cannot start: gpuledgerd runs already (process ") || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("a second one: %+v", r)
	}
	if code := first.End(syscall.SIGTERM); code != 0 || !strings.Contains(first.Log(), "stopped") {
		t.Errorf("it ends with status %d", code)
	}
	again := n.Daemon("--nri", "off")
	rig.Eventually(t, "the next one is started", func() bool {
		return strings.Count(again.Log(), "started") == 2
	})
	again.End(syscall.SIGKILL)
	last := n.Daemon() // with an engine that is not there
	rig.Eventually(t, "the last one is started", func() bool {
		return strings.Count(last.Log(), "started") == 3
	})
	if code := last.End(syscall.SIGTERM); code != 0 {
		t.Errorf("without an engine it ends with status %d", code)
	}
	must(t, os.Remove(n.Dir+"/run/gpuledgerd.lock"))
	n.CheckSound("after daemons")
}
