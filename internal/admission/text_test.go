package admission

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// The text of the example in the design.
func TestTheExampleRefusal(t *testing.T) {
	w := newWorld()
	w.r.Container.Pod = grant.Identity{UID: "u", Namespace: "n", Pod: "p", Container: "train"}
	w.hit(all)
	v := w.decide()
	if got, want := v.Refusal().Error(),
		`refused (visible-devices-all): container "train" asks for all GPUs through NVIDIA_VISIBLE_DEVICES `+
			`but holds no grant`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if want := "this node shares its GPUs by grant; request a share " +
		"(https://github.com/gpuledger/gpuledger/blob/main/docs/requesting.md) or set " +
		"NVIDIA_VISIBLE_DEVICES=void"; v.Hint != want {
		t.Errorf("got  %s\nwant %s", v.Hint, want)
	}
}

func TestTextsForTenants(t *testing.T) {
	for _, c := range []struct {
		name          string
		setup         func(*world)
		message, hint string
	}{
		{"GPUs outside its grant", func(w *world) { w.train(); w.hit(env("0,1", "0", "1")) },
			`container "train" asks for GPUs 0,1 through NVIDIA_VISIBLE_DEVICES, which are not all in its ` +
				`grant g-podpodpodpod`,
			"a container reaches what its grant lists and nothing else; remove it from the spec or ask for " +
				"a larger grant"},
		{"privileged", func(w *world) {
			w.privileged()
		}, `container "c1" is privileged, so it reaches every GPU of this node (rule 0: a *:* rwm), but ` +
			`holds no grant`,
			"this node shares its GPUs by grant; request a share " +
				"(https://github.com/gpuledger/gpuledger/blob/main/docs/requesting.md), drop the " +
				"privilege, or have the administrator set privileged = \"strip\" or an exemption"},
		{"a socket, with a grant", func(w *world) { w.train(); w.hit(socket) },
			`container "train" reaches a directory of gpuledger or of an MPS daemon: /run/gpuledger ` +
				`(mount /s)`,
			"no container gets such a directory; remove the mount, root path or variable that leads to it"},
		{"a source that cannot be identified, with a grant", func(w *world) {
			w.train()
			w.hit(grant.Hit{Vector: "mount:/x", Value: "/proc/self/cwd (" + grant.UnknownTarget + ")",
				Code: grant.GPUBindMount, Cover: grant.CoverNever})
		}, `container "train" mounts /proc/self/cwd (whose target is known only when the runtime opens it) ` +
			`by mount /x, so that it cannot be known whether that leads to a GPU, to gpuledger or to an ` +
			`MPS daemon`,
			"name the file or directory itself as the mount's source"},
		{"the key of the driver's limit", func(w *world) { w.train(); w.hit(dmem) },
			`container "train" sets cgroup key dmem.max (x 1), by which the driver limits GPU memory`,
			"that limit is the ledger's; leave the key out"},
		{"a cgroup key that moves processes, with a grant", func(w *world) {
			w.train()
			w.hit(grant.Hit{Vector: "unified:cgroup.procs", Value: "4711", Code: grant.GPUDeviceRule,
				Cover: grant.CoverNever})
		}, `container "train" sets cgroup key cgroup.procs (4711), which is no resource: such a key ` +
			`can stop processes, or move them out of the cgroup whose device rules and limit hold them`,
			"leave the key out; use the runtime's pause or kill to stop or end a container"},
		{"a class of Intel RDT that is a path, with a grant", func(w *world) {
			w.train()
			w.hit(grant.Hit{Vector: "intelRdt:closID", Value: "../cgroup", Code: grant.GPUDeviceRule,
				Cover: grant.CoverNever})
		}, `container "train" has closID ../cgroup (linux.intelRdt), which is a path: by such a name it ` +
			`can leave the cgroup whose device rules hold it`,
			"name the class without a slash, or leave it out"},
		{"an unknown cgroup key, with a grant", func(w *world) {
			w.train()
			w.r.Doubtful = []grant.Hit{{Vector: "unified:gpu.max", Value: "1", Code: grant.LimitUnenforceable,
				Cover: grant.CoverNever}}
		},
			`container "train" sets cgroup key gpu.max (1), and it is not known what that does ` +
				`to its grant`,
			"leave the key out; a controller that is missing in gpuledger's list is a bug to report"},
		{"a mount of a GPU's node", func(w *world) {
			w.hit(grant.Hit{Vector: "mount:/x", Value: "/dev/nvidia0", Code: grant.GPUBindMount,
				Cover: grant.CoverNode})
		}, `container "c1" mounts GPU devices by mount /x from /dev/nvidia0 but holds no grant`,
			hintRequest + " or remove the mount from the container"},
		{"rules of which none denies", func(w *world) { w.hit(noRules) },
			`container "c1" may open GPU devices by its device rules (rule none: no device rule is given) ` +
				`but holds no grant`,
			hintRequest + " or let the device rules begin with one that denies all devices"},
		{"a GPU that is handed in open", func(w *world) { w.hit(handedIn) },
			`container "c1" inherits descriptor 7 (c 195:3), through which a GPU can be reached, ` +
				`but holds no grant`,
			"start it without the descriptor (--preserve-fds, $LISTEN_FDS, standard input and output), or " +
				"this node shares its GPUs by grant; request a share " +
				"(https://github.com/gpuledger/gpuledger/blob/main/docs/requesting.md)"},
		{"one outside its grant", func(w *world) { w.train(); w.hit(handedIn) },
			`container "train" inherits descriptor 7 (c 195:3), through which a GPU can be reached that is ` +
				`not in its grant g-podpodpodpod`,
			"a container reaches what its grant lists and nothing else; remove it from the spec or ask for " +
				"a larger grant"},
		{"an exclusive grant of a GPU that is still in use", func(w *world) {
			w.train()
			w.v.Grants[0].Mode, w.v.Held = grant.Exclusive, map[string]bool{"GPU-0": true}
		}, `container "train" holds a grant of all of GPU-0, which processes without a grant have open`,
			"they have to end first; an administrator sees them with `gpuledger inspect` and in " +
				"the audit log"},
		{"another grant of such a GPU", func(w *world) {
			w.train()
			w.v.Held = map[string]bool{"GPU-0": true}
		}, "", ""},
		{"an exclusive grant of another GPU", func(w *world) {
			w.train()
			w.v.Grants[0].Mode, w.v.Held = grant.Exclusive, map[string]bool{"GPU-1": true}
		}, "", ""},
		{"expired", func(w *world) { w.train(); w.v.Grants[0].Expires = now },
			`container "train" holds grant g-podpodpodpod, whose time is over`,
			"request a new grant; a grant's time can be extended only before it ends"},
		{"released", func(w *world) { w.train(); w.v.Grants[0].Draining = true },
			`container "train" holds grant g-podpodpodpod, which has been released`, "request a new grant"},
		{"a restore outside the cgroup", func(w *world) {
			w.hit(grant.Hit{Vector: grant.RestoreVector, Value: "update runc", Code: grant.RulesNotEnforced,
				Cover: grant.CoverNever})
		}, `container "c1" is restored from a checkpoint, and its device rules may not hold it: update runc`,
			"update the runtime (https://github.com/gpuledger/gpuledger/blob/main/docs/refusals.md" +
				"#rules-not-enforced), or start it without the checkpoint"},
		{"a problem of the node", func(w *world) { w.hit(all); w.problem(grant.InventoryMissing) },
			"the node cannot tell", "ask the administrator"},
		{"a share that no grant is behind", func(w *world) {
			w.r.Allocations = []grant.Allocation{{Source: "annotation:gpuledger.dev/memory", Asks: true,
				Memory: grant.GiB}}
		}, `container "c1" says by annotation gpuledger.dev/memory what its share of a GPU is, but ` +
			`holds no grant`,
			"that describes a grant and makes none: name one by gpuledger.dev/grant, or have one granted " +
				"to the pod's container " +
				"(https://github.com/gpuledger/gpuledger/blob/main/docs/requesting.md); " +
				"on a node with annotations.trust = \"adopt\" what a scheduler writes is a grant"},
		{"asks where no container may", func(w *world) {
			w.r.Allocations = []grant.Allocation{{Source: "env:GPULEDGER_MEMORY", Asks: true, Own: true,
				Memory: grant.GiB}}
		}, `container "c1" asks by GPULEDGER_MEMORY for a share of a GPU, but holds no grant, and this ` +
			`node lets no container ask`,
			"have it granted (`gpuledger grant`) and present the reference by gpuledger.dev/grant or " +
				"GPULEDGER_GRANT (https://github.com/gpuledger/gpuledger/blob/main/docs/requesting.md), " +
				"or have the administrator let this engine's containers ask " +
				"(https://github.com/gpuledger/gpuledger/blob/main/docs/asking.md)"},
		{"not found", func(w *world) {
			w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: "g-nonenonenone"})
		},
			`container "c1" refers to a grant by GPULEDGER_GRANT, but the ledger has no grant with that id ` +
				`and secret`,
			"a bearer's or claim's reference is ID.SECRET, as `gpuledger grant` printed it; the grant may " +
				"have been released"},
	} {
		w := newWorld()
		c.setup(w)
		if v := w.decide(); v.Message != c.message || v.Hint != c.hint {
			t.Errorf("%s: got\n%s\n%s\nwant\n%s\n%s", c.name, v.Message, v.Hint, c.message, c.hint)
		}
	}
}

