package admission

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// written is a whole verdict without the hint, one line a field.
func written(v grant.Verdict) string {
	head := string(v.Kind)
	if v.Code != "" {
		head += " " + string(v.Code)
	}
	if v.Grant != nil {
		head += " of " + string(v.Grant.ID)
	}
	head += " " + string(v.Strength)
	for _, flag := range []struct {
		name string
		set  bool
	}{{" narrow", v.Narrow}, {" limited", v.Limited}, {" throttled", v.Throttled}, {" driven", v.Driven}} {
		if flag.set {
			head += flag.name
		}
	}
	lines := []string{head}
	add := func(kind, format string, args ...any) {
		lines = append(lines, kind+": "+fmt.Sprintf(format, args...))
	}
	if v.Message != "" {
		add("says", "%s", v.Message)
	}
	for _, d := range v.Details {
		add("finds", "%s %s %q", d.Code, d.Vector, d.Value)
	}
	for _, e := range v.Edits.Env {
		add("env", "%s", e)
	}
	if len(v.Edits.DeviceNodes) > 0 {
		add("nodes", "%s", paths(v.Edits.DeviceNodes))
	}
	if len(v.Rules) > 0 {
		add("rules", "%s", strings.Join(rules(v), ", "))
	}
	for _, m := range v.Edits.Mounts {
		add("mount", "%s on %s", m.HostPath, m.ContainerPath)
	}
	for _, path := range v.Masked {
		add("masked", "%s", path)
	}
	for _, r := range v.Removed {
		add("removed", "%s", r.String())
	}
	for _, r := range v.Recorded {
		add("recorded", "%s", r)
	}
	return strings.Join(lines, "\n")
}

// lines joins the parts of a written verdict.
func lines(parts ...string) string { return strings.Join(parts, "\n") }

