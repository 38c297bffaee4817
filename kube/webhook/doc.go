// Package webhook is asked by the API server about pods that ask for GPUs by the names of package
// dialect. What gpuledger cannot give is refused with a sentence. On clusters with the DRA driver
// the limits become claims. On clusters with the device plugin the pod gets the scheduler's name.
//
// Everything that it decides is decided again: the scheduler counts, and the node's ledger refuses.
// So a pod that the webhook has not seen waits or is refused, and never gets a GPU of others.
package webhook