var handedIn = grant.Hit{Vector: "descriptor:7", Value: "c 195:3", Code: grant.GPUDeviceNode,
	Cover: grant.CoverNode, Node: grant.DeviceNode{Class: grant.ClassGPU, Minor: 3}}

// A guess of an id and a guess of a secret get the same text.
func TestAWrongSecretReadsLikeAnUnknownID(t *testing.T) {
	verdict := func(r grant.Reference) grant.Verdict {
		w := newWorld()
		w.refers("env:GPULEDGER_GRANT", r)
		return w.decide()
	}
	unknown := verdict(grant.Reference{ID: "g-nonenonenone", Secret: secret})
	for _, r := range []grant.Reference{{ID: bearerGrant, Secret: wrongSecret}, {ID: bearerGrant},
		{ID: claimGrant, Secret: wrongSecret}} {
		v := verdict(r)
		v.Details[0].Value = string(unknown.Details[0].Value) // what the container itself wrote
		if fmt.Sprintf("%+v", v) != fmt.Sprintf("%+v", unknown) {
			t.Errorf("%s: got\n%+v\nwant\n%+v", r.ID, v, unknown)
		}
	}
}

// No text contains a secret or names another tenant.
func TestRefusalsKeepSecretsAndOtherTenantsOut(t *testing.T) {
	for name, setup := range map[string]func(*world){
		"ungranted":           func(w *world) { w.hit(all) },
		"another pod's grant": func(w *world) { w.refers("a", grant.Reference{ID: podGrant}) },
		"two grants": func(w *world) {
			w.bearer()
			w.refers("a", grant.Reference{ID: claimGrant, Secret: secret})
		},
		"a wrong secret": func(w *world) {
			w.refers("a", grant.Reference{ID: bearerGrant, Secret: wrongSecret})
		},
		"in use": func(w *world) {
			w.train()
			w.v.Grants[0].Bindings = []grant.Binding{{Container: "stranger", Bundle: "/stranger"}}
		},
		"outside its grant":   func(w *world) { w.train(); w.hit(env("1", "1")) },
		"expired, a bearer's": func(w *world) { w.bearer(); w.v.Grants[1].Expires = now },
		"an allocation amiss": func(w *world) {
			w.bearer()
			w.r.Allocations = []grant.Allocation{{Source: "a", GPUs: []string{"9"}}}
		},
		"a damaged grant named": func(w *world) {
			w.bearer()
			w.v.Damaged = []grant.Damage{{ID: bearerGrant, Path: "/stranger", Err: "stranger"}}
		},
	} {
		w := newWorld()
		setup(w)
		v := w.decide()
		if v.Kind != grant.Refused {
			t.Fatalf("%s: %s", name, v.Kind)
		}
		text := fmt.Sprint(v.Message, v.Hint, v.Details, v.Recorded)
		for _, private := range []string{secret, wrongSecret, grant.SecretHash(secret), string(otherGrant),
			"stranger", "secret-project"} {
			if strings.Contains(text, private) {
				t.Errorf("%s: the text shows %s: %s", name, private, text)
			}
		}
	}
}

