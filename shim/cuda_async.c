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
API CUresult cuCtxSynchronize_v2(CUcontext c) { return finish_synchronise(REAL(cuCtxSynchronize_v2)(c)); }

/* ---- allocation ---- */

/* per_thread: of a call for which stream 0 is the per-thread default stream. */
static bool is_capturing(CUstream s, bool per_thread)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = per_thread ? REAL(cuStreamIsCapturing_ptsz)(s, &status) : REAL(cuStreamIsCapturing)(s, &status);

    return r == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* During a capture, an allocation only adds a node to a graph and takes no memory. What does not
 * fit is tried again after the pools' charges are updated, because they may have returned memory
 * since. */
static CUresult allocate(struct allocator *a, CUdeviceptr *p, size_t bytes)
{
    struct location l;
    CUresult r;

    if (!p || !bytes || is_capturing(a->stream, a->per_thread)) return call_driver(a, p, bytes);
    if ((r = location_of_stream(a->stream, &l)) != CUDA_SUCCESS) return r;
    a->ordinal = l.ordinal;
    if (!a->pool && (r = REAL(cuDeviceGetMemPool)(&a->pool, l.ordinal)) != CUDA_SUCCESS) return r;
    r = l.device < 0 ? CUDA_ERROR_OUT_OF_MEMORY : pool_allocate(a, p, bytes, l.device);
    if (r != CUDA_ERROR_OUT_OF_MEMORY || !(pools_update() | left_update())) return r;
    return l.device < 0 ? r : pool_allocate(a, p, bytes, l.device);
}

/* finish_pool enters a pool that the driver gave. A managed pool that was made without a context is
 * not entered: its first allocation enters it. */
static CUresult finish_pool(CUresult r, const CUmemoryPool *pool, const CUmemLocation *location, int type)
{
    CUdevice ordinal;

    if (r == CUDA_SUCCESS && ordinal_of(location, type, &ordinal) == CUDA_SUCCESS)
        pools_add(*pool, ordinal == HOST_MEMORY ? POOL_OF_HOST : device_of(ordinal));
    return r;
}

static bool is_unknown(const CUmemLocation *location, int type)
{
    return ordinal_of(location, type, &(CUdevice){0}) == CUDA_ERROR_INVALID_VALUE;
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
            pools_add(pool, device_of(i));
            return;
        }
}

API CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream s)
{
    struct allocator a = {s, false, NULL, REAL(cuMemAllocAsync), NULL, REAL(cuMemFreeAsync), 0};
    return allocate(&a, p, bytes);
}
API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *p, size_t bytes, CUstream s)
{
    struct allocator a = {s, true, NULL, REAL(cuMemAllocAsync_ptsz), NULL, REAL(cuMemFreeAsync_ptsz), 0};
    return allocate(&a, p, bytes);
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream s)
{
    struct allocator a = {s, false, pool, NULL, REAL(cuMemAllocFromPoolAsync), REAL(cuMemFreeAsync), 0};

    if (!pool) return call_driver(&a, p, bytes);
    add_device_pool(pool);
    return allocate(&a, p, bytes);
}
API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream s)
{
    struct allocator a = {s, true, pool, NULL, REAL(cuMemAllocFromPoolAsync_ptsz), REAL(cuMemFreeAsync_ptsz), 0};

    if (!pool) return call_driver(&a, p, bytes);
    add_device_pool(pool);
    return allocate(&a, p, bytes);
}

/* A pointer may come from a pool or from cuMemAlloc. During a capture, a free only adds a node to a
 * graph. */
static CUresult release(CUresult (*real)(CUdeviceptr, CUstream), CUdeviceptr p, CUstream s, bool per_thread)
{
    struct track t = {.kind = 0};
    CUresult r;

    if (!is_capturing(s, per_thread) && !track_remove(TRACK_POOLED, p, &t)) untrack_pointer(p, &t);
    r = real(p, s);
    if (r != CUDA_SUCCESS && t.kind) track_again(&t);
    else if (t.kind == TRACK_POOLED) pool_release(&t);
    else uncount(&t);
    return r;
}
API CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { return release(REAL(cuMemFreeAsync), p, s, false); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s) { return release(REAL(cuMemFreeAsync_ptsz), p, s, true); }

/* ---- pools ---- */

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    if (!pool || !props) return REAL(cuMemPoolCreate)(pool, props);
    if (is_unknown(&props->location, props->allocType)) return CUDA_ERROR_INVALID_VALUE;
    return finish_pool(REAL(cuMemPoolCreate)(pool, props), pool, &props->location, props->allocType);
}

#define GET_POOL(function)                                                                       \
    API CUresult function(CUmemoryPool *pool, CUmemLocation *location, int type)                 \
    {                                                                                            \
        if (!pool || !location) return REAL(function)(pool, location, type);                     \
        if (is_unknown(location, type)) return CUDA_ERROR_INVALID_VALUE;                         \
        return finish_pool(REAL(function)(pool, location, type), pool, location, type);          \
    }
GET_POOL(cuMemGetDefaultMemPool)
GET_POOL(cuMemGetMemPool)

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult r = REAL(cuMemPoolTrimTo)(pool, keep);
    pools_update();
    return r;
}
API CUresult cuMemPoolDestroy(CUmemoryPool pool) { return pool_destroy(pool); }
