package gpu_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// machine returns a host with the boot, driver and majors of node().
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
	put(t, filepath.Join(h.Proc, "devices"), "Character devices:\n  1 mem\n"+lines+
		"\nBlock devices:\n  7 loop\n")
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
		{"a damaged file", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			put(t, path, "{")
		},
			grant.InventoryMissing, "cannot read the inventory "},
		{"a file of a later gpuledger", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			put(t, path, `{"version":9}`)
		},
			grant.InventoryMissing, "its version is 9"},
		{"another boot", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			put(t, filepath.Join(h.Proc, "sys/kernel/random/boot_id"), "boot-b\n")
		}, grant.InventoryStale, "before the node was booted"},
		{"another boot of a simulated node", simulated, grant.Simulated,
			func(t *testing.T, h host.Host, path string) {
				put(t, filepath.Join(h.Proc, "sys/kernel/random/boot_id"), "boot-b\n")
			}, grant.InventoryStale, "before the node was booted"},
		{"no boot id", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			drop(t, filepath.Join(h.Proc, "sys/kernel/random/boot_id"))
		}, grant.InventoryStale, "cannot tell whether the inventory is of this boot"},
		{"simulated, while the configuration names nvml", simulated, grant.NVML, nil,
			grant.InventoryStale, `taken from source "simulated" and the configuration says "nvml"`},
		{"nvml, while the configuration names simulated", node(), grant.Simulated, nil,
			grant.InventoryStale, `taken from source "nvml" and the configuration says "simulated"`},
		{"another driver", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			put(t, filepath.Join(h.Sys, "module/nvidia/version"), "615.71.09\n")
		}, grant.InventoryStale, "taken with driver 580.142 and driver 615.71.09 is loaded"},
		{"a kernel that reports no driver version", node(), grant.NVML,
			func(t *testing.T, h host.Host, path string) {
				drop(t, filepath.Join(h.Sys, "module/nvidia/version"))
			}, "", ""},
		{"an unloaded driver", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			drop(t, filepath.Join(h.Sys, "module/nvidia/version"))
			majors(t, h, "")
		}, grant.InventoryStale, "major 195 for nvidia and the driver no longer registers one"},
		{"uvm loaded again under another major", node(), grant.NVML,
			func(t *testing.T, h host.Host, path string) {
				majors(t, h, "195 nvidia\n508 nvidia-uvm\n")
			}, grant.InventoryStale, "major 510 for nvidia-uvm and it is 508 now"},
		{"caps that appeared later", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			majors(t, h, "195 nvidia\n509 nvidia-caps\n510 nvidia-uvm\n")
		}, grant.InventoryStale, "no major for nvidia-caps and it is 509 now"},
		{"a fabric that appeared later", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			majors(t, h, "195 nvidia\n510 nvidia-uvm\n509 nvidia-nvswitch\n")
		}, "", ""},
		{"no /proc/devices", node(), grant.NVML, func(t *testing.T, h host.Host, path string) {
			drop(t, filepath.Join(h.Proc, "devices"))
		},
			grant.InventoryStale, "cannot tell whether the inventory's device numbers hold"},
		{"a simulated node without a driver", simulated, grant.Simulated,
			func(t *testing.T, h host.Host, path string) {
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

// TestPartitionsMadeAnew: the same number of partitions can be other partitions.
func TestPartitionsMadeAnew(t *testing.T) {
	for _, tt := range []struct {
		name      string
		instances []string
		want      string // "" is no problem
	}{
		{"as they were", []string{"gi7/ci0"}, ""},
		{"an instance that is no device yet", []string{"gi7/ci0", "gi9"}, ""},
		{"no longer in mode mig", nil, "1 MIG devices on GPU 1 and it has 0 now"},
		{"gone", []string{""}, "1 MIG devices on GPU 1 and it has 0 now"},
		{"one more", []string{"gi7/ci0", "gi8/ci0"}, "1 MIG devices on GPU 1 and it has 2 now"},
		{"another GPU instance", []string{"gi8/ci0"}, "MIG instance 7/0 on GPU 1 and the driver no longer has it"},
		{"another compute instance", []string{"gi7/ci1"}, "MIG instance 7/0 on GPU 1 and the driver no longer has it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, path := machine(t), gpu.Path(t.TempDir())
			if err := gpu.Write(path, node()); err != nil {
				t.Fatal(err)
			}
			for _, instance := range tt.instances {
				put(t, filepath.Join(h.Proc, "driver/nvidia/capabilities/gpu0/mig", instance, "access"),
					"DeviceFileMinor: 66\n")
			}
			put(t, filepath.Join(h.Proc, "driver/nvidia/capabilities/gpu1/mig/config"),
				"DeviceFileMinor: 1\n")
			_, problem := gpu.Load(path, h, grant.NVML)
			code := grant.InventoryStale
			if tt.want == "" {
				code = ""
			}
			judge(t, problem, code, tt.want)
		})
	}
}

// TestAGPUThatDoesNotAnswer: a scan has found no MIG devices on it, and the kernel still lists
// them. The other GPUs can be granted.
func TestAGPUThatDoesNotAnswer(t *testing.T) {
	h, path, inv := machine(t), gpu.Path(t.TempDir()), node()
	inv.GPUs[0].Health, inv.GPUs[0].MIG = "NVML gives no access to it", []grant.MIGDevice{}
	if err := gpu.Write(path, inv); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(h.Proc, "driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access"),
		"DeviceFileMinor: 66\n")
	put(t, filepath.Join(h.Proc, "driver/nvidia/capabilities/gpu1/mig/config"), "DeviceFileMinor: 1\n")
	_, problem := gpu.Load(path, h, grant.NVML)
	judge(t, problem, "", "")

	inv.GPUs[0].Health = grant.Unpartitioned // at the scan; someone has made a MIG device since
	if err := gpu.Write(path, inv); err != nil {
		t.Fatal(err)
	}
	_, problem = gpu.Load(path, h, grant.NVML)
	judge(t, problem, grant.InventoryStale, "the inventory has 0 MIG devices on GPU 1 and it has 1 now")
}

