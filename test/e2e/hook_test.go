//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/test/rig"
)

// installHook copies gpuledger's hook files into the engine's hooks directory. The hook stays where
// it was built.
func (s *site) installHook() {
	files, err := filepath.Glob("../../configs/hooks.d/" + string(s.engine.trust) + "/*.json")
	must(s.T, err)
	if len(files) == 0 {
		s.T.Fatalf("there is no hooks directory for %s", s.engine.trust)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(s.T, err)
		writeFile(s.T, filepath.Join("/etc/containers/oci/hooks.d", filepath.Base(file)),
			strings.ReplaceAll(string(text), "/usr/bin/gpuledger-hook", rig.Binary(s.T, "gpuledger-hook")))
	}
}
