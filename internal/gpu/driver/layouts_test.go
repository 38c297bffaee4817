package driver_test

import (
	"maps"
	"path/filepath"
	"strings"
)

// installed lists what driver 580.142 installs as libraries, by name with the SONAME, as its own
// README does.
const installed = `libcuda 1, libcudadebugger 1, libnvidia-ml 1, libnvidia-cfg 1, libnvidia-ptxjitcompiler 1, libnvidia-nvvm 4, libnvidia-opencl 1, libnvidia-allocator 1,
libnvidia-gpucomp -, libnvidia-pkcs11 -, libnvidia-pkcs11-openssl3 -, libnvidia-tileiras -, libnvidia-sandboxutils 1,
libnvcuvid 1, libnvidia-encode 1, libnvidia-opticalflow 1, libnvidia-fbc 1, libGLX_nvidia 0, libEGL_nvidia 0, libGLESv1_CM_nvidia 1, libGLESv2_nvidia 2,
libnvidia-glcore -, libnvidia-eglcore -, libnvidia-glsi -, libnvidia-tls -, libnvidia-rtcore -, libnvidia-glvkspirv -, libnvoptix 1,
libnvidia-vulkan-producer -, libnvidia-present -, libnvidia-gtk3 -, libnvidia-wayland-client -, libnvidia-ngx 1, libnvidia-brandnew 1`

// libraries puts the driver's libraries into a directory as ldconfig leaves them: the file, and a
// link with its SONAME. kind is "so" or "so32".
func libraries(kind, dir, version string) root {
	r := root{}
	for _, entry := range strings.FieldsFunc(installed, func(c rune) bool { return c == ',' || c == '\n' }) {
		name, major, _ := strings.Cut(strings.TrimSpace(entry), " ")
		file := name + ".so." + version
		if major == "-" {
			r[filepath.Join(dir, file)] = kind + " " + file
			continue
		}
		r[filepath.Join(dir, file)] = kind + " " + name + ".so." + major
		r[filepath.Join(dir, name+".so."+major)] = "-> " + file
	}
	r[filepath.Join(dir, "vdpau/libvdpau_nvidia.so."+version)] = kind + " libvdpau_nvidia.so.1"
	r[filepath.Join(dir, "vdpau/libvdpau_nvidia.so.1")] = "-> libvdpau_nvidia.so." + version
	return r
}

func together(parts ...root) root {
	all := root{}
	for _, p := range parts {
		maps.Copy(all, p)
	}
	return all
}

const version = "580.142"

// others returns libraries that look like the driver's and are not: the image's own stay in use.
func others(dir string) root {
	r := root{}
	for name, content := range map[string]string{
		"libc.so.6": "so libc.so.6", "libnvidia-container.so.1.19.0": "so libnvidia-container.so.1",
		"libnvidia-container.so.1": "-> libnvidia-container.so.1.19.0",
		"libEGL.so.1.1.0":          "so libEGL.so.1", "libEGL.so.1": "-> libEGL.so.1.1.0",
		"libOpenCL.so.1.0.0": "so libOpenCL.so.1", "libcudart.so.13.0.96": "so libcudart.so.13",
		"libcuda.a": "x", "libother.so.580.14": "so x", "libnvidia-ml.a": "x",
	} {
		r[filepath.Join(dir, name)] = content
	}
	return r
}

// debian is a full installation by NVIDIA's packages on Debian or Ubuntu, with 32-bit libraries and
// a running system's sockets.
func debian() root {
	const dir = "usr/lib/x86_64-linux-gnu"
	return together(libraries("so", dir, version), libraries("so32", "usr/lib/i386-linux-gnu",
		version), others(dir), root{
		"lib": "-> usr/lib", "lib64": "-> usr/lib64", "bin": "-> usr/bin", "sbin": "-> usr/sbin",
		"var/run":           "-> /run",
		dir + "/libcuda.so": "-> libcuda.so.1", dir + "/libnvidia-ml.so": "-> libnvidia-ml.so.1",
		dir + "/gbm/nvidia-drm_gbm.so":      "-> ../libnvidia-allocator.so.1",
		dir + "/libnvidia-nvvm70.so.4":      "so libnvidia-nvvm70.so.4",
		dir + "/libnvidia-egl-gbm.so.1.1.2": "so libnvidia-egl-gbm.so.1", dir +
			"/libnvidia-egl-gbm.so.1": "-> libnvidia-egl-gbm.so.1.1.2",
		dir + "/libnvidia-egl-wayland.so.1.1.19": "so libnvidia-egl-wayland.so.1", dir +
			"/libnvidia-egl-wayland.so.1": "-> libnvidia-egl-wayland.so.1.1.19",
		dir + "/nvidia/xorg/nvidia_drv.so": "so nvidia_drv.so", dir + "/nvidia/xorg/libglxserver_nvidia.so." +
			version: "so libglxserver_nvidia.so",
		"usr/bin/nvidia-smi": "elf", "usr/bin/nvidia-debugdump": "elf", "usr/bin/nvidia-persistenced": "elf",
		"usr/bin/nvidia-cuda-mps-control": "elf",
		"usr/bin/nvidia-cuda-mps-server":  "-> /etc/alternatives/mps",
		"etc/alternatives/mps":            "-> /usr/lib/nvidia/mps", "usr/lib/nvidia/mps": "elf",
		"usr/bin/nvidia-xconfig":                                "elf",
		"usr/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin": "x", "usr/lib/firmware/nvidia/" + version +
			"/gsp_tu10x.bin": "x", "usr/lib/firmware/nvidia/" + version + "/other.bin": "x",
		"usr/lib/firmware/nvidia/570.1/gsp_ga10x.bin": "x",
		"run/nvidia-persistenced/socket":              "socket", "run/nvidia-fabricmanager/socket": "socket",
		"tmp/nvidia-mps/control":                                       "x",
		"usr/share/glvnd/egl_vendor.d/10_nvidia.json":                  "{}",
		"usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json":     "{}",
		"usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json": "{}",
		"usr/share/nvidia/nvoptix.bin":                                 "x",
		"etc/OpenCL/vendors/nvidia.icd":                                "libnvidia-opencl.so.1",
		"usr/share/vulkan/icd.d/nvidia_icd.json":                       "{}",
		"usr/share/vulkan/implicit_layer.d/nvidia_layers.json":         "{}",
		"usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf":        "x",
	})
}

