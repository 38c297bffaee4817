package admission

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const (
	podGrant    = grant.ID("g-podpodpodpod")
	bearerGrant = grant.ID("g-bearerbearer")
	claimGrant  = grant.ID("g-claimclaimcl")
	otherGrant  = grant.ID("g-otherotherot")
	secret      = "00112233445566778899aabbccddeeff"
	wrongSecret = "ffeeddccbbaa99887766554433221100"
)

// world is a container, and a node with two GPUs of 16 GiB whose ledger has four grants.
type world struct {
	r   grant.Request
	v   grant.View
	inv grant.Inventory
	p   grant.Policy
}

func newWorld() *world {
	limit := func(id grant.ID, owner grant.Owner, gpus ...grant.Share) grant.Grant {
		g := grant.Grant{ID: id, Owner: owner, Mode: grant.Limit, Strength: grant.StrengthLibrary,
			GPUs: gpus, Compute: 30}
		if owner.HasSecret() {
			g.Secret = grant.SecretHash(secret)
		}
		return g
	}
	zero, one := grant.Share{UUID: "GPU-0", Index: 0, Memory: 4 * grant.GiB},
		grant.Share{UUID: "GPU-1", Index: 1, Memory: 4 * grant.GiB}
	return &world{
		r: grant.Request{Container: grant.Container{Engine: grant.Containerd, ID: "c1"},
			Devices: grant.DeviceMap{Majors: map[int]grant.NodeClass{
				195: grant.ClassGPU, 508: grant.ClassUVM}}},
		v: grant.View{Now: now, Grants: []grant.Grant{limit(podGrant, "pod:uid/train", zero),
			limit(bearerGrant, grant.Bearer, zero, one), limit(claimGrant, "claim:cc", one),
			limit(otherGrant, "pod:stranger/secret-project", one)}},
		inv: grant.Inventory{Majors: map[string]int{"nvidia": 195, "nvidia-uvm": 508}, GPUs: []grant.GPU{
			{UUID: "GPU-0", Index: 0, Minor: 0, Memory: 16 * grant.GiB, Health: grant.Healthy, Render: []string{"/dev/dri/renderD128"}},
			{UUID: "GPU-1", Index: 1, Minor: 3, Memory: 16 * grant.GiB, Health: grant.Healthy, Render: []string{"/dev/dri/renderD129"}}}},
		p: grant.Policy{Rules: grant.Rules{Mode: grant.Enforce, Ungranted: grant.RefuseUngranted,
			Privileged: grant.RefusePrivileged, MinimumStrength: grant.StrengthNone}},
	}
}

func (w *world) decide() grant.Verdict { return Decide(w.r, w.v, w.inv, w.p) }

// train makes the container the one that owns podGrant.
func (w *world) train() {
	w.r.Container.Pod = grant.Identity{UID: "uid", Namespace: "team", Pod: "job-0", Container: "train"}
}

// wants sets the minimum strength. The grant loses its share of compute, because mode limit could
// not enforce one.
func (w *world) wants(minimum grant.Strength) {
	w.p.Rules.MinimumStrength = minimum
	w.v.Grants[0].Compute = 0
}

func (w *world) hit(h grant.Hit) { w.r.Hits = append(w.r.Hits, h) }

func (w *world) refers(source string, r grant.Reference) {
	w.r.References = append(w.r.References, grant.Mention{Source: source, Asks: true, Reference: r})
}

func (w *world) bearer() {
	w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: bearerGrant, Secret: secret})
}

func (w *world) problem(code grant.Code) {
	w.v.Problems = append(w.v.Problems, grant.Problem{Code: code, Message: "the node cannot tell",
		Hint: "ask the administrator"})
}

// The hits that request.Find returns. The tests of package request show when it returns each.
func env(value string, gpus ...string) grant.Hit {
	code := grant.VisibleDevicesOutsideGrant
	if slices.Contains(gpus, "all") {
		code = grant.VisibleDevicesAll
	}
	return grant.Hit{Vector: "env:NVIDIA_VISIBLE_DEVICES", Value: value, Code: code,
		Cover: grant.CoverGPUs, GPUs: gpus,
		Removal: grant.Removal{Kind: grant.RemoveEnv, Name: "NVIDIA_VISIBLE_DEVICES"}}
}

func node(class grant.NodeClass, minor int) grant.Hit {
	cover := grant.CoverNode
	if class == grant.ClassModeset {
		cover = grant.CoverDrop
	}
	return grant.Hit{Vector: "device:/dev/x", Value: fmt.Sprintf("c %s:%d", class, minor),
		Code: grant.GPUDeviceNode, Cover: cover, Node: grant.DeviceNode{Class: class, Minor: minor},
		Removal: grant.Removal{Kind: grant.RemoveDevice, Name: "/dev/x"}}
}

func cdiGPU(name string) grant.Hit {
	return grant.Hit{Vector: "annotation:cdi.k8s.io/x", Value: "gpuledger.dev/gpu=" + name,
		Code: grant.CDIDeviceOutsideGrant, Cover: grant.CoverGPUs, GPUs: []string{name}}
}

func blamed(h grant.Hit) grant.Hit { h.Code = grant.PrivilegedGPU; return h }

func rule(name string) grant.Hit {
	return grant.Hit{Vector: "rule:1", Value: name + " rw", Code: grant.GPUDeviceRule,
		Cover: grant.CoverNever, Removal: grant.Removal{Kind: grant.RemoveRule, Name: name}}
}

var (
	all    = env("all", "all")
	migEnv = grant.Hit{Vector: "env:NVIDIA_MIG_CONFIG_DEVICES", Value: "all", Code: grant.GPUEnv,
		Cover: grant.CoverDrop, Removal: grant.Removal{Kind: grant.RemoveEnv,
			Name: "NVIDIA_MIG_CONFIG_DEVICES"}}
	hook = grant.Hit{Vector: "hook:/usr/bin/nvidia-ctk", Code: grant.GPUHook, Cover: grant.CoverDrop,
		Removal: grant.Removal{Kind: grant.RemoveHook, Name: "/usr/bin/nvidia-ctk"}}
	socket = grant.Hit{Vector: "mount:/s", Value: "/run/gpuledger", Code: grant.GPUSocket,
		Cover: grant.CoverNever}
	cdi = grant.Hit{Vector: "annotation:cdi.k8s.io/x", Value: "nvidia.com/gpu=0",
		Code: grant.CDIDeviceOutsideGrant, Cover: grant.CoverNever}
	dmem = grant.Hit{Vector: "unified:dmem.max", Value: "x 1", Code: grant.LimitUnenforceable,
		Cover: grant.CoverNever}
	exactRule = grant.Hit{Vector: "rule:1", Value: "c 195:0 rw", Code: grant.GPUDeviceRule,
		Cover: grant.CoverNode, Node: grant.DeviceNode{Class: grant.ClassGPU}}
	parent = grant.Hit{Vector: "mount:/dev", Value: "/dev", Code: grant.GPUBindMount,
		Cover: grant.CoverDrop}
	bind1 = grant.Hit{Vector: "mount:/m", Value: "/dev/nvidia3 (c 195:3)", Code: grant.GPUBindMount,
		Cover: grant.CoverNode, Node: grant.DeviceNode{Class: grant.ClassGPU, Minor: 3}}
	allowAll = grant.Hit{Vector: "rule:0", Value: "a *:* rwm", Code: grant.PrivilegedGPU,
		Cover: grant.CoverNarrow}
	noRules = grant.Hit{Vector: "rule:none", Value: "no device rule is given", Code: grant.GPUDeviceRule,
		Cover: grant.CoverNarrow}
	cgroupsOff = grant.Hit{Vector: "rule:none", Value: "the device cgroup is switched off",
		Code: grant.RulesNotEnforced, Cover: grant.CoverNever}
)

