/* Memory by parts. An allocation lives while a handle or a mapping does; "block" is what the account knows of it. */
#include "cuda.h"

static uint64_t next_block; /* in steps of what the tracking takes for neighbours */
enum { BLOCK_STEP = 512 };

/* unblock takes one handle or mapping off a block. */
static void unblock(uint64_t block)
{
    struct track b;
    if (track_count(TRACK_BLOCK, block, -1, &b) && b.count == 0) give(&b);
}

static bool enter(enum track_kind kind, uint64_t key, uint64_t block, uint64_t bytes)
{
    struct track old;

    if (!track_put(&(struct track){.kind = (uint8_t)kind, .key = key, .link = block, .bytes = bytes, .count = 1, .device = -1}, &old)) return false;
    if (old.kind) unblock(old.link);
    return true;
}

/* keep_block enters a new allocation and its first handle. */
static bool keep_block(CUmemGenericAllocationHandle handle, const struct track *b)
{
    struct track old;

    if (!track_put(b, &old)) return false;
    if (enter(TRACK_HANDLE, handle, b->key, 0)) return true;
    track_remove(TRACK_BLOCK, b->key, &old);
    return false;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct track b = {.kind = TRACK_BLOCK, .bytes = bytes, .count = 1};
    CUresult r;

    if (!handle || !prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return REAL(cuMemCreate)(handle, bytes, prop, flags);
    b.device = (int8_t)device_of(prop->location.id);
    if (!account_take(b.device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    r = REAL(cuMemCreate)(handle, bytes, prop, flags);
    b.key = __atomic_add_fetch(&next_block, BLOCK_STEP, __ATOMIC_RELAXED);
    if (r == CUDA_SUCCESS && !keep_block(*handle, &b)) {
        REAL(cuMemRelease)(*handle);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r != CUDA_SUCCESS) give(&b);
    return r;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct track h;
    bool known = track_count(TRACK_HANDLE, handle, -1, &h);
    CUresult r = REAL(cuMemRelease)(handle);

    if (!known) return r;
    if (r == CUDA_SUCCESS) {
        if (h.count == 0) unblock(h.link);
    } else if (!track_count(TRACK_HANDLE, handle, 1, &h)) {
        h.count = 1;
        track_put(&h, &(struct track){0});
    }
    return r;
}

/* A handle that was released while its memory is mapped comes back to life. Of an address inside a mapping the start is not
 * known: the memory is then counted until the mapping goes. */
API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult r = REAL(cuMemRetainAllocationHandle)(handle, address);
    struct track m, block;

    if (r != CUDA_SUCCESS || track_count(TRACK_HANDLE, *handle, 1, &m)) return r;
    if (!track_find(TRACK_MAPPING, (uint64_t)(uintptr_t)address, &m) || !track_count(TRACK_BLOCK, m.link, 1, &block)) return r;
    if (!enter(TRACK_HANDLE, *handle, m.link, 0)) unblock(m.link);
    return r;
}

API CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct track h, block;
    bool counted = track_find(TRACK_HANDLE, handle, &h) && track_count(TRACK_BLOCK, h.link, 1, &block);
    CUresult r = REAL(cuMemMap)(p, bytes, offset, handle, flags);

    if (!counted) return r;
    if (r != CUDA_SUCCESS) {
        unblock(h.link);
    } else if (!enter(TRACK_MAPPING, p, h.link, bytes)) {
        REAL(cuMemUnmap)(p, bytes);
        unblock(h.link);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return r;
}

/* Several whole mappings may be unmapped at once. Their entries go before the driver acts, because the addresses may be mapped
 * anew at once by another thread; of more than FEW the rest goes after it. */
enum { FEW = 32 };

static unsigned int take_mappings(CUdeviceptr *p, CUdeviceptr end, struct track *taken)
{
    unsigned int n = 0;

    while (n < FEW && *p < end && track_remove(TRACK_MAPPING, *p, &taken[n])) *p += taken[n++].bytes;
    return n;
}

API CUresult cuMemUnmap(CUdeviceptr p, size_t bytes)
{
    struct track taken[FEW], old;
    CUdeviceptr end = p + bytes < p ? UINT64_MAX : p + bytes, at = p;
    unsigned int n = take_mappings(&at, end, taken);
    CUresult r = REAL(cuMemUnmap)(p, bytes);

    if (r != CUDA_SUCCESS) {
        for (unsigned int i = 0; i < n; i++) track_put(&taken[i], &old);
        return r;
    }
    while (n > 0) {
        for (unsigned int i = 0; i < n; i++) unblock(taken[i].link);
        n = take_mappings(&at, end, taken);
    }
    return r;
}
