// Package cdi writes the node's GPUs and its grants as CDI files, so that engines can give them by
// name: gpuledger.dev/gpu=UUID or =INDEX, gpuledger.dev/grant=REFERENCE. A name is a request, not a
// grant. Every file has a hook that judges the container by the ledger, whether or not the runtime
// wrapper did so before.
package cdi
