package engines

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestTheInventoryComesBeforeEachEngine: its unit names the services of all distributions, since
// systemd says nothing of a name that does not exist. k0s' are those that k0s itself installs.
func TestTheInventoryComesBeforeEachEngine(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/systemd/gpuledger-inventory.service")
	if err != nil {
		t.Fatal(err)
	}
	var before []string
	for line := range strings.Lines(string(unit)) {
		if names, found := strings.CutPrefix(line, "Before="); found {
			before = append(before, strings.Fields(names)...)
		}
	}
	want := []string{"containerd.service", "crio.service", "docker.service", "podman.service",
		"kubelet.service", "gpuledgerd.service", "k0scontroller.service", "k0sworker.service"}
	for _, d := range distributions {
		want = append(want, d.Units...)
	}
	slices.Sort(before)
	if slices.Sort(want); !slices.Equal(before, want) {
		t.Errorf("it comes before %q, want %q", before, want)
	}
}
