// Package request reads an OCI spec as a tenant's claim: it lists every way in which the spec
// reaches a GPU, and what the spec says about grants. It reads the host only to find out what a
// path or a device number is. It decides nothing: package admission compares the list with a grant.
//
// A way to a GPU is a row of vectors (vectors.go) and a function in a file of its own.
package request
