package node

// OnReading has an admission call f before it reads the inventory, which is long before it locks
// the ledger.
func (c *Create) OnReading(f func()) { c.reading = f }
