//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// probe prints the result of opening a node. ENXIO means that the device cgroup allows it and there
// is no driver; EPERM means that the cgroup denies it. The container makes the last two nodes
// itself.
const probe = `open() { cat "$1" 2>&1 | sed "s/.*: //"; }
open /dev/nvidia0; open /dev/nvidia1; open /dev/nvidiactl
for minor in 0 1; do mknod /tmp/other c 195 $minor; open /tmp/other; rm -f /tmp/other; done`

const (
	absent = "No such file or directory\n"
	denied = "Operation not permitted\n"
	let    = "No such device or address\n"

	all     = let + let + let + let + let
	gpu1    = absent + let + let + denied + let
	nothing = absent + absent + absent + denied + denied
)

// storyCase is one container of the story, and its expected outcome.
type storyCase struct {
	container
	output  string     // of a container that starts
	refused grant.Code // or the code of its refusal
	because string     // a text in the engine's own output
	after   func(result)
}

// cases are the story's cases. Each fills in a named container for a client on a site.
var cases = []struct {
	name string
	make func(s *site, cl client, c container) storyCase // s.T is the case's own
}{
	{"plain", func(s *site, _ client, c container) storyCase {
		c.script = "echo here; " + probe
		return storyCase{container: c, output: "here\n" + nothing, after: s.untouched}
	}},
	{"granted", func(s *site, cl client, c container) storyCase {
		c.script = probe
		g := s.grantTo(cl, &c, "--memory", "4GiB", "--gpu", "1")
		return storyCase{container: c, output: gpu1, after: func(r result) {
			before, after := s.seen(r.id)
			if s.entry.bare {
				before = after
			}
			if cl.owner(c) != "" && bytes.Contains(before, []byte(g.ID)) {
				s.T.Error("the bundle names the grant; want it found by the pod's identity alone")
			}
			eventually(s.T, "its grant is free again", func() bool { return s.State(g.ID) == grant.Free })
		}}
	}},
	{"visible devices all", func(s *site, _ client, c container) storyCase {
		c.env = []string{"NVIDIA_VISIBLE_DEVICES=all"}
		return storyCase{container: c, refused: grant.VisibleDevicesAll,
			because: "asks for all GPUs through NVIDIA_VISIBLE_DEVICES", after: s.documented}
	}},
	{"privileged", func(_ *site, _ client, c container) storyCase {
		c.privileged = true
		return storyCase{container: c, refused: grant.PrivilegedGPU, because: "privileged"}
	}},
	{"foreign grant", func(s *site, cl client, c container) storyCase {
		g := s.granted("--memory", "1GiB", "--owner", "pod:another/pod")
		cl.refer(&c, string(g.ID))
		return storyCase{container: c, refused: grant.GrantOwnerMismatch, after: s.stillFree(g)}
	}},
	{"forged reference", func(_ *site, cl client, c container) storyCase {
		cl.refer(&c, "g-aaaaaaaaaaaa.0123456789abcdef0123456789abcdef")
		return storyCase{container: c, refused: grant.GrantNotFound}
	}},
	{"forged identity", func(s *site, _ client, c container) storyCase {
		g := s.granted("--memory", "1GiB", "--owner", "pod:victim/main")
		c.script, c.forged, c.annotations = probe, true, claimToBe("victim", "main", "container")
		return storyCase{container: c, output: nothing, after: s.stillFree(g)}
	}},
	{"forged sandbox", func(_ *site, _ client, c container) storyCase {
		c.env, c.forged, c.annotations = []string{"NVIDIA_VISIBLE_DEVICES=all"}, true,
			claimToBe("victim", "main", "sandbox")
		return storyCase{container: c, refused: grant.VisibleDevicesAll}
	}},
	{"device node", func(_ *site, _ client, c container) storyCase {
		c.devices = []string{"/dev/nvidia0"}
		return storyCase{container: c, refused: grant.GPUDeviceNode, because: "/dev/nvidia0"}
	}},
	{"bind mount", func(_ *site, _ client, c container) storyCase {
		c.binds = []bind{{"/dev/nvidia0", "/dev/nvidia0"}}
		return storyCase{container: c, refused: grant.GPUBindMount, because: "/dev/nvidia0"}
	}},
	{"CDI name", func(_ *site, _ client, c container) storyCase {
		c.cdi = []string{"nvidia.com/gpu=0"}
		return storyCase{container: c, refused: grant.GPUDeviceNode, because: "/dev/nvidia0"}
	}},
	{grantByName, func(s *site, _ client, c container) storyCase {
		c.script = probe
		g := s.offered(&c, "--memory", "4GiB", "--gpu", "1")
		return storyCase{container: c, output: gpu1, after: func(result) {
			eventually(s.T, "its grant is free again", func() bool { return s.State(g.ID) == grant.Free })
		}}
	}},
	{"asks", func(s *site, _ client, c container) storyCase {
		c.env = []string{"GPULEDGER_MEMORY=4GiB", "GPULEDGER_GPU=1"}
		return s.asks(c)
	}},
	{askByName, func(s *site, _ client, c container) storyCase {
		c.env, c.cdi = []string{"GPULEDGER_GPU=1"}, []string{grant.CDIKindAsk + "=4GiB"}
		return s.asks(c)
	}},
	{"asks by --gpus and a size", func(s *site, _ client, c container) storyCase {
		c.env, c.gpus = []string{"GPULEDGER_MEMORY=4GiB"}, []string{"1"}
		return s.asks(c)
	}},
	{"asks by --gpus alone", func(_ *site, _ client, c container) storyCase {
		c.gpus = []string{"all"}
		return storyCase{container: c, refused: grant.AskNotAllowed,
			because: "asks for whole GPUs by --gpus, and on this node a container may ask for [limit]"}
	}},
	{gpuByName, func(s *site, _ client, c container) storyCase {
		c.cdi = []string{grant.CDIKindGPU + "=" + s.uuid(0)}
		return storyCase{container: c, refused: grant.GPUDeviceNode,
			because: "brings the GPU device /dev/nvidia"}
	}},
}