// TestWholeVerdicts compares whole verdicts.
func TestWholeVerdicts(t *testing.T) {
	const (
		train   = `container "train" `
		nodes   = "nodes: nvidia0 nvidiactl nvidia-uvm nvidia-uvm-tools"
		may     = "rules: c 195:0 rw, c 195:255 rw, c 508:0 rw, c 508:1 rw"
		set     = "env: NVIDIA_VISIBLE_DEVICES=GPU-0"
		void    = "env: NVIDIA_VISIBLE_DEVICES=void"
		dropped = "removed: env:NVIDIA_VISIBLE_DEVICES"
		leads   = " (" + grant.UnknownTarget + ")"
	)
	var (
		plain = lines("admit of g-podpodpodpod library", set, nodes, may)
		both  = lines("admit of g-bearerbearer library", "env: NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1",
			"nodes: nvidia0 nvidia3 nvidiactl nvidia-uvm nvidia-uvm-tools",
			"rules: c 195:0 rw, c 195:3 rw, c 195:255 rw, c 508:0 rw, c 508:1 rw")
		elsewhere = grant.Hit{Vector: "mount:/x", Value: "/proc/self/cwd" + leads, Code: grant.GPUBindMount,
			Cover: grant.CoverNever}
	)
	hidden := func(w *world) { w.p.Rules.Ungranted, w.p.Rules.Privileged = grant.Hide, grant.Strip }
	exclusive := func(w *world) {
		w.train()
		w.wants(grant.StrengthLibrary)
		w.v.Grants[0].Mode, w.v.Grants[0].Strength = grant.Exclusive, grant.StrengthNone
	}
	tooWeak := func(why string) string {
		return lines("refuse limit-unenforceable of g-podpodpodpod none",
			"says: "+train+"would be held to its grant by strength none, which is less than this node's "+
				"minimum_strength"+why, `finds: limit-unenforceable strength "none"`)
	}
	for _, c := range []struct {
		name  string
		setup func(*world)
		want  string
	}{
		// kinds of containers
		{"the owner", func(w *world) { w.train() }, plain},
		{"a grant without an owner is not that of a container without a pod",
			func(w *world) { w.v.Grants[0].Owner = "" }, "pass none"},
		{"GPUs whose address is known: the others' directories are masked", func(w *world) {
			w.train()
			w.inv.GPUs[0].PCI, w.inv.GPUs[1].PCI = "0000:01:00.0", "0000:02:00.0"
		}, lines(plain, "masked: /proc/driver/nvidia/gpus/0000:02:00.0")},
		{"exclusive and privileged, without CAP_SYS_ADMIN", func(w *world) {
			exclusive(w)
			w.r.Privileged = true
		}, tooWeak("")},
		{"exclusive with CAP_SYS_ADMIN", func(w *world) { exclusive(w); w.r.SysAdmin = true }, tooWeak("")},
		{"exclusive and root on the node", func(w *world) {
			exclusive(w)
			w.r.NodeRoot = []string{"mount:/host"}
		}, tooWeak("")},
		{"weaker than its grant demands", func(w *world) {
			w.train()
			w.r.SysAdmin, w.v.Grants[0].MinimumStrength = true, grant.StrengthLibrary
		}, lines("refuse limit-unenforceable of g-podpodpodpod none",
			"says: "+train+"would be held to its grant by strength none, which is less than the minimum "+
				"strength of its claim or DeviceClass (strength none, not library: the container has "+
				"CAP_SYS_ADMIN, so it can undo what would hold it)",
			`finds: limit-unenforceable strength "none"`)},
		{"as strong as its grant demands", func(w *world) {
			w.train()
			w.v.Grants[0].MinimumStrength = grant.StrengthLibrary
		}, plain},
		{"timeslice limits nothing", func(w *world) {
			exclusive(w)
			w.v.Grants[0].Mode = grant.Timeslice
		}, tooWeak("")},

		// a sandbox
		{"a sandbox with a mount that leads elsewhere", func(w *world) {
			w.r.Sandbox = true
			w.hit(elsewhere)
		},
			lines("refuse gpu-bind-mount none", `says: container "c1" mounts /proc/self/cwd`+leads+
				" by mount /x, so that it cannot be known whether that leads to a GPU, to gpuledger or to "+
				"an MPS daemon",
				`finds: gpu-bind-mount mount:/x "/proc/self/cwd`+leads+`"`)},
		{"a sandbox with a node: nothing is hidden or stripped, and its allocations belong to no container",
			func(w *world) {
				hidden(w)
				w.r.Sandbox = true
				w.r.Allocations = []grant.Allocation{{Source: "annotation:a", Asks: true,
					GPUs: []string{"0"}}}
				w.hit(node(grant.ClassGPU, 0))
			}, lines("refuse gpu-device-node none", `says: container "c1" brings the GPU device /dev/x (c `+
				`nvidia:0) but holds no grant`, `finds: gpu-device-node device:/dev/x "c nvidia:0"`)},
		{"a sandbox with an injector's node for all: nothing is stripped", func(w *world) {
			hidden(w)
			w.r.Sandbox = true
			w.hit(blamed(node(grant.ClassGPU, 0)))
		}, lines("refuse privileged-gpu none", `says: container "c1" is privileged, so it reaches every `+
			`GPU of this node (/dev/x: c nvidia:0), but holds no grant`,
			`finds: privileged-gpu device:/dev/x "c nvidia:0"`)},

		// in a user namespace, where more than the rule that denies all is missing
		{"unclosed, with an injector's hook", func(w *world) {
			w.r.Unclosed = true
			w.hit(noRules)
			w.hit(hook)
		},
			lines("refuse gpu-device-rule none",
				`says: container "c1" may open GPU devices by its device rules (rule none: no device rule `+
					`is given) but holds no grant`,
				`finds: gpu-device-rule rule:none "no device rule is given"`,
				`finds: gpu-hook hook:/usr/bin/nvidia-ctk ""`)},
		{"unclosed, with a mount that leads elsewhere", func(w *world) {
			w.r.Unclosed = true
			w.hit(noRules)
			w.hit(elsewhere)
		},
			lines("refuse gpu-device-rule none",
				`says: container "c1" may open GPU devices by its device rules (rule none: no device rule `+
					`is given) but holds no grant`,
				`finds: gpu-device-rule rule:none "no device rule is given"`,
				`finds: gpu-bind-mount mount:/x "/proc/self/cwd`+leads+`"`)},

		// hide
		{"hide", func(w *world) {
			hidden(w)
			w.hit(all)
		}, lines("pass none", void, dropped, "recorded: GPUs hidden by policy")},
		{"hide: not from one whose pod names a grant for all of its containers", func(w *world) {
			hidden(w)
			w.hit(all)
			w.r.References = []grant.Mention{{Source: "annotation:gpuledger.dev/grant",
				Reference: grant.Reference{ID: "g-nonenonenone"}}}
		}, lines("refuse grant-not-found none",
			`says: container "c1" refers to a grant by annotation gpuledger.dev/grant, but the ledger has `+
				`no grant with that id and secret`,
			`finds: grant-not-found annotation:gpuledger.dev/grant "g-nonenonenone"`,
			`finds: visible-devices-all env:NVIDIA_VISIBLE_DEVICES "all"`)},
		{"what is found three times is removed once", func(w *world) {
			hidden(w)
			w.r.Hits = []grant.Hit{all, migEnv, all, all}
		},
			lines("pass none", void, dropped, "removed: env:NVIDIA_MIG_CONFIG_DEVICES",
				"recorded: GPUs hidden by policy")},
		{"a hook with the name of the variable that is set goes", func(w *world) {
			w.train()
			w.r.Dropped = []grant.Removal{{Kind: grant.RemoveHook, Name: "NVIDIA_VISIBLE_DEVICES"},
				{Kind: grant.RemoveEnv, Name: "NVIDIA_VISIBLE_DEVICES"}}
		}, lines(plain, "removed: hook:NVIDIA_VISIBLE_DEVICES")},

		// exemptions
		{"exempt: another namespace", func(w *world) {
			w.train()
			w.v.Grants = nil
			w.hit(socket)
			w.p.Rules.Exempt = []grant.Exemption{{Namespace: "other", Pod: "job-0"}}
		}, lines("refuse gpu-socket none", "says: "+train+
			"reaches a directory of gpuledger or of an MPS daemon: /run/gpuledger (mount /s)",
			`finds: gpu-socket mount:/s "/run/gpuledger"`)},
		{"exempt: another container", func(w *world) {
			w.train()
			w.v.Grants = nil
			w.hit(socket)
			w.p.Rules.Exempt = []grant.Exemption{{Namespace: "team", Pod: "job-0", Container: "sidecar"}}
		}, lines("refuse gpu-socket none", "says: "+train+
			"reaches a directory of gpuledger or of an MPS daemon: /run/gpuledger (mount /s)",
			`finds: gpu-socket mount:/s "/run/gpuledger"`)},

		// damaged entries of the ledger
		{"a pod's container that owns a damaged grant and names a sound one", func(w *world) {
			w.train()
			w.v.Grants = w.v.Grants[1:]
			w.v.Damaged = []grant.Damage{{ID: podGrant}}
			w.bearer()
		}, lines("refuse ledger-unreadable of g-bearerbearer none", "says: "+train+
			"relies on grant g-podpodpodpod, whose entry in the ledger is damaged",
			`finds: ledger-unreadable owner "g-podpodpodpod"`)},
		{"a pod's container that names a damaged grant", func(w *world) {
			w.train()
			w.v.Grants = nil
			w.v.Damaged = []grant.Damage{{ID: bearerGrant}}
			w.bearer()
		}, lines("refuse ledger-unreadable none", "says: "+train+
			"relies on grant g-bearerbearer, whose entry in the ledger is damaged",
			`finds: ledger-unreadable env:GPULEDGER_GRANT "g-bearerbearer"`)},
		{"a pod's container without a request, beside a damaged grant that its pod names", func(w *world) {
			w.train()
			w.v.Grants = nil
			w.v.Damaged = []grant.Damage{{ID: bearerGrant}}
			w.r.References = []grant.Mention{{Source: "annotation:gpuledger.dev/grant",
				Reference: grant.Reference{ID: bearerGrant}}}
		}, "pass none"},
		{"a container of no pod owns no damaged grant", func(w *world) {
			w.v.Damaged = []grant.Damage{{ID: podGrant}}
		}, "pass none"},
		{"a pod's container, where the configuration is broken", func(w *world) {
			w.train()
			w.v.Grants = nil
			w.problem(grant.ConfigInvalid)
		}, "pass none"},

		// allocations
		{"an allocation for another container is not this one's", func(w *world) {
			w.hit(all)
			w.r.Allocations = []grant.Allocation{{Source: "annotation:a", GPUs: []string{"0"}}}
		}, lines("refuse visible-devices-all none",
			`says: container "c1" asks for all GPUs through NVIDIA_VISIBLE_DEVICES but holds no grant`,
			`finds: visible-devices-all env:NVIDIA_VISIBLE_DEVICES "all"`)},
		{"an allocation that can be read only in part is reported once", func(w *world) {
			w.train()
			w.r.Allocations = []grant.Allocation{{Source: "annotation:a", Asks: true, GPUs: []string{"1"},
				Units: 9, Malformed: "what?"}}
		}, lines("refuse annotation-malformed of g-podpodpodpod none",
			"says: "+train+"carries annotation a, which cannot be read: what?",
			`finds: annotation-malformed annotation:a "what?"`)},
		{"allocations of as much as there is", func(w *world) {
			w.bearer()
			w.r.Allocations = []grant.Allocation{{Source: "annotation:a", Asks: true,
				GPUs: []string{"0", "1"}, Memory: 8 * grant.GiB, Compute: 30, Mode: grant.Limit}}
		}, both},
		{"allocations of more, or less", func(w *world) {
			w.bearer()
			w.r.Allocations = []grant.Allocation{{Source: "annotation:a", Memory: 9 * grant.GiB},
				{Source: "annotation:b", Memory: 7 * grant.GiB}, {Source: "annotation:c", Units: 3}}
		}, lines("refuse annotation-mismatch of g-bearerbearer none",
			`says: container "c1" carries annotation a (9GiB), which disagrees with grant g-bearerbearer`,
			`finds: annotation-mismatch annotation:a "9GiB"`,
			`finds: annotation-mismatch annotation:b "7GiB"`,
			`finds: annotation-mismatch annotation:c "3 units of memory"`)},
		{"gpushare with a total of twice the card's GiB", func(w *world) {
			w.train()
			w.r.Allocations = []grant.Allocation{{Source: "annotation:a", GPUs: []string{"0"},
				Units: 4, Total: 32}}
		}, plain},

		// a GPU that has vanished
		{"a node with the minor of no GPU any more", func(w *world) {
			w.train()
			w.inv.GPUs = w.inv.GPUs[1:]
			w.hit(node(grant.ClassGPU, 0))
			w.r.Allocations = []grant.Allocation{{Source: "annotation:a", Units: 4, Total: 15}}
		}, lines("refuse gpu-unhealthy of g-podpodpodpod none",
			"says: "+train+"holds a grant of GPU-0, which is not there any more",
			`finds: gpu-unhealthy GPU-0 "is not there any more"`,
			`finds: gpu-device-node device:/dev/x "c nvidia:0"`)},

		// what a tenant reads
		{"a mount of a GPU that is not granted", func(w *world) { w.train(); w.hit(bind1) },
			lines("refuse gpu-bind-mount of g-podpodpodpod none", "says: "+train+
				"mounts GPU devices by mount /m from /dev/nvidia3 (c 195:3), which are not in its grant "+
				"g-podpodpodpod",
				`finds: gpu-bind-mount mount:/m "/dev/nvidia3 (c 195:3)"`)},
		{"a variable whose value looks like another message", func(w *world) { w.hit(env("1"+leads, "1")) },
			lines("refuse visible-devices-outside-grant none", `says: container "c1" asks for GPUs 1`+leads+
				" through NVIDIA_VISIBLE_DEVICES but holds no grant",
				`finds: visible-devices-outside-grant env:NVIDIA_VISIBLE_DEVICES "1`+leads+`"`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			c.setup(w)
			if got := written(w.decide()); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}
