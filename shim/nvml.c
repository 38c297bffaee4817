/* The proxy of libnvidia-ml: it reports the container's grant instead of the GPU. NVML allocates
 * nothing, so if the account cannot be read, only the reports fail. */
#include "account.h"
#include "nvml_abi.h"
#include "nvml_entries.h"
#include "os.h"
#include "place.h"

#include <stddef.h>
#include <string.h>

#define API __attribute__((visibility("default")))

/* The prototypes. Process lists have structures with (v2) and without (v1) the MIG instance. */
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
API nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory);
API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, void *list);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);
#define PROCESS_LISTS(ROW)                                                       \
    ROW(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)        \
    ROW(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true)     \
    ROW(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, true)     \
    ROW(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)      \
    ROW(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false)   \
    ROW(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t, false)   \
    ROW(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)    \
    ROW(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, false) \
    ROW(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, false)
#define PROTOTYPE(name, type, compute) API nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos);
PROCESS_LISTS(PROTOTYPE)

static nvmlReturn_t absent(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

#define REAL(f) ((__typeof__(f) *)real_address(real_##f))
#define REAL_ROW(name, how, why) real_##name,
#define REAL_USED(name) real_##name,
enum { NVML_WRAPPED(REAL_ROW) NVML_USED(REAL_USED) real_count };
#define NAME_ROW(name, how, why) #name,
#define NAME_USED(name) #name,
static const char *const names[real_count] = {NVML_WRAPPED(NAME_ROW) NVML_USED(NAME_USED)};

static void *real_address(int entry)
{
    static void *found[real_count];
    void *f = __atomic_load_n(&found[entry], __ATOMIC_RELAXED), *lib;

    if (f) return f;
    lib = os_library(PLACE_LIBNVML);
    f = lib ? os_symbol(lib, names[entry]) : NULL;
    if (!f) f = (void *)absent;
    __atomic_store_n(&found[entry], f, __ATOMIC_RELAXED);
    return f;
}

static int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

/* parse_uuid reads GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or the same with MIG. */
static bool parse_uuid(const char *text, uint8_t uuid[16])
{
    if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0) return false;
    text += 4;
    for (int i = 0; i < 16; i++, text += 2) {
        int high, low;
        if (i == 4 || i == 6 || i == 8 || i == 10)
            if (*text++ != '-') return false;
        if ((high = digit(text[0])) < 0 || (low = digit(text[1])) < 0) return false;
        uuid[i] = (uint8_t)(high << 4 | low);
    }
    return *text == 0;
}

/* device_of finds the account's number of a device, -1 for one that is not in the grant. */
static nvmlReturn_t device_of(nvmlDevice_t handle, int *device)
{
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    uint8_t uuid[16];
    nvmlReturn_t r = REAL(nvmlDeviceGetUUID)(handle, text, sizeof text);

    if (r != NVML_SUCCESS) return r;
    if (!account_open(PLACE_LIMITS, PLACE_REGION)) return NVML_ERROR_NO_PERMISSION;
    *device = parse_uuid(text, uuid) ? account_device(uuid) : -1;
    return NVML_SUCCESS;
}

static nvmlReturn_t read_usage(nvmlDevice_t handle, struct account_usage *u)
{
    int device;
    nvmlReturn_t r = device_of(handle, &device);

    if (r == NVML_SUCCESS) *u = account_usage(device);
    return r;
}

/* report_memory puts the grant in place of what the driver has reported. The driver is called first:
 * it checks the arguments. */
static nvmlReturn_t report_memory(nvmlReturn_t r, nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct account_usage u;

    if (r != NVML_SUCCESS || !memory) return r;
    memset(memory, 0, sizeof *memory);
    if ((r = read_usage(device, &u)) != NVML_SUCCESS) return r;
    *memory = (nvmlMemory_t){.total = u.total, .free = u.free, .used = u.used};
    return r;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    return report_memory(REAL(nvmlDeviceGetMemoryInfo)(device, memory), device, memory);
}
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
    return report_memory(REAL(nvmlDeviceGetConfComputeProtectedMemoryUsage)(device, memory), device, memory);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct account_usage u;
    nvmlReturn_t r = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);

    if (r != NVML_SUCCESS || !memory) return r;
    *memory = (nvmlMemory_v2_t){.version = memory->version};
    if ((r = read_usage(device, &u)) != NVML_SUCCESS) return r;
    memory->total = u.total;
    memory->free = u.free;
    memory->used = u.used;
    return r;
}

/* list_processes answers as NVML does: too little room is an error, with the needed number in
 * *count. */
static nvmlReturn_t list_processes(nvmlDevice_t handle, unsigned int *count, void *infos, size_t size, bool compute)
{
    static const unsigned int most = 1024;
    int device;
    nvmlReturn_t r = device_of(handle, &device);
    unsigned int found, room = infos ? *count : 0;
    struct account_process *all;
    char *to = infos;

    if (r != NVML_SUCCESS) return r;
    all = os_pages(most * sizeof *all);
    if (!all) return NVML_ERROR_INSUFFICIENT_SIZE;
    found = compute ? account_processes(device, all, most) : 0;
    *count = found;
    for (unsigned int i = 0; i < found && found <= room; i++, to += size) {
        nvmlProcessInfo_v2_t p = {.pid = all[i].pid, .usedGpuMemory = all[i].used, .gpuInstanceId = ~0u, .computeInstanceId = ~0u};
        memcpy(to, &p, size);
    }
    os_pages_free(all, most * sizeof *all);
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The driver is called with no room, only for its error: it may not support the list. */
#define PROCESS_LIST(name, type, compute)                                                 \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)              \
    {                                                                                     \
        unsigned int none = 0;                                                            \
        nvmlReturn_t r = REAL(name)(device, count ? &none : NULL, NULL);                  \
        if (!count || (r != NVML_SUCCESS && r != NVML_ERROR_INSUFFICIENT_SIZE)) return r; \
        return list_processes(device, count, infos, sizeof *infos, compute);              \
    }
PROCESS_LISTS(PROCESS_LIST)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, void *list)
{
    nvmlReturn_t r = REAL(nvmlDeviceGetRunningProcessDetailList)(device, NULL);

    (void)list;
    return r == NVML_SUCCESS || r == NVML_ERROR_INVALID_ARGUMENT ? NVML_ERROR_NOT_SUPPORTED : r;
}
