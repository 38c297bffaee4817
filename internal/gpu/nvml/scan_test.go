//go:build cgo

package nvml_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	api "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/nvml"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// machine is a host with NVIDIA's driver and GPUs at PCI buses 0x10, 0x11, ..., all on NUMA node 1
// with DRM nodes.
func machine(t testing.TB, gpus int) host.Host {
	t.Helper()
	dir := t.TempDir()
	h := host.Host{Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys"),
		Dev: filepath.Join(dir, "dev"), Now: func() time.Time {
			return time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
		}}
	put(t, filepath.Join(h.Proc, "sys/kernel/random/boot_id"), "boot-a\n")
	put(t, filepath.Join(h.Proc, "devices"),
		"Character devices:\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n")
	for i := range gpus {
		dir := filepath.Join(h.Sys, "bus/pci/devices", pciOf(i))
		put(t, filepath.Join(dir, "numa_node"), "1\n")
		put(t, filepath.Join(dir, "driver"), "") // the kernel's is a link
		put(t, filepath.Join(dir, "drm", fmt.Sprintf("renderD%d", 128+i), "dev"), "")
		put(t, filepath.Join(dir, "drm", fmt.Sprintf("card%d", i), "dev"), "")
		put(t, filepath.Join(dir, "drm", "controlD64", "dev"), "")
		put(t, filepath.Join(h.Dev, "dri/by-path", "pci-"+pciOf(i)+"-render"), "")
	}
	return h
}

func pciOf(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x10+i) }

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// without is a library that lacks these functions. It answers for the C library's symbols, of which
// the mock has all. A symbol without an answer is missing unless a test adds one.
func without(names ...string) func(string) error {
	return func(symbol string) error {
		for _, name := range append([]string{virtual}, names...) {
			if symbol == name {
				return errors.New("undefined symbol")
			}
		}
		return nil
	}
}

const (
	memoryV2 = "nvmlDeviceGetMemoryInfo_v2"
	cudaV2   = "nvmlSystemGetCudaDriverVersion_v2"
	virtual  = "nvmlDeviceGetVirtualizationMode"
)

// prepare gives the mock what it lacks: PCI addresses, and no newer calls than those that it
// answers. Minors count down, because a minor need not be an index.
func prepare(s *server.Server) *server.Server {
	s.LookupSymbolFunc = without(memoryV2, cudaV2)
	for i := range s.Devices {
		d := at(s, i)
		d.Minor = len(s.Devices) - 1 - i
		d.GetPciInfoFunc = func() (api.PciInfo, api.Return) {
			return api.PciInfo{Bus: uint32(0x10 + i)}, api.SUCCESS
		}
	}
	return s
}

func at(s *server.Server, i int) *server.Device { return s.Devices[i].(*server.Device) }

func scan(t *testing.T, s *server.Server, h host.Host) grant.Inventory {
	t.Helper()
	inv, err := nvml.Scan(s, h, "/")
	if err != nil {
		t.Fatal(err)
	}
	if err := gpu.Check(inv); err != nil {
		t.Errorf("the inventory is not sound: %v", err)
	}
	return inv
}

func TestScanOfEachSystem(t *testing.T) {
	for _, tt := range []struct {
		system string
		server *server.Server
		name   string
		memory grant.Bytes
		cuda   string
	}{
		{"DGX A100", dgxa100.New(), "Mock NVIDIA A100-SXM4-40GB", 40 * grant.GiB, "12.4"},
		{"DGX H100", dgxh100.New(), "NVIDIA H100 80GB HBM3", 80 * grant.GiB, "12.4"},
		{"DGX H200", dgxh200.New(), "NVIDIA H200 141GB HBM3e", 141 * grant.GiB, "12.4"},
		{"DGX B200", dgxb200.New(), "NVIDIA B200 180GB HBM3e", 180 * grant.GiB, "12.6"},
	} {
		t.Run(tt.system, func(t *testing.T) {
			h := machine(t, 8)
			inv := scan(t, prepare(tt.server), h)
			want := grant.Inventory{
				Version: 1, Taken: time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC), BootID: "boot-a",
				Source: "nvml",
				Driver: grant.Driver{Version: tt.server.DriverVersion, CUDA: tt.cuda, Root: "/",
					MemoryLimits: "driver " + tt.server.DriverVersion +
						" does not limit memory, 615 and newer do"},
				Majors: map[string]int{"nvidia": 195, "nvidia-uvm": 510},
			}
			for i := range 8 {
				want.GPUs = append(want.GPUs, grant.GPU{
					UUID: at(tt.server, i).UUID, Index: i, Minor: 7 - i, Name: tt.name, Memory: tt.memory,
					PCI: pciOf(i), NUMA: 1,
					Render: []string{fmt.Sprintf("/dev/dri/card%d", i),
						fmt.Sprintf("/dev/dri/renderD%d", 128+i)},
					Links: []string{"/dev/dri/by-path/pci-" + pciOf(i) + "-render"},
					MIG:   []grant.MIGDevice{}, Health: "ok", DriverLink: host.DriverLink(h, pciOf(i)),
				})
			}
			if !reflect.DeepEqual(inv, want) {
				t.Errorf("got  %+v\nwant %+v", inv, want)
			}
		})
	}
}

