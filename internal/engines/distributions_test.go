package engines

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
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

// TestADistributionThatWasLeftBehind: while containerd runs, only the files that it reads count.
func TestADistributionThatWasLeftBehind(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: that only root's processes count is not shown")
	}
	in := Installation{Engine: grant.Containerd, System: filetree.System{Root: "/"}}
	if slices.Contains(in.filesRead(), in.Of().File) {
		t.Skip("containerd runs here: what counts without one is not shown")
	}
	dir := t.TempDir()
	k0s, k3s := filepath.Join(dir, "k0s.toml"), filepath.Join(dir, "k3s.toml")
	was := distributions
	t.Cleanup(func() { distributions = was })
	distributions = []Distribution{{Name: "k0s", Main: k0s}, {Name: "k3s", Main: k3s}}
	program := filepath.Join(dir, "containerd")
	for path, text := range map[string]string{k0s: "", k3s: "", program: "#!/bin/sh\nread -r end\n"} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	find := func(runs, want string, ambiguous bool) {
		t.Helper()
		if got, err := in.FindFile(""); ambiguous != (err != nil) || err == nil && got != want {
			t.Errorf("%s: it is %q (%v), want %q", runs, got, err, want)
		}
	}
	run := func(args ...string) (end func()) {
		t.Helper()
		file := in.Of().File
		if len(args) > 0 {
			file = args[1]
		}
		cmd := exec.Command(program, args...)
		input, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); !slices.Contains(in.filesRead(), file); {
			if time.Now().After(end) {
				t.Fatalf("no containerd reads %s", file)
			}
			time.Sleep(10 * time.Millisecond)
		}
		return func() {
			_ = input.Close()
			_ = cmd.Wait()
		}
	}
	find("nothing", "", true)
	endUsual := run()
	find("the node's own", "", false)
	endK3s := run("--config", k3s)
	find("the node's own and k3s's", k3s, false)
	endUsual()
	find("k3s's", k3s, false)
	endK0s := run("-c", k0s)
	find("both distributions'", "", true)
	endK0s()
	endK3s()
	defer run("--config", filepath.Join(dir, "docker.toml"))()
	if err := os.Remove(k3s); err != nil {
		t.Fatal(err)
	}
	find("one of Docker's", k0s, false)
}
