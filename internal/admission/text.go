package admission

import (
	"fmt"
	"strings"
	"sync"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// The hints that several refusals share.
const (
	hintRequest = "this node shares its GPUs by grant; request a share (" + grant.Docs + "requesting.md)"
	hintVoid    = hintRequest + " or set NVIDIA_VISIBLE_DEVICES=void"
	// of a container that describes its share and names no grant
	hintAllocation = "that describes a grant and makes none: name one by gpuledger.dev/grant, or have one " +
		"granted to the pod's container (" + grant.Docs + "requesting.md); " +
		"on a node with annotations.trust = \"adopt\" what a scheduler writes is a grant"
	hintTied = "a tied grant is used by its own pods, and by no other pod that has its reference: a " +
		"claim's by those that the claim is reserved for; request a share of your own (" + grant.Docs +
		"requesting.md)"
	hintUnvouched = "a tied grant is used by pods' containers under containerd or CRI-O; elsewhere present " +
		"the reference of a grant without ties (" + grant.Docs + "requesting.md)"
	hintNoUID  = "containerd says it from 1.6.11 on"
	hintInside = "a container reaches what its grant lists and nothing else; remove it from the spec or " +
		"ask for a larger grant"
)

// sentence is how one code is told to a tenant: about the container, its grant, and where in the
// spec the reason stands. It never names another tenant.
type sentence struct {
	// after `container "x" `; with is for a container that holds a grant, where that differs
	without, with string
	hint          string
}

// sentences has a row for each code that a decision gives. In the texts {v} is the vector, {x} its
// value, {g} the grant. Most creates need none.
var sentences = sync.OnceValue(func() map[grant.Code]sentence {
	return map[grant.Code]sentence{
		grant.RulesNotEnforced: {without: "asks for a GPU or reaches one where no device rule holds ({x}), " +
			"so that nothing would keep it to a grant",
			hint: "start it with an engine that runs as root of the node and uses cgroups, or " +
				"without GPUs (" +
				grant.Docs + "refusals.md#rules-not-enforced)"},
		grant.LedgerUnreadable: {without: "relies on grant {x}, whose entry in the ledger is damaged",
			hint: "an administrator finds the reason with `gpuledger check`"},
		grant.AnnotationMalformed: {without: "carries {v}, which cannot be read: {x}",
			hint: "correct it, or remove it"},
		grant.AnnotationMismatch: {without: "carries {v} ({x}), which disagrees with its other references",
			with: "carries {v} ({x}), which disagrees with grant {g}",
			hint: "all references and allocations of a container must name one grant, as it stands " +
				"in the ledger"},
		grant.GrantNotFound: {without: "refers to a grant by {v}, but the ledger has no grant that it opens",
			hint: "a bearer's or claim's reference is ID.SECRET, as `gpuledger grant` printed it; " +
				"the grant may have been released"},
		grant.GrantOwnerMismatch: {
			without: "refers to grant {x} by {v}, which belongs to another owner",
			hint:    "a pod's grant is used by the pod and container that it names, and by no other"},
		grant.GrantExpired: {without: "holds grant {x}, whose time is over",
			hint: "request a new grant, or have this one's time extended before it ends"},
		grant.GrantInUse: {without: "holds grant {x}, which a container uses already",
			hint: "a grant serves one container at a time; it is free again when that container has ended"},
		grant.GPUUnhealthy: {without: "holds a grant of {v}, which {x}",
			hint: "release the grant and request another one; an administrator sees the GPUs with " +
				"`gpuledger gpus`"},
		grant.ModeConflict: {
			without: "is allocated {x} GPU(s) by {v}, but a GPU is in another mode",
			hint:    "a GPU is in one mode at a time, until its last grant is released"},
		grant.NoCapacity: {
			without: "is allocated {x} GPU(s) by {v}, but there is not as much free",
			hint: "ask for less; an administrator sees who holds what with `gpuledger inspect` and in " +
				"the audit log"},
		grant.LimitUnenforceable: {
			without: "would be held to its grant by strength {x}, which is less than this node's " +
				"minimum_strength", hint: "drop its privileges, or ask for a mode that this node " +
				"enforces better"},
		grant.MPSNotReady: {
			without: "holds a grant in mode mps, and its MPS daemon cannot take it as a client: {x}",
			hint: "gpuledgerd starts a daemon within seconds of its first grant, and its log says what " +
				"keeps it; try again"},
		grant.InjectionImpossible: {
			without: "cannot be given the driver's files, because its root file system can't be read: {x}",
			hint:    "the engine mounts it before it calls the runtime; is the bundle complete?"},
		grant.VisibleDevicesAll: {without: "asks for all GPUs through {v} but holds no grant",
			hint: hintVoid},
		grant.VisibleDevicesOutsideGrant: {without: "asks for GPUs {x} through {v} but holds no grant",
			with: "asks for GPUs {x} through {v}, which are not all in its grant {g}", hint: hintVoid},
		grant.GPUEnv: {
			without: "asks for GPU features through {v}={x} but holds no grant", hint: hintRequest +
				" or unset it"},
		grant.GPUDeviceNode: {without: "brings the GPU device {v} ({x}) but holds no grant",
			with: "brings the GPU device {v} ({x}), which is not in its grant {g}", hint: hintRequest},
		grant.GPUDeviceRule: {
			without: "may open GPU devices by its device rules ({v}: {x}) but holds no grant",
			with:    "may open GPU devices beyond its grant {g} by its device rules ({v}: {x})",
			hint:    hintRequest},
		grant.GPUBindMount: {without: "mounts GPU devices by {v} from {x} but holds no grant",
			with: "mounts GPU devices by {v} from {x}, which are not in its grant {g}", hint: hintRequest},
		grant.GPUSocket: {
			without: "mounts {x} by {v}, which belongs to gpuledger or to an MPS daemon",
			hint:    "directories that govern GPUs are no container's; remove the mount"},
		grant.GPUHook: {without: "has a hook that injects GPUs ({v}) but holds no grant",
			hint: hintRequest},
		grant.CDIDeviceOutsideGrant: {without: "asks for CDI devices {x} through {v} but holds no grant",
			with: "asks for CDI devices {x} through {v}, which grant {g} does not cover", hint: hintRequest},
		grant.PrivilegedGPU: {without: "is privileged, so it reaches every GPU of this node ({v}: {x}), " +
			"but holds no grant", hint: hintRequest + ", drop the privilege, " +
			"or have the administrator set privileged = \"strip\" or an exemption"},
	}
})

// deviceMemory is for a spec that sets the key of the driver's limit itself.
var deviceMemory = sentence{without: "sets {v} ({x}), by which the driver limits GPU memory",
	hint: "that limit is the ledger's; leave the key out"}

// cgroupKey is for a spec that sets what is no resource of a cgroup, doubtfulKey for one beside a
// grant that may be none.
var (
	cgroupKey = sentence{without: "sets {v} ({x}), which is no resource: by such keys processes leave the " +
		"cgroup whose device rules and limit hold them, or are stopped",
		hint: "leave the key out; to stop or end a container there are the runtime's pause and kill"}
	doubtfulKey = sentence{without: "sets {v} ({x}), of which it is not known what it does to its grant",
		hint: "leave the key out; a controller that is missing in gpuledger's list is a bug to report"}
)

// stillHeld is for an exclusive grant of a GPU that somebody else still has.
var stillHeld = sentence{
	without: "holds an exclusive grant of {x}, which processes without a grant have open",
	hint: "they have to end first; an administrator sees them with `gpuledger inspect` and in " +
		"the audit log"}

// handed is for what a container is handed open.
var handed = sentence{without: "is handed a way to a GPU by {v} ({x}) but holds no grant",
	with: "is handed a way to a GPU by {v} ({x}), which is not in its grant {g}",
	hint: "start it without the descriptor (--preserve-fds, $LISTEN_FDS, standard input and output), or " +
		hintRequest}

// elsewhere is for a mount of which nobody can tell beforehand what it brings along.
var elsewhere = sentence{without: "mounts {x} by {v}, so that it cannot be told whether that reaches a GPU " +
	"or what governs GPUs", hint: "name the file or directory itself as the mount's source"}

// text is what a tenant is told, and what to do about it.
func (c *asking) text(code grant.Code, vector, value string) (message, hint string) {
	s := sentences()[code]
	untold := code == grant.GPUBindMount && strings.HasSuffix(value, " ("+grant.Elsewhere+")")
	key := strings.HasPrefix(vector, "unified:")
	switch {
	case key && code == grant.GPUDeviceRule:
		s = cgroupKey
	case strings.HasPrefix(vector, "unified:dmem."):
		s = deviceMemory
	case key:
		s = doubtfulKey
	case strings.HasPrefix(vector, "held:"):
		s = stillHeld
	case strings.HasPrefix(vector, "descriptor:"):
		s = handed
	case untold:
		s = elsewhere
	}
	message, hint = s.without, s.hint
	id := ""
	if c.grant != nil {
		id = string(c.grant.ID)
		if id == "" {
			id = "(to be adopted)"
		}
		if s.with != "" {
			message = s.with
		}
		if code.Rank() >= grant.VisibleDevicesOutsideGrant.Rank() && code != grant.GPUSocket && !untold &&
			!key {
			hint = hintInside
		}
	}
	filled := strings.NewReplacer("{v}", place(vector), "{x}", value, "{g}", id).Replace(message)
	return c.subject() + " " + filled, hint
}

func (c *asking) subject() string {
	return fmt.Sprintf("container \"%s\"", grant.Printable(c.request.Container.Name()))
}

// place writes a vector as a person would say it.
func place(vector string) string {
	kind, name, found := strings.Cut(vector, ":")
	if !found {
		return vector
	}
	switch kind {
	case "annotation", "mount", "rule", "hook", "descriptor":
		return kind + " " + name
	case "unified":
		return "cgroup key " + name
	}
	return name
}
