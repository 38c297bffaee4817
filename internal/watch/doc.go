// Package watch compares what is used of the GPUs with what the ledger grants: which user each
// process belongs to, what is used without a grant, and which grants are exceeded. Its decisions
// are functions of values: Compare makes the findings, Tracker.Update says which of them are new or
// over, Reaction says what policy wants done about one, and Tracker.Due says which containers are
// to be stopped now. Stop kills the processes of one container.
//
// Package daemon/watcher takes the samples and calls these functions. It stops containers only
// where the policy is enforced.
package watch
