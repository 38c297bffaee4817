package test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestWhatMakeTestGPUDoes goes the way of `make test-gpu` over a simulated GPU and the stand-in driver, so that the script works on
// the day when there is a card.
func TestWhatMakeTestGPUDoes(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Skip("this machine has a GPU: run `make test-gpu`. Its dry run over a stand-in is not tested here")
	}
	rig.Need(t, "jq", "gcc", "unshare")
	story := exec.Command("./test-gpu.sh", "stand-in")
	out, err := story.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, report, _ := strings.Cut(string(out), "The report")
	for _, want := range []string{"Stand-in, 16160 MiB to grant", "memory limits of the driver itself: `not asked`", "`GPU 0: Stand-in", "64 MiB: 0", "GPU 0 total 4040 MiB (0); 4041 MiB: 2; 2020 MiB: 0; 2021 MiB: 2", "refused (visible-devices-all)"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report does not say %q:\n%s", want, report)
		}
	}
	if out, err := exec.Command("./test-gpu.sh").CombinedOutput(); err == nil || !strings.Contains(string(out), "this machine has no NVIDIA driver") {
		t.Errorf("without a GPU: %v\n%s", err, out)
	}
}