// TestAPartitionedGPUThatIsGone: the kernel lists its MIG devices no longer. It is unhealthy, and
// the other GPUs can be granted.
func TestAPartitionedGPUThatIsGone(t *testing.T) {
	h, path, inv := machine(t), gpu.Path(t.TempDir()), node()
	inv.GPUs[0].PCI = "0000:5e:00.0"
	if err := gpu.Write(path, inv); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(h.Sys, "bus/pci/devices/0000:3b:00.0/vendor"), "")
	put(t, filepath.Join(h.Proc, "driver/nvidia/capabilities/gpu1/mig/config"), "DeviceFileMinor: 1\n")
	inv, problem := gpu.Load(path, h, grant.NVML)
	judge(t, problem, "", "")
	const gone = "it is no longer on the PCI bus"
	if a, b := inv.GPUs[0].Health, inv.GPUs[1].Health; a != grant.Healthy || b != gone {
		t.Errorf("got %q and %q", a, b)
	}
}

// TestAGPUThatWasBoundAgain: it can have the minor of another.
func TestAGPUThatWasBoundAgain(t *testing.T) {
	h, path, inv := machine(t), gpu.Path(t.TempDir()), node()
	device := filepath.Join(h.Sys, "bus/pci/devices", inv.GPUs[1].PCI)
	link := filepath.Join(device, "driver")
	put(t, filepath.Join(device, "vendor"), "")
	bind := func(link string) {
		t.Helper()
		if err := os.Symlink("../../drivers/nvidia", link); err != nil {
			t.Fatal(err)
		}
	}
	loads := func(code grant.Code, want string) {
		t.Helper()
		_, problem := gpu.Load(path, h, grant.NVML)
		judge(t, problem, code, want)
	}
	take := func() {
		t.Helper()
		inv.GPUs[1].DriverLink = host.DriverLink(h, inv.GPUs[1].PCI)
		if err := gpu.Write(path, inv); err != nil {
			t.Fatal(err)
		}
		loads("", "")
	}
	take() // without a link
	bind(link)
	loads("", "")
	take()
	bind(link + "-new") // beside the old one, as file systems use an inode number again
	if err := os.Rename(link+"-new", link); err != nil {
		t.Fatal(err)
	}
	loads(grant.InventoryStale, "GPU 0 was bound to its driver again after the inventory was taken")
	take()
	drop(t, link)
	loads("", "") // whether it has a driver is seen elsewhere
}

// TestCapabilitiesOfAMIGDevice: a recreated instance can have the number of another.
func TestCapabilitiesOfAMIGDevice(t *testing.T) {
	h := machine(t)
	d := grant.Device{GPU: grant.GPU{Index: 1, Minor: 0},
		MIG: &grant.MIGDevice{GI: 7, CI: 0, Caps: [2]int{66, 67}}}
	dir := filepath.Join(h.Proc, "driver/nvidia/capabilities/gpu0/mig/gi7")
	for _, tt := range []struct{ gi, ci, want string }{
		{"", "", "the inventory has MIG device 1:0 and the driver no longer has it"},
		{"DeviceFileMinor: 66\nDeviceFileMode: 292\n", "DeviceFileMinor: 67\n", ""},
		{"DeviceFileMinor: 66\n", "DeviceFileMinor: 68\n", "the inventory has capability minors [66 67] for MIG device 1:0 and they are [66 68] now"},
		{"DeviceFileMinor: 66\n", "nothing\n", "cannot tell whether the inventory's MIG devices hold: "},
	} {
		if tt.gi != "" {
			put(t, filepath.Join(dir, "access"), tt.gi)
			put(t, filepath.Join(dir, "ci0/access"), tt.ci)
		}
		if got := gpu.OtherCaps(d, h); got != tt.want && (tt.want == "" || !strings.HasPrefix(got, tt.want)) {
			t.Errorf("%q and %q: got %q, want %q", tt.gi, tt.ci, got, tt.want)
		}
	}
}

