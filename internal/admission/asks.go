package admission

import "github.com/gpuledger/gpuledger/internal/grant"

// Asks reports whether a container wants a GPU at all. For one that does not, Decide needs no
// inventory.
func Asks(r grant.Request, v grant.View) bool {
	c := newCase(r, v, grant.Inventory{}, grant.Policy{})
	return c.asks()
}
