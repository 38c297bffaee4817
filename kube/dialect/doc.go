// Package dialect reads what a pod asks for in the names of other GPU schedulers and device
// plugins, and in our own. A name counts only if the configuration has it. Those of our own count
// without one. What a name asks for and gpuledger cannot do is an error, so that no pod gets less
// than it asked for. The package is pure: it reads no cluster. docs/kubernetes-dialects.md has the
// table.
package dialect