// TestDRMNodesThatChanged: they come with nvidia-drm, and may have other numbers when it is loaded
// again.
func TestDRMNodesThatChanged(t *testing.T) {
	h, g := machine(t), node().GPUs[1]
	drm := filepath.Join(h.Sys, "bus/pci/devices", g.PCI, "drm")
	differs := func(want string, render ...string) {
		t.Helper()
		g.Render = render
		if got := gpu.OtherDRM([]grant.GPU{{}, g}, h); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	differs("", "/dev/dri/renderD128") // without a PCI bus
	put(t, filepath.Join(drm, "../vendor"), "")
	differs("")
	differs("the inventory has DRM nodes [/dev/dri/renderD128] for GPU 0 and they are [] now",
		"/dev/dri/renderD128")
	put(t, filepath.Join(drm, "renderD129/dev"), "")
	put(t, filepath.Join(drm, "card1/dev"), "")
	differs("the inventory has DRM nodes [] for GPU 0 and they are [/dev/dri/card1 /dev/dri/renderD129] now")
	differs("", "/dev/dri/card1", "/dev/dri/renderD129")
	g.Health = "the driver has let go of it"
	differs("")
}

// TestGPUsThatTheKernelLost: a GPU that the kernel no longer has is unhealthy, and the others are
// not.
func TestGPUsThatTheKernelLost(t *testing.T) {
	const pci = "0000:3b:00.0"
	for _, tt := range []struct {
		name         string
		bus, drivers []string // files
		config       string
		want         string
	}{
		{"a kernel that lists no GPUs", nil, nil, "", grant.Healthy},
		{"there", []string{pci + "/vendor"}, []string{pci + "/information"}, "\xde\x10\xb1\x20", grant.Healthy},
		{"no configuration space to be read", []string{pci + "/vendor"}, []string{pci + "/information"}, "", grant.Healthy},
		{"removed", []string{"0000:3c:00.0/vendor"}, nil, "", "it is no longer on the PCI bus"},
		{"silent", []string{pci + "/vendor"}, []string{pci + "/information"}, "\xff\xff\xff\xff", "it has fallen off the PCI bus (see the kernel's log)"},
		{"of no driver", []string{pci + "/vendor"}, []string{"0000:3c:00.0/information"}, "\xde\x10\xb1\x20", "the driver has let go of it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, path := machine(t), gpu.Path(t.TempDir())
			if err := gpu.Write(path, node()); err != nil {
				t.Fatal(err)
			}
			for _, file := range tt.bus {
				put(t, filepath.Join(h.Sys, "bus/pci/devices", file), "")
			}
			for _, file := range tt.drivers {
				put(t, filepath.Join(h.Proc, "driver/nvidia/gpus", file), "")
			}
			if tt.config != "" {
				put(t, filepath.Join(h.Sys, "bus/pci/devices", pci, "config"), tt.config)
			}
			inv, problem := gpu.Load(path, h, grant.NVML)
			judge(t, problem, "", "")
			if a, b := inv.GPUs[0].Health, inv.GPUs[1].Health; a != tt.want || b != grant.Healthy {
				t.Errorf("got %q and %q, want %q", a, b, tt.want)
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

// BenchmarkLoad measures a step of every create of a container that reaches a GPU.
func BenchmarkLoad(b *testing.B) {
	h, path, inv := machine(b), gpu.Path(b.TempDir()), node()
	for i := 2; i < 8; i++ {
		g := inv.GPUs[1]
		g.Index, g.Minor, g.UUID = i, i, "GPU-"+string(rune('a'+i))
		inv.GPUs = append(inv.GPUs, g)
	}
	for i := range 8 {
		put(b, filepath.Join(h.Proc, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/config", i)), "")
	}
	put(b, filepath.Join(h.Proc, "driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access"), "")
	put(b, filepath.Join(h.Proc, "driver/nvidia/gpus/0000:3b:00.0/information"), "")
	put(b, filepath.Join(h.Sys, "bus/pci/devices/0000:3b:00.0/config"), "\xde\x10\xb1\x20")
	put(b, filepath.Join(h.Sys, "bus/pci/devices/0000:3b:00.0/driver"), "")
	for i := range inv.GPUs {
		inv.GPUs[i].DriverLink = host.DriverLink(h, inv.GPUs[i].PCI)
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
