/* Streams and stream-ordered memory. A pool grows by chunks and keeps what was freed: it gives back what is above its
 * threshold at the next synchronisation, as documented. In a capture an allocation is a node of the graph. */
#include "graphs.h"
#include "objects.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition, error) do { if (!(condition)) return error; } while (0)

enum { CHUNK = 32 << 20 };

struct CUmemPoolHandle_st { struct object head; int gpu, device; bool host; uint64_t reserved, used, threshold; };
struct CUstream_st { struct object head; CUcontext context; CUgraph capture; };
struct pool_memory { struct object head; CUmemoryPool pool; CUdeviceptr address; uint64_t bytes; };

static CUmemoryPool defaults[SHARED_GPUS], chosen[SHARED_GPUS], managed;

/* Destroyed pools, whose handles the next new ones get. A question about one of them ends the
 * process: with a driver anything might happen. */
enum { GONE = 256 };
static CUmemoryPool gone[GONE];
static int gones;

static bool is_gone(CUmemoryPool p)
{
    for (int i = 0; i < gones; i++)
        if (gone[i] == p) return true;
    return object_is(p, OBJECT_DESTROYED_POOL);
}

static CUmemoryPool pool_new(CUdevice d, bool host)
{
    CUmemoryPool p = gones ? gone[--gones] : malloc(sizeof *p);

    *p = (struct CUmemPoolHandle_st){.gpu = device_gpu(d), .device = d, .host = host};
    object_add(&p->head, OBJECT_POOL);
    return p;
}

/* grow makes the pool hold `used` bytes. */
static bool grow(CUmemoryPool p, uint64_t used)
{
    uint64_t more;

    if (used <= p->reserved) return true;
    more = (used - p->reserved + CHUNK - 1) / CHUNK * CHUNK;
    if (!p->host && !shared_add(p->gpu, SHARED_MEMORY, more)) return false;
    p->reserved += more;
    return true;
}

static void shrink(CUmemoryPool p, uint64_t keep)
{
    uint64_t want = keep > p->used ? keep : p->used;

    want = (want + CHUNK - 1) / CHUNK * CHUNK;
    if (want >= p->reserved) return;
    if (!p->host) shared_sub(p->gpu, SHARED_MEMORY, p->reserved - want);
    p->reserved = want;
}

static bool shrink_to_threshold(void *pool, const void *unused)
{
    CUmemoryPool p = pool;
    (void)unused;
    if (p->reserved > p->threshold) shrink(p, p->threshold);
    return false; /* on to the next */
}
void synchronised(void) { object_find(OBJECT_POOL, shrink_to_threshold, NULL); }

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *p, CUdevice d)
{
    GUARD;
    CHECK(p, CUDA_ERROR_INVALID_VALUE);
    CHECK(device_gpu(d) >= 0, CUDA_ERROR_INVALID_DEVICE);
    if (!object_is(defaults[d], OBJECT_POOL)) defaults[d] = pool_new(d, false);
    *p = defaults[d];
    return CUDA_SUCCESS;
}
static CUresult get_pool(CUmemoryPool *p, CUdevice d)
{
    GUARD;
    CUresult r = cuDeviceGetDefaultMemPool(p, d);
    if (r == CUDA_SUCCESS && object_is(chosen[d], OBJECT_POOL)) *p = chosen[d];
    return r;
}

/* Other threads may destroy the pool before the call returns: here they always can. */
API CUresult cuDeviceGetMemPool(CUmemoryPool *p, CUdevice d)
{
    CUresult r = get_pool(p, d);
    if (r == CUDA_SUCCESS && *p != defaults[d]) usleep(50);
    return r;
}
API CUresult cuDeviceSetMemPool(CUdevice d, CUmemoryPool p)
{
    GUARD;
    CHECK(device_gpu(d) >= 0, CUDA_ERROR_INVALID_DEVICE);
    CHECK(object_is(p, OBJECT_POOL) && p->device == d, CUDA_ERROR_INVALID_VALUE);
    chosen[d] = p;
    return CUDA_SUCCESS;
}
API CUresult cuMemPoolCreate(CUmemoryPool *p, const CUmemPoolProps *props)
{
    GUARD;
    int device;
    CHECK(p && props, CUDA_ERROR_INVALID_VALUE);
    device = location_device(&props->location, props->allocType);
    CHECK(device != LOCATION_UNKNOWN, CUDA_ERROR_INVALID_VALUE);
    CHECK(device == -1 || device_gpu(device) >= 0, CUDA_ERROR_INVALID_DEVICE);
    *p = pool_new(device == -1 ? 0 : device, device == -1);
    return CUDA_SUCCESS;
}

