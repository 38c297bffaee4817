/* Reports of memory: the grant takes the place of the GPU's memory. */
#include "account.h"
#include "cuda_devices.h"
#include "cuda_driver.h"
#include "cuda_pools.h"

static unsigned int clamp(uint64_t bytes) { return bytes > ~0u ? ~0u : (unsigned int)bytes; }

API CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUresult r = REAL(cuMemGetInfo_v2)(free, total);
    struct location l;
    struct account_usage u;

    if (r != CUDA_SUCCESS || (r = location_current(&l)) != CUDA_SUCCESS) return r;
    pools_update();
    u = account_usage(l.device);
    if (free) *free = u.free;
    if (total) *total = u.total;
    return r;
}
API CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    size_t f = 0, t = 0;
    CUresult r = REAL(cuMemGetInfo)(free, total);

    if (r != CUDA_SUCCESS || (r = cuMemGetInfo_v2(&f, &t)) != CUDA_SUCCESS) return r;
    if (free) *free = clamp(f);
    if (total) *total = clamp(t);
    return r;
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice d)
{
    CUresult r = REAL(cuDeviceTotalMem_v2)(bytes, d);
    if (r == CUDA_SUCCESS && bytes) *bytes = account_usage(device_of(d)).total;
    return r;
}
API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice d)
{
    CUresult r = REAL(cuDeviceTotalMem)(bytes, d);
    if (r == CUDA_SUCCESS && bytes) *bytes = clamp(account_usage(device_of(d)).total);
    return r;
}
