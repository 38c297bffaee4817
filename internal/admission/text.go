package admission

import (
	"fmt"
	"strings"
	"sync"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// The hints that several refusals share.
const (
	requesting  = grant.Docs + "requesting.md"
	hintRequest = "this node shares its GPUs by grant; request a share (" + requesting + ")"
	hintVoid    = hintRequest + " or set NVIDIA_VISIBLE_DEVICES=void"
	// for a container that describes its share and names no grant
	hintAllocation = "that describes a grant and makes none: name one by gpuledger.dev/grant, " +
		"or have one granted to the pod's container (" + requesting + "); " +
		"on a node with annotations.trust = \"adopt\" what a scheduler writes is a grant"
	hintTied = "only the pods that a grant is tied to can use it; having its reference is not enough. " +
		"A claim's grant is tied to the pods that the claim is reserved for; " +
		"request a share of your own (" + requesting + ")"
	hintNoIdentity = "a tied grant is used by pods' containers under containerd or CRI-O; " +
		"elsewhere present the reference of a grant without ties (" + requesting + ")"
	hintNoUID = "containerd says it from 1.6.11 on: upgrade it, " +
		"or present the reference of a grant without ties (" + requesting + ")"
	hintMode = "a GPU is in one mode at a time, until its last grant is released, " +
		"and in mode mig as long as it is partitioned; ask for that mode, or for another GPU"
	hintHeld  = "`gpuledger inspect --details` shows who holds what; "
	hintNever = "no release makes room for that: ask for what this node has (`gpuledger gpus` shows it)"
	// to a container that asks: [ask] can allow less than the node has
	hintNeverAsked = "no release makes room for that: ask for no more than this node has, and no more than " +
		"[ask] in its configuration allows (" + grant.Docs + "asking.md)"

	hintOneGrant = "of a claim with several requests, name one request of the claim in the " +
		"container's resources.claims, or make the claim one grant (" + grant.Docs +
		"kubernetes.md#each-request-is-a-grant)"
	hintOneResource = "ask for GPUs by one resource name in each container (" + grant.Docs +
		"kubernetes.md#the-device-plugin)"
	hintInside = "a container reaches what its grant lists and nothing else; " +
		"remove it from the spec or ask for a larger grant"
)

// sentence is what a tenant reads about a code. It is about the container, its grant, and the part
// of the spec that is the reason. It never names another tenant. The only refusal that does is that
// of a container that asks for a grant which does not fit (holders in asked.go): where containers
// may ask, the users share the node and know each other.
type sentence struct {
	// what follows `container "x" `; with is for a container that has a grant, if that differs
	without, with string
	hint          string
}

// sentences has the texts that need only a vector, a value and a grant: {v} is the vector, {x} its
// value, and {g} the grant. It is not the list of all refusals, which is docs/refusals.md. A text
// that needs more is written where the reason is found: in this package by explain and onNode
// (adoptallocation.go, asked.go, check.go, compute.go, limit.go, resolve.go, strength.go and
// others), and as a grant.Refusal where a grant is asked for (ask.go, place.go, quota.go,
// seats.go); in package node by refusal, about locks, cgroups and files; and as a grant.Refusal in
// packages grants, nri, daemon/userqueue, daemon/userserver, kube/dra and kube/nodeledger.
//
// The table is made when it is first needed: most creates do not need it.
var sentences = sync.OnceValue(func() map[grant.Code]sentence {
	return map[grant.Code]sentence{
		grant.RulesNotEnforced: {
			without: "asks for a GPU or reaches one where the kernel enforces no device rules ({x}), " +
				"so that nothing would keep it to a grant",
			hint: "start it with an engine that runs as root of the node and uses cgroups, " +
				"or without GPUs (" + grant.Docs + "refusals.md#rules-not-enforced)",
		},
		grant.LedgerUnreadable: {
			without: "relies on grant {x}, whose entry in the ledger is damaged",
			hint:    "an administrator finds the reason with `gpuledger check`",
		},
		grant.AnnotationMalformed: {
			without: "carries {v}, which cannot be read: {x}",
			hint:    "correct it, or remove it",
		},
		grant.AnnotationMismatch: {
			without: "carries {v} ({x}), which disagrees with its other references",
			with:    "carries {v} ({x}), which disagrees with grant {g}",
			hint: "all references and allocations of a container must name one grant, " +
				"as it stands in the ledger",
		},
		grant.GrantNotFound: {
			without: "refers to a grant by {v}, but the ledger has no grant with that id and secret",
			hint: "a bearer's or claim's reference is ID.SECRET, as `gpuledger grant` printed it; " +
				"the grant may have been released",
		},
		grant.GrantOwnerMismatch: {
			without: "refers to grant {x} by {v}, which belongs to another owner",
			hint: "a pod's grant serves only the pod and container that it names; " +
				"use your own grant, or request a share (" + requesting + ")",
		},
		grant.GrantExpired: {
			without: "holds grant {x}, whose time is over",
			hint:    "request a new grant; a grant's time can be extended only before it ends",
		},
		grant.GrantInUse: {
			without: "holds grant {x}, which a container uses already",
			hint: "a grant serves one container at a time; wait until that container has ended, " +
				"or request a second grant (" + requesting + ")",
		},
		grant.GPUUnhealthy: {
			without: "holds a grant of {v}, which {x}",
			hint: "release the grant and request another one; " +
				"an administrator sees the GPUs with `gpuledger gpus`",
		},
		grant.ModeConflict: {
			without: "is allocated {x} GPU(s) by {v}, but a GPU is in another mode",
			hint:    hintMode,
		},
		grant.NoCapacity: {
			without: "is allocated {x} GPU(s) by {v}, but there is not as much free",
			hint: "ask for less; " +
				"an administrator sees who holds what with `gpuledger inspect --details` " +
				"and in the audit log",
		},
		grant.LimitUnenforceable: {
			without: "would be held to its grant by strength {x}, " +
				"which is less than this node's minimum_strength",
			hint: "drop its privileges, or ask for a mode that this node enforces better",
		},
		grant.MPSNotReady: {
			without: "holds a grant in mode mps, and its MPS daemon cannot take it as a client: {x}",
			hint: "gpuledgerd starts a daemon within seconds of its first grant, " +
				"and its log says what keeps it; try again",
		},
		grant.InjectionImpossible: {
			without: "cannot be given the driver's files, because its root file system can't be read: {x}",
			hint: "the engine mounts it before it calls the runtime; " +
				"check root.path in the bundle's config.json, and that the files are there",
		},
		grant.VisibleDevicesAll: {
			without: "asks for all GPUs through {v} but holds no grant",
			hint:    hintVoid,
		},
		grant.VisibleDevicesOutsideGrant: {
			without: "asks for GPUs {x} through {v} but holds no grant",
			with:    "asks for GPUs {x} through {v}, which are not all in its grant {g}",
			hint:    hintVoid,
		},
		grant.GPUEnv: {
			without: "asks for GPU features through {v}={x} but holds no grant",
			hint:    hintRequest + " or unset it",
		},
		grant.GPUDeviceNode: {
			without: "brings the GPU device {v} ({x}) but holds no grant",
			with:    "brings the GPU device {v} ({x}), which is not in its grant {g}",
			hint:    hintRequest + " or remove the device from the container",
		},
		grant.GPUDeviceRule: {
			without: "may open GPU devices by its device rules ({v}: {x}) but holds no grant",
			with:    "may open GPU devices beyond its grant {g} by its device rules ({v}: {x})",
			hint:    hintRequest + " or remove the rule from the container",
		},
		grant.GPUBindMount: {
			without: "mounts GPU devices by {v} from {x} but holds no grant",
			with:    "mounts GPU devices by {v} from {x}, which are not in its grant {g}",
			hint:    hintRequest + " or remove the mount from the container",
		},
		grant.GPUSocket: {
			without: "reaches a directory of gpuledger or of an MPS daemon: {x} ({v})",
			hint: "no container gets such a directory; " +
				"remove the mount, root path or variable that leads to it",
		},
		grant.GPUHook: {
			without: "has a hook that injects GPUs ({v}) but holds no grant",
			hint:    hintRequest + " or remove the hook from the container",
		},
		grant.CDIDeviceOutsideGrant: {
			without: "asks for CDI devices {x} through {v} but holds no grant",
			with:    "asks for CDI devices {x} through {v}, which grant {g} does not cover",
			hint:    hintRequest + " or remove the CDI device from the container",
		},
		grant.PrivilegedGPU: {
			without: "is privileged, so it reaches every GPU of this node ({v}: {x}), but holds no grant",
			hint: hintRequest + ", drop the privilege, " +
				"or have the administrator set privileged = \"strip\" or an exemption",
		},
	}
})

// The sentences about special cases of a code.
var (
	// a spec that sets the driver's memory limit itself
	setsDriverLimit = sentence{
		without: "sets {v} ({x}), by which the driver limits GPU memory",
		hint:    "that limit is the ledger's; leave the key out",
	}
	// a key that is not a resource of a cgroup
	setsNoResource = sentence{
		without: "sets {v} ({x}), which is no resource: such a key can stop processes, " +
			"or move them out of the cgroup whose device rules and limit hold them",
		hint: "leave the key out; use the runtime's pause or kill to stop or end a container",
	}
	// a class of Intel RDT whose name is a path
	namesPath = sentence{
		without: "has {v} {x} (linux.intelRdt), which is a path: " +
			"by such a name it can leave the cgroup whose device rules hold it",
		hint: "name the class without a slash, or leave it out",
	}
	// a key that may not be a resource of a cgroup, together with a grant
	setsUnknownKey = sentence{
		without: "sets {v} ({x}), and it is not known what that does to its grant",
		hint:    "leave the key out; a controller that is missing in gpuledger's list is a bug to report",
	}
	// a grant that was released while a container used it
	wasReleased = sentence{
		without: "holds grant {g}, which has been released",
		hint:    "request a new grant",
	}
	// a grant of a whole GPU or MIG device that other processes still have open
	stillOpen = sentence{
		without: "holds a grant of all of {x}, which processes without a grant have open",
		hint: "they have to end first; " +
			"an administrator sees them with `gpuledger inspect` and in the audit log",
	}
	// a restore by which processes may leave the cgroup
	leavesCgroup = sentence{
		without: "is restored from a checkpoint, and its device rules may not hold it: {x}",
		hint: "update the runtime (" + grant.Docs + "refusals.md#rules-not-enforced), " +
			"or start it without the checkpoint",
	}
	// device rules of which the first does not deny all
	deniesTooLittle = sentence{
		without: "may open GPU devices by its device rules ({v}: {x}) but holds no grant",
		hint:    hintRequest + " or let the device rules begin with one that denies all devices",
	}
	// an open file descriptor that the container inherits
	inheritsDescriptor = sentence{
		without: "inherits {v} ({x}), through which a GPU can be reached, but holds no grant",
		with:    "inherits {v} ({x}), through which a GPU can be reached that is not in its grant {g}",
		hint: "start it without the descriptor (--preserve-fds, $LISTEN_FDS, standard input and output), " +
			"or " + hintRequest,
	}
	// a strength that the grant itself does not allow
	weakerThanGrant = sentence{
		without: "would be held to its grant by strength {x}, " +
			"which is less than the minimum strength of its claim or DeviceClass",
		hint: "drop its privileges, or use a DeviceClass that asks for less",
	}
	// a mount whose source is not known beforehand
	mountsUnknown = sentence{
		without: "mounts {x} by {v}, " +
			"so that it cannot be known whether that leads to a GPU, to gpuledger or to an MPS daemon",
		hint: "name the file or directory itself as the mount's source",
	}
)

// sentenceOf returns what a tenant reads about a finding after the container's name, and what to
// do. g is the container's grant, or nil.
func sentenceOf(d grant.Detail, g *grant.Grant) (message, hint string) {
	s := sentences()[d.Code]
	unknownMount := d.Code == grant.GPUBindMount && strings.HasSuffix(d.Value, " ("+grant.UnknownTarget+")")
	cgroupKey, class := strings.HasPrefix(d.Vector, "unified:"), d.Vector == "intelRdt:closID"
	switch {
	case d.Vector == grant.RestoreVector:
		s = leavesCgroup
	case cgroupKey && d.Code == grant.GPUDeviceRule:
		s = setsNoResource
	case strings.HasPrefix(d.Vector, "unified:dmem."):
		s = setsDriverLimit
	case cgroupKey:
		s = setsUnknownKey
	case class:
		s = namesPath
	case d.Vector == "rule:none" && d.Code == grant.GPUDeviceRule:
		s = deniesTooLittle
	case d.Code == grant.GrantExpired && strings.HasSuffix(d.Value, released):
		s = wasReleased
	case strings.HasPrefix(d.Vector, "held:"):
		s = stillOpen
	case strings.HasPrefix(d.Vector, "descriptor:"):
		s = inheritsDescriptor
	case unknownMount:
		s = mountsUnknown
	case d.Vector == "strength" && g != nil && !grant.Strength(d.Value).AtLeast(g.MinimumStrength):
		s = weakerThanGrant
	}
	message, hint = s.without, s.hint
	id := ""
	if g != nil {
		id = string(g.ID)
		if id == "" {
			id = "(to be adopted)"
		}
		if s.with != "" {
			message = s.with
		}
		isHit := d.Code.Rank() >= grant.VisibleDevicesOutsideGrant.Rank()
		if isHit && d.Code != grant.GPUSocket && !unknownMount && !cgroupKey && !class {
			hint = hintInside
		}
	}
	return strings.NewReplacer("{v}", vectorName(d.Vector), "{x}", d.Value, "{g}", id).Replace(message), hint
}

// nameOf names a container at the beginning of a sentence.
func nameOf(c grant.Container) string {
	return fmt.Sprintf("container \"%s\"", grant.Printable(c.Name()))
}

// vectorName returns a vector in words.
func vectorName(vector string) string {
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
