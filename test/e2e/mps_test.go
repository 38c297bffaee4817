//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// clientOfMPS builds the stand-in for NVIDIA's programs of MPS, which is a client in a container.
// Only clusters have it.
func (s *site) clientOfMPS() map[string]string {
	s.T.Helper()
	if !s.engine.cluster {
		return nil
	}
	program := filepath.Join(s.dir, "fakemps")
	build := exec.Command("go", "build", "-p", "2", "-trimpath", "-o", program,
		"github.com/gpuledger/gpuledger/test/fakemps")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		s.T.Fatalf("cannot build fakemps: %v\n%s", err, out)
	}
	return map[string]string{"client": program}
}

// servesMPS gives the node a driver with the stand-in's programs, and gpuledgerd, which runs its
// daemons.
func (s *site) servesMPS() (end func()) {
	s.T.Helper()
	root := filepath.Join(s.dir, "driver")
	bin := filepath.Join(root, "usr/bin")
	must(s.T, os.MkdirAll(bin, 0o755))
	program, err := os.ReadFile(filepath.Join(s.dir, "fakemps"))
	must(s.T, err)
	for _, name := range []string{grant.MPSControl, grant.MPSServer} {
		must(s.T, os.WriteFile(filepath.Join(bin, name), program, 0o755))
	}
	s.driverOf(filepath.Join(root, "usr/lib64"))
	before, err := os.ReadFile(s.Config)
	must(s.T, err)
	with := bytes.Replace(before, []byte("[inventory]\n"),
		[]byte("[inventory]\ndriver_root = \""+root+"\"\n"), 1)
	s.Write("config.toml", string(with))
	if out := s.Must("inventory", "refresh"); !strings.Contains(out, "driver 999.1: ") {
		s.T.Fatalf("the node has no driver: %s", out)
	}
	d := s.Daemon("--nri", "off", "--runtime-root", "/run/none")
	eventually(s.T, "gpuledgerd runs", func() bool { return strings.Contains(d.Log(), "started") })
	return func() {
		eventually(s.T, "nothing is left of the MPS daemons", func() bool {
			left, _ := filepath.Glob(filepath.Join(s.Dir, "run/mps/*"))
			return len(left) == 0
		})
		d.End(15)
		s.Write("config.toml", string(before))
		must(s.T, os.RemoveAll(root))
		s.Must("inventory", "refresh")
	}
}

// driverOf puts libraries into a directory that a driver is known by.
func (s *site) driverOf(dir string) {
	s.T.Helper()
	rig.Need(s.T, "gcc")
	must(s.T, os.MkdirAll(dir, 0o755))
	source := filepath.Join(s.dir, "library.c")
	writeFile(s.T, source, "int version(void) { return 1; }")
	for _, soname := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		file := filepath.Join(dir, strings.TrimSuffix(soname, "1")+"999.1")
		s.succeeds("gcc", "-shared", "-fPIC", "-Wl,-soname,"+soname, "-o", file, source)
		must(s.T, os.Symlink(filepath.Base(file), filepath.Join(dir, soname)))
	}
}
