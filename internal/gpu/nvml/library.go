//go:build cgo

package nvml

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

const soname = "libnvidia-ml.so.1"

const hint = "is the NVIDIA driver installed? " + advice

// Refresh takes the inventory with the NVML that lies below driverRoot. The library stays bound to
// the process after the first call (the loader resolves each of its functions once), so one process
// can't scan two driver roots.
func Refresh(h host.Host, driverRoot string) (grant.Inventory, error) {
	path, err := libraryPath(driverRoot, h)
	if err != nil {
		return grant.Inventory{}, fmt.Errorf("cannot load NVML: %w; %s", err, hint)
	}
	lib := nvml.New(nvml.WithLibraryPath(path))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return grant.Inventory{}, initError(path, ret)
	}
	defer lib.Shutdown()
	return Scan(lib, h, driverRoot)
}

// initError says why NVML can't be used. go-nvml keeps the loader's reason to itself, so it is
// asked for once more.
func initError(path string, ret nvml.Return) error {
	if ret != nvml.ERROR_LIBRARY_NOT_FOUND {
		return fmt.Errorf("cannot start NVML: %v; %s", ret, hint)
	}
	reason := error(ret)
	if err := dl.New(path, dl.RTLD_LAZY).Open(); err != nil {
		reason = err
	}
	return fmt.Errorf("cannot load NVML: %w; %s", reason, hint)
}

// libraryPath finds NVML below a driver root. On the host's own root the loader knows best.
// Elsewhere the places are those that NVIDIA's container toolkit searches, and those of Debian's
// other drivers (nvidia/tesla-470). Debian's alternatives are absolute links, which lead out of the
// root: such a link is no find, and the next place has the file itself. Of several, only the loaded
// driver's works.
func libraryPath(driverRoot string, h host.Host) (string, error) {
	if driverRoot == "/" || driverRoot == "" {
		return soname, nil
	}
	root, err := os.OpenRoot(driverRoot)
	if err != nil {
		return "", err
	}
	defer root.Close()
	triplet := triplet()
	dirs := []string{".", "usr/lib64", "usr/lib/" + triplet, "usr/lib/" + triplet + "/nvidia/current",
		"lib64", "lib/" + triplet, "usr/lib", "lib"}
	others, _ := fs.Glob(root.FS(), "usr/lib/"+triplet+"/nvidia/*") // the pattern is valid
	first, version := "", loaded(h)
	for _, dir := range append(dirs, others...) {
		path := filepath.Join(dir, soname)
		if info, err := root.Stat(path); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if target, _ := root.Readlink(path); version != "" && strings.HasSuffix(target, ".so."+version) {
			first = path
			break
		}
		if first == "" {
			first = path
		}
	}
	if first == "" {
		return "", fmt.Errorf("there is no %s below the driver root %s", soname, driverRoot)
	}
	// With a slash in it the loader takes it as a path and searches nowhere.
	return filepath.Abs(filepath.Join(driverRoot, first))
}

// triplet is what Debian calls this architecture in paths.
func triplet() string {
	return map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
}

// loaded is the version of the kernel's driver; "" if it is unknown.
func loaded(h host.Host) string {
	text, _ := host.ReadFile(filepath.Join(h.Sys, "module/nvidia/version"), maxVersion)
	return strings.TrimSpace(string(text))
}

// maxVersion bounds a version, in bytes.
const maxVersion = 64

// symbols are functions of the C library that one Go function may call, the newest first.
type symbols []string

// needed are the functions without which there is no inventory.
var needed = []symbols{
	{"nvmlErrorString"},
	{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	{"nvmlDeviceGetUUID"},
	{"nvmlDeviceGetName"},
	{"nvmlDeviceGetMinorNumber"},
	{"nvmlDeviceGetMemoryInfo"},
	{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"},
	{"nvmlSystemGetDriverVersion"},
}

// mig are the functions that tell partitions; a driver before R450 has none.
var mig = []symbols{
	{"nvmlDeviceGetMigMode"},
	{"nvmlDeviceGetMaxMigDeviceCount"},
	{"nvmlDeviceGetMigDeviceHandleByIndex"},
	{"nvmlDeviceGetAttributes_v2", "nvmlDeviceGetAttributes"},
	{"nvmlDeviceGetGpuInstanceId"},
	{"nvmlDeviceGetComputeInstanceId"},
}

// has reports whether the library has the function. Calling one that it lacks ends the process:
// go-nvml is linked with unresolved symbols, and the loader meets them at the call.
func has(lib nvml.Interface, s symbols) bool {
	for _, name := range s {
		if lib.Extensions().LookupSymbol(name) == nil {
			return true
		}
	}
	return false
}

func hasAll(lib nvml.Interface, all []symbols) bool {
	for _, s := range all {
		if !has(lib, s) {
			return false
		}
	}
	return true
}

func checkLibrary(lib nvml.Interface) error {
	var missing []string
	for _, s := range needed {
		if !has(lib, s) {
			missing = append(missing, s[0])
		}
	}
	if missing != nil {
		return fmt.Errorf("cannot use NVML: it lacks %s", strings.Join(missing, ", "))
	}
	return nil
}
