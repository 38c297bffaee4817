// Package watch holds what is used of the GPUs against what the ledger grants: who each process is, what nobody granted, and what
// grants are exceeded. It decides with values; the daemon takes the samples and does what policy says about the findings.
package watch