func (w *world) privileged(hits ...grant.Hit) {
	w.r.Privileged, w.r.AllDevices, w.r.SysAdmin = true, true, true
	w.r.Hits = append(append(w.r.Hits, allowAll), hits...)
}

// summary is a verdict in one line: kind, codes of the details, grant, strength, what is removed
// and recorded.
func summary(v grant.Verdict) string {
	text := string(v.Kind)
	for _, d := range v.Details {
		text += " " + string(d.Code)
	}
	if v.Grant != nil {
		text += " " + string(v.Grant.ID)
	}
	if v.Kind == grant.Admit {
		text += " " + string(v.Strength)
	}
	for _, e := range v.Edits.Env {
		text += " +" + e
	}
	for _, r := range v.Removed {
		text += " -" + r.String()
	}
	if v.Narrow {
		text += " narrow"
	}
	for _, r := range v.Recorded {
		text += " [" + r + "]"
	}
	return text
}

func TestDecide(t *testing.T) {
	const uuid0 = " +NVIDIA_VISIBLE_DEVICES=GPU-0"
	const byPrivilege = " [strength none, not library: the container is privileged, so it can undo what " +
		"would hold it]"
	const uuids = " +NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1"
	const noEnv = " -env:NVIDIA_VISIBLE_DEVICES"
	with := func(hits ...grant.Hit) func(*world) { return func(w *world) { w.r.Hits = hits } }
	unclosed := func(hits ...grant.Hit) func(*world) {
		return func(w *world) { w.r.Unclosed, w.r.Hits = true, hits }
	}
	unruled := func(hits ...grant.Hit) func(*world) {
		return func(w *world) { w.r.Unruled, w.r.Hits = true, hits }
	}
	train := func(hits ...grant.Hit) func(*world) { return func(w *world) { w.train(); w.r.Hits = hits } }
	for _, c := range []struct {
		name  string
		setup func(*world)
		want  string
	}{
		// requests no GPU
		{"nothing", func(*world) {}, "pass"},
		{"nothing, though the ledger, the configuration and the inventory are broken", func(w *world) {
			w.problem(grant.LedgerUnreadable)
			w.problem(grant.ConfigInvalid)
			w.problem(grant.InventoryMissing)
		}, "pass"},
		{"nothing, in a pod that may own a grant which can't be read", func(w *world) {
			w.r.Container.Pod = grant.Identity{UID: "u", Container: "c"}
			w.problem(grant.LedgerUnreadable)
		}, "pass [without the GPUs that it may own: the node cannot tell]"},
		{"nothing, in a pod whose own grant is damaged", func(w *world) {
			w.train()
			w.v.Grants = nil
			w.v.Damaged = []grant.Damage{{ID: podGrant}}
		}, "pass [without the GPUs of its grant g-podpodpodpod, whose entry in the ledger is damaged]"},
		{"a sandbox's environment and references request nothing", func(w *world) {
			w.r.Sandbox = true
			w.hit(all)
			w.bearer()
		}, "pass [a sandbox with a way to a GPU: env:NVIDIA_VISIBLE_DEVICES]"},
		{"a sandbox's raw cgroup keys", func(w *world) {
			w.r.Sandbox = true
			w.r.Hits = []grant.Hit{migEnv, dmem}
		}, "refuse limit-unenforceable"},
		{"a sandbox's features and annotations", func(w *world) {
			w.r.Sandbox = true
			w.r.Hits = []grant.Hit{migEnv, cdi}
		}, "pass [a sandbox with a way to a GPU: env:NVIDIA_MIG_CONFIG_DEVICES]"},
		{"a sandbox's allocations", func(w *world) {
			w.r.Sandbox = true
			w.r.Allocations = []grant.Allocation{{Source: "a", Asks: true, GPUs: []string{"0"}},
				{Source: "b", Asks: true, Malformed: "cannot"}}
		}, "pass"},
		{"a sandbox's wide rules, as no engine writes them", func(w *world) {
			w.r.Sandbox = true
			w.r.Hits = []grant.Hit{noRules, rule("c 195:*")}
		}, "refuse gpu-device-rule gpu-device-rule"},
		{"a sandbox without rules", func(w *world) { w.r.Sandbox = true; w.hit(noRules) },
			"refuse gpu-device-rule"},
		{"a sandbox with every node of the host", func(w *world) {
			w.r.Sandbox = true
			w.privileged(blamed(node(grant.ClassGPU, 0)), blamed(parent))
		}, "refuse privileged-gpu privileged-gpu privileged-gpu"},
		{"a sandbox with a GPU's node, as no engine makes it", func(w *world) {
			w.r.Sandbox = true
			w.r.Hits = []grant.Hit{all, node(grant.ClassGPU, 0)}
		}, "refuse gpu-device-node"},
		{"a sandbox with a CDI name and a socket: the name is one of its pod's", func(w *world) {
			w.r.Sandbox = true
			w.r.Hits = []grant.Hit{cdi, socket}
		}, "refuse gpu-socket"},
		{"a sandbox with a GPU's node and CAP_SYS_ADMIN", func(w *world) {
			w.r.Sandbox, w.r.Privileged, w.r.SysAdmin = true, true, true
			w.hit(blamed(node(grant.ClassGPU, 0)))
		}, "refuse privileged-gpu"},
		{"a sandbox with a GPU's rule", func(w *world) { w.r.Sandbox = true; w.hit(exactRule) },
			"refuse gpu-device-rule"},
		{"a sandbox with a GPU's mount", func(w *world) { w.r.Sandbox = true; w.hit(bind1) },
			"refuse gpu-bind-mount"},
		{"a privileged sandbox with a GPU's mount", func(w *world) {
			w.r.Sandbox = true
			w.privileged(bind1)
		}, "refuse gpu-bind-mount privileged-gpu"},
		{"a sandbox with a parent of the nodes, and rules that open them",
			func(w *world) { w.r.Sandbox = true; w.hit(parent) }, "refuse gpu-bind-mount"},
		{"a sandbox with a socket", func(w *world) { w.r.Sandbox = true; w.hit(socket) },
			"refuse gpu-socket"},
		{"a sandbox with a hook", func(w *world) { w.r.Sandbox = true; w.hit(hook) }, "refuse gpu-hook"},
		{"a sandbox is refused whatever grant it names, and nothing is taken from it", func(w *world) {
			w.p.Rules.Ungranted, w.p.Rules.Privileged = grant.Hide, grant.Strip
			w.r.Sandbox, w.r.Privileged, w.r.SysAdmin = true, true, true
			w.bearer()
			w.hit(blamed(node(grant.ClassGPU, 0)))
		}, "refuse privileged-gpu"},
		{"the legacy hook alone", func(w *world) { w.r.Dropped = []grant.Removal{hook.Removal} }, "pass"},
		{"an allocation that cannot be read and names no container", func(w *world) {
			w.r.Allocations = []grant.Allocation{{Source: "a", Malformed: "cannot"}}
		}, "pass"},
		{"the same, for one that requests a GPU", func(w *world) {
			w.r.Allocations = []grant.Allocation{{Source: "a", Malformed: "cannot"}}
			w.hit(all)
		}, "refuse annotation-malformed visible-devices-all"},
		{"the same, for one that owns a grant", func(w *world) {
			w.train()
			w.r.Allocations = []grant.Allocation{{Source: "a", Malformed: "cannot"}}
		}, "refuse annotation-malformed g-podpodpodpod"},
		{"a reference for the whole pod is no request", func(w *world) {
			w.r.References = []grant.Mention{{Source: "annotation:gpuledger.dev/grant",
				Reference: grant.Reference{ID: "g-nonenonenone"}}}
		}, "pass"},
		{"root on the node is recorded", func(w *world) {
			w.r.NodeRoot = []string{"mount:/host", "mount:/a\nb"}
		}, `pass [node-root by mount:/host] [node-root by mount:/a\nb]`},
		{"what was noticed is recorded", func(w *world) { w.r.Noted = []string{"mount:/a\nb has something"} },
			`pass [mount:/a\nb has something]`},

		// without a grant
		{"all GPUs", with(all), "refuse visible-devices-all"},
		{"GPUs by id", with(env("GPU-0", "GPU-0")), "refuse visible-devices-outside-grant"},
		{"features", with(migEnv), "refuse gpu-env"},
		{"a node", with(node(grant.ClassGPU, 0)), "refuse gpu-device-node"},
		{"the control node", with(node(grant.ClassControl, 255)), "refuse gpu-device-node"},
		{"a rule", with(rule("c 195:*")), "refuse gpu-device-rule"},
		{"no rules", with(noRules), "refuse gpu-device-rule"},
		{"a bind mount", with(bind1), "refuse gpu-bind-mount"},
		{"a socket", with(socket), "refuse gpu-socket"},
		{"a hook", with(hook), "refuse gpu-hook"},
		{"a CDI name", with(cdi), "refuse cdi-device-outside-grant"},
		{"the key of the driver's limit", with(dmem), "refuse limit-unenforceable"},
		{"a CDI name of ours", with(cdiGPU("0")), "refuse cdi-device-outside-grant"},
		{"privileged", func(w *world) { w.privileged(blamed(node(grant.ClassGPU, 0))) },
			"refuse privileged-gpu privileged-gpu"},
		{"an allocation", func(w *world) {
			w.r.Allocations = []grant.Allocation{{Source: "annotation:gpuledger.dev/gpus", Asks: true,
				GPUs: []string{"0"}}}
		}, "refuse grant-not-found"},
		{"an allocation for others", func(w *world) {
			w.r.Allocations = []grant.Allocation{{Source: "annotation:gpuledger.dev/gpus",
				GPUs: []string{"0"}}}
		}, "pass"},
		{"an unreadable allocation", func(w *world) {
			w.r.Allocations = []grant.Allocation{{Source: "annotation:gpuledger.dev/compute", Asks: true,
				Malformed: "no number"}}
		}, "refuse annotation-malformed"},
		{"everything at once, by the order of the codes",
			with(cdi, hook, socket, bind1, rule("c 195:*"), node(grant.ClassGPU, 0), migEnv,
				env("0", "0"), all),
			"refuse visible-devices-all visible-devices-outside-grant gpu-env gpu-device-node " +
				"gpu-device-rule gpu-bind-mount gpu-socket gpu-hook cdi-device-outside-grant"},
		{"report mode is not Decide's business", func(w *world) { w.p.Rules.Mode = grant.Report; w.hit(all) },
			"refuse visible-devices-all"},

		// if no device rule applies
		{"nothing, where no rule holds", func(w *world) { w.r.Unruled = true }, "pass"},
		{"nothing, where no rule holds and nothing can be read", func(w *world) {
			w.r.Unruled = true
			w.problem(grant.LedgerUnreadable)
			w.problem(grant.ConfigInvalid)
			w.problem(grant.InventoryMissing)
		}, "pass"},
		{"all GPUs, where no rule holds", unruled(all), "refuse rules-not-enforced visible-devices-all"},
		{"and nothing can be read", func(w *world) {
			unruled(all)(w)
			w.problem(grant.ConfigInvalid)
			w.problem(grant.InventoryMissing)
		}, "refuse rules-not-enforced config-invalid inventory-missing visible-devices-all"},
		{"a node, where no rule holds", unruled(node(grant.ClassGPU, 0)),
			"refuse rules-not-enforced gpu-device-node"},
		{"a parent of the nodes, where no rule holds", unruled(parent),
			"refuse rules-not-enforced gpu-bind-mount"},
		{"a grant, where no rule holds", func(w *world) { w.train(); w.r.Unruled = true },
			"refuse rules-not-enforced g-podpodpodpod"},
		{"an allocation, where no rule holds", func(w *world) {
			w.r.Unruled, w.p.Annotations.Trust = true, grant.Adopt
			w.r.Allocations = []grant.Allocation{{Source: "annotation:gpuledger.dev/gpus", Asks: true,
				GPUs: []string{"0"}, Memory: grant.GiB}}
		}, "refuse rules-not-enforced"},
		{"hidden by policy, which takes no rule", func(w *world) {
			unruled(all)(w)
			w.p.Rules.Ungranted = grant.Hide
		},
			"pass +NVIDIA_VISIBLE_DEVICES=void" + noEnv + " [GPUs hidden by policy]"},
		{"stripped of nodes by policy, which takes no rule", func(w *world) {
			unruled(blamed(node(grant.ClassGPU, 0)))(w)
			w.r.Privileged, w.p.Rules.Privileged = true, grant.Strip
		}, "pass -device:/dev/x [GPUs stripped from a privileged container by policy]"},
		{"a privileged pod's sandbox, where no rule holds", func(w *world) {
			unruled(blamed(node(grant.ClassGPU, 0)))(w)
			w.r.Privileged, w.r.Sandbox = true, true
		}, "refuse rules-not-enforced privileged-gpu"},
		{"another sandbox with a node, where no rule holds", func(w *world) {
			unruled(node(grant.ClassGPU, 0))(w)
			w.r.Sandbox = true
		}, "refuse rules-not-enforced gpu-device-node"},

		// in a user namespace, only the rule that denies all is missing
		{"unclosed", unclosed(noRules), "pass narrow [device rules closed: no device rule is given]"},
		{"unclosed, though the ledger, the configuration and the inventory are broken", func(w *world) {
			unclosed(noRules)(w)
			w.problem(grant.LedgerUnreadable)
			w.problem(grant.ConfigInvalid)
			w.problem(grant.InventoryMissing)
		}, "pass narrow [device rules closed: no device rule is given]"},
		{"unclosed, whatever the policy", func(w *world) {
			unclosed(noRules)(w)
			w.p.Rules.Ungranted, w.p.Rules.Privileged, w.p.Rules.Mode = grant.Hide, grant.Strip, grant.Report
		}, "pass narrow [device rules closed: no device rule is given]"},
		{"unclosed, with a mount above the nodes", unclosed(noRules, parent),
			"pass narrow [device rules closed: no device rule is given]"},
		{"unclosed, with a mount of a node", unclosed(noRules, bind1),
			"refuse gpu-device-rule gpu-bind-mount"},
		{"unclosed, with a mount of a node that a grant would drop",
			unclosed(noRules, grant.Hit{Vector: "mount:/x", Code: grant.GPUBindMount, Cover: grant.CoverDrop,
				Node: grant.DeviceNode{Class: grant.ClassModeset, Minor: 254}}),
			"refuse gpu-device-rule gpu-bind-mount"},
		{"unclosed, with a request in its environment", unclosed(noRules, all),
			"refuse visible-devices-all gpu-device-rule"},
		{"unclosed, with a node", unclosed(noRules, node(grant.ClassGPU, 0)),
			"refuse gpu-device-node gpu-device-rule"},
		{"unclosed, with a GPU's rule", unclosed(noRules, exactRule),
			"refuse gpu-device-rule gpu-device-rule"},
		{"unclosed, and names a grant", func(w *world) {
			unclosed(noRules)(w)
			w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: "g-nonenonenone"})
		}, "refuse grant-not-found gpu-device-rule"},
		{"unclosed, with a grant", func(w *world) { w.train(); unclosed(noRules)(w) },
			"admit g-podpodpodpod library" + uuid0 + " narrow"},
		{"a device cgroup that is switched off cannot be closed", unclosed(cgroupsOff),
			"refuse rules-not-enforced"},
		{"unclosed, a sandbox with a reference, which requests nothing",
			func(w *world) { w.r.Sandbox = true; w.bearer(); unclosed(noRules)(w) },
			"pass narrow [device rules closed: no device rule is given] [a sandbox with a way to a " +
				"GPU: rule:none]"},
		{"unclosed, a sandbox with the environment of its pod",
			func(w *world) { w.r.Sandbox = true; unclosed(all, cdi, noRules, parent)(w) },
			"pass narrow [device rules closed: no device rule is given] [a sandbox with a way to a " +
				"GPU: env:NVIDIA_VISIBLE_DEVICES]"},
		{"unclosed, a sandbox with a GPU's rule",
			func(w *world) { w.r.Sandbox = true; unclosed(all, noRules, exactRule)(w) },
			"refuse gpu-device-rule gpu-device-rule"},
		{"unclosed, a sandbox", func(w *world) { w.r.Sandbox = true; unclosed(noRules)(w) },
			"pass narrow [device rules closed: no device rule is given] [a sandbox with a way to a " +
				"GPU: rule:none]"},

		// problems of the node refuse only a container that requests a GPU
		{"a broken configuration", func(w *world) { w.hit(all); w.problem(grant.ConfigInvalid) },
			"refuse config-invalid visible-devices-all"},
		{"several problems", func(w *world) {
			w.hit(all)
			w.problem(grant.LedgerUnreadable)
			w.problem(grant.InventoryStale)
			w.problem(grant.ConfigInvalid)
		},
			"refuse config-invalid inventory-stale ledger-unreadable visible-devices-all"},
		{"no inventory, and a grant", func(w *world) {
			w.train()
			w.hit(env("1", "1"))
			w.problem(grant.InventoryMissing)
			w.inv = grant.Inventory{}
		}, "refuse inventory-missing g-podpodpodpod"},
		{"no inventory, and an expired grant", func(w *world) {
			w.train()
			w.v.Grants[0].Expires = now
			w.problem(grant.InventoryMissing)
			w.inv = grant.Inventory{}
		},
			"refuse inventory-missing grant-expired g-podpodpodpod"},
		{"its own grant is damaged", func(w *world) {
			w.train()
			w.hit(all)
			w.v.Grants = nil
			w.v.Damaged = []grant.Damage{{ID: podGrant}}
		}, "refuse ledger-unreadable visible-devices-all"},
		{"the grant that it names is damaged", func(w *world) {
			w.bearer()
			w.v.Grants = nil
			w.v.Damaged = []grant.Damage{{ID: bearerGrant}}
		}, "refuse ledger-unreadable"},

		// hide and strip
		{"hide: env", func(w *world) { w.p.Rules.Ungranted = grant.Hide; w.hit(all); w.hit(migEnv) },
			"pass +NVIDIA_VISIBLE_DEVICES=void -env:NVIDIA_VISIBLE_DEVICES -env:NVIDIA_MIG_CONFIG_DEVICES " +
				"[GPUs hidden by policy]"},
		{"hide: a legacy image", func(w *world) {
			w.p.Rules.Ungranted = grant.Hide
			w.hit(grant.Hit{Vector: "env:CUDA_VERSION", Value: "8.0", Code: grant.VisibleDevicesAll,
				Cover: grant.CoverGPUs, GPUs: []string{"all"}})
		}, "pass +NVIDIA_VISIBLE_DEVICES=void [GPUs hidden by policy]"},
		{"hide: not a node", func(w *world) {
			w.p.Rules.Ungranted = grant.Hide
			w.hit(all)
			w.hit(node(grant.ClassGPU, 0))
		}, "refuse visible-devices-all gpu-device-node"},
		{"hide: not what a client of MPS has mounted", func(w *world) {
			w.p.Rules.Ungranted = grant.Hide
			w.hit(all)
			w.hit(grant.Hit{Vector: "env:CUDA_MPS_PIPE_DIRECTORY", Value: "/mnt/mps", Code: grant.GPUSocket,
				Cover: grant.CoverNever})
		}, "refuse visible-devices-all gpu-socket"},
		{"hide: not from one that names a grant", func(w *world) {
			w.p.Rules.Ungranted = grant.Hide
			w.hit(all)
			w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: "g-nonenonenone"})
		},
			"refuse grant-not-found visible-devices-all"},
		{"hide: without an inventory", func(w *world) {
			w.p.Rules.Ungranted = grant.Hide
			w.hit(all)
			w.problem(grant.InventoryMissing)
		},
			"pass +NVIDIA_VISIBLE_DEVICES=void -env:NVIDIA_VISIBLE_DEVICES [GPUs hidden by policy]"},
		{"strip: a privileged container", func(w *world) {
			w.p.Rules.Privileged = grant.Strip
			w.privileged(blamed(node(grant.ClassGPU, 0)), blamed(rule("c 195:*")),
				grant.Hit{Vector: "mount:/dev", Code: grant.PrivilegedGPU, Cover: grant.CoverDrop})
		}, "pass -device:/dev/x narrow [GPUs stripped from a privileged container by policy]"},
		{"strip: CAP_SYS_ADMIN with a GPU's node keeps its other rules", func(w *world) {
			w.p.Rules.Privileged = grant.Strip
			w.r.Privileged, w.r.SysAdmin = true, true
			w.r.Hits = []grant.Hit{blamed(rule("c 195:0")), blamed(node(grant.ClassGPU, 0))}
		}, "pass -rule:c 195:0 -device:/dev/x [GPUs stripped from a privileged container by policy]"},
		{"strip: not a wildcard of an ordinary container", func(w *world) {
			w.p.Rules.Privileged = grant.Strip
			w.hit(rule("c 195:*"))
		}, "refuse gpu-device-rule"},
		{"strip: not a hook", func(w *world) { w.p.Rules.Privileged = grant.Strip; w.privileged(hook) },
			"refuse gpu-hook privileged-gpu"},
		{"strip: not where no rule applies", func(w *world) {
			w.p.Rules.Privileged = grant.Strip
			w.r.Privileged, w.r.SysAdmin = true, true
			w.r.Hits = []grant.Hit{cgroupsOff, blamed(node(grant.ClassGPU, 0))}
		}, "refuse rules-not-enforced privileged-gpu"},
		{"strip: env of a privileged container needs hide too", func(w *world) {
			w.p.Rules.Privileged = grant.Strip
			w.privileged(all)
		}, "refuse visible-devices-all privileged-gpu"},
		{"strip and hide", func(w *world) {
			w.p.Rules.Privileged, w.p.Rules.Ungranted = grant.Strip, grant.Hide
			w.privileged(all)
		},
			"pass +NVIDIA_VISIBLE_DEVICES=void -env:NVIDIA_VISIBLE_DEVICES narrow [GPUs hidden by policy] " +
				"[GPUs stripped from a privileged container by policy]"},

		// exemptions
		{"exempt by namespace", func(w *world) {
			w.train()
			w.v.Grants = nil
			w.privileged()
			w.p.Rules.Exempt = []grant.Exemption{{Namespace: "te*"}}
		}, "pass [exempt from grants by policy]"},
		{"exempt by all three", func(w *world) {
			w.train()
			w.v.Grants = nil
			w.hit(all)
			w.p.Rules.Exempt = []grant.Exemption{{Namespace: "team", Pod: "job-*", Container: "tr?in"}}
		}, "pass [exempt from grants by policy]"},
		{"exempt: one of the cluster's agents, which mounts the ledger", func(w *world) {
			w.train()
			w.v.Grants = nil
			w.hit(socket)
			w.p.Rules.Exempt = []grant.Exemption{{Namespace: "team"}}
		}, "pass [exempt from grants by policy]"},
		{"exempt: one key does not match", func(w *world) {
			w.train()
			w.v.Grants = nil
			w.hit(all)
			w.p.Rules.Exempt = []grant.Exemption{{Namespace: "team", Pod: "other"}}
		}, "refuse visible-devices-all"},
		{"exempt: no trusted identity", func(w *world) {
			w.hit(all)
			w.p.Rules.Exempt = []grant.Exemption{{Namespace: "*"}}
		}, "refuse visible-devices-all"},
		{"exempt, but it owns a grant: as granted", func(w *world) {
			w.train()
			w.hit(all)
			w.p.Rules.Exempt = []grant.Exemption{{Namespace: "team"}}
		},
			"admit g-podpodpodpod library" + uuid0 + noEnv},

		// with a grant
		{"the owner by identity alone", train(), "admit g-podpodpodpod library" + uuid0},
		{"a bearer", func(w *world) { w.bearer() }, "admit g-bearerbearer library" + uuids},
		{"a claim, whose containers share it", func(w *world) {
			w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: claimGrant, Secret: secret})
			w.v.Grants[2].Bindings = []grant.Binding{{Life: grant.Alive}}
		}, "admit g-claimclaimcl library +NVIDIA_VISIBLE_DEVICES=GPU-1"},
		{"void, where another injector would act", func(w *world) {
			w.train()
			w.p.Enforcement.VisibleDevices = grant.VisibleVoid
		}, "admit g-podpodpodpod library +NVIDIA_VISIBLE_DEVICES=void"},
		{"env all is rewritten", train(all), "admit g-podpodpodpod library" + uuid0 + noEnv},
		{"env with its grant's UUID", train(env("GPU-0", "GPU-0")), "admit g-podpodpodpod library" + uuid0 +
			noEnv},
		{"env with its grant's index", train(env("0", "0")), "admit g-podpodpodpod library" + uuid0 + noEnv},
		{"env with another GPU", train(env("0,1", "0", "1")),
			"refuse visible-devices-outside-grant g-podpodpodpod"},
		{"env with a GPU that does not exist", train(env("9", "9")),
			"refuse visible-devices-outside-grant g-podpodpodpod"},
		{"env all beside another GPU", train(env("all,1", "all", "1")),
			"refuse visible-devices-outside-grant g-podpodpodpod"},
		{"other injectors' env and hooks are removed", train(migEnv, hook), "admit g-podpodpodpod library" +
			uuid0 + " -env:NVIDIA_MIG_CONFIG_DEVICES -hook:/usr/bin/nvidia-ctk"},
		{"a node of UVM's major that is none of its two", train(node(grant.ClassUVM, 2)),
			"refuse gpu-device-node g-podpodpodpod"},
		{"the nodes of its grant are kept", train(node(grant.ClassGPU, 0), node(grant.ClassControl, 255),
			node(grant.ClassUVM, 0), node(grant.ClassUVM, 1), node(grant.ClassDRM, 128)),
			"admit g-podpodpodpod library" + uuid0},
		{"another GPU's node, by its minor", train(node(grant.ClassGPU, 3)),
			"refuse gpu-device-node g-podpodpodpod"},
		{"another GPU's DRM node", train(node(grant.ClassDRM, 129)), "refuse gpu-device-node g-podpodpodpod"},
		{"a capability", train(node(grant.ClassCaps, 1)), "refuse gpu-device-node g-podpodpodpod"},
		{"a switch", train(node("nvidia-nvswitch", 0)), "refuse gpu-device-node g-podpodpodpod"},
		{"modeset is removed", train(node(grant.ClassModeset, 254)), "admit g-podpodpodpod library" + uuid0 +
			" -device:/dev/x"},
		{"a wildcard rule", train(rule("c 195:*")), "refuse gpu-device-rule g-podpodpodpod"},
		{"a bind mount of another GPU", train(bind1), "refuse gpu-bind-mount g-podpodpodpod"},
		{"a socket", train(socket), "refuse gpu-socket g-podpodpodpod"},
		{"a CDI name", train(cdi), "refuse cdi-device-outside-grant g-podpodpodpod"},
		{"the key of the driver's limit", train(dmem), "refuse limit-unenforceable g-podpodpodpod"},
		{"the legacy hook, which requests nothing, is removed", func(w *world) {
			w.train()
			w.r.Dropped = []grant.Removal{hook.Removal}
		}, "admit g-podpodpodpod library" + uuid0 + " -hook:/usr/bin/nvidia-ctk"},
		{"a CDI name of its grant's GPU", train(cdiGPU("0")), "admit g-podpodpodpod library" + uuid0},
		{"a CDI name of another GPU", train(cdiGPU("1")), "refuse cdi-device-outside-grant g-podpodpodpod"},
		{"a CDI name of no GPU", train(cdiGPU("all.")), "refuse cdi-device-outside-grant g-podpodpodpod"},
		{"an image that can't be read", func(w *world) {
			w.train()
			w.r.Layout.Problem = "open /r: no such file or directory"
		}, "refuse injection-impossible g-podpodpodpod"},
		{"no rules: the grant's stand alone", train(noRules), "admit g-podpodpodpod library" + uuid0 +
			" narrow"},
		{"cgroups switched off", train(cgroupsOff), "refuse rules-not-enforced g-podpodpodpod"},
		{"cgroups switched off, and no inventory, which would change nothing", func(w *world) {
			train(cgroupsOff)(w)
			w.problem(grant.InventoryMissing)
		}, "refuse rules-not-enforced inventory-missing g-podpodpodpod"},
		{"all of them", train(cdi, socket, bind1, rule("c 195:*"), node(grant.ClassGPU, 3),
			env("1", "1"), all),
			"refuse visible-devices-outside-grant gpu-device-node gpu-device-rule gpu-bind-mount " +
				"gpu-socket cdi-device-outside-grant g-podpodpodpod"},

		// privileged, with a grant
		{"privileged: narrowed", func(w *world) {
			w.train()
			other := blamed(node(grant.ClassGPU, 3))
			other.Removal.Name = "/dev/nvidia3"
			w.privileged(all, blamed(node(grant.ClassGPU, 0)), other, blamed(rule("c 195:*")))
		}, "admit g-podpodpodpod none" + uuid0 + noEnv + " -device:/dev/nvidia3 narrow" + byPrivilege},
		{"CAP_SYS_ADMIN with nodes: only what is outside is removed, the other rules stay", func(w *world) {
			w.train()
			w.r.Privileged, w.r.SysAdmin = true, true
			other := blamed(node(grant.ClassGPU, 3))
			other.Removal.Name = "/dev/nvidia3"
			w.r.Hits = []grant.Hit{blamed(node(grant.ClassGPU, 0)), other, blamed(rule("c 195:3")),
				blamed(rule("c 195:*"))}
		}, "admit g-podpodpodpod none" + uuid0 + " -device:/dev/nvidia3 -rule:c 195:3 -rule:c 195:*" +
			byPrivilege},
		{"privileged, but a limit is wanted", func(w *world) {
			w.train()
			w.privileged()
			w.wants(grant.StrengthLibrary)
		}, "refuse limit-unenforceable g-podpodpodpod"},
		{"CAP_SYS_ADMIN makes the strength none", func(w *world) { w.train(); w.r.SysAdmin = true },
			"admit g-podpodpodpod none" + uuid0 +
				" [strength none, not library: the container has CAP_SYS_ADMIN, so it can undo what " +
				"would hold it]"},
		{"CAP_SYS_ADMIN, but a limit is wanted", func(w *world) {
			w.train()
			w.r.SysAdmin = true
			w.wants(grant.StrengthLibrary)
		}, "refuse limit-unenforceable g-podpodpodpod"},
		{"what was noticed changes no strength", func(w *world) {
			w.train()
			w.r.Noted = []string{"mount:/x has something"}
		}, "admit g-podpodpodpod library +NVIDIA_VISIBLE_DEVICES=GPU-0 [mount:/x has something]"},
		{"root on the node makes the strength none", func(w *world) {
			w.train()
			w.r.NodeRoot = []string{"mount:/host"}
		}, "admit g-podpodpodpod none" + uuid0 +
			" [node-root by mount:/host] [strength none, not library: the container is as good as root on " +
			"the node by mount:/host, so it can undo what would hold it]"},
		{"root on the node, but a limit is wanted", func(w *world) {
			w.train()
			w.r.NodeRoot = []string{"mount:/host"}
			w.wants(grant.StrengthLibrary)
		}, "refuse limit-unenforceable g-podpodpodpod"},
		{"strong enough", func(w *world) { w.train(); w.wants(grant.StrengthLibrary) },
			"admit g-podpodpodpod library" + uuid0},
		{"not strong enough", func(w *world) { w.train(); w.wants(grant.StrengthDriver) },
			"refuse limit-unenforceable g-podpodpodpod"},
		{"timeslice limits nothing", func(w *world) {
			w.train()
			w.v.Grants[0].Mode, w.v.Grants[0].Strength = grant.Timeslice, grant.StrengthNone
			w.p.Rules.MinimumStrength = grant.StrengthLibrary
		}, "refuse limit-unenforceable g-podpodpodpod"},
		{"exclusive has nothing to limit", func(w *world) {
			w.train()
			w.v.Grants[0].Mode, w.v.Grants[0].Strength = grant.Exclusive, grant.StrengthNone
			w.p.Rules.MinimumStrength = grant.StrengthHardware
		}, "admit g-podpodpodpod none" + uuid0},
		{"exclusive, privileged: the other GPUs must be closed to it", func(w *world) {
			w.train()
			w.v.Grants[0].Mode, w.v.Grants[0].Strength = grant.Exclusive, grant.StrengthNone
			w.p.Rules.MinimumStrength = grant.StrengthLibrary
			w.privileged()
		}, "refuse limit-unenforceable g-podpodpodpod"},

		// the grant itself
		{"expired", func(w *world) { w.train(); w.v.Grants[0].Expires = now },
			"refuse grant-expired g-podpodpodpod"},
		{"not yet expired", func(w *world) { w.train(); w.v.Grants[0].Expires = now.Add(time.Nanosecond) },
			"admit g-podpodpodpod library" + uuid0},
		{"draining", func(w *world) { w.train(); w.v.Grants[0].Draining = true },
			"refuse grant-expired g-podpodpodpod"},
		{"in use", func(w *world) {
			w.train()
			w.v.Grants[0].Bindings = []grant.Binding{{Life: grant.Alive}}
		}, "refuse grant-in-use g-podpodpodpod"},
		{"bound, to an unknown container", func(w *world) {
			w.train()
			w.v.Grants[0].Bindings = []grant.Binding{{Life: grant.LifeUnknown}}
		}, "refuse grant-in-use g-podpodpodpod"},
		{"its GPU is sick", func(w *world) { w.train(); w.inv.GPUs[0].Health = "xid 79" },
			"refuse gpu-unhealthy g-podpodpodpod"},
		{"its GPU has vanished", func(w *world) { w.train(); w.inv.GPUs = w.inv.GPUs[1:] },
			"refuse gpu-unhealthy g-podpodpodpod"},
		{"expired, sick, and too much requested", func(w *world) {
			w.train()
			w.hit(env("1", "1"))
			w.v.Grants[0].Expires = now
			w.inv.GPUs[0].Health = "xid 79"
		},
			"refuse grant-expired gpu-unhealthy visible-devices-outside-grant g-podpodpodpod"},

		// references
		{"an unknown id", func(w *world) {
			w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: "g-nonenonenone"})
		}, "refuse grant-not-found"},
		{"a bearer's grant without its secret", func(w *world) {
			w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: bearerGrant})
		}, "refuse grant-not-found"},
		{"a bearer's grant with a wrong secret", func(w *world) {
			w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: bearerGrant, Secret: wrongSecret})
		}, "refuse grant-not-found"},
		{"a claim's grant without its secret", func(w *world) {
			w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: claimGrant})
		}, "refuse grant-not-found"},
		{"another pod's grant", func(w *world) {
			w.train()
			w.v.Grants[0].Owner = "pod:uid/sidecar"
			w.refers("a", grant.Reference{ID: otherGrant})
		}, "refuse grant-owner-mismatch"},
		{"a pod's grant from outside any pod", func(w *world) {
			w.refers("a", grant.Reference{ID: podGrant})
		}, "refuse grant-owner-mismatch"},
		{"its own grant, named", func(w *world) { w.train(); w.refers("a", grant.Reference{ID: podGrant}) },
			"admit g-podpodpodpod library" + uuid0},
		{"its own grant, and a bearer's", func(w *world) { w.train(); w.bearer() },
			"refuse annotation-mismatch g-podpodpodpod"},
		{"a bearer's and a claim's", func(w *world) {
			w.bearer()
			w.refers("a", grant.Reference{ID: claimGrant, Secret: secret})
		}, "refuse annotation-mismatch g-bearerbearer"},
		{"one good, one unreadable", func(w *world) {
			w.bearer()
			w.r.References = append(w.r.References, grant.Mention{
				Source: "a", Asks: true, Malformed: "cannot"})
		},
			"refuse annotation-malformed g-bearerbearer"},
		{"one good, one unknown", func(w *world) {
			w.bearer()
			w.refers("a", grant.Reference{ID: "g-nonenonenone"})
		}, "refuse grant-not-found g-bearerbearer"},
		{"the pod's reference counts for a request by env", func(w *world) {
			w.hit(all)
			w.r.References = []grant.Mention{{Source: "annotation:gpuledger.dev/grant",
				Reference: grant.Reference{ID: bearerGrant, Secret: secret}}}
		}, "admit g-bearerbearer library" + uuids + noEnv},

		// allocations
		{"allocations that agree", func(w *world) {
			w.bearer()
			w.r.Allocations = []grant.Allocation{{Source: "a", GPUs: []string{"1", "GPU-0"}},
				{Source: "b", Memory: 8 * grant.GiB}, {Source: "c", Compute: 30},
				{Source: "d", Mode: grant.Limit}}
		}, "admit g-bearerbearer library" + uuids},
		{"allocations that disagree, each", func(w *world) {
			w.bearer()
			w.r.Allocations = []grant.Allocation{{Source: "a", GPUs: []string{"0"}},
				{Source: "b", Memory: 4 * grant.GiB}, {Source: "c", Compute: 31},
				{Source: "d", Mode: grant.MPS}}
		}, "refuse annotation-mismatch annotation-mismatch annotation-mismatch annotation-mismatch " +
			"g-bearerbearer"},
		{"one GPU named twice", func(w *world) {
			w.bearer()
			w.r.Allocations = []grant.Allocation{{Source: "a", GPUs: []string{"0", "GPU-0"}}}
		}, "refuse annotation-mismatch g-bearerbearer"},
		{"gpushare in GiB", func(w *world) {
			w.train()
			w.r.Allocations = []grant.Allocation{{Source: "a", GPUs: []string{"0"}, Units: 4, Total: 15}}
		}, "admit g-podpodpodpod library" + uuid0},
		{"gpushare in MiB", func(w *world) {
			w.train()
			w.r.Allocations = []grant.Allocation{{Source: "a", GPUs: []string{"0"},
				Units: 4096, Total: 16280}}
		}, "admit g-podpodpodpod library" + uuid0},
		{"gpushare in MiB, taken for GiB", func(w *world) {
			w.train()
			w.r.Allocations = []grant.Allocation{{Source: "a", Units: 4096, Total: 15}}
		}, "refuse annotation-mismatch g-podpodpodpod"},
		{"gpushare in GiB, taken for MiB", func(w *world) {
			w.train()
			w.r.Allocations = []grant.Allocation{{Source: "a", Units: 4, Total: 16280}}
		}, "refuse annotation-mismatch g-podpodpodpod"},
		{"gpushare without a total counts in GiB", func(w *world) {
			w.train()
			w.r.Allocations = []grant.Allocation{{Source: "a", Units: 4}}
		}, "admit g-podpodpodpod library" + uuid0},
		{"gpushare over two cards, on each", func(w *world) {
			w.bearer()
			w.r.Allocations = []grant.Allocation{{Source: "a", GPUs: []string{"0", "1"}, Units: 4}}
		}, "admit g-bearerbearer library" + uuids},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			c.setup(w)
			v := w.decide()
			if got := summary(v); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if v.Kind == grant.Refused && (v.Code != v.Details[0].Code || v.Message == "" || v.Hint == "") {
				t.Errorf("a refusal without code, message or hint: %+v", v)
			}
			if !reflect.DeepEqual(v, w.decide()) {
				t.Error("deciding twice gives two verdicts")
			}
		})
	}
}

