/* cuGetProcAddress: the newest variant of a name that the asked CUDA version has, and of two variants the one for the
 * per-thread default stream where the flag asks for it. */
#include "objects.h"

#include <string.h>

#define CHECK(condition, error) do { if (!(condition)) return error; } while (0)

/* ROW(name, since CUDA version, symbol, symbol of the per-thread-stream variant) with newer variants first */
#define ROWS(ROW)                                                                                     \
    ROW(cuInit, 2000, cuInit, cuInit)                                                                 \
    ROW(cuDriverGetVersion, 2020, cuDriverGetVersion, cuDriverGetVersion)                             \
    ROW(cuGetProcAddress, 12000, cuGetProcAddress_v2, cuGetProcAddress_v2)                            \
    ROW(cuGetProcAddress, 11030, cuGetProcAddress, cuGetProcAddress)                                  \
    ROW(cuGetExportTable, 3000, cuGetExportTable, cuGetExportTable)                                   \
    ROW(cuDeviceGet, 2000, cuDeviceGet, cuDeviceGet)                                                  \
    ROW(cuDeviceGetCount, 2000, cuDeviceGetCount, cuDeviceGetCount)                                   \
    ROW(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2, cuDeviceGetUuid_v2)                               \
    ROW(cuDeviceGetUuid, 9020, cuDeviceGetUuid, cuDeviceGetUuid)                                      \
    ROW(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2, cuDeviceTotalMem_v2)                             \
    ROW(cuDeviceTotalMem, 2000, cuDeviceTotalMem, cuDeviceTotalMem)                                   \
    ROW(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)           \
    ROW(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease_v2) \
    ROW(cuCtxCreate, 13000, cuCtxCreate_v4, cuCtxCreate_v4)                                           \
    ROW(cuCtxCreate, 11040, cuCtxCreate_v3, cuCtxCreate_v3)                                           \
    ROW(cuCtxCreate, 3020, cuCtxCreate_v2, cuCtxCreate_v2)                                            \
    ROW(cuCtxDestroy, 4000, cuCtxDestroy_v2, cuCtxDestroy_v2)                                         \
    ROW(cuCtxSetCurrent, 4000, cuCtxSetCurrent, cuCtxSetCurrent)                                      \
    ROW(cuCtxGetCurrent, 4000, cuCtxGetCurrent, cuCtxGetCurrent)                                      \
    ROW(cuCtxGetDevice, 2000, cuCtxGetDevice, cuCtxGetDevice)                                         \
    ROW(cuCtxSynchronize, 2000, cuCtxSynchronize, cuCtxSynchronize)                                   \
    ROW(cuMemGetInfo, 3020, cuMemGetInfo_v2, cuMemGetInfo_v2)                                         \
    ROW(cuMemGetInfo, 2000, cuMemGetInfo, cuMemGetInfo)                                               \
    ROW(cuMemAlloc, 3020, cuMemAlloc_v2, cuMemAlloc_v2)                                               \
    ROW(cuMemAlloc, 2000, cuMemAlloc, cuMemAlloc)                                                     \
    ROW(cuMemAllocPitch, 3020, cuMemAllocPitch_v2, cuMemAllocPitch_v2)                                \
    ROW(cuMemAllocManaged, 6000, cuMemAllocManaged, cuMemAllocManaged)                                \
    ROW(cuMemFree, 3020, cuMemFree_v2, cuMemFree_v2)                                                  \
    ROW(cuMemFree, 2000, cuMemFree, cuMemFree)                                                        \
    ROW(cuMemAllocAsync, 11020, cuMemAllocAsync, cuMemAllocAsync_ptsz)                                \
    ROW(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz)        \
    ROW(cuMemFreeAsync, 11020, cuMemFreeAsync, cuMemFreeAsync_ptsz)                                   \
    ROW(cuMemCreate, 10020, cuMemCreate, cuMemCreate)                                                 \
    ROW(cuMemRelease, 10020, cuMemRelease, cuMemRelease)                                              \
    ROW(cuMemMap, 10020, cuMemMap, cuMemMap)                                                          \
    ROW(cuMemUnmap, 10020, cuMemUnmap, cuMemUnmap)                                                    \
    ROW(cuStreamSynchronize, 2000, cuStreamSynchronize, cuStreamSynchronize_ptsz)                     \
    ROW(cuLaunchKernel, 4000, cuLaunchKernel, cuLaunchKernel_ptsz)                                    \
    ROW(cuLaunchKernelEx, 11060, cuLaunchKernelEx, cuLaunchKernelEx_ptsz)                             \
    ROW(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz)   \
    ROW(cuLaunchCooperativeKernelMultiDevice, 9000, cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice) \
    ROW(cuGraphLaunch, 10000, cuGraphLaunch, cuGraphLaunch_ptsz)                                      \
    ROW(cuLaunch, 2000, cuLaunch, cuLaunch)                                                           \
    ROW(cuLaunchGrid, 2000, cuLaunchGrid, cuLaunchGrid)                                               \
    ROW(cuLaunchGridAsync, 2000, cuLaunchGridAsync, cuLaunchGridAsync)                                \
    ROW(cuFutureThing, 13000, cuFutureThing, cuFutureThing)

