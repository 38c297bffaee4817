// Package watch compares what is used of the GPUs with what the ledger grants: which user each
// process belongs to, what is used without a grant, and which grants are exceeded. Its decisions
// are functions of values. The daemon takes the samples and does what policy says about the
// findings.
package watch
