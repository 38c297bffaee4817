// Package kube connects each node's ledger with the cluster's scheduler.
//
//   - nodeledger: the node's ledger for the packages below, with errors that a tenant may read
//   - dra: the DRA driver: slices from the inventory, a grant for each request of a prepared claim
//   - deviceplugin: the same for clusters without DRA: a grant for each Allocate
//   - socket: the sockets on which both answer the kubelet
//   - publish: what the ledger has, on the Node object, for a scheduler; nodestate has its types
//   - bench: the drivers of many nodes against a real control plane, for make bench-cluster
//   - placement: which GPUs of which node a pod gets; nodestate: what a node publishes for that
//   - scheduler: the extender that places pods on nodes of the device plugin
//   - dialect: what a pod asks for, in our names and those of other GPU schedulers
//   - webhook: refuses such pods, or gives them claims or the scheduler, when they are created
//   - cluster: nodes, GPUs and pods as the API alone shows them, for kubectl gpuledger
//
// It is a module of its own: Kubernetes' libraries are larger than all of gpuledger, and nothing
// that starts containers may link them. docs/kubernetes.md explains the installation.
package kube

// DriverName is the name of the DRA driver in slices, classes and claims, and the domain of its
// attributes.
const DriverName = "gpuledger.dev"
