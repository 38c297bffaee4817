// Package gpuledger is the book and the guard for shared GPUs on a container node.
//
// The words, the same in code, command line, logs and documentation:
//
//   - GPU: a physical GPU or a MIG device, by UUID.
//   - Inventory: what the node has; a snapshot file written ahead of time.
//   - Grant: one ledger entry: public id, owner, GPUs, bytes per GPU, compute percent, mode, strength.
//   - Owner: who may use a grant: "pod:UID/CONTAINER", "claim:UID", or "bearer" (whoever presents id and secret).
//   - Tie: a pod or a namespace that a bearer's or claim's grant is for; its reference is good in no other container.
//   - Mode: how a GPU is shared: exclusive, timeslice, limit, mps or mig. One mode a GPU at a time.
//   - Strength: what holds a container to its grant: none, library, server, driver or hardware.
//   - Request: what a container asks for, read from its bundle: every way its spec can reach a GPU.
//   - Verdict: pass (reaches no GPU), admit (with edits) or refuse (with a code).
//   - Binding: a grant in use by one container. It lives in the run directory and dies with the boot.
//   - Engine: containerd, cri-o, podman or docker: decides which identity annotations can be trusted.
//
// docs/ARCHITECTURE.md shows how the packages meet.
package gpuledger