// A tenant's text reaches an administrator's terminal, and logs with one line an entry.
func TestATenantsTextIsEscaped(t *testing.T) {
	for name, evil := range map[string]string{
		"new lines":        "x\n{\"level\":\"error\"}\r\n",
		"terminal codes":   "\x1b]0;title\x07\x1b[2J",
		"right to left":    "\u202egnp.exe",
		"no UTF-8":         "\xff\xfe",
		"a megabyte":       strings.Repeat("x", 1<<20),
		"a megabyte of \\": strings.Repeat("\n", 1<<20),
	} {
		w := newWorld()
		w.p.Rules.Ungranted = grant.Hide
		w.r.Container.ID = evil
		w.r.NodeRoot = []string{"mount:" + evil}
		hits := []grant.Hit{}
		for _, h := range []grant.Hit{all, migEnv, hook, socket, cdi, bind1, rule("c 195:*"),
			node(grant.ClassGPU, 0)} {
			h.Vector, h.Value = h.Vector+evil, evil
			hits = append(hits, h)
		}
		w.r.Hits = hits
		w.r.References = []grant.Mention{{Source: "annotation:" + evil, Asks: true,
			Malformed: "cannot read " + evil}}
		w.r.Allocations = []grant.Allocation{{Source: "annotation:" + evil, Asks: true, Malformed: evil}}
		v := w.decide()
		if len(v.Details) != 10 {
			t.Fatalf("%s: %d details", name, len(v.Details))
		}
		texts := append([]string{v.Message, v.Hint}, v.Recorded...)
		for _, d := range v.Details {
			texts = append(texts, d.Vector, d.Value)
		}
		w.r.Hits, w.r.References, w.r.Allocations = nil, nil, nil
		texts = append(texts, w.decide().Recorded...)
		for _, text := range texts {
			if strings.ContainsAny(text, "\n\r\x1b\x07\u202e") || !utf8.ValidString(text) ||
				len(text) > 1000 {
				t.Errorf("%s: %.300q", name, text)
			}
		}
	}
}

// Every code of a decision has a sentence.
func TestEveryFindingHasASentence(t *testing.T) {
	for code, s := range sentences() {
		if code.Rank() < 0 || s.without == "" || s.hint == "" {
			t.Errorf("%q: %+v", code, s)
		}
	}
	for _, code := range grant.Codes[grant.VisibleDevicesAll.Rank():] {
		if _, found := sentences()[code]; !found {
			t.Errorf("%s has no sentence", code)
		}
	}
}
