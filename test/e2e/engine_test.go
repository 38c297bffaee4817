//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// engine is a container engine at one version, with the real runtime behind it.
type engine struct {
	name     string // in E2E and in the table
	trust    grant.Engine
	runtime  string // the real one: a name, or a path below .cache/engines
	layout   rig.Layout
	needs    []string // programs of Debian's
	mute     bool     // it does not show the output of its runtime's hooks
	weakRoot bool     // it cannot switch off what a root without CAP_SYS_RESOURCE cannot do
	up       func(*site) []client
	cluster  bool // it is a whole cluster, which has only an entry point of its own
}

var engines = []engine{
	{name: "containerd2", trust: grant.Containerd, runtime: built("runc/runc"), layout: rig.AsIs,
		up: containerd2},
	{name: "containerd1.7", trust: grant.Containerd, runtime: "runc", layout: rig.AsIs, up: containerd17},
	{name: "containerd1.6", trust: grant.Containerd, runtime: "runc", layout: rig.AsIs,
		needs: []string{"containerd", "ctr"}, up: containerd16},
	{name: "crio", trust: grant.CRIO, runtime: built("runc/runc"), layout: rig.AsIs,
		needs: []string{"conmon", "podman"}, weakRoot: true, up: crio},
	{name: "podman-crun", trust: grant.Podman, runtime: "crun", layout: rig.V1,
		needs: []string{"podman", "conmon"}, mute: true, up: podman},
	{name: "podman-runc", trust: grant.Podman, runtime: "runc", layout: rig.AsIs,
		needs: []string{"podman", "conmon"}, up: podman},
	{name: "docker-20.10", trust: grant.Docker, runtime: "runc", layout: rig.AsIs, needs: []string{"dockerd"},
		weakRoot: true, up: docker20},
	{name: "kubernetes-containerd", trust: grant.Containerd, runtime: built("runc/runc"), layout: rig.AsIs,
		needs: []string{"ip"}, up: kubernetesOn(containerd2, containerdSocket), cluster: true},
	{name: "kubernetes-crio", trust: grant.CRIO, runtime: built("runc/runc"), layout: rig.AsIs,
		needs: []string{"ip", "conmon", "podman"}, weakRoot: true, up: kubernetesOn(crio, crioSocket),
		cluster: true},
	{name: "docker-moby2", trust: grant.Docker, runtime: built("runc/runc"), layout: rig.AsIs, up: docker2},
}

// entry is a point at which gpuledger is called for an engine's containers.
type entry struct {
	name string
	on   func(engine) bool // nil: every engine has it
	// prepare makes s.runtime(), which the engine's configuration names as its runtime.
	prepare func(*site)
	// handler is what the engine calls that runtime.
	handler string
	// settle runs last, after the engine's configuration is written and before the engine starts;
	// nil: nothing.
	settle func(*site)
	// ready runs when the engine answers; nil: nothing.
	ready func(*site)
	// only are the cases of the story that apply here, and why no others do; nil: all, and the
	// other tests.
	only []string
	why  string
	// leave runs first after the engine has stopped, and returns what is wrong; nil: nothing.
	// leaves is its name in the table.
	leave  func(*site, []client) []string
	leaves string
	// bare means that the engine calls the real runtime itself, so no witness sees what it wrote
	// before gpuledger.
	bare bool
	// stripped is the probe's output in a privileged container that policy strips; "" means
	// refused. nil: the probe's usual output of no access.
	stripped func(engine) string
	// former is the name of the runtime that the engine has as its default before gpuledger is
	// configured; "" is the real one.
	former string
	// compare runs in place of the story for a client; nil: the story and the tests after it.
	compare func(*testing.T, *site, client)
	// test runs in place of all other tests at this entry point; nil: the story and the tests after
	// it.
	test func(*testing.T, *site)
	// cluster is whether it is an entry point of whole clusters, and asked whether it is tested
	// only where it is named.
	cluster, asked bool
	// cannot is why this entry point cannot hold a container that the client can ask for; "" if it
	// can.
	cannot func(client, container) string
}

