/* Memory by parts: allocations (blocks) that live while a handle or a mapping does. */
#include "objects.h"

#define CHECK(condition, error) do { if (!(condition)) return error; } while (0)

struct block { struct object head; int gpu; uint64_t bytes; int handles, mappings; };
struct mapping { struct object head; struct block *block; CUdeviceptr address; uint64_t bytes; };

static void drop(struct block *b)
{
    if (b->handles || b->mappings) return;
    if (b->gpu >= 0) shared_sub(b->gpu, SHARED_MEMORY, b->bytes);
    object_delete(&b->head);
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    GUARD;
    struct block *b;
    int gpu = -1, device; /* the host's memory */

    CHECK(h && prop && bytes && flags == 0, CUDA_ERROR_INVALID_VALUE);
    CHECK(device_gpu(0) >= 0, CUDA_ERROR_NOT_INITIALIZED);
    CHECK(bytes % (2 << 20) == 0, CUDA_ERROR_INVALID_VALUE);
    device = location_device(&prop->location, prop->type);
    CHECK(device != LOCATION_UNKNOWN, CUDA_ERROR_INVALID_VALUE);
    if (device != -1) {
        gpu = device_gpu(device);
        CHECK(gpu >= 0, CUDA_ERROR_INVALID_DEVICE);
        CHECK(shared_add(gpu, SHARED_MEMORY, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    }
    b = object_new(OBJECT_BLOCK, sizeof *b);
    b->gpu = gpu;
    b->bytes = bytes;
    b->handles = 1;
    *h = (CUmemGenericAllocationHandle)(uintptr_t)b;
    return CUDA_SUCCESS;
}

static struct block *block_of(CUmemGenericAllocationHandle h)
{
    struct block *b = (struct block *)(uintptr_t)h;
    return object_is(b, OBJECT_BLOCK) && b->handles > 0 ? b : NULL;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle h)
{
    GUARD;
    struct block *b = block_of(h);

    CHECK(b, CUDA_ERROR_INVALID_VALUE);
    b->handles--;
    drop(b);
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option)
{
    GUARD;
    (void)option;
    CHECK(granularity && prop, CUDA_ERROR_INVALID_VALUE);
    *granularity = 2 << 20;
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags)
{
    GUARD;
    (void)alignment, (void)wish, (void)flags;
    CHECK(p && bytes, CUDA_ERROR_INVALID_VALUE);
    *p = address_new(bytes);
    return CUDA_SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes)
{
    GUARD;
    (void)p, (void)bytes;
    return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
    GUARD;
    struct block *b = block_of(h);
    struct mapping *m;

    CHECK(b && p && bytes && offset == 0 && flags == 0 && bytes <= b->bytes, CUDA_ERROR_INVALID_VALUE);
    m = object_new(OBJECT_MAPPING, sizeof *m);
    m->block = b;
    m->address = p;
    m->bytes = bytes;
    b->mappings++;
    return CUDA_SUCCESS;
}

static bool starts(void *m, const void *p) { return ((struct mapping *)m)->address == *(const CUdeviceptr *)p; }
static bool covers(void *object, const void *p)
{
    const struct mapping *m = object;
    return *(const CUdeviceptr *)p - m->address < m->bytes;
}

/* A range of several whole mappings may be unmapped at once. */
API CUresult cuMemUnmap(CUdeviceptr p, size_t bytes)
{
    GUARD;
    CUdeviceptr end = p + bytes;

    for (CUdeviceptr at = p; at < end;) {
        const struct mapping *m = object_find(OBJECT_MAPPING, starts, &at);
        CHECK(m && m->bytes <= end - at, CUDA_ERROR_INVALID_VALUE);
        at += m->bytes;
    }
    while (p < end) {
        struct mapping *m = object_find(OBJECT_MAPPING, starts, &p);
        struct block *b = m->block;
        p += m->bytes;
        object_delete(&m->head);
        b->mappings--;
        drop(b);
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    GUARD;
    (void)bytes, (void)access, (void)count;
    return object_find(OBJECT_MAPPING, covers, &p) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *h, void *address)
{
    GUARD;
    CUdeviceptr p = (CUdeviceptr)(uintptr_t)address;
    struct mapping *m = object_find(OBJECT_MAPPING, covers, &p);

    CHECK(h && m, CUDA_ERROR_INVALID_VALUE);
    m->block->handles++;
    *h = (CUmemGenericAllocationHandle)(uintptr_t)m->block;
    return CUDA_SUCCESS;
}

/* An exported handle is a number; importing it gives a block of which this process holds no memory of its own. */
API CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle h, int type, unsigned long long flags)
{
    GUARD;
    struct block *b = block_of(h);

    (void)type, (void)flags;
    CHECK(b && shareable, CUDA_ERROR_INVALID_VALUE);
    *(uint64_t *)shareable = b->bytes;
    return CUDA_SUCCESS;
}
API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *shareable, int type)
{
    GUARD;
    struct block *b;

    (void)type;
    CHECK(h && shareable, CUDA_ERROR_INVALID_VALUE);
    b = object_new(OBJECT_BLOCK, sizeof *b);
    b->gpu = -1;
    b->bytes = *(uint64_t *)shareable;
    b->handles = 1;
    *h = (CUmemGenericAllocationHandle)(uintptr_t)b;
    return CUDA_SUCCESS;
}
