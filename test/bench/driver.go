package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	api "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/driver"
	"github.com/gpuledger/gpuledger/internal/gpu/nvml"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/test/elffile"
)

// The files of a whole installation of the driver, without 32-bit libraries (NVIDIA's README,
// "Installed Components"). A library that programs link with has a SONAME. A link of that name
// leads to the file, and a link without a number leads to the first link: libcuda.so, libcuda.so.1,
// libcuda.so.580.142. A library that only the driver uses has one name, that of its file.
const driverVersion = "999.1.1"

var (
	driverLibraries = strings.Fields(`cuda:1 cudadebugger:1 nvcuvid:1 nvoptix:1 EGL_nvidia:0 GLESv1_CM_nvidia:1 GLESv2_nvidia:2 GLX_nvidia:0 nvidia-allocator:1 nvidia-api:1 nvidia-cbl
		nvidia-cfg:1 nvidia-compiler nvidia-compiler-next nvidia-eglcore nvidia-encode:1 nvidia-fbc:1 nvidia-glcore nvidia-glsi nvidia-glvkspirv
		nvidia-gpucomp nvidia-gtk3 nvidia-ml:1 nvidia-ngx:1 nvidia-nscq:2 nvidia-nvvm:4 nvidia-nvvm70:4 nvidia-opencl:1 nvidia-opticalflow:1 nvidia-pkcs11
		nvidia-pkcs11-openssl3 nvidia-present nvidia-ptxjitcompiler:1 nvidia-rtcore nvidia-sandboxutils:1 nvidia-tileiras nvidia-tls nvidia-vksc-core:1
		nvidia-wayland-client nvidia-vulkan-producer nvidia-egl-gbm:1 nvidia-egl-wayland:1 nvidia-egl-xcb:1 nvidia-egl-xlib:1 vdpau_nvidia:1`)
	driverOthers = strings.Fields(`usr/bin/nvidia-smi usr/bin/nvidia-debugdump usr/bin/nvidia-xconfig usr/bin/nvidia-ngx-updater etc/OpenCL/vendors/nvidia.icd
		usr/share/glvnd/egl_vendor.d/10_nvidia.json usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json
		usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json usr/share/nvidia/nvoptix.bin
		usr/share/vulkan/icd.d/nvidia_icd.json usr/share/vulkan/implicit_layer.d/nvidia_layers.json usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf
		usr/lib/xorg/modules/drivers/nvidia_drv.so lib/firmware/nvidia/999.1.1/gsp_ga10x.bin lib/firmware/nvidia/999.1.1/gsp_tu10x.bin`)
)

// writeDriver makes a driver root with a whole installation. A library contains only its names,
// because none is loaded here.
func writeDriver(root string) error {
	files, links := map[string][]byte{}, map[string]string{}
	for _, library := range driverLibraries {
		name, number, versioned := strings.Cut(library, ":")
		plain := "lib" + name + ".so"
		file := plain + "." + driverVersion
		soname := file
		if versioned {
			soname = plain + "." + number
			links["usr/lib64/"+soname], links["usr/lib64/"+plain] = file, soname
		}
		files["usr/lib64/"+file] = elffile.Library(elf.ELFCLASS64, elf.EM_X86_64, soname)
	}
	for _, path := range driverOthers {
		files[path] = []byte(elf.ELFMAG + "a file of the driver\n")
	}
	for path, content := range files {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, content, 0o755)); err != nil {
			return err
		}
	}
	for path, target := range links {
		if err := os.Symlink(target, filepath.Join(root, path)); err != nil {
			return err
		}
	}
	return nil
}

