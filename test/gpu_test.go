package test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestMakeTestGPU runs what `make test-gpu` runs, with a simulated GPU and the stand-in driver, so
// that the script works on a machine with a card.
func TestMakeTestGPU(t *testing.T) {
	rig.More(t)
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Skip("this machine has a GPU: run `make test-gpu`. Its dry run over a stand-in is not tested here")
	}
	rig.Need(t, "jq", "gcc", "unshare")
	story := exec.Command("./test-gpu.sh", "stand-in")
	story.Env = append(os.Environ(), "SECONDS_EACH=0.1") // nothing here is a figure
	out, err := story.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, report, _ := strings.Cut(string(out), "The report")
	for _, want := range []string{"Stand-in, 16160 MiB to grant",
		"memory limits of the driver itself: `driver 580.65.06 does not limit memory", "`GPU 0: Stand-in",
		"64 MiB: 0", "GPU 0 total 4040 MiB (0); 4041 MiB: 2; 2020 MiB: 0; 2021 MiB: 2",
		"cache: had 4040 of 4040 MiB, then error 2, again 4040 MiB",
		"async: had 4020 of 4040 MiB, then error 2, again 4020 MiB",
		"vmm: had 4040 of 4040 MiB, then error 2, again 4040 MiB",
		"graph: half of it error 0, more than all of it error 2, half again error 0",
		"product loop, a second", "train loop, a second", "its strength: `library`",
		"bytes beyond the grant** (to be 0 or less)", "with a share of 30 %", "with a share of 70 %",
		"MPS, its sockets and FIFO: `srw-rw-rw- control; srwxr-xr-x control_privileged; prwxrwxrwx log`",
		"0005 control", "0005 control_privileged",
		"asked get_server_status PID (1536M and 50 % are set): `ACTIVE`",
		"asked get_default_device_pinned_mem_limit 0 (1536M and 50 % are set): `1G`",
		"asked nonsense (1536M and 50 % are set): `Unknown command \"nonsense\"`",
		"the server's parent is the daemon: `yes`",
		"another user sets the default percentage to 33: `Insufficient privileges for UID 65534",
		"another user says quit: `Not enough privilege to execute quit command`",
		"and the daemon: `runs`",
		"after quit there are still: `srw-rw-rw- control; -rw-rw-rw- control_lock; srwxr-xr-x ",
		"an option that it does not know, and its status: `Unrecognized option -no-such-option; 0`",
		"- under a limit, in turns with the driver's own in one process:",
		"- under a limit with a share of compute, in turns",
		"blocks of 256 MiB and smaller: of a grant of 4236247040 bytes", "blocks of 3072 KiB",
		"blocks of 700 KiB",
		"under a limit, as soon as it runs,", "5064 MiB: 0;holds;", "and was stopped,",
		"uses 1088MiB of GPU 0 without a grant", "gpuledger run, cache: ", "a look each second: ",
		"the multi-user server: `serves all users: true`",
		"**not shown**: PyTorch", "refused (visible-devices-all)"} {
		if !strings.Contains(report, want) {
			t.Errorf("%q is not in the report:\n%s", want, report)
		}
	}
	if out, err := exec.Command("./test-gpu.sh").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "this machine has no NVIDIA driver") {
		t.Errorf("without a GPU: %v\n%s", err, out)
	}
}