// asks is a container that asks for 4 GiB of GPU 1: it may under Podman and Docker.
func (s *site) asks(c container) storyCase {
	if s.engine.trust == grant.Podman || s.engine.trust == grant.Docker {
		c.script = probe
		return storyCase{container: c, output: gpu1, after: func(result) {
			eventually(s.T, "nothing is granted that was asked for", func() bool {
				return !slices.ContainsFunc(s.Grants(),
					func(g rig.Listed) bool { return g.Source == "asked" })
			})
		}}
	}
	return storyCase{container: c, refused: grant.AskNotAllowed}
}

// story runs every case with one client.
func story(t *testing.T, s *site, cl client) {
	for _, c := range cases {
		o := outcome{Engine: s.engine.name, Client: cl.name(), Entry: s.entry.name, Case: c.name,
			Result: "ok"}
		t.Run(c.name, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					o.Result = "FAIL"
				}
				note(t, o)
			}()
			s := s.in(t)
			storyCase := c.make(s, cl, container{name: strings.ReplaceAll(cl.name()+"-"+c.name, " ", "-"),
				script: "echo here"})
			if o.Why = s.cannot(cl, storyCase.container); o.Why == "" && s.entry.only != nil &&
				!slices.Contains(s.entry.only, c.name) {
				o.Why = s.entry.why
			}
			if o.Why != "" {
				o.Result = "-"
				return
			}
			storyCase.check(t, s, cl)
		})
	}
}

// cannot is why a container cannot be requested here.
func (s *site) cannot(cl client, c container) string {
	if _, docker := cl.(moby); len(c.gpus) > 0 && !docker {
		return "only Docker has --gpus"
	}
	if why := cl.cannot(c); why != "" || s.entry.cannot == nil {
		return why
	}
	return s.entry.cannot(cl, c)
}

// check runs the container and compares.
func (sc storyCase) check(t *testing.T, s *site, cl client) {
	t.Helper()
	r := cl.run(s, sc.container)
	if sc.refused == "" {
		if r.Code != 0 || r.Stdout != sc.output {
			t.Errorf("got %+v, want status 0 and\n%s", r, sc.output)
		}
	} else {
		s.isRefused(t, r, sc.refused, sc.because)
		if _, after := s.seen(r.id); r.id != "" && after != nil && !s.entry.bare {
			t.Errorf("the real runtime was called for it")
		}
		if r.Stdout != "" {
			t.Errorf("it has printed %q, want it never to have run", r.Stdout)
		}
	}
	if sc.after != nil {
		sc.after(r)
	}
}

// isRefused wants a refusal in the engine's output, or in the audit log if the engine does not show
// its hooks' output.
func (s *site) isRefused(t testing.TB, r result, code grant.Code, because string) {
	t.Helper()
	if !s.engine.mute || s.entry.name != "cdi" {
		isRefused(t, r, code, because)
		return
	}
	audit, err := os.ReadFile(s.Dir + "/audit.jsonl")
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(audit)), "\n")
	for what, text := range map[string]string{"error executing hook": r.Stderr, `"` + string(code) +
		`"`: lines[len(lines)-1], because: lines[len(lines)-1]} {
		if r.Code == 0 || !strings.Contains(text, what) {
			t.Errorf("got %+v and in the audit log %s, want %q", r, lines[len(lines)-1], what)
		}
	}
}