/* The default pool of a device's pinned memory is the device's own. There is one of all managed memory. */
API CUresult cuMemGetDefaultMemPool(CUmemoryPool *p, CUmemLocation *l, int type)
{
    GUARD;
    CHECK(p && l && location_device(l, type) >= 0, CUDA_ERROR_INVALID_VALUE);
    if (type != CU_MEM_ALLOCATION_TYPE_MANAGED) return cuDeviceGetDefaultMemPool(p, location_device(l, type));
    if (!object_is(managed, OBJECT_POOL)) managed = pool_new(location_device(l, type), false);
    *p = managed;
    return CUDA_SUCCESS;
}
API CUresult cuMemGetMemPool(CUmemoryPool *p, CUmemLocation *l, int type) { return cuMemGetDefaultMemPool(p, l, type); }
API CUresult cuMemPoolTrimTo(CUmemoryPool p, size_t keep)
{
    GUARD;
    CHECK(object_is(p, OBJECT_POOL), CUDA_ERROR_INVALID_VALUE);
    shrink(p, keep);
    return CUDA_SUCCESS;
}

static void delete_unused(CUmemoryPool p)
{
    if (p->head.kind != OBJECT_DESTROYED_POOL || p->used > 0) return;
    shrink(p, 0);
    object_remove(&p->head);
    if (gones < GONE) gone[gones++] = p;
    else free(p);
}

static bool of_destroyed_pool(void *m, const void *device)
{
    CUmemoryPool p = ((struct pool_memory *)m)->pool;
    return p->head.kind == OBJECT_DESTROYED_POOL && p->device == *(const CUdevice *)device;
}

void pools_reset(CUdevice d)
{
    GUARD;
    struct pool_memory *m;

    while ((m = object_find(OBJECT_POOL_MEMORY, of_destroyed_pool, &d))) pool_memory_free(m->address);
}

static CUresult destroy(CUmemoryPool p)
{
    GUARD;
    CHECK(object_is(p, OBJECT_POOL) && p != defaults[p->device] && p != managed, CUDA_ERROR_INVALID_VALUE);
    if (chosen[p->device] == p) chosen[p->device] = NULL;
    p->head.kind = OBJECT_DESTROYED_POOL;
    delete_unused(p);
    return CUDA_SUCCESS;
}

/* As documented, memory that is not freed keeps a destroyed pool, and default pools cannot be
 * destroyed. Other threads may run before the call returns: here they always can. */