// withLoader gives an image a loader with Debian's search path, which determines the directory for
// the driver's files. The loader is never run.
func withLoader(spec *specs.Spec) error {
	spec.Process.Env = append(spec.Process.Env, "NVIDIA_DRIVER_CAPABILITIES=all")
	loader := filepath.Join(spec.Root.Path, "lib64/ld-linux-x86-64.so.2")
	return errors.Join(os.MkdirAll(filepath.Join(spec.Root.Path, "lib/x86_64-linux-gnu"), 0o755),
		os.MkdirAll(filepath.Dir(loader), 0o755),
		os.WriteFile(loader,
			[]byte(
				"\x00/lib/x86_64-linux-gnu/\x00/usr/lib/x86_64-linux-gnu/"+
					"\x00/lib/\x00/usr/lib/\x00\x00/etc/ld.so.cache\x00"), 0o755))
}

// createWithDriver has the same mounts on both sides. It compares the time for finding their
// targets, for writing them down and for the image's ld.so.cache.
func createWithDriver(r *rig) ([]Row, error) {
	node, err := r.newDriverNode("driver", r.runtime)
	if err != nil {
		return nil, err
	}
	return r.sameConfig("driver", "the same with the driver's files, all capabilities", node,
		"/lib/x86_64-linux-gnu/libnvoptix.so.1", withLoader)
}

// newDriverNode is a node with a whole driver.
func (r *rig) newDriverNode(name, realRuntime string) (*node, error) {
	root := r.path("driver", name)
	if err := writeDriver(root); err != nil {
		return nil, err
	}
	node, err := r.newNode(name, realRuntime)
	if err != nil {
		return nil, err
	}
	config := strings.TrimPrefix(node.env[0], "GPULEDGER_CONFIG=")
	text, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	with := strings.Replace(string(text), "[inventory]\n",
		fmt.Sprintf("[inventory]\ndriver_root = %q\n", root), 1)
	return node, errors.Join(os.WriteFile(config, []byte(with), 0o644),
		r.run(node.cli("inventory", "refresh")))
}

// refreshInventory reads NVML's stand-in for a DGX H100 and finds the driver's files, as `gpuledger
// inventory refresh` does. It runs in this process, because the stand-in is no library that a
// program could load.
func refreshInventory(r *rig) ([]Row, error) {
	root := r.path("inventory-driver")
	if err := writeDriver(root); err != nil {
		return nil, err
	}
	lib, h := dgxh100.New(), host.Default()
	complete(lib)
	var took []float64
	for range max(r.options.pairs, 20) {
		begin := time.Now()
		inv, err := nvml.Scan(lib, h, root)
		if err != nil {
			return nil, err
		}
		found, err := driver.FindUserSpace(driver.Where{Root: root, Version: driverVersion})
		if err != nil {
			return nil, err
		}
		inv.Driver.Version, inv.Driver.Files = found.Version, found.Files
		if err := gpu.Write(r.path("inventory.json"), inv); err != nil {
			return nil, err
		}
		took = append(took, milliseconds(time.Since(begin)))
		if len(inv.GPUs) != 8 || len(inv.Driver.Files) < len(driverLibraries) {
			return nil, fmt.Errorf("the inventory has %d GPUs and %d files", len(inv.GPUs),
				len(inv.Driver.Files))
		}
	}
	row := Row{What: "inventory of a DGX H100 (stand-in NVML), with the driver's files",
		Who: "gpuledger inventory refresh", Took: spread(took), Budget: "100 ms"}
	row.within(row.Took.Median <= 100, true)
	return []Row{row}, nil
}

// complete adds to the stand-in what it lacks: PCI addresses. It also reports no newer calls than
// those that it answers.
func complete(s *server.Server) {
	newer := map[string]bool{"nvmlDeviceGetMemoryInfo_v2": true, "nvmlSystemGetCudaDriverVersion_v2": true,
		"nvmlDeviceGetVirtualizationMode": true}
	s.LookupSymbolFunc = func(symbol string) error {
		if newer[symbol] {
			return errors.New("undefined symbol")
		}
		return nil
	}
	for i := range s.Devices {
		s.Devices[i].(*server.Device).GetPciInfoFunc = func() (api.PciInfo,
			api.Return) {
			return api.PciInfo{Bus: uint32(i + 1)}, api.SUCCESS
		}
	}
}
