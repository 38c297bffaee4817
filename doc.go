// Package gpuledger is the root of the module: gpuledger keeps a ledger of the GPUs that containers
// on a node may use, and enforces it when a container is created.
//
// Decide in internal/admission/decide.go decides whether a container may start. The ways to a GPU
// are the table in internal/request/vectors.go, and a new way is added there. docs/ARCHITECTURE.md
// shows how the packages meet.
//
// The words below mean the same in code, command line, logs and documentation.
//
// What the node has, and who may use it:
//
//   - Node: the machine whose GPUs one ledger counts.
//   - GPU: a physical GPU or a MIG device, named by its UUID; an index such as 0 is a short name
//     for it.
//   - Inventory: the GPUs and the driver of the node, written to a file (the snapshot) before any
//     create needs it.
//   - Ledger: the directory of files with all grants of the node; bindings lie beside it, in the
//     run directory.
//   - Grant: one entry of the ledger: its id, owner, GPUs, bytes on each GPU, percent of compute,
//     mode and strength.
//   - Share: the part of one GPU that a grant has: bytes of its memory, or a percent of its
//     compute.
//   - Mode: how a GPU is shared: exclusive, timeslice, limit, mps or mig; a GPU is in one mode at a
//     time.
//   - Strength: what holds a container to its grant: none, library, server, driver or hardware.
//   - Owner: who may use a grant: "pod:UID/CONTAINER", "claim:UID" (a Kubernetes ResourceClaim), or
//     "bearer".
//   - Reference: a grant's id, with a secret if the owner is a claim or a bearer; a container
//     presents it to use the grant.
//   - Tie: a pod or a namespace that a grant is for; no container outside of it can use the grant's
//     reference.
//   - Policy: the configuration of the node, as a value that decisions take.
//   - Pool: a set of GPUs to which the configuration gives modes and a placement of their own.
//   - Exemption: a rule of the policy that lets containers of a namespace, pod or name use GPUs
//     without a grant.
//
// What happens at a create:
//
//   - Engine: containerd, CRI-O, Podman or Docker; it says which annotations about a container's
//     identity are trusted.
//   - Handler: a name under which an engine knows a runtime, such as runc; containers choose one.
//   - Wrapper: gpuledger-runtime, the program that the engine starts in place of runc or crun (the
//     real runtime).
//   - Front: C code at the start of the wrapper; it hands calls that need no check to the real
//     runtime.
//   - Hook: gpuledger-hook, the program that an engine or an OCI runtime starts during a create; it
//     decides as the wrapper does.
//   - Entry point: a way by which a create comes to gpuledger: the wrapper, the hook, the NRI
//     plugin in gpuledgerd, or a CDI name with its hook.
//   - Request: what a container asks for, read from its spec; it lists every hit.
//   - Hit: one way to a GPU that a spec contains; its vector says where (a variable, a mount, a
//     device rule, ...).
//   - Cover: the way in which a grant allows a hit; a hit that the grant does not cover is refused.
//   - Allocation: what a scheduler's annotations state about a container's GPUs; a node with
//     trust = "adopt" enters it as a grant (adopts it).
//   - Verdict: the decision about a container: pass (it needs no grant), admit (with edits) or
//     refuse (with a code).
//   - Refusal: the code, the sentence and the hint that say why something is not given.
//   - Edits: the changes to a container's spec that give it the GPUs of its grant and nothing more.
//   - Binding: the record that one container uses a grant; it ends with the boot.
//   - Life: whether the container of a binding runs: alive, dead, or unknown to this program.
//
// What holds a container that runs:
//
//   - Shim: the libraries in front of libcuda and libnvidia-ml that hold a container's processes to
//     its grant.
//   - Region: the file in which the processes of a grant record what they use together (their
//     account).
//   - Watch: the part of gpuledgerd that measures who uses the GPUs and compares it with the
//     ledger.
//   - Sample: the use of the GPUs at one moment, as the driver reports it to the watch.
//   - Finding: a difference that the watch sees between the GPUs and the ledger, or that a check
//     sees in the ledger itself.
//   - Reconcile: the pass over the ledger that removes what has ended and repairs what a crash has
//     left.
//   - Agent: the Kubernetes driver or device plugin on a node; it makes grants for pods.
package gpuledger