// isRefused wants code, reason and hint in the engine's output for its user.
func isRefused(t testing.TB, r result, code grant.Code, because string) {
	t.Helper()
	for _, want := range []string{fmt.Sprintf("gpuledger: refused (%s): ", code), because, "hint: "} {
		if r.Code == 0 || !strings.Contains(strings.ReplaceAll(r.Stderr, `\"`, `"`), want) {
			t.Errorf("got %+v, want a refusal with %q", r, want)
		}
	}
	t.Logf("in the engine's words: %s", strings.TrimSpace(r.Stderr))
}

// granted makes a grant that lasts until the case ends.
func (s *site) granted(args ...string) grant.Reference {
	s.T.Helper()
	g := s.Grant(args...)
	s.T.Cleanup(func() { s.Must("release", string(g.ID)) })
	return g
}

// grantTo makes a grant that the container will use: by its identity if the engine proves
// that, else by reference.
func (s *site) grantTo(cl client, c *container, args ...string) grant.Reference {
	s.T.Helper()
	if owner := cl.owner(*c); owner != "" {
		return s.granted(append(args, "--owner", owner)...)
	}
	g := s.granted(args...)
	cl.refer(c, g.String())
	return g
}

// stillFree wants a grant to be unused.
func (s *site) stillFree(g grant.Reference) func(result) {
	return func(result) {
		s.T.Helper()
		if got := s.State(g.ID); got != grant.Free {
			s.T.Errorf("the grant is %s, want it free", got)
		}
	}
}

// documented wants docs/refusals.md to show the text that the engine prints before gpuledger's
// sentence.
func (s *site) documented(r result) {
	s.T.Helper()
	docs, err := os.ReadFile("../../docs/refusals.md")
	must(s.T, err)
	const ours = "gpuledger: refused (visible-devices-all): container "
	theirs, _, _ := strings.Cut(r.Stderr, ours)
	theirs = theirs[strings.LastIndex(theirs, "\n")+1:]
	if _, said, ofRPC := strings.Cut(theirs, "desc = "); ofRPC {
		theirs = said
	}
	theirs = regexp.MustCompile(`time="[^"]*"`).ReplaceAllString(theirs, `time="..."`)
	if !strings.Contains(string(docs), "`"+theirs+ours) {
		s.T.Errorf("docs/refusals.md does not show that %s prints\n%s", s.engine.name, theirs+ours)
	}
}

// untouched wants the real runtime to get byte for byte what the engine wrote. If gpuledger does
// not run between the two, config.json must hold nothing for a GPU or of gpuledger's, except for
// the hooks that every container has.
func (s *site) untouched(r result) {
	s.T.Helper()
	before, after := s.seen(r.id)
	if s.entry.bare {
		s.without(r, after, "nvidia", "gpuledger")
		return
	}
	if len(before) == 0 || !bytes.Equal(before, after) {
		s.T.Errorf("config.json of %s: the engine wrote %d bytes, the real runtime got %d; want them the "+
			"same:\n%s\n%s", r.id, len(before), len(after), before, after)
	}
}

// without wants none of these words in those parts of a config.json that change what a container
// reaches.
func (s *site) without(r result, config []byte, words ...string) {
	s.T.Helper()
	var spec specs.Spec
	must(s.T, json.Unmarshal(config, &spec))
	for _, word := range words {
		if text := encode(s.T, []any{spec.Process.Env, spec.Mounts, spec.Linux}); bytes.Contains(text,
			[]byte(word)) {
			s.T.Errorf("config.json of %s has %q, want nothing of the kind: %s", r.id, word, text)
		}
	}
}

// claimToBe are the annotations by which any engine identifies a container.
func claimToBe(uid, name, kind string) map[string]string {
	return map[string]string{
		"io.container.manager":          "cri-o",
		"io.kubernetes.cri.sandbox-uid": uid, "io.kubernetes.cri.container-name": name,
		"io.kubernetes.cri.container-type": kind,
		"io.kubernetes.cri.sandbox-name":   "pod", "io.kubernetes.cri.sandbox-namespace": "team",
		"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.name": "pod", "io.kubernetes.pod.namespace": "team",
		"io.kubernetes.container.name":  name,
		"io.kubernetes.cri-o.Namespace": "team", "io.kubernetes.cri-o.KubeName": "pod",
		"io.kubernetes.cri-o.ContainerName": name,
		"io.kubernetes.cri-o.ContainerType": kind,
		"io.kubernetes.cri-o.Labels": fmt.Sprintf(
			`{"io.kubernetes.pod.uid":%q,"io.kubernetes.container.name":%q}`, uid, name),
	}
}
