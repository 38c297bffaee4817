#include "cuda_pools.h"

#include "account.h"
#include "cuda_driver.h"
#include "os.h"

/* Drivers grow a pool by 32 MiB or by the request. */
enum { CHUNK = 32 << 20 };

/* An entry's address stays the same, because pointers are tracked with it. */
struct pool {
    struct pool *next;
    CUmemoryPool handle;  /* NULL: destroyed, or the driver has been called to destroy it */
    CUmemoryPool gone;    /* its handle then, until a pool with this handle is entered */
    bool taken;
    bool in_destruction;  /* cuMemPoolDestroy has not returned yet */
    int device;           /* or POOL_OF_HOST */
    uint64_t used;        /* bytes of allocations */
    uint64_t asked;       /* those of them that the driver has not answered yet */
    uint64_t charged;     /* bytes in the account */
    uint64_t chunk;       /* by which the pool grows: CHUNK until it is seen to be less */
    unsigned int pending; /* allocations and destructions that the driver has not answered yet */
};

static struct os_spin lock; /* of what follows; under it, the driver only reads an attribute */
static struct pool *pools; /* a list; entries that are not taken stay in it */
static int overcharged; /* some pool is charged more than its allocations use */

/* lock_pools finds the driver's function before it takes the lock. To find a function takes the
 * loader's lock, and a thread that has that one may be waiting for this one: in a dlopen, if a
 * constructor of what is loaded allocates. */
static void lock_pools(void)
{
    (void)REAL(cuMemPoolGetAttribute);
    os_spin_lock(&lock);
}

static struct pool *find(CUmemoryPool handle)
{
    for (struct pool *p = pools; p; p = p->next)
        if (p->taken && handle && p->handle == handle) return p;
    return NULL;
}

/* find_gone returns the entry of a destroyed pool. The entry may be free, and lose the handle when
 * another pool gets it. */
static struct pool *find_gone(CUmemoryPool handle)
{
    struct pool *one = NULL;

    for (struct pool *p = pools; p; p = p->next)
        if (handle && p->gone == handle && (!one || p->in_destruction)) one = p;
    return one;
}

/* more_pools returns a list of new entries, NULL if there is no memory for them. */
static struct pool *more_pools(void)
{
    enum { BYTES = 4096, N = BYTES / sizeof(struct pool) };
    struct pool *p = os_pages(BYTES);

    for (size_t i = 0; p && i < N - 1; i++) p[i].next = &p[i + 1];
    return p;
}

static struct pool *find_or_add(CUmemoryPool handle, int device)
{
    struct pool *p = find(handle), **at = &pools;

    if (p) return p;
    while (*at && (*at)->taken) at = &(*at)->next;
    /* In one step: another thread may fork. */
    if (!*at) __atomic_store_n(at, more_pools(), __ATOMIC_RELEASE);
    p = *at;
    if (!p) return NULL;
    for (struct pool *q; (q = find_gone(handle));) q->gone = NULL;
    *p = (struct pool){.next = p->next, .handle = handle, .taken = true, .device = device, .chunk = CHUNK};
    return p;
}

void pools_add(CUmemoryPool handle, int device)
{
    lock_pools();
    find_or_add(handle, device);
    os_spin_unlock(&lock);
}

bool pools_known(CUmemoryPool handle)
{
    bool known;

    lock_pools();
    known = find(handle) != NULL;
    os_spin_unlock(&lock);
    return known;
}

