/* Stream-ordered memory and its pools. */
#include "cuda_count.h"
#include "cuda_devices.h"
#include "cuda_driver.h"
#include "cuda_pools.h"

/* ---- synchronisation ---- */

/* A synchronisation is when pools return memory to the GPU. */
static CUresult finish_synchronise(CUresult r)
{
    pools_update();
    return r;
}
API CUresult cuStreamSynchronize(CUstream s) { return finish_synchronise(REAL(cuStreamSynchronize)(s)); }
API CUresult cuStreamSynchronize_ptsz(CUstream s) { return finish_synchronise(REAL(cuStreamSynchronize_ptsz)(s)); }
API CUresult cuEventSynchronize(CUevent e) { return finish_synchronise(REAL(cuEventSynchronize)(e)); }
API CUresult cuCtxSynchronize(void) { return finish_synchronise(REAL(cuCtxSynchronize)()); }

/* ---- allocation ---- */

static bool is_capturing(CUstream s)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(s, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* During a capture, an allocation only adds a node to a graph and takes no memory. What does not
 * fit is tried again after the pools' charges are updated, because they may have returned memory
 * since. */
static CUresult allocate(struct allocator *a, CUdeviceptr *p, size_t bytes)
{
    struct location l;
    CUresult r;

    if (!p || !bytes || is_capturing(a->stream)) return call_driver(a, p, bytes);
    if ((r = location_of_stream(a->stream, &l)) != CUDA_SUCCESS) return r;
    if (!a->pool && (r = REAL(cuDeviceGetMemPool)(&a->pool, l.ordinal)) != CUDA_SUCCESS) return r;
    r = l.device < 0 ? CUDA_ERROR_OUT_OF_MEMORY : pool_allocate(a, p, bytes, l.device);
    if (r != CUDA_ERROR_OUT_OF_MEMORY || !pools_update()) return r;
    return l.device < 0 ? r : pool_allocate(a, p, bytes, l.device);
}

static void add_pool(CUmemoryPool pool, const CUmemLocation *location)
{
    pools_add(pool, location->type == CU_MEM_LOCATION_TYPE_DEVICE ? device_of(location->id) : -1);
}

/* add_device_pool enters a pool that the program did not create, if it is a device's default or
 * current one. */
static void add_device_pool(CUmemoryPool pool)
{
    CUmemoryPool one;
    int n = 0;

    if (pools_known(pool) || REAL(cuDeviceGetCount)(&n)) return;
    for (int i = 0; i < n; i++)
        if ((REAL(cuDeviceGetDefaultMemPool)(&one, i) == CUDA_SUCCESS && one == pool) ||
            (REAL(cuDeviceGetMemPool)(&one, i) == CUDA_SUCCESS && one == pool)) {
            add_pool(pool, &(CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, i});
            return;
        }
}

API CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream s)
{
    struct allocator a = {s, NULL, REAL(cuMemAllocAsync), NULL, REAL(cuMemFreeAsync)};
    return allocate(&a, p, bytes);
}
API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *p, size_t bytes, CUstream s)
{
    struct allocator a = {s, NULL, REAL(cuMemAllocAsync_ptsz), NULL, REAL(cuMemFreeAsync_ptsz)};
    return allocate(&a, p, bytes);
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream s)
{
    struct allocator a = {s, pool, NULL, REAL(cuMemAllocFromPoolAsync), REAL(cuMemFreeAsync)};

    if (!pool) return call_driver(&a, p, bytes);
    add_device_pool(pool);
    return allocate(&a, p, bytes);
}
API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream s)
{
    struct allocator a = {s, pool, NULL, REAL(cuMemAllocFromPoolAsync_ptsz), REAL(cuMemFreeAsync_ptsz)};

    if (!pool) return call_driver(&a, p, bytes);
    add_device_pool(pool);
    return allocate(&a, p, bytes);
}

/* A pointer may come from a pool or from cuMemAlloc. During a capture, a free only adds a node to a
 * graph. */
static CUresult release(CUresult (*real)(CUdeviceptr, CUstream), CUdeviceptr p, CUstream s)
{
    struct track t = {.kind = 0};
    CUresult r;

    if (!is_capturing(s) && !track_remove(TRACK_POOLED, p, &t)) untrack_pointer(p, &t);
    r = real(p, s);
    if (r != CUDA_SUCCESS && t.kind) track_again(&t);
    else if (t.kind == TRACK_POOLED) pool_release(&t);
    else uncount(&t);
    return r;
}
API CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { return release(REAL(cuMemFreeAsync), p, s); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s) { return release(REAL(cuMemFreeAsync_ptsz), p, s); }

/* ---- pools ---- */

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    CUresult r = REAL(cuMemPoolCreate)(pool, props);
    if (r == CUDA_SUCCESS && pool && props) add_pool(*pool, &props->location);
    return r;
}
API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    CUresult r = REAL(cuMemGetDefaultMemPool)(pool, location, type);
    if (r == CUDA_SUCCESS && pool && location) add_pool(*pool, location);
    return r;
}
API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    CUresult r = REAL(cuMemGetMemPool)(pool, location, type);
    if (r == CUDA_SUCCESS && pool && location) add_pool(*pool, location);
    return r;
}
API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult r = REAL(cuMemPoolTrimTo)(pool, keep);
    pools_update();
    return r;
}
API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult r = REAL(cuMemPoolDestroy)(pool);
    if (r == CUDA_SUCCESS) pool_destroyed(pool);
    return r;
}