func TestTheSnapshotOfAScanIsUsable(t *testing.T) {
	h, path := machine(t, 8), gpu.Path(t.TempDir())
	put(t, filepath.Join(h.Sys, "module/nvidia/version"), "580.142\n")
	if err := gpu.Write(path, scan(t, prepare(dgxa100.New()), h)); err != nil {
		t.Fatal(err)
	}
	inv, problem := gpu.Load(path, h, grant.NVML)
	if problem != nil {
		t.Error(problem.Message)
	}
	if inv.Driver.Version != "580.142" { // the kernel's; the mock reports 550.54.15
		t.Errorf("got driver %q", inv.Driver.Version)
	}
}

// TestMemoryLimits: neither the calls alone nor the driver's version alone mean that the driver
// limits memory.
func TestMemoryLimits(t *testing.T) {
	for _, tt := range []struct{ version, missing, want string }{
		{"615.71.09", "", grant.CanLimit},
		{"1000.1", "", grant.CanLimit},
		{"580.142", "", "driver 580.142 does not limit memory, 615 and newer do"},
		{"unknown", "", "driver unknown does not limit memory, 615 and newer do"},
		{"615.71.09", "nvmlDeviceSetMemoryLimits_v1", "its NVML has no nvmlDeviceSetMemoryLimits_v1"},
		{"615.71.09", "nvmlDeviceGetMemoryLimits_v1", "its NVML has no nvmlDeviceGetMemoryLimits_v1"},
	} {
		s := prepare(dgxa100.New())
		s.LookupSymbolFunc = without(memoryV2, cudaV2, tt.missing)
		s.SystemGetDriverVersionFunc = func() (string, api.Return) { return tt.version, api.SUCCESS }
		if got := scan(t, s, machine(t, 8)).Driver.MemoryLimits; got != tt.want {
			t.Errorf("driver %s without %q: %q, want %q", tt.version, tt.missing, got, tt.want)
		}
	}
}

