// Package limits writes the two files that state to the shim of a container what its grant is. It
// also reads the use that the shim's processes record. Both files belong to a grant: all its
// containers share them.
//
//	<dir>/limits  what may be used of each device; the container's processes map it read-only
//	<dir>/region  what each process uses; the container writes it, so only reports use its content
//
// The layout is that of shim/record.h. A test compiles that header and compares every offset.
package limits
