package containers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/host"
)

// MakeCgroup makes a cgroup below that of this process, in the hierarchy in which Populated looks.
// It returns its directory, and its path from the root of the hierarchy.
func MakeCgroup(h host.Host, name string) (dir, path string, err error) {
	if err := nodesCgroups(h); err != nil {
		return "", "", err
	}
	lines, err := os.ReadFile(filepath.Join(h.Proc, "self/cgroup"))
	if err != nil {
		return "", "", err
	}
	own := map[string]string{} // by controller; "" is v2
	for line := range strings.Lines(string(lines)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			for _, controller := range strings.Split(parts[1], ",") {
				own[controller] = parts[2]
			}
		}
	}
	for _, controller := range []string{"devices", ""} {
		if of, known := own[controller]; known {
			path = filepath.Join(of, name)
			dir = relativeDir(h, path)
			return dir, path, os.Mkdir(dir, 0o755)
		}
	}
	return "", "", errors.New("this process is in no hierarchy of cgroups")
}
