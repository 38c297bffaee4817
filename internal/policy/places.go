package policy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// sharedDirs are directories in which engines, the kubelet or the system keep files of other
// programs, as real paths.
var sharedDirs = []string{
	"/bin", "/boot", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/root", "/run", "/sbin",
	"/srv", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local",
	"/var", "/var/lib", "/var/log", "/var/cache", "/var/spool", "/var/tmp", "/run/containerd", "/run/crio",
	"/run/docker", "/run/podman", "/run/containers", "/run/runc", "/run/crun",
	"/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/crio", "/var/lib/kubelet",
	"/var/lib/kubelet/pods", "/etc/gpuledger", "/etc/cdi", "/run/cdi",
}

// kernelDirs are directories that cannot have files of gpuledger's.
var kernelDirs = []string{"/proc", "/sys", "/dev"}

// ledgerNames are the names that the ledger uses in its directories.
var ledgerNames = []string{"grants", "owners", "gpus", "bindings", "inventory.json",
	"inventory.json.lock", "lock"}

// validPlaces checks the paths of the ledger's directories and of the audit log. A create reads the
// configuration, so it resolves no paths but these three.
func validPlaces(p grant.Policy) error {
	state, err := ownDirectory("state_dir", p.StateDir)
	if err != nil {
		return err
	}
	run, err := ownDirectory("run_dir", p.RunDir)
	if err != nil {
		return err
	}
	if host.Within(state, run) || host.Within(run, state) {
		return fmt.Errorf("run_dir: want a directory apart from state_dir: both have a folder \"grants\"")
	}
	return validAudit(p, state, run)
}

// ownDirectory returns the real path of a directory that only gpuledger may use: its content may be
// mounted into no container.
func ownDirectory(key, dir string) (string, error) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
		return "", fmt.Errorf("%s: want an absolute path of a directory of our own, not %q", key, dir)
	}
	path := realPath(dir)
	for _, dirs := range [][]string{sharedDirs, kernelDirs} {
		isAbove := func(shared string) bool { return host.Within(shared, path) }
		if i := slices.IndexFunc(dirs, isAbove); i >= 0 {
			return "", fmt.Errorf("%s: want a directory of our own: %q is or holds %s, which others use",
				key, dir, dirs[i])
		}
	}
	for _, kernel := range kernelDirs {
		if host.Within(path, kernel) && !strings.HasPrefix(path, "/dev/shm/") {
			return "", fmt.Errorf("%s: want a directory of our own, and %q is the kernel's", key, dir)
		}
	}
	return path, nil
}

// validAudit checks that no other program reads or replaces the audit log's file.
func validAudit(p grant.Policy, dirs ...string) error {
	file := p.Audit.File
	if file == "" {
		return nil
	}
	if !filepath.IsAbs(file) || strings.HasSuffix(file, "/") {
		return fmt.Errorf("audit.file: want an absolute path of a file, or \"\", not %q", file)
	}
	path := filepath.Join(realPath(filepath.Dir(file)), filepath.Base(file))
	for _, dir := range dirs {
		if host.Within(dir, path) {
			return fmt.Errorf("audit.file: %q is or holds a directory of the ledger", file)
		}
		for _, name := range ledgerNames {
			if host.Within(path, filepath.Join(dir, name)) {
				return fmt.Errorf("audit.file: %q is the ledger's", file)
			}
		}
	}
	for _, kernel := range []string{"/proc", "/sys"} {
		if host.Within(path, kernel) {
			return fmt.Errorf("audit.file: want a file of our own, and %q is the kernel's", file)
		}
	}
	if p.Inventory.Source == grant.Simulated && filepath.Clean(file) == filepath.Clean(p.Inventory.File) {
		return fmt.Errorf("audit.file: %q is inventory.file", file)
	}
	return nil
}

// realPath resolves the links of a path, as far as it exists.
func realPath(path string) string {
	path = filepath.Clean(path)
	for rest := ""; ; {
		if r, err := host.RealPath(path); err == nil {
			return filepath.Join(r, rest)
		}
		if path == "/" {
			return filepath.Join(path, rest)
		}
		rest, path = filepath.Join(filepath.Base(path), rest), filepath.Dir(path)
	}
}
