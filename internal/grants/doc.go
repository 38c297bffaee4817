// Package grants is what administrators and agents do with the ledger of a node: they enter,
// change, renew, tie and release grants, read all of it, and have it checked against what runs.
// Package node decides about containers.
package grants
