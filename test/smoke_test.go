package test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

// TestMoreIsRun: make test-more names each test that make test leaves out, and no other.
func TestMoreIsRun(t *testing.T) {
	leftOut, named := map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	campaign, err := filepath.Glob("campaign/*_test.go")
	must(t, err)
	files = append(files, campaign...)
	calls := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{\n\trig\.More\(t\)`)
	for _, file := range files {
		for _, m := range calls.FindAllStringSubmatch(read(t, file), -1) {
			leftOut[m[1]] = true
		}
	}
	_, line, _ := strings.Cut(read(t, "../Makefile"), "\nMORE := ")
	line, _, _ = strings.Cut(line, "\n")
	for _, name := range strings.Split(line, "|") {
		named[name] = true
	}
	if len(leftOut) == 0 || !maps.Equal(leftOut, named) {
		t.Errorf("rig.More is called by %v, and the Makefile's MORE is %v", leftOut, named)
	}
}

// probe prints the result of opening a node: ENXIO if the device cgroup allows it (there is no
// driver), EPERM if not.
const probe = `open() { /bin/busybox cat "$1" 2>&1 | /bin/busybox sed "s/.*: //"; }
open /dev/nvidia0; open /dev/nvidia1; open /dev/nvidiactl
/bin/busybox mknod /tmp/other c 195 7; open /tmp/other; /bin/busybox rm /tmp/other`

func TestContainerReachesExactlyItsGrant(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			for _, runtime := range []string{"runc", "crun"} {
				t.Run(runtime, func(t *testing.T) {
					rig.NeedRuntime(t, runtime)
					n := rig.NewNode(t, rig.Setup{Runtime: runtime})
					reference := n.Grant("--memory", "4GiB", "--gpu", "1")
					got := n.Bundle("c", rig.Annotation("gpuledger.dev/grant", reference.String()),
						rig.Shell(probe)).Run()
					want := "No such file or directory\nNo such device or address\nNo such device or " +
						"address\nOperation not permitted\n"
					if got.Stdout != want {
						t.Errorf("opening GPU 0, GPU 1, nvidiactl and a node of its own made for another "+
							"GPU:\n%s%swant:\n%s", got.Stdout, got.Stderr, want)
					}
				})
			}
		})
	}
}

func TestAGrantIsFreeAfterItsContainer(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	reference := n.Grant("--memory", "4GiB")
	b := n.Bundle("c", rig.Annotation("gpuledger.dev/grant", reference.String()))
	if r := b.Create(); r.Code != 0 {
		t.Fatal(r)
	}
	if got := n.State(reference.ID); got != grant.Bound {
		t.Fatalf("state %q of a grant whose container is created", got)
	}
	second := n.Bundle("d", rig.Annotation("gpuledger.dev/grant", reference.String()))
	if r := second.Create(); r.Code != 1 || !strings.Contains(r.Stderr, "refused (grant-in-use)") {
		t.Fatalf("a second container with the grant: %+v", r)
	}
	b.Kill()
	rig.Eventually(t, "the grant is free", func() bool { return n.State(reference.ID) == grant.Free })
}