var entries = []entry{
	{name: "wrapper", prepare: (*site).wrapRuntime, handler: "gpuledger"},
	{name: "configure", prepare: (*site).bareRuntime, handler: "plain", settle: (*site).configure,
		leave: (*site).unconfigure, leaves: "undone to the byte",
		cannot: func(cl client, _ container) string {
			if cl.name() == "ctr" {
				return "ctr chooses its runtime itself: no configuration of containerd's is about it"
			}
			return ""
		}},
	{name: "unjudged", prepare: (*site).toolkitRuntime, handler: "plain", former: "nvidia-container-runtime",
		settle: (*site).configureToReport, bare: true,
		compare: asBefore, cannot: func(cl client, _ container) string {
			if cl.name() == "ctr" {
				return "ctr chooses its runtime itself: no configuration of containerd's is about it"
			}
			return ""
		}},
	{name: "toolkit", on: knowsToolkit, prepare: (*site).bareRuntime, handler: "plain", bare: true,
		compare: besideToolkit, cannot: func(cl client, _ container) string {
			if cl.name() == "ctr" {
				return "ctr chooses its runtime itself: no configuration of containerd's is about it"
			}
			return ""
		}},
	{name: "users", on: hasUsers, prepare: (*site).bareRuntime, handler: "plain", bare: true, compare: users},
	{name: "rootless", on: isPodman, prepare: (*site).bareRuntime, handler: "plain", bare: true,
		compare: rootlessUsers},
	{name: "asking", on: hasCompose, prepare: (*site).bareRuntime, handler: "plain",
		settle: (*site).configure, bare: true, compare: askPages},
	{name: "hook", on: hasHooks, prepare: (*site).bareRuntime, handler: "plain",
		settle: (*site).installHook, bare: true,
		stripped: func(e engine) string {
			if e.trust == grant.Podman { // edited before its create
				return nothing
			}
			// the runtime's own rules are gone, which allowed every mknod
			return absent + absent + absent + absent + absent
		}},
	{name: "nri", on: hasNRI, prepare: (*site).bareRuntime, handler: "plain",
		ready: (*site).startPlugin, bare: true,
		stripped: func(e engine) string {
			if e.trust == grant.CRIO { // its NRI is too old for device rules
				return ""
			}
			return denied + denied // the nodes have become /dev/null
		},
		cannot: func(cl client, _ container) string {
			if cl.name() == "ctr" {
				return "containerd asks NRI's plugins about CRI's containers only"
			}
			return ""
		}},
	{name: "cluster", on: isCluster, prepare: (*site).wrapRuntime, handler: "gpuledger", test: cluster,
		cluster: true},
	{name: "critest", on: hasCRI, prepare: (*site).wrapRuntime, handler: "gpuledger", test: critest,
		asked: true},
	{name: "cdi", on: knowsCDI, prepare: (*site).bareRuntime, handler: "plain", bare: true,
		only: []string{"plain", grantByName, gpuByName, askByName},
		why:  "CDI alone sees only containers that use one of gpuledger's names"},
}

// isCluster reports whether an engine is a whole cluster.
func isCluster(e engine) bool { return e.cluster }

// knowsCDI reports whether an engine takes CDI's names.
func knowsCDI(e engine) bool { return e.name != "containerd1.6" && e.name != "docker-20.10" }

// hasCRI reports whether critest validates an engine: cri-tools want CRI as containerd has it since
// 1.7.
func hasCRI(e engine) bool { return e.name == "containerd2" || e.name == "containerd1.7" }

// hasHooks reports whether an engine has a hooks directory.
func hasHooks(e engine) bool { return e.trust == grant.CRIO || e.trust == grant.Podman }

// hasNRI reports whether an engine calls NRI's plugins by default.
func hasNRI(e engine) bool { return e.name == "containerd2" || e.trust == grant.CRIO }

// built is a program that test/engines/build.sh has built.
func built(name string) string {
	path, _ := filepath.Abs("../../.cache/engines/" + name)
	return path
}

// thisMachine has one engine, and gpuledger at one entry point.
func thisMachine(t *testing.T) (engine, entry) {
	name, at, _ := strings.Cut(os.Getenv(engineVar), " ")
	e := slices.IndexFunc(engines, func(e engine) bool { return e.name == name })
	i := slices.IndexFunc(entries, func(i entry) bool { return i.name == at })
	if e < 0 || i < 0 {
		t.Fatalf("there is no engine %q with the entry point %q", name, at)
	}
	return engines[e], entries[i]
}

