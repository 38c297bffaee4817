/* A libnvidia-ml that reports the GPUs of the shared state. */
#include "../../shim/nvml_abi.h"
#include "shared.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DRIVER_VERSION_TEXT FAKEDRIVER_VERSION
#define API __attribute__((visibility("default")))

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

struct nvmlDevice_st { int index; };
static struct nvmlDevice_st handles[SHARED_GPUS];
static int users;

/* index_of is -1 for an invalid handle. */
static int index_of(nvmlDevice_t d)
{
    return d >= handles && d < handles + shared_gpus() ? (int)(d - handles) : -1;
}

#define NEED(index, condition)                                    \
    int index = index_of(device);                                 \
    if (users == 0) return NVML_ERROR_UNINITIALIZED;              \
    if (index < 0 || !(condition)) return NVML_ERROR_INVALID_ARGUMENT

API nvmlReturn_t nvmlInit_v2(void)
{
    if (!shared_open()) return NVML_ERROR_DRIVER_NOT_LOADED;
    users++;
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }
API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return nvmlInit_v2(); }
API nvmlReturn_t nvmlShutdown(void)
{
    if (users == 0) return NVML_ERROR_UNINITIALIZED;
    users--;
    return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t r)
{
    switch (r) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    default: return "Unknown Error";
    }
}

static nvmlReturn_t text(char *to, unsigned int length, const char *from)
{
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(from) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) { return text(version, length, DRIVER_VERSION_TEXT); }
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) { return text(version, length, "13." DRIVER_VERSION_TEXT); }
API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    *version = 13000;
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n)
{
    if (users == 0) return NVML_ERROR_UNINITIALIZED;
    if (!n) return NVML_ERROR_INVALID_ARGUMENT;
    *n = (unsigned int)shared_gpus();
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetCount(unsigned int *n) { return nvmlDeviceGetCount_v2(n); }

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (users == 0) return NVML_ERROR_UNINITIALIZED;
    if (!device || index >= (unsigned int)shared_gpus()) return NVML_ERROR_INVALID_ARGUMENT;
    *device = &handles[index];
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (users == 0) return NVML_ERROR_UNINITIALIZED;
    if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < shared_gpus(); i++)
        if (strcmp(uuid, shared_gpu(i)->uuid) == 0) return nvmlDeviceGetHandleByIndex_v2((unsigned int)i, device);
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    NEED(i, uuid);
    return text(uuid, length, shared_gpu(i)->uuid);
}
API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    NEED(i, name);
    return text(name, length, shared_gpu(i)->name);
}
API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    NEED(i, index);
    *index = (unsigned int)i;
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) { return nvmlDeviceGetIndex(device, minor); }

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    NEED(i, pci);
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned int)i + 1;
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *m)
{
    NEED(i, m);
    m->total = shared_gpu(i)->memory;
    m->used = shared_used(i);
    m->free = m->total - m->used;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t d, nvmlMemory_t *m) { return nvmlDeviceGetMemoryInfo(d, m); }
