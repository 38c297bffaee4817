// Package limits writes the two files by which the node tells the shim of a container what its
// grant is, and reads what the shim's processes say they use. Both files belong to a grant: all its
// containers share them.
//
//	<dir>/limits  what may be used of each device; mapped read-only by the processes of the container
//	<dir>/region  what each process uses; the container writes it, so it is believed for nothing but reports
//
// The layout is shim/record.h's; a test compiles that header and compares every offset.
package limits
