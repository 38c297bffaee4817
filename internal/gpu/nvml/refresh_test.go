//go:build cgo

package nvml_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/nvml"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

const advice = `To try gpuledger without a GPU use inventory.source = "simulated"`

// TestRefreshWithAStandIn loads a real library that is old and small: it has only the functions
// that a refresh requires. A call of any other function would end the process. The test uses a
// process of its own, because NVML's functions stay bound to the first library that is loaded.
func TestRefreshWithAStandIn(t *testing.T) {
	const variable = "GPULEDGER_TEST_STANDIN"
	root := os.Getenv(variable)
	if root == "" {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestRefreshWithAStandIn$")
		cmd.Env = append(os.Environ(), variable+"="+standIn(t))
		if out, err := cmd.CombinedOutput(); err != nil ||
			!strings.Contains(string(out), "--- PASS: TestRefreshWithAStandIn") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	h := machine(t, 2)
	inv, err := nvml.Refresh(h, root)
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.GPUs) != 2 || !reflect.DeepEqual(inv.Driver, grant.Driver{Version: "550.1", CUDA: "12.4",
		Root: root, MemoryLimits: "driver 550.1 does not limit memory, 615 and newer do"}) {
		t.Fatalf("got %+v", inv)
	}
	for i, uuid := range []string{"GPU-standin-0", "GPU-standin-1"} {
		want := grant.GPU{
			UUID: uuid, Index: i, Minor: 1 - i, Name: "Stand-in", Memory: 16 * grant.GiB,
			PCI: pciOf(i), NUMA: 1,
			Render: []string{fmt.Sprintf("/dev/dri/card%d", i), fmt.Sprintf("/dev/dri/renderD%d", 128+i)},
			Links:  []string{"/dev/dri/by-path/pci-" + pciOf(i) + "-render"},
			MIG:    []grant.MIGDevice{}, Health: "ok", DriverLink: host.DriverLink(h, pciOf(i)),
		}
		if !reflect.DeepEqual(inv.GPUs[i], want) {
			t.Errorf("got  %+v\nwant %+v", inv.GPUs[i], want)
		}
	}
}

// standIn makes a driver root with the stand-in at Debian's path of NVML, among links that must not
// be followed.
func standIn(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	dir := filepath.Join(root, "usr/lib", triplet, "nvidia/current")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(dir, "libnvidia-ml.so.550.1")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", lib,
		"testdata/standin.c").CombinedOutput(); err != nil {
		t.Fatalf("cannot compile the stand-in: %v\n%s", err, out)
	}
	for link, target := range map[string]string{
		filepath.Join(dir, "libnvidia-ml.so.1"):          filepath.Base(lib),
		filepath.Join(dir, "../../libnvidia-ml.so.1"):    "/etc/alternatives/libnvidia-ml.so.1",
		filepath.Join(root, "usr/lib/libnvidia-ml.so.1"): "nowhere",
	} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestRefreshWithoutALibrary(t *testing.T) {
	broken := t.TempDir()
	put(t, filepath.Join(broken, "usr/lib64/libnvidia-ml.so.1"), "not a library")
	empty := t.TempDir()
	for _, tt := range []struct{ name, root, want string }{
		{"a driver root without one", empty, "cannot load NVML: there is no libnvidia-ml.so.1 below the driver root " + empty},
		{"no driver root", filepath.Join(empty, "none"), "no such file or directory"},
		{"a file that is no library", broken, "libnvidia-ml.so.1: "}, // and the loader's own words
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := nvml.Refresh(machine(t, 0), tt.root)
			if err == nil || !strings.HasPrefix(err.Error(), "cannot load NVML: ") ||
				!strings.Contains(err.Error(), tt.want) || !strings.HasSuffix(err.Error(), advice) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestRefreshOnThisMachine: without a driver the error has a hint, with one the inventory agrees
// with the driver's own files in /proc.
func TestRefreshOnThisMachine(t *testing.T) {
	inv, err := nvml.Refresh(host.Default(), "/")
	if _, e := os.Stat("/proc/driver/nvidia/version"); e != nil {
		if err == nil || !strings.HasPrefix(err.Error(), "cannot ") ||
			!strings.HasSuffix(err.Error(), advice) {
			t.Errorf("got %v", err)
		}
		return
	}
	if err == nil {
		err = gpu.Check(inv)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range inv.GPUs {
		text, err := os.ReadFile(filepath.Join("/proc/driver/nvidia/gpus", g.PCI, "information"))
		minor := regexp.MustCompile(fmt.Sprintf(`Device Minor:\s+%d\n`, g.Minor))
		if err != nil || !strings.Contains(string(text), g.UUID) || !minor.Match(text) {
			t.Errorf("got %+v, but the driver reports %s (%v)", g, text, err)
		}
	}
}
