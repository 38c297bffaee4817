package driver

import (
	"runtime"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// machine is what this program's architecture is called in paths.
var machine = map[string]struct{ triplet, cpu string }{
	"amd64": {"x86_64-linux-gnu", "x86_64"},
	"arm64": {"aarch64-linux-gnu", "aarch64"},
}[runtime.GOARCH]

// libraryDirs are where drivers install their libraries: of distributions, of NVIDIA's own
// installer, of driver containers, of NixOS; then those of 32-bit programs. What lies in several is
// taken from the first.
var libraryDirs = []string{
	"/usr/lib64", "/usr/lib/" + machine.triplet, "/usr/lib/" + machine.triplet + "/nvidia/current",
	"/usr/lib/" + machine.triplet + "/nvidia",
	"/lib64", "/lib/" + machine.triplet, "/lib/" + machine.triplet + "/nvidia/current",
	"/usr/lib", "/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/run/opengl-driver/lib", "/",
	"/usr/lib32", "/usr/lib/i386-linux-gnu", "/usr/lib/i386-linux-gnu/nvidia/current", "/lib32",
	"/lib/i386-linux-gnu", "/run/opengl-driver-32/lib",
}

// alternatives is the directory below which Debian has a directory for each driver that it can have
// installed: current, tesla-470. The loader's directory has links to the chosen one.
const alternatives = "nvidia"

// libraryParts are the directories below those that programs look into by name.
var libraryParts = []string{"", "vdpau", "gbm"}

// libraries are the driver's, by name without suffix, and what they are for (libnvidia-container's
// lists, and the driver's README, "Installed Components"). A library of the driver's version that
// is not listed is for every use: a newer driver's must not be missing.
var libraries = map[string]grant.Capability{
	"libcuda": grant.Compute, "libcudadebugger": grant.Compute, "libnvidia-opencl": grant.Compute,
	"libnvidia-gpucomp":        grant.Compute,
	"libnvidia-ptxjitcompiler": grant.Compute, "libnvidia-fatbinaryloader": grant.Compute,
	"libnvidia-allocator": grant.Compute,
	"libnvidia-compiler":  grant.Compute, "libnvidia-compiler-next": grant.Compute,
	"libnvidia-nvvm": grant.Compute, "libnvidia-nvvm70": grant.Compute,
	"libnvidia-pkcs11": grant.Compute, "libnvidia-pkcs11-openssl3": grant.Compute,
	"libnvidia-tileiras": grant.Compute,

	"libnvidia-ml": grant.Utility, "libnvidia-cfg": grant.Utility, "libnvidia-nscq": grant.Utility,
	"libnvidia-sandboxutils": grant.Utility,

	"libnvcuvid": grant.Video, "libnvidia-encode": grant.Video, "libnvidia-opticalflow": grant.Video,
	"libvdpau_nvidia": grant.Video,

	"libGLX_nvidia": grant.Graphics, "libEGL_nvidia": grant.Graphics, "libGLESv1_CM_nvidia": grant.Graphics,
	"libGLESv2_nvidia": grant.Graphics,
	"libnvidia-glcore": grant.Graphics, "libnvidia-eglcore": grant.Graphics, "libnvidia-glsi": grant.Graphics,
	"libnvidia-tls": grant.Graphics,
	"libnvidia-fbc": grant.Graphics, "libnvidia-ifr": grant.Graphics, "libnvidia-rtcore": grant.Graphics,
	"libnvoptix":          grant.Graphics,
	"libnvidia-glvkspirv": grant.Graphics, "libnvidia-cbl": grant.Graphics,
	"libnvidia-vulkan-producer": grant.Graphics, "libnvidia-present": grant.Graphics,
	"libnvidia-egl-gbm": grant.Graphics, "libnvidia-egl-wayland": grant.Graphics,
	"libnvidia-egl-wayland2": grant.Graphics,
	"libnvidia-egl-xcb":      grant.Graphics, "libnvidia-egl-xlib": grant.Graphics,
	"libnvidia-api": grant.Graphics,

	"libglxserver_nvidia": grant.Display, "libnvidia-gtk2": grant.Display, "libnvidia-gtk3": grant.Display,
	"libnvidia-wayland-client": grant.Display,

	"libnvidia-ngx": grant.NGX,
}

// ownVersions are libraries of the driver whose suffix can be a version of their own, which is
// smaller than any driver's. R470 has a libnvidia-nvvm.so.4.0.0.
var ownVersions = []string{"libnvidia-nvvm", "libnvidia-nvvm70", "libnvidia-egl-gbm", "libnvidia-egl-wayland",
	"libnvidia-egl-wayland2", "libnvidia-egl-xcb",
	"libnvidia-egl-xlib", "libnvidia-api"}

// moreNames are names that programs look for and that not every installation has a link for
// (NVIDIA's toolkit makes the same).
var moreNames = map[string]string{"libcuda": "libcuda.so", "libnvidia-ml": "libnvidia-ml.so",
	"libnvidia-encode": "libnvidia-encode.so", "libnvidia-fbc": "libnvidia-fbc.so",
	"libnvidia-ngx":         "libnvidia-ngx.so",
	"libnvidia-opticalflow": "libnvidia-opticalflow.so", "libGLX_nvidia": "libGLX_indirect.so.0",
	"libnvidia-allocator":       "gbm/nvidia-drm_gbm.so",
	"libnvidia-vulkan-producer": "libnvidia-vulkan-producer.so"}

// place is a file with a fixed name that is looked for in some directories, in their order.
type place struct {
	kind       grant.FileKind
	capability grant.Capability
	dirs       []string
	name       string // its last part is a pattern; directories before it are literal
	// directory in a container; "" is where it was found, and /usr/bin for a program that was found
	// in no directory of PATH
	target string
}

var (
	// ordinaryDirs are in the PATH of images.
	ordinaryDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	binaryDirs   = append(slices.Clone(ordinaryDirs), "/usr/local/nvidia/bin", "/run/current-system/sw/bin")
	runDirs      = []string{"/run", "/var/run"}
	configDirs   = []string{"/etc", "/usr/local/share", "/usr/share", "/usr/local/nvidia/share",
		"/run/opengl-driver/share"}
	vulkanDirs = append(append([]string{}, configDirs...), "/") // GKE has /vulkan below its driver root
)

// places lists the driver's files other than libraries and firmware. The directory of an MPS daemon
// is none of them, unlike in NVIDIA's generator: with it every container of the node could reach
// one shared daemon.
var places = []place{
	{grant.FileBinary, grant.Utility, binaryDirs, "nvidia-smi", ""},
	{grant.FileBinary, grant.Utility, binaryDirs, "nvidia-debugdump", ""},
	{grant.FileBinary, grant.Utility, binaryDirs, "nvidia-persistenced", ""},
	{grant.FileBinary, grant.Compute, binaryDirs, "nvidia-cuda-mps-control", ""},
	{grant.FileBinary, grant.Compute, binaryDirs, "nvidia-cuda-mps-server", ""},
	{grant.FileBinary, grant.Compute, binaryDirs, "nvidia-imex", ""},
	{grant.FileBinary, grant.Compute, binaryDirs, "nvidia-imex-ctl", ""},
	{grant.FileBinary, grant.Display, binaryDirs, "nvidia-xconfig", ""},
	{grant.FileBinary, grant.NGX, binaryDirs, "nvidia-ngx-updater", ""},

	{grant.FileSocket, grant.Utility, runDirs, "nvidia-persistenced/socket", ""},
	{grant.FileSocket, grant.Compute, runDirs, "nvidia-fabricmanager/socket", ""},

	{grant.FileConfig, grant.Compute, configDirs, "OpenCL/vendors/nvidia.icd", "/etc"},
	{grant.FileConfig, grant.Graphics, configDirs, "glvnd/egl_vendor.d/10_nvidia.json", "/usr/share"},
	{grant.FileConfig, grant.Graphics, configDirs,
		"egl/egl_external_platform.d/15_nvidia_gbm.json", "/usr/share"},
	{grant.FileConfig, grant.Graphics, configDirs, "egl/egl_external_platform.d/10_nvidia_wayland.json",
		"/usr/share"},
	{grant.FileConfig, grant.Graphics, configDirs, "egl/egl_external_platform.d/09_nvidia_wayland2.json",
		"/usr/share"},
	{grant.FileConfig, grant.Graphics, configDirs,
		"egl/egl_external_platform.d/20_nvidia_xcb.json", "/usr/share"},
	{grant.FileConfig, grant.Graphics, configDirs,
		"egl/egl_external_platform.d/20_nvidia_xlib.json", "/usr/share"},
	{grant.FileConfig, grant.Graphics, configDirs, "nvidia/nvoptix.bin", "/usr/share"},
	{grant.FileConfig, grant.Graphics, vulkanDirs, "vulkan/icd.d/nvidia_icd.json", "/etc"},
	{grant.FileConfig, grant.Graphics, vulkanDirs, "vulkan/icd.d/nvidia_icd." + machine.cpu + ".json",
		"/etc"},
	{grant.FileConfig, grant.Graphics, vulkanDirs, "vulkan/icd.d/nvidia_layers.json", "/etc"},
	{grant.FileConfig, grant.Graphics, vulkanDirs, "vulkan/implicit_layer.d/nvidia_layers.json", "/etc"},
	{grant.FileConfig, grant.Display, configDirs, "X11/xorg.conf.d/10-nvidia.conf", "/usr/share"},
	{grant.FileConfig, grant.Display, configDirs,
		"X11/xorg.conf.d/nvidia-drm-outputclass.conf", "/usr/share"},
}

// xorgParts are the directories of the X server's modules, below a library directory and below
// xorgDirs.
var (
	xorgDirs  = []string{"/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64"}
	xorgParts = []string{"modules/drivers", "modules/extensions", "modules/updates/drivers",
		"modules/updates/extensions"}
)

// firmwareDirs are where the kernel looks for firmware
// (Documentation/driver-api/firmware/fw_search_path.rst): the boot's own directory first.
func firmwareDirs(custom, release string) []string {
	var dirs []string
	if custom != "" {
		dirs = append(dirs, custom)
	}
	return append(dirs, "/lib/firmware/updates/"+release, "/lib/firmware/updates",
		"/lib/firmware/"+release, "/lib/firmware")
}
