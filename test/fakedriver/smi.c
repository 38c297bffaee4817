/* nvidia-smi of the stand-in: what NVML says of each GPU, one line a GPU. It looks for NVML where programs do. */
#include "../../shim/nvml_abi.h"

#include <dlfcn.h>
#include <stdio.h>

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

int main(void)
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
    for (unsigned int i = 0; i < count; i++) failed |= show(i);
    return failed;
}
