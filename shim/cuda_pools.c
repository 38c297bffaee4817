/* Stream-ordered memory. What counts is what a pool holds, because a pool keeps what was freed: until the next
 * synchronisation, or for ever with a high threshold. A pool's charge is at least what the driver says that it holds
 * and, while allocations are on their way, at least what they may make it hold. */
#include "cuda.h"

#include "os.h"

/* Drivers grow a pool by 32 MiB or the request. */
enum { POOLS = 256, CHUNK = 32 << 20 };

struct pool {
    CUmemoryPool handle; /* NULL: destroyed, but not yet empty */
    bool taken;
    int device;          /* -1: host memory, not counted */
    uint64_t live;       /* bytes in use */
    uint64_t charged;    /* bytes in the account */
    uint64_t chunk;      /* by which the pool grows: CHUNK until it was seen to be less */
    unsigned int busy;   /* allocations on their way */
};

static struct os_spin lock; /* of all of this; the driver's own call under it is a plain read */
static struct pool pools[POOLS];
static int slack; /* some pool is charged more than is in use */

static struct pool *find(CUmemoryPool handle)
{
    for (int i = 0; i < POOLS; i++)
        if (pools[i].taken && pools[i].handle == handle) return &pools[i];
    return NULL;
}

static struct pool *enter(CUmemoryPool handle, int device)
{
    struct pool *p = find(handle);

    for (int i = 0; !p && i < POOLS; i++)
        if (!pools[i].taken) {
            p = &pools[i];
            *p = (struct pool){.handle = handle, .taken = true, .device = device, .chunk = CHUNK};
        }
    return p;
}

static void note(CUmemoryPool handle, const CUmemLocation *location)
{
    int device = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? device_of(location->id) : -1;

    os_spin_lock(&lock);
    enter(handle, device);
    os_spin_unlock(&lock);
}

