/* Tests of the libnvidia-ml proxy. The grant is 256 MiB on GPU 0 and 128 MiB on GPU 1. */
#define _GNU_SOURCE
#include "driver.h"
#include "tap.h"

#include "../place.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRANT = 256, GRANT1 = 128 };

nvmlReturn_t nvmlInit_v2(void), nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos);
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, void *list);

static nvmlDevice_t device(unsigned int index)
{
    nvmlDevice_t d = NULL;
    nvmlInit_v2();
    IS(nvmlDeviceGetHandleByIndex_v2(index, &d), NVML_SUCCESS, "NVML starts");
    return d;
}

/* worker starts a process that allocates through libcuda and waits to be killed. */
static pid_t worker(int ordinal, size_t mib)
{
    int ready[2];
    char byte = 'n';
    pid_t pid;

    if (pipe(ready) < 0) return -1;
    if ((pid = fork()) == 0) {
        void *lib = dlopen("libcuda.so.1", RTLD_NOW);
        CUresult (*init)(unsigned int) = (CUresult(*)(unsigned int))dlsym(lib, "cuInit");
        CUresult (*create)(CUcontext *, unsigned int, CUdevice) = (CUresult(*)(CUcontext *, unsigned int, CUdevice))dlsym(lib, "cuCtxCreate_v2");
        CUresult (*alloc)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))dlsym(lib, "cuMemAlloc_v2");
        CUcontext c;
        CUdeviceptr p;
        byte = init(0) || create(&c, 0, ordinal) || alloc(&p, mib * MIB) ? 'n' : 'y';
        if (write(ready[1], &byte, 1) == 1)
            for (;;) pause();
        _exit(1);
    }
    if (read(ready[0], &byte, 1) != 1 || byte != 'y') OK(0, "the worker allocates");
    close(ready[0]);
    close(ready[1]);
    return pid;
}
static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void memory_is_the_grant(void)
{
    nvmlDevice_t zero = device(0), one = device(1);
    nvmlMemory_t m;
    nvmlMemory_v2_t v = {.version = NVML_MEMORY_V2};
    pid_t w = worker(0, 100);

    IS(nvmlDeviceGetMemoryInfo(zero, &m), 0, "memory");
    IS(m.total, GRANT * MIB, "is the grant");
    IS(m.used, 100 * MIB, "of which the container's processes use this much");
    IS(m.free, 156 * MIB, "and this is left");
    m.total = 0;
    IS(nvmlDeviceGetConfComputeProtectedMemoryUsage(zero, &m), 0, "protected memory");
    IS(m.total, GRANT * MIB, "is the grant, too");
    IS(nvmlDeviceGetMemoryInfo_v2(zero, &v), 0, "by version 2");
    IS(v.total - v.used - v.free - v.reserved, 0, "the same, with nothing reserved");
    IS(v.version, NVML_MEMORY_V2, "and the version as it was");
    IS(nvmlDeviceGetMemoryInfo(one, &m), 0, "the other device");
    IS(m.total, GRANT1 * MIB, "has its own grant");
    IS(m.used, 0, "and its own use");
    end(w);
    nvmlDeviceGetMemoryInfo(zero, &m);
    IS(m.used, 0, "killed, a process uses nothing");
}