CUresult cuInit(unsigned int), cuDriverGetVersion(int *), cuDeviceGet(CUdevice *, int), cuDeviceGetCount(int *), cuDeviceGetUuid(CUuuid *, CUdevice),
    cuDeviceGetUuid_v2(CUuuid *, CUdevice), cuDeviceTotalMem_v2(size_t *, CUdevice), cuDeviceTotalMem(unsigned int *, CUdevice),
    cuDevicePrimaryCtxRetain(CUcontext *, CUdevice), cuDevicePrimaryCtxRelease_v2(CUdevice), cuCtxCreate_v4(CUcontext *, void *, unsigned int, CUdevice),
    cuCtxCreate_v3(CUcontext *, void *, int, unsigned int, CUdevice), cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice), cuCtxDestroy_v2(CUcontext),
    cuCtxSetCurrent(CUcontext), cuCtxGetCurrent(CUcontext *), cuCtxGetDevice(CUdevice *), cuCtxSynchronize(void), cuMemGetInfo_v2(size_t *, size_t *),
    cuMemGetInfo(unsigned int *, unsigned int *), cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemAlloc(CUdeviceptr_v1 *, unsigned int),
    cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned int), cuMemAllocManaged(CUdeviceptr *, size_t, unsigned int),
    cuMemFree_v2(CUdeviceptr), cuMemFree(CUdeviceptr_v1), cuMemAllocAsync(CUdeviceptr *, size_t, CUstream), cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream),
    cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream), cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *, size_t, CUmemoryPool, CUstream),
    cuMemFreeAsync(CUdeviceptr, CUstream), cuMemFreeAsync_ptsz(CUdeviceptr, CUstream),
    cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long), cuMemRelease(CUmemGenericAllocationHandle),
    cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long), cuMemUnmap(CUdeviceptr, size_t), cuStreamSynchronize(CUstream),
    cuStreamSynchronize_ptsz(CUstream), cuLaunch(void), cuLaunchGrid(void), cuLaunchGridAsync(void), cuLaunchKernel(void), cuLaunchKernel_ptsz(void),
    cuLaunchKernelEx(void), cuLaunchKernelEx_ptsz(void), cuLaunchCooperativeKernel(void), cuLaunchCooperativeKernel_ptsz(void),
    cuLaunchCooperativeKernelMultiDevice(void), cuGraphLaunch(void), cuGraphLaunch_ptsz(void), cuFutureThing(int *), cuGetExportTable(const void **, const CUuuid *),
    cuGetProcAddress(const char *, void **, int, uint64_t), cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

/* cuFutureMemAlloc is what a later driver may give for the name cuMemAlloc: it has no exported symbol. */
static CUresult cuFutureMemAlloc(CUdeviceptr *p, size_t bytes) { return cuMemAlloc_v2(p, bytes); }

API CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
    int answer = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;

    CHECK(name && address, CUDA_ERROR_INVALID_VALUE);
    *address = NULL;
#define ROW(base, since, symbol, per_thread)                                                                           \
    if (!*address && strcmp(name, #base) == 0) {                                                                       \
        answer = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;                                                           \
        if (version >= since)                                                   \
            *address = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? (void *)per_thread : (void *)symbol;    \
    }
    if (strcmp(name, "cuMemAlloc") == 0 && version >= 99000) *address = (void *)cuFutureMemAlloc;
    ROWS(ROW)
    if (*address) answer = CU_GET_PROC_ADDRESS_SUCCESS;
    if (status) *status = answer;
    return *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
API CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, address, version, flags, NULL);
}

/* One table, for any id: its size and an entry that makes contexts behind every other entry point's back. */
API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    static const void *entries[2];

    CHECK(table && id, CUDA_ERROR_INVALID_VALUE);
    entries[0] = (const void *)sizeof entries;
    entries[1] = (const void *)cuCtxCreate_v2;
    *table = entries;
    return CUDA_SUCCESS;
}
