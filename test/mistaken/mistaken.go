// Package mistaken makes a mistake in the edits of a verdict. No program imports it: a test builds
// copies of the programs in which the editors do, by the go command's -overlay.
package mistaken

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// File is the name of the file with a Mistake. It lies beside the configuration, because of its
// environment a hook keeps only the variable that names the configuration.
const File = "mistake.json"

// Mistake is what an editor does wrong. The zero value is nothing.
type Mistake struct {
	Live   bool                   // the editor is the one that changes a live container; else those of specs
	Adds   cdispec.ContainerEdits // nodes, mounts and hooks that are in no verdict
	Rules  []grant.DeviceRule     // device rules that are in no verdict
	Leaves grant.RemovalKind      // removals of this kind are not made
}

// Verdict is what an editor of specs, or of live containers, makes of a verdict.
func Verdict(v grant.Verdict, live bool) grant.Verdict {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(os.Getenv(policy.PathEnv)), File))
	var m Mistake
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	switch {
	case err != nil:
		panic(err)
	case m.Live != live:
		return v
	}
	v.Edits.DeviceNodes = slices.Concat(v.Edits.DeviceNodes, m.Adds.DeviceNodes)
	v.Edits.Mounts = slices.Concat(v.Edits.Mounts, m.Adds.Mounts)
	v.Edits.Hooks = slices.Concat(v.Edits.Hooks, m.Adds.Hooks)
	v.Rules = slices.Concat(v.Rules, m.Rules)
	v.Removed = slices.DeleteFunc(slices.Clone(v.Removed), func(r grant.Removal) bool {
		return r.Kind == m.Leaves
	})
	return v
}
