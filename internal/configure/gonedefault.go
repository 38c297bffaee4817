package configure

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
)

// isTemplate reports whether a file is a template, which becomes TOML only when the engine's
// distribution expands it.
func isTemplate(path string) bool { return strings.HasSuffix(path, ".tmpl") }

// handlerTables are the tables in which a file has its engine's handlers, and beside them the key
// for the default one.
var handlerTables = []struct {
	table     []string
	byDefault string
}{
	{nil, "default-runtime"},
	{[]string{"plugins", engines.CRIPlugin, "containerd"}, "default_runtime_name"},
	{[]string{"plugins", engines.CRIRuntimePlugin, "containerd"}, "default_runtime_name"},
	{[]string{"crio", "runtime"}, "default_runtime"},
}

// withoutGoneDefault takes out a default handler that a file had before and whose definition is
// gone since. NVIDIA's toolkit removes the definition when it is removed. No engine starts with
// such a default.
func withoutGoneDefault(path string, now, before []byte) []byte {
	had, errBefore := configfile.Parse(path, before)
	d, err := configfile.Parse(path, now)
	if err != nil || errBefore != nil {
		return now
	}
	for _, h := range handlerTables {
		at := slices.Concat(h.table, []string{h.byDefault})
		name := configfile.Text(d.Tree(), at...)
		handler := slices.Concat(h.table, []string{"runtimes", name})
		_, defined := configfile.Lookup(d.Tree(), handler)
		_, was := configfile.Lookup(had.Tree(), handler)
		if name != "" && was && !defined && d.Unset(at...) == nil {
			now = d.Bytes()
		}
	}
	return now
}