/* held_bytes is what the driver says that the pool holds, and at least what its allocations use. */
static uint64_t held_bytes(struct pool *p)
{
    uint64_t bytes = 0;

    REAL(cuMemPoolGetAttribute)(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    if (bytes & (p->chunk - 1)) p->chunk = bytes & -bytes;
    return bytes > p->used ? bytes : p->used;
}

/* update makes the charge agree with what the pool holds, false if that does not fit. */
static bool update(struct pool *p)
{
    uint64_t held;

    if (p->device < 0 || !p->handle) return true;
    held = held_bytes(p);
    if (held > p->charged && !account_take(p->device, held - p->charged)) return false;
    if (held > p->charged || p->pending == 0) {
        if (held < p->charged) account_give(p->device, p->charged - held);
        p->charged = held;
    }
    return true;
}

/* charge takes from the account what the pool may grow by, in whole chunks. The driver must not try
 * what does not fit: once it has tried, the GPU's memory is taken. It still may, if memory that
 * other streams free is not free yet: `end` sees that (docs/adr/0022). */
static bool charge(struct pool *p, uint64_t bytes)
{
    uint64_t used, whole;

    if (__builtin_add_overflow(p->used, bytes, &used) || used > UINT64_MAX - CHUNK) return false;
    whole = p->device == POOL_OF_HOST ? 0 : (used + p->chunk - 1) & ~(p->chunk - 1);
    if (whole > p->charged && !account_take(p->device, whole - p->charged)) return false;
    if (whole > p->charged) p->charged = whole;
    p->used = used;
    return true;
}

/* begin charges the allocator's pool for an allocation before the driver is called. NULL: the
 * allocation does not fit, or there is no memory for an entry, or *gone: another thread has
 * destroyed the pool since cuDeviceGetMemPool. Such a pool must not be entered, because the driver
 * would be asked about it. While cuMemPoolDestroy runs, its entry counts the allocation: the driver
 * still uses the pool, or takes the memory from another one, which counts it, too, if it is
 * updated. */
static struct pool *begin(const struct allocator *a, int device, uint64_t bytes, bool *gone)
{
    struct pool *p;

    lock_pools();
    p = find(a->pool);
    if (!p && a->from_device) p = find_gone(a->pool);
    *gone = p && !p->handle && !p->in_destruction;
    if (!p) p = find_or_add(a->pool, device);
    if (p && (*gone || !charge(p, bytes))) p = NULL;
    if (p) {
        p->asked += bytes;
        p->pending++;
    }
    os_spin_unlock(&lock);
    return p;
}

/* begin_anew looks up the current pool again as often as it is gone. The driver may also have given
 * a destroyed pool's handle to a pool that is not entered yet. */
static struct pool *begin_anew(struct allocator *a, int device, uint64_t bytes)
{
    bool gone;
    struct pool *p = begin(a, device, bytes, &gone);

    for (int tries = 0; gone && tries < 3; tries++) {
        CUmemoryPool before = a->pool;
        if (REAL(cuDeviceGetMemPool)(&a->pool, a->ordinal)) return NULL;
        if (a->pool == before) pools_add(a->pool, device);
        p = begin(a, device, bytes, &gone);
    }
    return p;
}

/* free_if_unused frees the entry of a destroyed pool whose last pointer is freed. */
static void free_if_unused(struct pool *p)
{
    if (p->handle || p->used > 0 || p->pending > 0 || !p->taken) return;
    account_give(p->device, p->charged);
    p->taken = false;
}

/* end follows the driver's answer. False: the pool holds more than fits. */
static bool end(struct pool *p, uint64_t bytes, bool allocated)
{
    bool fits = true;

    lock_pools();
    p->asked -= bytes;
    p->pending--;
    if (!allocated) p->used -= bytes;
    fits = update(p) || !allocated;
    free_if_unused(p);
    os_spin_unlock(&lock);
    return fits;
}

static struct pool *pool_of(const struct track *t) { return (struct pool *)(uintptr_t)t->link; }

void pool_release(const struct track *t)
{
    struct pool *p = pool_of(t);

    lock_pools();
    p->used = p->used > t->bytes ? p->used - t->bytes : 0;
    free_if_unused(p);
    os_spin_unlock(&lock);
    __atomic_store_n(&overcharged, 1, __ATOMIC_RELAXED);
}

CUresult pool_allocate(struct allocator *a, CUdeviceptr *ptr, size_t bytes, int device)
{
    struct track t = {.kind = TRACK_POOLED, .bytes = bytes, .device = -1}, old;
    struct pool *p = begin_anew(a, device, bytes);
    bool fits;
    CUresult r;

    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    r = call_driver(a, ptr, bytes);
    fits = end(p, bytes, r == CUDA_SUCCESS);
    if (r != CUDA_SUCCESS) return r;
    t.key = *ptr;
    t.link = (uint64_t)(uintptr_t)p;
    if (fits && track_put(&t, &old)) {
        if (old.kind == TRACK_POOLED) pool_release(&old);
        return r;
    }
    a->free(*ptr, a->stream);
    pool_release(&t);
    REAL(cuMemPoolTrimTo)(a->pool, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The entry gives up the handle before the driver is called. Otherwise another thread could ask the
 * driver about a pool that is gone, or find this entry for a new pool that gets the same handle. If
 * the driver refuses, as for a device's default pool, the handle returns, unless another thread has
 * used the pool in between and so made a second entry. That one has the handle then. This one counts
 * what its pointers use, until they are freed. */
CUresult pool_destroy(CUmemoryPool handle)
{
    struct pool *p;
    CUresult r;

    lock_pools();
    p = find(handle);
    if (p) {
        p->handle = NULL;
        p->gone = handle;
        p->in_destruction = true;
        p->pending++;
    }
    os_spin_unlock(&lock);
    r = REAL(cuMemPoolDestroy)(handle);
    if (!p) return r;
    lock_pools();
    p->pending--;
    p->in_destruction = false;
    if (r != CUDA_SUCCESS) p->gone = NULL;
    if (r != CUDA_SUCCESS && !find(handle)) p->handle = handle;
    free_if_unused(p);
    os_spin_unlock(&lock);
    __atomic_store_n(&overcharged, 1, __ATOMIC_RELAXED); /* pools_update did not look at this pool */
    return r;
}

/* `overcharged` falls last and under the lock. So a thread whose memory depends on what the pools hold
 * waits for the one that is asking the driver. If it finds that one done, its memory may be there since
 * it was refused. */
bool pools_update(void)
{
    bool still = false;

    if (!__atomic_load_n(&overcharged, __ATOMIC_ACQUIRE)) return __atomic_load_n(&pools, __ATOMIC_RELAXED) != NULL;
    lock_pools();
    if (__atomic_load_n(&overcharged, __ATOMIC_RELAXED)) {
        for (struct pool *p = pools; p; p = p->next) {
            if (!p->taken || !p->handle || p->charged == p->used) continue;
            update(p);
            still |= p->charged > p->used;
        }
        __atomic_store_n(&overcharged, still, __ATOMIC_RELEASE);
    }
    os_spin_unlock(&lock);
    return true;
}

static bool is_of_device(const struct track *t, uint64_t device)
{
    return t->kind == TRACK_POOLED && pool_of(t)->device == (int)device;
}
static void ignore(const struct track *t) { (void)t; }

/* The pointers are forgotten. Their memory leaves the account when the driver says that the pool no
 * longer holds it. It cannot be asked about a destroyed pool: without pointers, that one is
 * gone, at the end of cuMemPoolDestroy if another thread is in it. */
void pools_reset(int device)
{
    if (device < 0) return;
    track_remove_if(is_of_device, (uint64_t)device, ignore);
    lock_pools();
    for (struct pool *p = pools; p; p = p->next)
        if (p->taken && p->device == device) {
            p->used = p->asked;
            free_if_unused(p);
        }
    os_spin_unlock(&lock);
    __atomic_store_n(&overcharged, 1, __ATOMIC_RELAXED);
    pools_update();
}

void pools_forget(void)
{
    for (struct pool *p = pools; p; p = p->next) p->taken = false, p->gone = NULL;
    lock.held = 0;
    overcharged = 0;
}
