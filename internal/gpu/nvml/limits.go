//go:build cgo

package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// What nvml.h of R615 declares of it, and go-nvml does not have yet
// (docs.nvidia.com/deploy/nvml-api, nvmlDeviceSetMemoryLimits_v1).
struct limits {
	const char *name_space; // the cgroup's directory
	unsigned long long soft, hard, used; // of a set there is no used
};

static int by_uuid(void *call, const char *uuid, void **device)
{
    return ((int (*)(const char *, void **))call)(uuid, device);
}
static int limit(void *call, void *device, struct limits *l)
{
    return ((int (*)(void *, struct limits *))call)(device, l);
}
static int start(void *call) { return ((int (*)(void))call)(); }
static const char *words(void *call, int code) { return ((const char *(*)(int))call)(code); }
*/
import "C"

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// The calls by which the driver limits what a cgroup has of a GPU.
const (
	setLimits = "nvmlDeviceSetMemoryLimits_v1"
	getLimits = "nvmlDeviceGetMemoryLimits_v1"
)

// firstLimiting is the first branch of the driver that documents them.
const firstLimiting = 615

// memoryLimits is grant.CanLimit where the driver can limit a cgroup's memory, else why not.
func memoryLimits(lib nvml.Interface, version string) string {
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < firstLimiting {
		return fmt.Sprintf("driver %s does not limit memory, %d and newer do", version, firstLimiting)
	}
	for _, call := range []string{setLimits, getLimits} {
		if !has(lib, symbols{call}) {
			return "its NVML has no " + call
		}
	}
	return grant.CanLimit
}

// CgroupLimiter sets the driver's memory limits. Use it in a process that can be killed, like a
// Sampler.
type CgroupLimiter struct{ byUUID, set, get, words unsafe.Pointer }

// OpenCgroupLimiter loads the NVML below driverRoot. It looks the calls up by name: a library
// without them is an error here and not a crash later.
func OpenCgroupLimiter(driverRoot string) (*CgroupLimiter, error) {
	path, err := libraryPath(driverRoot, host.Default())
	if err != nil {
		return nil, fmt.Errorf("cannot load NVML: %w; %s", err, hint)
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	lib := C.dlopen(name, C.RTLD_NOW)
	if lib == nil {
		return nil, fmt.Errorf("cannot load NVML: %s; %s", C.GoString(C.dlerror()), hint)
	}
	var l CgroupLimiter
	var init unsafe.Pointer
	for call, to := range map[string]*unsafe.Pointer{"nvmlInit_v2": &init, "nvmlErrorString": &l.words,
		"nvmlDeviceGetHandleByUUID": &l.byUUID, setLimits: &l.set, getLimits: &l.get} {
		symbol := C.CString(call)
		*to = C.dlsym(lib, symbol)
		C.free(unsafe.Pointer(symbol))
		if *to == nil {
			return nil, fmt.Errorf("cannot use NVML: it has no %s", call)
		}
	}
	return &l, l.failure("start NVML", C.start(init))
}

func (l *CgroupLimiter) failure(what string, code C.int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("cannot %s: %s", what, C.GoString(C.words(l.words, code)))
}

// Limit sets the limit if asked to, and returns what the limit is then. Error in the answer says
// why it could not.
func (l *CgroupLimiter) Limit(ask grant.CgroupLimit) grant.CgroupLimit {
	hard, err := l.limit(ask)
	ask.Hard = hard
	if err != nil {
		ask.Error = err.Error()
	}
	return ask
}

// notSupported is what a cgroup without limits answers with some drivers, and a driver without any
// for all.
const notSupported = 3 // NVML_ERROR_NOT_SUPPORTED

func (l *CgroupLimiter) limit(ask grant.CgroupLimit) (grant.Bytes, error) {
	if strings.HasPrefix(ask.GPU, "MIG-") {
		return 0, errors.New("the driver limits no MIG device")
	}
	uuid, cgroup := C.CString(ask.GPU), C.CString(ask.Cgroup)
	defer C.free(unsafe.Pointer(uuid))
	defer C.free(unsafe.Pointer(cgroup))
	var device unsafe.Pointer
	if err := l.failure("find GPU "+ask.GPU, C.by_uuid(l.byUUID, uuid, &device)); err != nil {
		return 0, err
	}
	if ask.Set {
		// The soft limit stays 0: what is reserved for a cgroup stays reserved on its ancestors
		// when it is removed.
		order := C.struct_limits{name_space: cgroup, hard: C.ulonglong(ask.Hard)}
		if err := l.failure("set the limit of "+ask.Cgroup, C.limit(l.set, device, &order)); err != nil {
			return 0, err
		}
	}
	now := C.struct_limits{name_space: cgroup}
	code := C.limit(l.get, device, &now)
	if code == notSupported {
		return grant.NoLimit, nil
	}
	return grant.Bytes(now.hard), l.failure("read the limit of "+ask.Cgroup, code)
}
