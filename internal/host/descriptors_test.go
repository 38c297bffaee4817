package host

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDescriptorsThatAreClosedAtExec are not passed on. Go's runtime has some on a node with a CPU
// limit, and a container without a GPU must not be refused because of them.
func TestDescriptorsThatAreClosedAtExec(t *testing.T) {
	kept, err := os.Open("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	listed := func() bool {
		return slices.ContainsFunc(Descriptors(1<<20), func(d Descriptor) bool {
			return d.Number == int(kept.Fd())
		})
	}
	if listed() {
		t.Error("a descriptor that is closed at exec is listed")
	}
	if _, err := unix.FcntlInt(kept.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	if !listed() {
		t.Error("a descriptor that is passed on is not listed")
	}
}
