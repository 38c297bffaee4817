package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestAccessToDriverUnbindIsRecorded: through a writable mount of a bus a container unbinds a GPU
// from its driver. The test writes no device's name, so the kernel returns ENODEV if writing is
// allowed, and the mount EROFS if not.
func TestAccessToDriverUnbindIsRecorded(t *testing.T) {
	files, _ := filepath.Glob("/sys/bus/*/drivers/*/unbind")
	if len(files) == 0 {
		t.Skip("no driver of this machine can be unbound: that a mount lets it is not shown")
	}
	bus, driver, _ := strings.Cut(strings.TrimPrefix(files[0], "/sys/bus/"), "/")
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		tried := 0
		for option, writes := range map[string]bool{"rw": true, "ro": false} {
			for source, below := range map[string]string{"/sys/bus": bus + "/" + driver,
				"/sys/bus/" + bus: driver, files[0]: ""} {
				before, _ := os.ReadFile(n.Dir + "/audit.jsonl")
				tried++
				b := n.Bundle(fmt.Sprint("c", tried), rig.Light,
					rig.Shell("echo nonsense >"+filepath.Join("/x", below)),
					mount(specs.Mount{Type: "bind", Source: source, Destination: "/x",
						Options: []string{"bind", option}}))
				r := b.Run()
				b.Delete()
				after, _ := os.ReadFile(n.Dir + "/audit.jsonl")
				if may := strings.Contains(r.Stderr, "No such device"); may != writes {
					t.Errorf("%s %s: %+v, want it written to: %v", source, option, r, writes)
				}
				if got := strings.Contains(string(after[len(before):]),
					"node-root by mount:/x"); got != writes {
					t.Errorf("%s %s: recorded %v, want %v", source, option, got, writes)
				}
			}
		}
	})
}
