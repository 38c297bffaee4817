// Package version says which build this is.
package version

// Version is what git describe called the commit that was built; make build stamps it through
// -ldflags -X. A binary from a plain go build says "dev".
var Version = "dev"
