package gpu_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// machine is a node with the boot, driver and majors of node().
func machine(t testing.TB) host.Host {
	t.Helper()
	dir := t.TempDir()
	h := host.Host{Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys"), Now: time.Now}
	put(t, filepath.Join(h.Proc, "sys/kernel/random/boot_id"), "boot-a\n")
	put(t, filepath.Join(h.Sys, "module/nvidia/version"), "580.142\n")
	majors(t, h, "195 nvidia\n510 nvidia-uvm\n")
	return h
}

func majors(t testing.TB, h host.Host, lines string) {
	t.Helper()
	put(t, filepath.Join(h.Proc, "devices"), "Character devices:\n  1 mem\n"+lines+"\nBlock devices:\n  7 loop\n")
}

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func drop(t testing.TB, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func TestLoad(t *testing.T) {
	simulated := node()
	simulated.Source = "simulated"
	for _, tt := range []struct {
		name   string
		inv    grant.Inventory
		source grant.SourceKind
		change func(t *testing.T, h host.Host, path string)
		code   grant.Code // "" is no problem
		want   string
	}{
		{"as it was taken", node(), grant.NVML, nil, "", ""},
		{"no file", node(), grant.NVML, func(t *testing.T, h host.Host, path string) { drop(t, path) },
			grant.InventoryMissing, "this node has no inventory: there is no "},
		{"a damaged file", node(), grant.NVML, func(t *testing.T, h host.Host, path string) { put(t, path, "{") },
			grant.InventoryMissing, "cannot read the inventory "},
		{"a file of a later gpuledger", node(), grant.NVML, func(t *testing.T, h host.Host, path string) { put(t, path, `{"version":9}`) },
			grant.InventoryMissing, "its version is 9"},
		{"another boot", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			put(t, filepath.Join(h.Proc, "sys/kernel/random/boot_id"), "boot-b\n")
		}, grant.InventoryStale, "before the node was booted"},
		{"another boot of a simulated node", simulated, grant.Simulated, func(t *testing.T, h host.Host, path string) {
			put(t, filepath.Join(h.Proc, "sys/kernel/random/boot_id"), "boot-b\n")
		}, grant.InventoryStale, "before the node was booted"},
		{"no boot id", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			drop(t, filepath.Join(h.Proc, "sys/kernel/random/boot_id"))
		}, grant.InventoryStale, "cannot tell whether the inventory is of this boot"},
		{"simulated where the configuration says nvml", simulated, grant.NVML, nil,
			grant.InventoryStale, `taken from source "simulated" and the configuration says "nvml"`},
		{"nvml where the configuration says simulated", node(), grant.Simulated, nil,
			grant.InventoryStale, `taken from source "nvml" and the configuration says "simulated"`},
		{"another driver", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			put(t, filepath.Join(h.Sys, "module/nvidia/version"), "615.71.09\n")
		}, grant.InventoryStale, "taken with driver 580.142 and driver 615.71.09 is loaded"},
		{"a kernel that tells no driver version", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			drop(t, filepath.Join(h.Sys, "module/nvidia/version"))
		}, "", ""},
		{"an unloaded driver", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			drop(t, filepath.Join(h.Sys, "module/nvidia/version"))
			majors(t, h, "")
		}, grant.InventoryStale, "major 195 for nvidia and the driver no longer registers one"},
		{"uvm loaded again under another major", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			majors(t, h, "195 nvidia\n508 nvidia-uvm\n")
		}, grant.InventoryStale, "major 510 for nvidia-uvm and it is 508 now"},
		{"caps that came later", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			majors(t, h, "195 nvidia\n509 nvidia-caps\n510 nvidia-uvm\n")
		}, grant.InventoryStale, "no major for nvidia-caps and it is 509 now"},
		{"a fabric that came later", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			majors(t, h, "195 nvidia\n510 nvidia-uvm\n509 nvidia-nvswitch\n")
		}, "", ""},
		{"no /proc/devices", node(), grant.NVML, func(t *testing.T, h host.Host, path string) { drop(t, filepath.Join(h.Proc, "devices")) },
			grant.InventoryStale, "cannot tell whether the inventory's device numbers hold"},
		{"a simulated node without a driver", simulated, grant.Simulated, func(t *testing.T, h host.Host, path string) {
			drop(t, filepath.Join(h.Sys, "module/nvidia/version"))
			drop(t, filepath.Join(h.Proc, "devices"))
		}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, path := machine(t), gpu.Path(t.TempDir())
			if err := gpu.Write(path, tt.inv); err != nil {
				t.Fatal(err)
			}
			if tt.change != nil {
				tt.change(t, h, path)
			}
			inv, problem := gpu.Load(path, h, tt.source)
			judge(t, problem, tt.code, tt.want)
			if there := len(inv.GPUs) == 2; there == (tt.code == grant.InventoryMissing) {
				t.Errorf("got %d GPUs with %q", len(inv.GPUs), tt.code)
			}
		})
	}
}

func judge(t *testing.T, problem *grant.Problem, code grant.Code, want string) {
	t.Helper()
	switch {
	case code == "" && problem != nil:
		t.Errorf("got %+v, want no problem", *problem)
	case code == "":
	case problem == nil:
		t.Errorf("got no problem, want %s", code)
	case problem.Code != code || !strings.Contains(problem.Message, want):
		t.Errorf("got %+v, want %s with %q", *problem, code, want)
	case problem.Hint != "run `gpuledger inventory refresh`":
		t.Errorf("got hint %q", problem.Hint)
	}
}

// BenchmarkLoad is what every create of a container that reaches a GPU pays.
func BenchmarkLoad(b *testing.B) {
	h, path, inv := machine(b), gpu.Path(b.TempDir()), node()
	for i := 2; i < 8; i++ {
		g := inv.GPUs[1]
		g.Index, g.Minor, g.UUID = i, i, "GPU-"+string(rune('a'+i))
		inv.GPUs = append(inv.GPUs, g)
	}
	if err := gpu.Write(path, inv); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, problem := gpu.Load(path, h, grant.NVML); problem != nil {
			b.Fatal(problem.Message)
		}
	}
}
