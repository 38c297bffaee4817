// Package nvml takes the inventory of a node from NVIDIA's management library. It is the only
// package with cgo, and no program on the path of a container's create links it: those read the
// snapshot that was written from here.
package nvml

// advice ends every error that means there is no NVML to ask.
const advice = `To try gpuledger without a GPU use inventory.source = "simulated"`