API CUresult cuMemPoolDestroy(CUmemoryPool p)
{
    CUresult r = destroy(p);
    usleep(100);
    return r;
}
API CUresult cuMemPoolSetAttribute(CUmemoryPool p, int attribute, void *value)
{
    GUARD;
    CHECK(object_is(p, OBJECT_POOL) && value, CUDA_ERROR_INVALID_VALUE);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) memcpy(&p->threshold, value, sizeof p->threshold);
    return CUDA_SUCCESS;
}
API CUresult cuMemPoolGetAttribute(CUmemoryPool p, int attribute, void *value)
{
    GUARD;
    uint64_t answer;
    if (is_gone(p)) abort();
    CHECK(object_is(p, OBJECT_POOL) && value, CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: answer = p->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: answer = p->reserved; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: answer = p->used; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(value, &answer, sizeof answer);
    return CUDA_SUCCESS;
}

/* ---- streams ---- */

/* The per-thread default stream, which is one of all threads here. */
static struct CUstream_st per_thread;

static bool special(CUstream s) { return !s || s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD; }
static CUgraph *capture_of(CUstream s)
{
    static CUgraph none;
    return s == CU_STREAM_PER_THREAD ? &per_thread.capture : !special(s) && object_is(s, OBJECT_STREAM) ? &s->capture : &none;
}
static CUcontext context_of(CUstream s) { return special(s) ? device_current() : object_is(s, OBJECT_STREAM) ? s->context : NULL; }

API CUresult cuStreamCreate(CUstream *s, unsigned int flags)
{
    GUARD;
    (void)flags;
    CHECK(s, CUDA_ERROR_INVALID_VALUE);
    CHECK(device_current(), CUDA_ERROR_INVALID_CONTEXT);
    *s = object_new(OBJECT_STREAM, sizeof **s);
    (*s)->context = device_current();
    return CUDA_SUCCESS;
}
API CUresult cuStreamDestroy_v2(CUstream s)
{
    GUARD;
    CHECK(!special(s) && object_is(s, OBJECT_STREAM), CUDA_ERROR_INVALID_HANDLE);
    object_delete(&s->head);
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCtx(CUstream s, CUcontext *c)
{
    GUARD;
    CHECK(c, CUDA_ERROR_INVALID_VALUE);
    *c = context_of(s);
    return *c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
API CUresult cuStreamSynchronize(CUstream s)
{
    launches_end();
    GUARD;
    CHECK(context_of(s), CUDA_ERROR_INVALID_HANDLE);
    synchronised();
    return CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize_ptsz(CUstream s) { return cuStreamSynchronize(ptsz(s)); }
API CUresult cuCtxSynchronize(void)
{
    launches_end();
    GUARD;
    CHECK(device_current(), CUDA_ERROR_INVALID_CONTEXT);
    synchronised();
    return CUDA_SUCCESS;
}
API CUresult cuCtxSynchronize_v2(CUcontext c)
{
    launches_end();
    GUARD;
    CHECK(object_is(c, OBJECT_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    synchronised();
    return CUDA_SUCCESS;
}
API CUresult cuEventCreate(CUevent *e, unsigned int flags)
{
    GUARD;
    (void)flags;
    CHECK(e, CUDA_ERROR_INVALID_VALUE);
    *e = object_new(OBJECT_EVENT, sizeof(struct object));
    return CUDA_SUCCESS;
}
API CUresult cuEventSynchronize(CUevent e)
{
    GUARD;
    CHECK(object_is(e, OBJECT_EVENT), CUDA_ERROR_INVALID_HANDLE);
    synchronised();
    return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(CUstream s, int *status)
{
    GUARD;
    CHECK(status, CUDA_ERROR_INVALID_VALUE);
    *status = *capture_of(s) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing_ptsz(CUstream s, int *status) { return cuStreamIsCapturing(ptsz(s), status); }
int stream_gpu(CUstream s)
{
    GUARD;
    CUcontext c = context_of(s);
    return !c ? -1 : *capture_of(s) ? STREAM_CAPTURES : c->gpu;
}
API CUresult cuStreamBeginCapture_v2(CUstream s, int mode)
{
    GUARD;
    (void)mode;
    CHECK((s == CU_STREAM_PER_THREAD || (!special(s) && object_is(s, OBJECT_STREAM))) && !*capture_of(s), CUDA_ERROR_INVALID_VALUE);
    *capture_of(s) = graph_new();
    return CUDA_SUCCESS;
}
API CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, int mode) { return cuStreamBeginCapture_v2(ptsz(s), mode); }
API CUresult cuStreamEndCapture(CUstream s, CUgraph *g)
{
    GUARD;
    CHECK(g && *capture_of(s), CUDA_ERROR_INVALID_VALUE);
    *g = *capture_of(s);
    *capture_of(s) = NULL;
    return CUDA_SUCCESS;
}
API CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *g) { return cuStreamEndCapture(ptsz(s), g); }

/* ---- stream-ordered memory ---- */

static CUresult take(CUdeviceptr *p, size_t bytes, CUmemoryPool pool)
{
    struct pool_memory *m;

    CHECK(p && bytes, CUDA_ERROR_INVALID_VALUE);
    CHECK(grow(pool, pool->used + bytes), CUDA_ERROR_OUT_OF_MEMORY);
    pool->used += bytes;
    m = object_new(OBJECT_POOL_MEMORY, sizeof *m);
    m->pool = pool;
    m->bytes = bytes;
    m->address = *p = address_new(bytes);
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream s)
{
    GUARD;
    CHECK(object_is(pool, OBJECT_POOL), CUDA_ERROR_INVALID_VALUE);
    CHECK(context_of(s), CUDA_ERROR_INVALID_CONTEXT);
    if (*capture_of(s)) return graph_add_memory(*capture_of(s), pool->device, bytes, p);
    return take(p, bytes, pool);
}
API CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream s)
{
    GUARD;
    CUmemoryPool pool;

    CHECK(context_of(s), CUDA_ERROR_INVALID_CONTEXT);
    if (*capture_of(s)) return graph_add_memory(*capture_of(s), context_of(s)->device, bytes, p);
    get_pool(&pool, context_of(s)->device);
    return take(p, bytes, pool);
}

static bool at(void *m, const void *p) { return ((struct pool_memory *)m)->address == *(const CUdeviceptr *)p; }

bool pool_memory_free(CUdeviceptr p)
{
    GUARD;
    struct pool_memory *m = object_find(OBJECT_POOL_MEMORY, at, &p);

    if (!m) return false;
    m->pool->used -= m->bytes;
    delete_unused(m->pool);
    object_delete(&m->head);
    return true;
}

API CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s)
{
    GUARD;
    CHECK(context_of(s), CUDA_ERROR_INVALID_CONTEXT);
    if (*capture_of(s)) return graph_free_memory(*capture_of(s), p);
    return pool_memory_free(p) || memory_free(p) || graph_memory_free(p) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream s) { return cuMemAllocFromPoolAsync(p, n, pool, ptsz(s)); }
API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *p, size_t n, CUstream s) { return cuMemAllocAsync(p, n, ptsz(s)); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s) { return cuMemFreeAsync(p, ptsz(s)); }

API CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr p)
{
    GUARD;
    const struct pool_memory *m = object_find(OBJECT_POOL_MEMORY, at, &p);

    CHECK(value && m && attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CUDA_ERROR_INVALID_VALUE);
    *(CUmemoryPool *)value = m->pool;
    return CUDA_SUCCESS;
}
