package rig

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Peer builds a program of one of the modules below test/tools, once, and returns its path.
func Peer(t testing.TB, module, name string) string {
	t.Helper()
	dir := filepath.Join(binaries, "peers")
	path := filepath.Join(dir, name)
	if exists(path) {
		return path
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/gpuledger/gpuledger").Output()
	if err != nil {
		t.Fatalf("cannot find the module: %v", err)
	}
	build := exec.Command("go", "build", "-p", "2", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "tool")
	build.Dir = filepath.Join(string(root[:len(root)-1]), "test/tools", module)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build %s: %v\n%s", name, err, out)
	}
	return path
}
