/* The driver of bench_driver.c, with what HAMi-core asks of a driver beside it. HAMi-core looks for
 * itself among NVML's processes while it holds a primary context, so this one counts as such. */
#include "bench_driver.c"

#include "../../test/fakedriver/shared.h"

API CUresult cuDriverGetVersion(int *version) { return *version = 13000, CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int *n) { return *n = 1, CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice *d, int ordinal) { return *d = ordinal, CUDA_SUCCESS; }
API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice d)
{
    return *value = 1, (void)attribute, (void)d, CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
    cuCtxGetCurrent(c);
    if (!shared_open() || !shared_add(d, SHARED_CONTEXTS, shared_context_bytes()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d)
{
    return shared_sub(d, SHARED_CONTEXTS, shared_context_bytes()), CUDA_SUCCESS;
}
