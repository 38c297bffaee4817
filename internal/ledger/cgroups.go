package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/host"
)

// cgroupLinks is a directory of links from cgroups to bindings. Every process in a container's
// cgroup has the container's device rules, and so its GPUs. So each binding has a link by the name
// of each cgroup that its container may get. A create asks for those on the way to its own cgroup,
// and for no other, however many bindings there are.
type cgroupLinks string

func (dir cgroupLinks) path(cgroup string) string {
	sum := sha256.Sum256([]byte(cgroup))
	return string(dir) + "/" + hex.EncodeToString(sum[:])[:keyDigits]
}

// key is the key of the binding that a cgroup's link leads to, if there is a link.
func (dir cgroupLinks) key(cgroup string) (key string, found bool) {
	target, err := os.Readlink(dir.path(cgroup))
	return keyIn(target), err == nil
}

// keyIn is the key of the binding that a link's target names.
func keyIn(target string) string { return strings.TrimSuffix(filepath.Base(target), ".json") }

// add links cgroups, by paths from the root of each hierarchy, and units, by names without a path,
// to a binding. The links stay if the binding cannot be written, and mean nothing then.
func (dir cgroupLinks) add(key string, cgroups []string) error {
	if len(cgroups) == 0 {
		return nil
	}
	err := ensureDir(string(dir))
	for _, cgroup := range cgroups {
		if err == nil {
			err = replaceLink(bindingTarget(key), dir.path(cgroup))
		}
	}
	return err
}

// remove removes those of the links that still lead to the binding.
func (dir cgroupLinks) remove(key string, cgroups []string) {
	for _, cgroup := range cgroups {
		if target, _ := os.Readlink(dir.path(cgroup)); target == bindingTarget(key) {
			_ = host.Remove(dir.path(cgroup))
		}
	}
}