// rhel is a full installation by packages for RHEL and its derivatives.
func rhel() root {
	return together(libraries("so", "usr/lib64", version), libraries("so32", "usr/lib", version),
		others("usr/lib64"), root{
			"lib": "-> usr/lib", "lib64": "-> usr/lib64", "usr/lib64/libcuda.so": "-> libcuda.so.1",
			"usr/bin/nvidia-smi": "elf", "usr/lib64/xorg/modules/drivers/nvidia_drv.so": "so nvidia_drv.so",
			"usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so." +
				version: "so libglxserver_nvidia.so",
			"usr/share/vulkan/icd.d/nvidia_icd.x86_64.json":         "{}",
			"usr/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin": "x",
		})
}

// debianTesla is Debian's own packages of driver 470 for old cards (tesla-470) beside its current
// one: each driver has a directory, and alternatives lead from the loader's to the chosen one's.
// The server of MPS is in /usr/sbin. Without links, only the directories are there.
func debianTesla(links bool) root {
	const lib = "usr/lib/x86_64-linux-gnu"
	of := func(dir, version string) root {
		r := libraries("so", lib+"/nvidia/"+dir, version)
		delete(r, lib+"/nvidia/"+dir+"/libnvidia-nvvm.so."+version)
		delete(r, lib+"/nvidia/"+dir+"/libnvidia-nvvm.so.4")
		return r
	}
	r := together(of("tesla-470", "470.256.02"), of("current", "535.183.01"), root{
		lib + "/nvidia/xorg/nvidia_drv.so":    "so nvidia_drv.so",
		lib + "/libnvidia-nvvm.so.4.0.0":      "so libnvidia-nvvm.so.4",
		lib + "/libnvidia-nvvm.so.4":          "-> libnvidia-nvvm.so.4.0.0",
		"usr/lib/nvidia/tesla-470/nvidia-smi": "elf",
		"usr/bin/nvidia-cuda-mps-control":     "elf",
		"usr/sbin/nvidia-cuda-mps-server":     "elf",
		"etc/alternatives/nvidia--nvidia-smi": "-> /usr/lib/nvidia/tesla-470/nvidia-smi",
		"usr/bin/nvidia-smi":                  "-> /etc/alternatives/nvidia--nvidia-smi",
	})
	if !links {
		return r
	}
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		r[lib+"/"+name] = "-> /etc/alternatives/nvidia--" + name
		r["etc/alternatives/nvidia--"+name] = "-> /" + lib + "/nvidia/tesla-470/" + name
	}
	return r
}

// installer is an installation by NVIDIA's own installer: each library with a link of its SONAME,
// and some with one without a version. An older driver's libraries were left behind.
func installer() root {
	const lib = "usr/lib/x86_64-linux-gnu"
	r := together(libraries("so", lib, version), root{
		lib + "/libcuda.so.470.256.02":   "so libcuda.so.1",
		lib + "/libnvidia-nvvm.so.4.0.0": "so libnvidia-nvvm.so.4",
		"usr/bin/nvidia-smi":             "elf", "usr/bin/nvidia-cuda-mps-control": "elf",
		"usr/bin/nvidia-cuda-mps-server": "elf",
	})
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-encode.so.1",
		"libnvidia-nvvm.so.4"} {
		plain, _, _ := strings.Cut(name, ".so.")
		r[lib+"/"+plain+".so"] = "-> " + name
	}
	return r
}