func TestCUDAVersion(t *testing.T) {
	answer := func(v int, ret api.Return) func() (int, api.Return) {
		return func() (int, api.Return) { return v, ret }
	}
	for _, tt := range []struct {
		name    string
		missing []string
		v2, v1  func() (int, api.Return)
		want    string
	}{
		{"both calls", []string{memoryV2}, answer(13000, api.SUCCESS), nil, "13.0"},
		{"the older call only", []string{memoryV2, cudaV2}, nil, answer(12080, api.SUCCESS), "12.8"},
		{"no libcuda", []string{memoryV2}, answer(0, api.ERROR_LIBRARY_NOT_FOUND), answer(13040, api.SUCCESS), "13.4"},
		{"neither answers", []string{memoryV2, cudaV2}, nil, answer(0, api.ERROR_UNKNOWN), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := prepare(dgxa100.New())
			s.LookupSymbolFunc = without(tt.missing...)
			s.SystemGetCudaDriverVersion_v2Func, s.SystemGetCudaDriverVersionFunc = tt.v2, tt.v1
			if got := scan(t, s, machine(t, 8)).Driver.CUDA; got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	v1 := func(total uint64, ret api.Return) func() (api.Memory, api.Return) {
		return func() (api.Memory, api.Return) { return api.Memory{Total: total}, ret }
	}
	v2 := func(total, reserved uint64, ret api.Return) func() (api.Memory_v2, api.Return) {
		return func() (api.Memory_v2,
			api.Return) {
			return api.Memory_v2{Total: total, Reserved: reserved}, ret
		}
	}
	for _, tt := range []struct {
		name   string
		v2     func() (api.Memory_v2, api.Return) // nil: the library lacks it
		v1     func() (api.Memory, api.Return)    // nil: it must not be called
		want   grant.Bytes
		health string // in the health
	}{
		{"the driver's part is not granted", v2(1000, 30, api.SUCCESS), nil, 970, "ok"},
		{"a library without the newer call", nil, v1(1000, api.SUCCESS), 1000, "ok"},
		{"a driver without the newer call", v2(0, 0, api.ERROR_ARGUMENT_VERSION_MISMATCH), v1(1000, api.SUCCESS), 1000, "ok"},
		{"more reserved than there is", v2(10, 30, api.SUCCESS), v1(1000, api.SUCCESS), 1000, "ok"},
		{"a GPU that uses the host's memory", v2(0, 0, api.ERROR_NOT_SUPPORTED), v1(0, api.ERROR_NOT_SUPPORTED), 0, "no memory of its own"},
		{"no memory at all", v2(0, 0, api.SUCCESS), v1(0, api.SUCCESS), 0, "NVML reports no memory"},
		{"a GPU that is lost", v2(0, 0, api.ERROR_GPU_IS_LOST), v1(0, api.ERROR_GPU_IS_LOST), 0, "its memory can't be read: ERROR_GPU_IS_LOST"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := prepare(dgxa100.New())
			s.LookupSymbolFunc = without(cudaV2, memoryV2)
			if tt.v2 != nil {
				s.LookupSymbolFunc = without(cudaV2)
			}
			s.Devices = s.Devices[:1]
			at(s, 0).GetMemoryInfo_v2Func, at(s, 0).GetMemoryInfoFunc = tt.v2, tt.v1
			got := scan(t, s, machine(t, 1)).GPUs[0]
			if got.Memory != tt.want || !strings.Contains(got.Health, tt.health) {
				t.Errorf("got %v and health %q, want %v and %q", got.Memory, got.Health, tt.want, tt.health)
			}
		})
	}
}

// lose makes every call on the device fail but UUID and those that the driver has cached.
func lose(d *server.Device) {
	d.GetNameFunc = func() (string, api.Return) { return "", api.ERROR_GPU_IS_LOST }
	d.GetMemoryInfoFunc = func() (api.Memory, api.Return) { return api.Memory{}, api.ERROR_GPU_IS_LOST }
	d.GetMigModeFunc = func() (int, int, api.Return) { return 0, 0, api.ERROR_GPU_IS_LOST }
}

// writeProc puts the driver's facts about a GPU into /proc, as it prints them.
func writeProc(t *testing.T, h host.Host, i int, uuid string, minor int) {
	t.Helper()
	put(t, filepath.Join(h.Proc, "driver/nvidia/gpus", pciOf(i), "information"), fmt.Sprintf(
		"Model: \t\t NVIDIA A100\nIRQ:   \t\t 42\nGPU UUID: \t %s\nBus Location: \t %s\nDevice Minor: "+
			"\t %d\nGPU "+
			"Excluded:\t No\n", uuid, pciOf(i), minor))
}

func TestGPUsThatDoNotAnswer(t *testing.T) {
	lost := func() (int, api.Return) { return 0, api.ERROR_GPU_IS_LOST }
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, s *server.Server, h host.Host)
		health map[int]string // by index; the others are healthy
		err    string
	}{
		{"a handle that reports only its UUID", func(t *testing.T, s *server.Server, h host.Host) {
			lose(at(s, 2))
		}, map[int]string{2: "its name can't be read: ERROR_GPU_IS_LOST"}, ""},
		{"a handle without a PCI address", func(t *testing.T, s *server.Server, h host.Host) {
			at(s, 2).GetPciInfoFunc = func() (api.PciInfo,
				api.Return) {
				return api.PciInfo{}, api.ERROR_UNKNOWN
			}
		}, map[int]string{2: "its PCI address can't be read: ERROR_UNKNOWN"}, ""},
		{"a handle without a minor that the driver still reports",
			func(t *testing.T, s *server.Server, h host.Host) {
				at(s, 2).GetMinorNumberFunc = lost
				writeProc(t, h, 2, at(s, 2).UUID, 5)
			}, map[int]string{2: "its minor number can't be read: ERROR_GPU_IS_LOST"}, ""},
		{"a handle without a minor from any source", func(t *testing.T, s *server.Server, h host.Host) {
			at(s, 2).GetMinorNumberFunc = lost
		}, nil, "cannot take GPU 2 into the inventory: its minor number can't be read: ERROR_GPU_IS_LOST"},
		{"a handle without a UUID", func(t *testing.T, s *server.Server, h host.Host) {
			at(s, 2).GetUUIDFunc = func() (string, api.Return) { return "", api.ERROR_GPU_IS_LOST }
		}, nil, "cannot take GPU 2 into the inventory: its UUID can't be read: ERROR_GPU_IS_LOST"},
		{"no handle, but the driver reports its UUID", func(t *testing.T, s *server.Server, h host.Host) {
			withoutHandles(s, 2, 6)
			for i := range 8 {
				writeProc(t, h, i, at(s, i).UUID, 7-i)
			}
		}, map[int]string{2: "NVML gives no access to it: ERROR_GPU_IS_LOST",
			6: "NVML gives no access to it"}, ""},
		{"no handle and no /proc", func(t *testing.T, s *server.Server, h host.Host) {
			withoutHandles(s, 3)
		}, nil,
			"cannot take GPU 3 into the inventory: ERROR_GPU_IS_LOST; and it is unknown which one it is"},
		{"no handle and a driver that has forgotten the GPU",
			func(t *testing.T, s *server.Server, h host.Host) {
				withoutHandles(s, 3)
				for _, i := range []int{0, 1, 2, 4, 5, 6, 7} {
					writeProc(t, h, i, at(s, i).UUID, 7-i)
				}
			}, nil, "1 GPUs don't answer and the driver knows of 0 more"},
		{"no handle and a UUID that was never read", func(t *testing.T, s *server.Server, h host.Host) {
			withoutHandles(s, 3)
			for i := range 8 {
				writeProc(t, h, i, "GPU-????????-????-????-????-????????????", 7-i)
			}
		}, nil, "the driver does not know the UUID of 0000:13:00.0"},
		{"no count", func(t *testing.T, s *server.Server, h host.Host) {
			s.DeviceGetCountFunc = func() (int, api.Return) { return 0, api.ERROR_UNKNOWN }
		}, nil, "cannot count the GPUs: ERROR_UNKNOWN"},
		{"no driver version", func(t *testing.T, s *server.Server, h host.Host) {
			s.SystemGetDriverVersionFunc = func() (string, api.Return) { return "", api.ERROR_UNKNOWN }
		}, nil, "cannot read the driver's version: ERROR_UNKNOWN"},
		{"a library that lacks what is needed", func(t *testing.T, s *server.Server, h host.Host) {
			s.LookupSymbolFunc = without("nvmlDeviceGetUUID", "nvmlDeviceGetCount", "nvmlDeviceGetCount_v2",
				"nvmlDeviceGetPciInfo_v3")
		}, nil, "cannot use NVML: it lacks nvmlDeviceGetCount_v2, nvmlDeviceGetUUID"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, h := prepare(dgxa100.New()), machine(t, 8)
			tt.change(t, s, h)
			if tt.err != "" {
				if _, err := nvml.Scan(s, h, "/"); err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			for i, g := range scan(t, s, h).GPUs {
				if want, sick := tt.health[i]; !strings.Contains(g.Health, want) ||
					sick == (g.Health == grant.Healthy) {
					t.Errorf("GPU %d has health %q, want %q", i, g.Health, want)
				}
				if g.UUID != at(s, i).UUID || g.Index != i || g.Minor != 7-i {
					t.Errorf("GPU %d is %+v", i, g)
				}
			}
		})
	}
}