func TestAsksReturnsWhetherAnInventoryIsNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		setup func(*world)
		want  bool
	}{
		"nothing":               {func(*world) {}, false},
		"a hit":                 {func(w *world) { w.hit(all) }, true},
		"a grant of its own":    {func(w *world) { w.train() }, true},
		"a reference":           {func(w *world) { w.bearer() }, true},
		"a sandbox with env":    {func(w *world) { w.hit(all); w.r.Sandbox = true }, false},
		"a sandbox with a node": {func(w *world) { w.hit(node(grant.ClassGPU, 0)); w.r.Sandbox = true }, true},
		"a sandbox that names":  {func(w *world) { w.bearer(); w.r.Sandbox = true }, false},
		"root on the node":      {func(w *world) { w.r.NodeRoot = []string{"mount:/host"} }, false},
	} {
		w := newWorld()
		c.setup(w)
		if got := Asks(w.r, w.v); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAdmittedDevicesAndRulesMatch(t *testing.T) {
	w := newWorld()
	w.bearer()
	v := w.decide()
	var nodes []string
	for _, n := range v.Edits.DeviceNodes {
		nodes = append(nodes, fmt.Sprintf("%s %s %d:%d %o %s", n.Path, n.Type, n.Major, n.Minor,
			*n.FileMode, n.Permissions))
	}
	if want := []string{"/dev/nvidia0 c 195:0 666 rw", "/dev/nvidia3 c 195:3 666 rw",
		"/dev/nvidiactl c 195:255 666 rw", "/dev/nvidia-uvm c 508:0 666 rw",
		"/dev/nvidia-uvm-tools c 508:1 666 rw"}; !slices.Equal(nodes, want) {
		t.Errorf("nodes %q", nodes)
	}
	if want := []string{"c 195:0 rw", "c 195:3 rw", "c 195:255 rw", "c 508:0 rw",
		"c 508:1 rw"}; !slices.Equal(rules(v), want) || v.Narrow {
		t.Errorf("rules %q, narrow %v", rules(v), v.Narrow)
	}
	w.inv.Majors = nil // UVM is not loaded
	if got := w.decide(); len(got.Edits.DeviceNodes) != 3 {
		t.Errorf("without UVM: %d nodes", len(got.Edits.DeviceNodes))
	}
}

func rules(v grant.Verdict) []string {
	var texts []string
	for _, r := range v.Rules {
		text := fmt.Sprintf("%c %d:%d %s", r.Type, r.Major, r.Minor, r.Access)
		if !r.Allow {
			text = "deny " + text
		}
		texts = append(texts, strings.ReplaceAll(text, "-1", "*"))
	}
	return texts
}

// A confined privileged container keeps its grant and every device that is not a GPU's.
func TestConfinedPrivilegedKeepsNonGPUDevices(t *testing.T) {
	for name, granted := range map[string]bool{"stripped": false, "granted": true} {
		w := newWorld()
		w.p.Rules.Privileged = grant.Strip
		w.r.Devices.Taken = map[int]bool{1: true, 195: true, 240: true, 500: true, 508: true}
		w.r.Devices.DRM = map[int]bool{128: true, 129: false, 1: false, 0: true}
		w.privileged()
		if granted {
			w.train()
		}
		v := w.decide()
		got := rules(v)
		has := func(rule string) bool { return slices.Contains(got, rule) }
		if !v.Narrow || got[0] != "b *:* rwm" || !has("c 1:* rwm") || !has("c 10:* rwm") ||
			!has("c 233:* rwm") || !has("c 255:* rwm") || !has("c 383:* rwm") || !has("c 240:* rwm") ||
			!has("c 500:* rwm") || !has("c 226:1 rwm") || !has("c 226:129 rwm") {
			t.Errorf("%s: too little: %q", name, got)
		}
		for _, bad := range []string{"c 234:* rwm", "c 254:* rwm", "c 384:* rwm", "c 511:* rwm", "c *:* rwm",
			"a *:* rwm", "c 195:* rwm", "c 508:* rwm", "c 226:* rwm", "c 226:128 rwm",
			"c 226:0 rwm", "c 195:3 rw"} {
			if has(bad) {
				t.Errorf("%s: it may open %s", name, bad)
			}
		}
		if has("c 195:0 rw") != granted {
			t.Errorf("%s: its grant's GPU is open: %v", name, !granted)
		}
		closed := map[int64]bool{}
		for _, r := range Closed(w.r.Devices) {
			closed[r.Major] = r.Type == 'c' && r.Minor == -1 && r.Access == "rw"
		}
		for major := range int64(512) {
			if closed[major] == has(fmt.Sprintf("c %d:* rwm", major)) {
				t.Errorf("%s: major %d is both closed and open, or neither", name, major)
			}
		}
	}
}

// Only a container whose rules open everything gets the narrowed list. Another container would get
// disks by it.
func TestNarrowingNeverAddsDevices(t *testing.T) {
	for name, setup := range map[string]func(*world){
		"CAP_SYS_ADMIN with a GPU's node": func(w *world) { w.r.Hits = []grant.Hit{blamed(node(grant.ClassGPU, 0))} },
		"the same, with no rules":         func(w *world) { w.r.Hits = []grant.Hit{blamed(noRules), blamed(node(grant.ClassGPU, 0))} },
	} {
		for _, granted := range []bool{true, false} {
			w := newWorld()
			w.p.Rules.Privileged = grant.Strip
			w.r.Privileged, w.r.SysAdmin = true, true
			if granted {
				w.train()
			}
			setup(w)
			for _, r := range rules(w.decide()) {
				if !strings.HasPrefix(r, "c 195:") && !strings.HasPrefix(r, "c 508:") {
					t.Errorf("%s, granted %v: it gets %s", name, granted, r)
				}
			}
		}
	}
}