API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *m)
{
    NEED(i, m);
    if (m->version != NVML_MEMORY_V2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    m->total = shared_gpu(i)->memory;
    m->used = shared_used(i);
    m->reserved = 0;
    m->free = m->total - m->used;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *m)
{
    NEED(i, m);
    *m = (nvmlBAR1Memory_t){.bar1Total = shared_gpu(i)->memory * 2, .bar1Free = shared_gpu(i)->memory * 2};
    return NVML_SUCCESS;
}

/* processes answers all six calls. With too little room it only returns how much is needed. */
static nvmlReturn_t processes(int gpu, unsigned int *n, void *infos, size_t size)
{
    struct shared_process list[1024];
    int found = shared_processes(gpu, list, 1024);
    char *to = infos;

    if (found > 0 && (*n < (unsigned int)found || !infos)) {
        *n = (unsigned int)found;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (int i = 0; i < found; i++, to += size) {
        nvmlProcessInfo_v2_t p = {.pid = list[i].pid, .usedGpuMemory = list[i].used, .gpuInstanceId = ~0u, .computeInstanceId = ~0u};
        memcpy(to, &p, size);
    }
    *n = (unsigned int)found;
    return NVML_SUCCESS;
}

#define PROCESSES(name, type)                                                                   \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int *n, type *infos)                    \
    {                                                                                           \
        NEED(i, n);                                                                             \
        return processes(i, n, infos, sizeof *infos);                                           \
    }
#define NO_PROCESSES(name, type)                                                                \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int *n, type *infos)                    \
    {                                                                                           \
        NEED(i, n);                                                                             \
        (void)infos;                                                                            \
        *n = 0;                                                                                 \
        return NVML_SUCCESS;                                                                    \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)

/* Milliwatts, and degrees Celsius of sensor 0, the GPU's own: another value for each GPU. */
API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    NEED(i, milliwatts);
    *milliwatts = 60500u + 1000u * (unsigned int)i;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    NEED(i, celsius && sensor == 0);
    *celsius = 40u + (unsigned int)i;
    return NVML_SUCCESS;
}

typedef struct { unsigned int pid; unsigned long long timeStamp; unsigned int smUtil, memUtil, encUtil, decUtil; } nvmlProcessUtilizationSample_t;

/* What each process had of the GPU's time since this process's last call; the first call returns none. A call for the
 * number of samples, which all callers make first, is a look: it advances a simulated clock. */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *n, unsigned long long since)
{
    enum { MOST = 1024 };
    static struct shared_process before[SHARED_GPUS][MOST];
    static int known[SHARED_GPUS];
    static uint64_t asked[SHARED_GPUS];
    struct shared_process now[MOST];
    uint64_t clock, passed;
    int found;
    NEED(i, n);

    (void)since;
    if (shared_launch_time() == 0) return NVML_ERROR_NOT_SUPPORTED;
    if (!samples) shared_look();
    clock = shared_clock();
    found = shared_busy(i, now, MOST);
    if (found == 0) return NVML_ERROR_NOT_FOUND;
    if (!samples || *n < (unsigned int)found) return *n = (unsigned int)found, NVML_ERROR_INSUFFICIENT_SIZE;
    passed = clock > asked[i] ? clock - asked[i] : 1;
    for (int k = 0; k < found; k++) {
        uint64_t ran = 0, percent;
        for (int b = 0; b < known[i]; b++)
            if (before[i][b].pid == now[k].pid && before[i][b].used <= now[k].used) ran = now[k].used - before[i][b].used;
        percent = ran * 100 / passed;
        samples[k] = (nvmlProcessUtilizationSample_t){.pid = now[k].pid, .timeStamp = clock, .smUtil = percent > 100 ? 100 : (unsigned int)percent};
    }
    memcpy(before[i], now, sizeof *now * (size_t)found);
    known[i] = found;
    asked[i] = clock;
    *n = (unsigned int)found;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, void *list)
{
    NEED(i, list);
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    NEED(i, current && pending);
    *current = *pending = 0;
    return NVML_SUCCESS;
}

#ifdef FAKEDRIVER_LIMITS
/* From R615 on (docs.nvidia.com/deploy/nvml-api): a set has no currentUsed. */
typedef struct { const char *nameSpace; unsigned long long softLimit, hardLimit; } nvmlSetMemoryLimits_v1_t;
typedef struct { const char *nameSpace; unsigned long long softLimit, hardLimit, currentUsed; } nvmlGetMemoryLimits_v1_t;

API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    char wish[32];
    struct stat st;
    NEED(i, limits && limits->nameSpace && limits->softLimit <= limits->hardLimit);

    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    if (stat(limits->nameSpace, &st) < 0) return NVML_ERROR_INVALID_ARGUMENT;
    shared_wish(wish, sizeof wish);
    if (strcmp(wish, "fail") == 0) return NVML_ERROR_UNKNOWN;
    if (strcmp(wish, "ignore") == 0) return NVML_SUCCESS;
    return shared_set_limit(i, limits->nameSpace, limits->softLimit, limits->hardLimit) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    uint64_t soft = 0, hard = SHARED_NO_LIMIT, used = 0;
    NEED(i, limits && limits->nameSpace);

    if (!shared_limit(i, limits->nameSpace, &soft, &hard, &used)) return NVML_ERROR_NOT_SUPPORTED; /* as for a cgroup without a limit */
    limits->softLimit = soft;
    limits->hardLimit = hard;
    limits->currentUsed = used;
    return NVML_SUCCESS;
}
#endif

API nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
    (void)id;
    if (table) *table = NULL;
    return NVML_ERROR_NOT_SUPPORTED;
}

/* Not NVML's: what the memory of a GPU was at most, in all processes, for tests. */
API unsigned long long fakedriverPeak(unsigned int gpu) { return shared_open() ? shared_peak((int)gpu) : ~0ull; }
