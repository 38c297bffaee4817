// Package grants is what administrators, users and agents do with the ledger of a node. They enter
// a grant, change it (update.go), renew it (give it a new secret), tie it (let only containers of a
// pod or a namespace use it), and release it; they read the ledger, and have it checked against
// what runs. Package node decides about containers.
package grants
