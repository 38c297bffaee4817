//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/test/rig"
)

// startPlugin starts gpuledgerd, which connects to the engine.
func (s *site) startPlugin() {
	program := rig.Binary(s.T, "gpuledgerd")
	log := filepath.Join(s.dir, "log", filepath.Base(program))
	s.daemon(func() bool {
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), "connected")
	}, program)
}
