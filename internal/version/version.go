// Package version says which build this is.
package version

// Version is the output of git describe for the built commit; make build sets it through -ldflags
// -X. A binary from a plain go build has "dev".
var Version = "dev"