static void processes_are_the_containers(void)
{
    nvmlDevice_t zero = device(0);
    nvmlProcessInfo_v1_t v1[4];
    nvmlProcessInfo_v2_t v2[4];
    pid_t a = worker(0, 100), b = worker(0, 50), c = worker(1, 25);
    unsigned int n = 0;

    IS(nvmlDeviceGetComputeRunningProcesses_v3(zero, &n, NULL), NVML_ERROR_INSUFFICIENT_SIZE, "asked how many");
    IS(n, 2, "two on this device");
    n = 1;
    IS(nvmlDeviceGetComputeRunningProcesses_v3(zero, &n, v2), NVML_ERROR_INSUFFICIENT_SIZE, "too little room");
    n = 4;
    IS(nvmlDeviceGetComputeRunningProcesses_v3(zero, &n, v2), 0, "room for all");
    IS(n, 2, "two");
    OK(v2[0].pid == (unsigned int)a && v2[0].usedGpuMemory == 100 * MIB, "the first");
    OK(v2[1].pid == (unsigned int)b && v2[1].usedGpuMemory == 50 * MIB && v2[1].gpuInstanceId == ~0u, "the second");
    n = 4;
    IS(nvmlDeviceGetComputeRunningProcesses_v2(zero, &n, v2), 0, "by version 2");
    IS(n, 2, "the same");
    n = 4;
    IS(nvmlDeviceGetComputeRunningProcesses(zero, &n, v1), 0, "by version 1");
    OK(n == 2 && v1[1].pid == (unsigned int)b && v1[1].usedGpuMemory == 50 * MIB, "the same, in its smaller structures");
    n = 4;
    IS(nvmlDeviceGetGraphicsRunningProcesses_v3(zero, &n, v2), 0, "graphics");
    IS(n, 0, "none");
    n = 4;
    IS(nvmlDeviceGetMPSComputeRunningProcesses_v3(zero, &n, v2), 0, "MPS");
    IS(n, 0, "none");
    IS(nvmlDeviceGetRunningProcessDetailList(zero, v2), NVML_ERROR_NOT_SUPPORTED, "the list that would show other processes is refused");
    end(a);
    end(b);
    end(c);
    n = 0;
    IS(nvmlDeviceGetComputeRunningProcesses_v3(zero, &n, NULL), 0, "none left");
}

static void wrong_arguments_are_passed_to_nvml(void)
{
    nvmlDevice_t zero = device(0);
    nvmlMemory_v2_t v = {.version = 1};
    nvmlMemory_t m;
    unsigned int n = 0;

    IS(nvmlDeviceGetMemoryInfo(zero, NULL), NVML_ERROR_INVALID_ARGUMENT, "no structure");
    IS(nvmlDeviceGetMemoryInfo(NULL, &m), NVML_ERROR_INVALID_ARGUMENT, "no device");
    IS(nvmlDeviceGetMemoryInfo_v2(zero, &v), NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "an invalid version");
    IS(nvmlDeviceGetMemoryInfo_v2(zero, NULL), NVML_ERROR_INVALID_ARGUMENT, "no structure");
    IS(nvmlDeviceGetComputeRunningProcesses_v3(zero, NULL, NULL), NVML_ERROR_INVALID_ARGUMENT, "no count");
    IS(nvmlDeviceGetComputeRunningProcesses_v3(NULL, &n, NULL), NVML_ERROR_INVALID_ARGUMENT, "no device");
    nvmlShutdown();
    IS(nvmlDeviceGetMemoryInfo(zero, &m), NVML_ERROR_UNINITIALIZED, "before the start");
}

static void other_calls_are_passed_to_nvml(void)
{
    nvmlBAR1Memory_t bar;
    IS(nvmlDeviceGetBAR1MemoryInfo(device(0), &bar), 0, "the aperture");
    IS(bar.bar1Total, 32768 * MIB, "is the card's");
}

static void without_limits_there_is_no_report(void)
{
    nvmlDevice_t zero = device(0);
    nvmlMemory_t m = {1, 1, 1};
    unsigned int n = 0;

    unlink(PLACE_LIMITS);
    IS(nvmlDeviceGetMemoryInfo(zero, &m), NVML_ERROR_NO_PERMISSION, "memory is not reported");
    IS(m.total + m.free + m.used, 0, "and the GPU's own numbers are not shown");
    IS(nvmlDeviceGetComputeRunningProcesses_v3(zero, &n, NULL), NVML_ERROR_NO_PERMISSION, "nor are processes");
}

static const struct tap_test tests[] = {
    {"memory_is_the_grant", memory_is_the_grant}, {"processes_are_the_containers", processes_are_the_containers},
    {"wrong_arguments_are_passed_to_nvml", wrong_arguments_are_passed_to_nvml}, {"other_calls_are_passed_to_nvml", other_calls_are_passed_to_nvml},
    {"without_limits_there_is_no_report", without_limits_there_is_no_report}, {NULL, NULL},
};

int main(int argc, char **argv) { return tap_main(argc, argv, tests); }
