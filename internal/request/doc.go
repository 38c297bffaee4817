// Package request reads an OCI spec and lists the ways to reach a GPU that it contains, and the
// grants and allocations that it names. All of this is a tenant's claim: a request says what the
// spec asks for, and not what the container may have. The package reads the host only to find out
// what a path or a device number is. It decides nothing: package admission compares the list with a
// grant.
//
// A way to a GPU is a row of vectors (vectors.go) and a function in a file of its own.
package request
