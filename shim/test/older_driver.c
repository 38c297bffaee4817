/* A driver that lacks most of what the proxies wrap, like an older driver, or a newer one that
 * removed it: a libcuda, and with -DNVML a libnvidia-ml. */
#include "../cuda_abi.h"
#include "../nvml_abi.h"

#include <string.h>

#define API __attribute__((visibility("default")))

#ifdef NVML
API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    static const char first[] = "GPU-00000000-fa4e-d41e-0000-000000000001";
    if (!device || length < sizeof first) return NVML_ERROR_INVALID_ARGUMENT;
    memcpy(uuid, first, sizeof first);
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    *memory = (nvmlMemory_t){.total = 1ull << 34, .free = 1ull << 34};
    return device ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
#else
API CUresult cuInit(unsigned int flags) { return (void)flags, CUDA_SUCCESS; }
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice d)
{
    *uuid = (CUuuid){{0, 0, 0, 0, 0xfa, 0x4e, 0xd4, 0x1e}};
    uuid->bytes[15] = (unsigned char)(d + 1);
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *d) { return *d = 0, CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext *c) { return *c = (CUcontext)8, CUDA_SUCCESS; }
API CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) { return (void)bytes, *p = 0x7f0000000000, CUDA_SUCCESS; }
API CUresult cuMemFree_v2(CUdeviceptr p) { return (void)p, CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int *version) { return *version = 11040, CUDA_SUCCESS; }
/* As R470 has it, without the call of CUDA 12 that reports a status. */
API CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
    *address = strcmp(name, "cuDriverGetVersion") == 0 ? (void *)cuDriverGetVersion : strcmp(name, "cuMemAlloc") == 0 ? (void *)cuMemAlloc_v2 : NULL;
    return (void)version, (void)flags, *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
#endif
