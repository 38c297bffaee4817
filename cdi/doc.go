// Package cdi writes the node's GPUs and its grants as CDI files, so that an engine can be asked
// for them by name: gpuledger.dev/gpu=UUID or =INDEX, gpuledger.dev/grant=REFERENCE. A name is a
// request and no grant: every file carries a hook that judges the container by the ledger, whether
// or not the runtime wrapper did so before.
package cdi