func withoutHandles(s *server.Server, lost ...int) {
	handle := s.DeviceGetHandleByIndexFunc
	s.DeviceGetHandleByIndexFunc = func(i int) (api.Device, api.Return) {
		for _, l := range lost {
			if i == l {
				return nil, api.ERROR_GPU_IS_LOST
			}
		}
		return handle(i)
	}
}

// slice is a MIG device as NVML returns it.
func slice(uuid, name string, gi, ci int, a api.DeviceAttributes) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:              func() (string, api.Return) { return uuid, api.SUCCESS },
		GetNameFunc:              func() (string, api.Return) { return name, api.SUCCESS },
		GetAttributesFunc:        func() (api.DeviceAttributes, api.Return) { return a, api.SUCCESS },
		GetGpuInstanceIdFunc:     func() (int, api.Return) { return gi, api.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, api.Return) { return ci, api.SUCCESS },
	}
}

// partitioned puts a device in MIG mode with these slices; nil is a free place.
func partitioned(d *server.Device, slices ...*mock.Device) {
	d.MigMode = api.DEVICE_MIG_ENABLE
	d.GetMaxMigDeviceCountFunc = func() (int, api.Return) { return len(slices), api.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (api.Device, api.Return) {
		if slices[i] == nil {
			return nil, api.ERROR_NOT_FOUND
		}
		return slices[i], api.SUCCESS
	}
}

func TestMIG(t *testing.T) {
	attributes := func(gi, ci uint32, mib uint64) api.DeviceAttributes {
		return api.DeviceAttributes{GpuInstanceSliceCount: gi,
			ComputeInstanceSliceCount: ci, MemorySizeMB: mib}
	}
	s := prepare(dgxh100.New())
	partitioned(at(s, 0),
		slice("MIG-1", "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", 9, 0, attributes(1, 1, 9856)),
		nil,
		slice("MIG-2", "NVIDIA H100 80GB HBM3", 1, 0, attributes(3, 3, 40320)),
		slice("MIG-3", "", 2, 1, attributes(3, 1, 40320)),
		slice("MIG-4", "", 7, 0, attributes(1, 1, 9856)),
	)
	partitioned(at(s, 1), nil, nil)
	at(s, 2).GetMigModeFunc = func() (int, int, api.Return) { return 0, 0, api.ERROR_NOT_SUPPORTED }
	broken := slice("MIG-5", "", 1, 0, attributes(1, 1, 9856))
	broken.GetGpuInstanceIdFunc = func() (int, api.Return) { return 0, api.ERROR_UNKNOWN }
	partitioned(at(s, 3), broken)
	h := machine(t, 8)
	// MIG-2 has no capability of its compute instance, MIG-4 has none at all
	for instance, minor := range map[string]int{"gi9": 84, "gi9/ci0": 85, "gi2": 21,
		"gi2/ci1": 23, "gi1": 12} {
		put(t, filepath.Join(h.Proc, "driver/nvidia/capabilities/gpu7/mig", instance, "access"),
			fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\n", minor))
	}
	gpus := scan(t, s, h).GPUs

	want := []grant.MIGDevice{
		{UUID: "MIG-1", Profile: "1g.10gb+me", Memory: 9856 * grant.MiB, GI: 9, CI: 0, Caps: [2]int{84, 85}},
		{UUID: "MIG-2", Profile: "3g.40gb", Memory: 40320 * grant.MiB, GI: 1, CI: 0},
		{UUID: "MIG-3", Profile: "1c.3g.40gb", Memory: 40320 * grant.MiB, GI: 2, CI: 1, Caps: [2]int{21, 23}},
		{UUID: "MIG-4", Profile: "1g.10gb", Memory: 9856 * grant.MiB, GI: 7, CI: 0},
	}
	if !reflect.DeepEqual(gpus[0].MIG, want) {
		t.Errorf("got  %+v\nwant %+v", gpus[0].MIG, want)
	}
	for i, health := range []string{"ok", "it is in MIG mode and has no MIG device", "ok",
		"its MIG devices can't be read: device 0: GPU instance: ERROR_UNKNOWN", "ok"} {
		if gpus[i].Health != health || i > 0 && len(gpus[i].MIG) > 0 {
			t.Errorf("GPU %d has health %q and %v", i, gpus[i].Health, gpus[i].MIG)
		}
	}
}

// TestVirtualGPUs are recognized; a GPU that NVML cannot classify is granted like any other.
func TestVirtualGPUs(t *testing.T) {
	s := prepare(dgxa100.New())
	s.LookupSymbolFunc = func(symbol string) error {
		if symbol == virtual {
			return nil
		}
		return without(memoryV2, cudaV2)(symbol)
	}
	modes := []api.GpuVirtualizationMode{api.GPU_VIRTUALIZATION_MODE_NONE,
		api.GPU_VIRTUALIZATION_MODE_PASSTHROUGH, api.GPU_VIRTUALIZATION_MODE_VGPU,
		api.GPU_VIRTUALIZATION_MODE_HOST_VGPU, api.GPU_VIRTUALIZATION_MODE_HOST_VSGA, 99, 99,
		api.GPU_VIRTUALIZATION_MODE_VGPU}
	for i, mode := range modes {
		at(s, i).GetVirtualizationModeFunc = func() (api.GpuVirtualizationMode, api.Return) {
			if i == 7 {
				return mode, api.ERROR_UNKNOWN
			}
			return mode, api.SUCCESS
		}
	}
	for i, want := range []grant.Virtual{"", grant.PassThrough, grant.VGPU, grant.VGPUHost,
		grant.VGPUHost, "", "", ""} {
		if g := scan(t, s, machine(t, 8)).GPUs[i]; g.Virtual != want || g.Health != "ok" {
			t.Errorf("mode %d: %q with health %q, want %q", modes[i], g.Virtual, g.Health, want)
		}
	}
}

// TestADriverBeforeMIG: it lacks the functions, and calling one would end the process.
func TestADriverBeforeMIG(t *testing.T) {
	s := prepare(dgxa100.New())
	s.LookupSymbolFunc = without(cudaV2, memoryV2, "nvmlDeviceGetMigMode")
	for i := range s.Devices {
		at(s, i).GetMigModeFunc = nil // panics
	}
	scan(t, s, machine(t, 8))
}
