// Package limits writes the two files that a grant has for the shim (the libraries in front of
// libcuda and libnvidia-ml in its containers), and reads the use that the shim's processes record
// in one of them. The files belong to a grant: all its containers share them.
//
//	<dir>/limits  what may be used of each device; the container's processes map it read-only
//	<dir>/region  what each process uses; the container writes it, so only reports use its content
//
// The layout is that of shim/record.h. A test compiles that header and compares every offset.
// The files are in a small tmpfs, which this package mounts. Package limitfiles decides when they
// are written.
package limits
