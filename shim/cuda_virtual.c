/* Virtual memory management: physical memory with handles and mappings. A block is an allocation of
 * physical memory. Handles and mappings are references to it, and the last one that goes frees
 * it. */
#include "account.h"
#include "cuda_count.h"
#include "cuda_devices.h"
#include "cuda_driver.h"
#include "cuda_pools.h"
#include "track.h"

/* Blocks are numbered in steps of this, so that the hash of track.c puts successive ones side by
 * side. */
enum { BLOCK_STEP = 512 };
static uint64_t next_block;

static void drop_reference(uint64_t block)
{
    struct track b;
    if (track_count(TRACK_BLOCK, block, -1, &b) && b.count == 0) uncount(&b);
}

/* add_reference enters a handle or a mapping that is counted in its block already. */
static bool add_reference(enum track_kind kind, uint64_t key, uint64_t block, uint64_t bytes)
{
    struct track old;

    if (!track_put(&(struct track){.kind = (uint8_t)kind, .key = key, .link = block, .bytes = bytes, .count = 1, .device = -1}, &old)) return false;
    if (old.kind) drop_reference(old.link);
    return true;
}

/* add_block enters a new allocation and its first handle. */
static bool add_block(CUmemGenericAllocationHandle handle, const struct track *b)
{
    struct track old;

    if (!track_put(b, &old)) return false;
    if (add_reference(TRACK_HANDLE, handle, b->key, 0)) return true;
    track_remove(TRACK_BLOCK, b->key, &old);
    return false;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct track b = {.kind = TRACK_BLOCK, .bytes = bytes, .count = 1};
    CUdevice ordinal = HOST_MEMORY;
    CUresult r;

    if (handle && prop && (r = ordinal_of(&prop->location, prop->type, &ordinal)) != CUDA_SUCCESS) return r;
    if (!handle || !prop || ordinal == HOST_MEMORY) return REAL(cuMemCreate)(handle, bytes, prop, flags);
    b.device = (int8_t)device_of(ordinal);
    if (!take_of_grant(b.device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    r = REAL(cuMemCreate)(handle, bytes, prop, flags);
    b.key = __atomic_add_fetch(&next_block, BLOCK_STEP, __ATOMIC_RELAXED);
    if (r == CUDA_SUCCESS && !add_block(*handle, &b)) {
        REAL(cuMemRelease)(*handle);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r != CUDA_SUCCESS) uncount(&b);
    return r;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct track h;
    bool known = track_count(TRACK_HANDLE, handle, -1, &h);
    CUresult r = REAL(cuMemRelease)(handle);

    if (!known) return r;
    if (r == CUDA_SUCCESS) {
        if (h.count == 0) drop_reference(h.link);
    } else if (!track_count(TRACK_HANDLE, handle, 1, &h)) {
        h.count = 1;
        track_put(&h, &(struct track){0});
    }
    return r;
}

/* A handle that was released while its memory is mapped becomes valid again. It is found by the
 * address of the mapping's start. For an address inside a mapping the handle is not entered: the
 * memory is then counted only until it is unmapped. */
API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult r = REAL(cuMemRetainAllocationHandle)(handle, address);
    struct track m, block;

    if (r != CUDA_SUCCESS || track_count(TRACK_HANDLE, *handle, 1, &m)) return r;
    if (!track_find(TRACK_MAPPING, (uint64_t)(uintptr_t)address, &m) || !track_count(TRACK_BLOCK, m.link, 1, &block)) return r;
    if (!add_reference(TRACK_HANDLE, *handle, m.link, 0)) drop_reference(m.link);
    return r;
}

/* A mapping of memory that is not counted (an imported handle, the host's) is entered, too, with
 * block 0, which does not exist: else cuMemUnmap would not find the mappings that follow it. */
API CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct track h, b;
    bool counted = track_find(TRACK_HANDLE, handle, &h) && track_count(TRACK_BLOCK, h.link, 1, &b);
    uint64_t block = counted ? h.link : 0;
    CUresult r = REAL(cuMemMap)(p, bytes, offset, handle, flags);

    if (r != CUDA_SUCCESS) {
        drop_reference(block);
    } else if (!add_reference(TRACK_MAPPING, p, block, bytes)) {
        REAL(cuMemUnmap)(p, bytes);
        drop_reference(block);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return r;
}

/* One call can unmap several whole mappings. Their entries are removed before the driver is called,
 * because another thread may map the addresses again at once. Of more than BATCH mappings, the
 * others are removed after it. */
enum { BATCH = 32 };

/* remove_mappings removes up to BATCH entries from *p on, which it moves past them. */
static unsigned int remove_mappings(CUdeviceptr *p, CUdeviceptr end, struct track *removed)
{
    unsigned int n = 0;

    while (n < BATCH && *p < end && track_remove(TRACK_MAPPING, *p, &removed[n])) *p += removed[n++].bytes;
    return n;
}

API CUresult cuMemUnmap(CUdeviceptr p, size_t bytes)
{
    struct track removed[BATCH], old;
    CUdeviceptr end = p + bytes < p ? UINT64_MAX : p + bytes, at = p;
    unsigned int n = remove_mappings(&at, end, removed);
    CUresult r = REAL(cuMemUnmap)(p, bytes);

    if (r != CUDA_SUCCESS) {
        for (unsigned int i = 0; i < n; i++) track_put(&removed[i], &old);
        return r;
    }
    while (n > 0) {
        for (unsigned int i = 0; i < n; i++) drop_reference(removed[i].link);
        n = remove_mappings(&at, end, removed);
    }
    return r;
}
