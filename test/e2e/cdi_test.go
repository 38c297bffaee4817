//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// The story's cases with gpuledger's own CDI names.
const (
	grantByName = "CDI name of a grant"
	gpuByName   = "CDI name of a GPU"
	askByName   = "CDI name of a size"
)

// offerGPUs writes the node's CDI file into the engines' directory, and installs the hook at the
// path that the file names.
func (s *site) offerGPUs() {
	const dir = "/var/run/cdi"
	must(s.T, os.MkdirAll(dir, 0o755), os.Symlink(dir, filepath.Join(s.Dir, "cdi")))
	must(s.T, os.Symlink(rig.Binary(s.T, "gpuledger-hook"), filepath.Join(s.Dir, "hook")))
	s.Must("cdi", "generate")
}

// offered makes a grant that a container uses by its CDI name alone.
func (s *site) offered(c *container, args ...string) grant.Reference {
	g := s.granted(append(args, "--cdi")...)
	c.cdi = []string{grant.CDIKindGrant + "=" + g.String()}
	return g
}

// uuid is the UUID of a GPU.
func (s *site) uuid(index int) string {
	s.T.Helper()
	g := s.granted("--memory", "1MiB", "--gpu", []string{"0", "1"}[index])
	all := s.Grants()
	i := slices.IndexFunc(all, func(l rig.Listed) bool { return l.ID == g.ID })
	return all[i].GPUs[0].UUID
}