/* holds is what the driver says, and at least what is in use or on its way. */
static uint64_t holds(struct pool *p)
{
    uint64_t bytes = 0;

    REAL(cuMemPoolGetAttribute)(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    if (bytes & (p->chunk - 1)) p->chunk = bytes & -bytes;
    return bytes > p->live ? bytes : p->live;
}

/* settle makes the charge agree with what the pool holds, false if that does not fit. */
static bool settle(struct pool *p)
{
    uint64_t held;

    if (p->device < 0 || !p->handle) return true;
    held = holds(p);
    if (held > p->charged && !account_take(p->device, held - p->charged)) return false;
    if (held > p->charged || p->busy == 0) {
        if (held < p->charged) account_give(p->device, p->charged - held);
        p->charged = held;
    }
    return true;
}

/* reserve charges what the pool may grow by, which is whole chunks: what does not fit must not be tried, because once the
 * driver has tried it the GPU has given it. */
static bool reserve(struct pool *p, uint64_t bytes)
{
    uint64_t live, whole;

    if (p->device < 0) return true;
    if (__builtin_add_overflow(p->live, bytes, &live) || live > UINT64_MAX - CHUNK) return false;
    whole = (live + p->chunk - 1) & ~(p->chunk - 1);
    if (whole > p->charged && !account_take(p->device, whole - p->charged)) return false;
    if (whole > p->charged) p->charged = whole;
    p->live = live;
    return true;
}

static struct pool *begin(CUmemoryPool handle, int device, uint64_t bytes)
{
    struct pool *p;

    os_spin_lock(&lock);
    p = enter(handle, device);
    if (p && reserve(p, bytes)) p->busy++;
    else p = NULL;
    os_spin_unlock(&lock);
    return p;
}

static bool end(struct pool *p, uint64_t bytes, bool got)
{
    bool fits = true;

    os_spin_lock(&lock);
    p->busy--;
    if (!got && p->device >= 0) p->live -= bytes;
    fits = settle(p) || !got;
    os_spin_unlock(&lock);
    return fits;
}

/* drop takes a freed pointer's bytes off its pool. A destroyed pool gives all back with its last pointer. */
void pool_release(const struct track *t)
{
    struct pool *p = &pools[t->link];

    os_spin_lock(&lock);
    if (p->device >= 0) p->live = p->live > t->bytes ? p->live - t->bytes : 0;
    if (!p->handle && p->live == 0 && p->taken) {
        account_give(p->device, p->charged);
        p->taken = false;
    }
    os_spin_unlock(&lock);
    __atomic_store_n(&slack, 1, __ATOMIC_RELAXED);
}

void pools_settle(void)
{
    int still = 0;

    if (!__atomic_exchange_n(&slack, 0, __ATOMIC_RELAXED)) return;
    os_spin_lock(&lock);
    for (int i = 0; i < POOLS; i++) {
        struct pool *p = &pools[i];
        if (!p->taken || !p->handle || p->charged == p->live) continue;
        settle(p);
        still |= p->charged > p->live;
    }
    os_spin_unlock(&lock);
    if (still) __atomic_store_n(&slack, 1, __ATOMIC_RELAXED);
}

static bool of_device(const struct track *t, uint64_t device)
{
    return t->kind == TRACK_POOLED && pools[t->link].device == (int)device;
}
static void nothing(const struct track *t) { (void)t; }

/* The pointers are forgotten, not what they took: that goes when the driver says that its pool holds it no more. */
void pools_reset(int device)
{
    if (device < 0) return;
    track_remove_if(of_device, (uint64_t)device, nothing);
    os_spin_lock(&lock);
    for (int i = 0; i < POOLS; i++)
        if (pools[i].taken && pools[i].handle && pools[i].device == device && pools[i].busy == 0) pools[i].live = 0;
    os_spin_unlock(&lock);
    __atomic_store_n(&slack, 1, __ATOMIC_RELAXED);
    pools_settle();
}

void pools_forget(void)
{
    for (int i = 0; i < POOLS; i++) pools[i].taken = false;
    lock.held = 0;
    slack = 0;
}

static CUresult settled(CUresult r)
{
    if (__atomic_load_n(&slack, __ATOMIC_RELAXED)) pools_settle();
    return r;
}
API CUresult cuStreamSynchronize(CUstream s) { return settled(REAL(cuStreamSynchronize)(s)); }
API CUresult cuStreamSynchronize_ptsz(CUstream s) { return settled(REAL(cuStreamSynchronize_ptsz)(s)); }
API CUresult cuEventSynchronize(CUevent e) { return settled(REAL(cuEventSynchronize)(e)); }
API CUresult cuCtxSynchronize(void) { return settled(REAL(cuCtxSynchronize)()); }

/* ---- allocation ---- */

typedef CUresult from_device(CUdeviceptr *, size_t, CUstream);
typedef CUresult from_pool(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
typedef CUresult free_async(CUdeviceptr, CUstream);

struct order {
    CUstream stream;
    CUmemoryPool pool;
    from_device *device; /* one of the two */
    from_pool *from;
    free_async *free;
};

static CUresult ask(const struct order *o, CUdeviceptr *p, size_t bytes)
{
    return o->device ? o->device(p, bytes, o->stream) : o->from(p, bytes, o->pool, o->stream);
}

static bool capturing(CUstream s)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(s, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult take(const struct order *o, CUdeviceptr *ptr, size_t bytes, int device)
{
    struct track t = {.kind = TRACK_POOLED, .bytes = bytes, .device = -1}, old;
    struct pool *p = begin(o->pool, device, bytes);
    bool fits;
    CUresult r;

    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    r = ask(o, ptr, bytes);
    fits = end(p, bytes, r == CUDA_SUCCESS);
    if (r != CUDA_SUCCESS) return r;
    t.key = *ptr;
    t.link = (uint64_t)(p - pools);
    if (fits && track_put(&t, &old)) {
        if (old.kind == TRACK_POOLED) pool_release(&old);
        return r;
    }
    o->free(*ptr, o->stream);
    pool_release(&t);
    REAL(cuMemPoolTrimTo)(o->pool, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* An allocation in a capture is a node of a graph and takes nothing yet. What does not fit may fit when the pools have been
 * counted anew: something was given back since. */
static CUresult allocate(struct order *o, CUdeviceptr *p, size_t bytes)
{
    struct place at;
    CUresult r;

    if (!p || !bytes || capturing(o->stream)) return ask(o, p, bytes);
    if ((r = place_of_stream(o->stream, &at)) != CUDA_SUCCESS) return r;
    if (!o->pool && (r = REAL(cuDeviceGetMemPool)(&o->pool, at.ordinal)) != CUDA_SUCCESS) return r;
    r = at.device < 0 ? CUDA_ERROR_OUT_OF_MEMORY : take(o, p, bytes, at.device);
    if (r != CUDA_ERROR_OUT_OF_MEMORY || !__atomic_load_n(&slack, __ATOMIC_RELAXED)) return r;
    pools_settle();
    return at.device < 0 ? r : take(o, p, bytes, at.device);
}

/* own_device finds the device of a pool that was not made here: each device's default and current one. */
static void own_device(CUmemoryPool pool)
{
    CUmemoryPool one;
    bool known;
    int n = 0;

    os_spin_lock(&lock);
    known = find(pool) != NULL;
    os_spin_unlock(&lock);
    if (known || REAL(cuDeviceGetCount)(&n)) return;
    for (int i = 0; i < n; i++)
        if ((REAL(cuDeviceGetDefaultMemPool)(&one, i) == CUDA_SUCCESS && one == pool) ||
            (REAL(cuDeviceGetMemPool)(&one, i) == CUDA_SUCCESS && one == pool)) {
            note(pool, &(CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, i});
            return;
        }
}

API CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream s)
{
    return allocate(&(struct order){.stream = s, .device = REAL(cuMemAllocAsync), .free = REAL(cuMemFreeAsync)}, p, bytes);
}
API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *p, size_t bytes, CUstream s)
{
    return allocate(&(struct order){.stream = s, .device = REAL(cuMemAllocAsync_ptsz), .free = REAL(cuMemFreeAsync_ptsz)}, p, bytes);
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream s)
{
    if (!pool) return REAL(cuMemAllocFromPoolAsync)(p, bytes, pool, s);
    own_device(pool);
    return allocate(&(struct order){s, pool, NULL, REAL(cuMemAllocFromPoolAsync), REAL(cuMemFreeAsync)}, p, bytes);
}
API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream s)
{
    if (!pool) return REAL(cuMemAllocFromPoolAsync_ptsz)(p, bytes, pool, s);
    own_device(pool);
    return allocate(&(struct order){s, pool, NULL, REAL(cuMemAllocFromPoolAsync_ptsz), REAL(cuMemFreeAsync_ptsz)}, p, bytes);
}

/* A pointer may come from a pool or from cuMemAlloc. In a capture its free is a node; the memory stays. */
static CUresult release(free_async *real, CUdeviceptr p, CUstream s)
{
    struct track t = {.kind = 0}, old;
    CUresult r;

    if (!capturing(s) && !track_remove(TRACK_POOLED, p, &t)) track_remove(TRACK_POINTER, p, &t);
    r = real(p, s);
    if (r != CUDA_SUCCESS && t.kind) track_put(&t, &old);
    else if (t.kind == TRACK_POOLED) pool_release(&t);
    else give(&t);
    return r;
}
API CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { return release(REAL(cuMemFreeAsync), p, s); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s) { return release(REAL(cuMemFreeAsync_ptsz), p, s); }

/* ---- pools ---- */

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    CUresult r = REAL(cuMemPoolCreate)(pool, props);
    if (r == CUDA_SUCCESS && pool && props) note(*pool, &props->location);
    return r;
}
API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    CUresult r = REAL(cuMemGetDefaultMemPool)(pool, location, type);
    if (r == CUDA_SUCCESS && pool && location) note(*pool, location);
    return r;
}
API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    CUresult r = REAL(cuMemGetMemPool)(pool, location, type);
    if (r == CUDA_SUCCESS && pool && location) note(*pool, location);
    return r;
}
API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult r = REAL(cuMemPoolTrimTo)(pool, keep);
    return settled(r);
}

/* What was not freed when its pool was destroyed lives on, and so does what the pool holds. */
API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult r = REAL(cuMemPoolDestroy)(pool);
    struct pool *p;

    if (r != CUDA_SUCCESS) return r;
    os_spin_lock(&lock);
    p = find(pool);
    if (p) p->handle = NULL;
    if (p && p->live == 0) {
        account_give(p->device, p->charged);
        p->taken = false;
    }
    os_spin_unlock(&lock);
    return r;
}
