/* nvidia-smi of the stand-in: what NVML says of each GPU, one line a GPU. It looks for NVML where programs do.
 * nvidia-smi --query-gpu=memory.total --format=csv,noheader: each GPU's memory alone, as NVIDIA's prints it.
 * nvidia-smi memory-limits INDEX CGROUP [MiB|max]: sets the hard limit, if given, and prints both in bytes. */
#include "../../shim/nvml_abi.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nvmlReturn_t (*init)(void);
static nvmlReturn_t (*get_count)(unsigned int *);
static nvmlReturn_t (*get_handle)(unsigned int, nvmlDevice_t *);
static nvmlReturn_t (*get_uuid)(nvmlDevice_t, char *, unsigned int);
static nvmlReturn_t (*get_name)(nvmlDevice_t, char *, unsigned int);
static nvmlReturn_t (*get_memory)(nvmlDevice_t, nvmlMemory_t *);

static int load(void *lib)
{
    struct { const char *name; void *to; } symbols[] = {
        {"nvmlInit_v2", &init}, {"nvmlDeviceGetCount_v2", &get_count}, {"nvmlDeviceGetHandleByIndex_v2", &get_handle},
        {"nvmlDeviceGetUUID", &get_uuid}, {"nvmlDeviceGetName", &get_name}, {"nvmlDeviceGetMemoryInfo", &get_memory},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!(*(void **)symbols[i].to = dlsym(lib, symbols[i].name))) return 0;
    return 1;
}

static int show(unsigned int index)
{
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE], name[96];
    nvmlDevice_t device;
    nvmlMemory_t m;
    nvmlReturn_t r;

    if ((r = get_handle(index, &device)) || (r = get_uuid(device, uuid, sizeof uuid)) || (r = get_name(device, name, sizeof name)) ||
        (r = get_memory(device, &m))) {
        fprintf(stderr, "GPU %u: NVML error %d\n", index, r);
        return 1;
    }
    printf("GPU %u: %s (UUID: %s) %lluMiB / %lluMiB\n", index, name, uuid, m.used >> 20, m.total >> 20);
    return 0;
}

static int total(unsigned int index)
{
    nvmlDevice_t device;
    nvmlMemory_t m;
    nvmlReturn_t r;

    if ((r = get_handle(index, &device)) || (r = get_memory(device, &m))) return fprintf(stderr, "GPU %u: NVML error %d\n", index, r), 1;
    printf("%llu MiB\n", m.total >> 20);
    return 0;
}

struct limits { const char *cgroup; unsigned long long soft, hard, used; };

static int limits(void *lib, char **argv)
{
    nvmlReturn_t (*set)(nvmlDevice_t, struct limits *), (*get)(nvmlDevice_t, struct limits *);
    struct limits l = {.cgroup = argv[1]};
    nvmlDevice_t device;
    nvmlReturn_t r;

    *(void **)&set = dlsym(lib, "nvmlDeviceSetMemoryLimits_v1");
    *(void **)&get = dlsym(lib, "nvmlDeviceGetMemoryLimits_v1");
    if (!set || !get) return fprintf(stderr, "NVML limits no memory\n"), 1;
    if ((r = get_handle((unsigned int)atoi(argv[0]), &device))) return fprintf(stderr, "NVML error %d\n", r), 1;
    if (argv[2]) {
        l.hard = strcmp(argv[2], "max") == 0 ? ~0ull : strtoull(argv[2], NULL, 10) << 20;
        if ((r = set(device, &l))) return fprintf(stderr, "NVML error %d\n", r), 1;
    }
    if ((r = get(device, &l)) == NVML_ERROR_NOT_SUPPORTED) return puts("none"), 0;
    if (r) return fprintf(stderr, "NVML error %d\n", r), 1;
    printf("soft %llu hard %llu\n", l.soft, l.hard);
    return 0;
}

int main(int argc, char **argv)
{
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    unsigned int count = 0;
    int failed = 0;

    if (!lib || !load(lib)) {
        fprintf(stderr, "cannot load NVML: %s\n", dlerror());
        return 1;
    }
    if (init() || get_count(&count)) {
        fprintf(stderr, "cannot start NVML\n");
        return 1;
    }
    if (argc > 3 && strcmp(argv[1], "memory-limits") == 0) return limits(lib, argv + 2);
    bool query = argc > 1 && strcmp(argv[1], "--query-gpu=memory.total") == 0;
    for (unsigned int i = 0; i < count; i++) failed |= query ? total(i) : show(i);
    return failed;
}