// container is what a test wants to start, independent of any client.
type container struct {
	name        string
	part        string // its name in its pod, where clients know pods
	attempt     int    // how often it was there before
	script      string // for its shell
	env         []string
	annotations map[string]string
	forged      bool     // annotations are those of a user, which must not be trusted
	devices     []string // of the machine's /dev
	binds       []bind   // read-write
	cdi         []string // names of devices
	gpus        []string // of Docker's --gpus and of Compose's reservations
	privileged  bool
	hostPID     bool
	hostNetwork bool
	readOnly    bool
	userns      bool
	handler     string // the engine's name for a runtime; "" is its default
}

// endMark ends a container's output, for engines that write logs with a delay.
const endMark = "end of output\n"

// marked is the script with the mark.
func (c container) marked() string {
	return "{ " + c.script + "\n}; status=$?; echo " + strings.TrimSpace(endMark) + "; exit $status"
}

// output reads a container's output until it is complete.
func (s *site) output(id string, read func() string) (out string) {
	s.T.Helper()
	eventually(s.T, "the output of container "+id+" is complete", func() bool {
		out = read()
		return strings.HasSuffix(out, endMark)
	})
	return strings.TrimSuffix(out, endMark)
}

// bind is a bind mount of a path of the machine.
type bind struct{ from, to string }

func (c *container) annotate(key, value string) {
	if c.annotations == nil {
		c.annotations = map[string]string{}
	}
	c.annotations[key] = value
}

// result is the outcome of a container. Standard error is what the engine prints for its user.
type result struct {
	rig.Result
	id string // the real runtime's name for it; "" where the engine has none yet
}

// client is a way in which an engine's users start containers.
type client interface {
	name() string
	// run runs a container to its end and removes it.
	run(*site, container) result
	// owner is the container's identity by the engine, for a grant's --owner; "" if the engine
	// gives none that can be trusted.
	owner(container) string
	// refer puts a reference to a grant where users of this client put it.
	refer(c *container, reference string)
	// cannot is why this client cannot ask for a container; "" if it can.
	cannot(container) string
}

// TestEngine runs every test on this machine's engine.
func TestEngine(t *testing.T) {
	s := newSite(t)
	var clients []client
	t.Cleanup(func() { s.left(clients) })
	clients = s.engine.up(s)
	if s.entry.ready != nil {
		s.entry.ready(s)
	}
	if s.entry.test != nil {
		s.entry.test(t, s)
		clients = nil
	}
	for _, cl := range clients {
		if why := s.cannot(cl, container{}); why != "" {
			t.Logf("not shown for %s: %s", cl.name(), why)
			continue
		}
		if s.entry.compare != nil {
			t.Run(cl.name(), func(t *testing.T) { s.entry.compare(t, s.in(t), cl) })
			continue
		}
		t.Run(cl.name(), func(t *testing.T) {
			t.Run("story", func(t *testing.T) { story(t, s, cl) })
			if s.entry.only != nil {
				return
			}
			if s.engine.trust == grant.Podman || s.engine.trust == grant.Docker {
				t.Run("sharing", func(t *testing.T) { sharing(t, s.in(t), cl) })
			}
			t.Run("harmless", func(t *testing.T) { harmless(t, s, cl) })
			t.Run("privileged", func(t *testing.T) { privileged(t, s, cl) })
			if cl, can := cl.(starter); can && s.entry.name == "wrapper" &&
				s.engine.trust == grant.Containerd {
				t.Run("outside the ledger", func(t *testing.T) { outside(t, s.in(t), cl) })
			}
			switch cl := cl.(type) {
			case ctr:
				t.Run("many at once", func(t *testing.T) { many(s.in(t), cl) })
			case kubelet:
				t.Run("pod", func(t *testing.T) { pod(s.in(t), cl) })
			}
		})
	}
	s.CheckSound("at the end")
}

// left runs after the engine has stopped.
func (s *site) left(clients []client) {
	if s.entry.leave == nil || len(clients) == 0 {
		return
	}
	o := outcome{Engine: s.engine.name, Entry: s.entry.name, Case: s.entry.leaves, Result: "ok"}
	for _, wrong := range s.entry.leave(s, clients) {
		s.T.Error(wrong)
		o.Result = "FAIL"
	}
	for _, cl := range clients {
		if o.Client = cl.name(); s.cannot(cl, container{}) == "" {
			note(s.T, o)
		}
	}
}
