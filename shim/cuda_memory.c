/* Plain, pitched and managed memory, and arrays. */
#include "account.h"
#include "cuda_count.h"
#include "cuda_devices.h"
#include "cuda_driver.h"
#include "cuda_pools.h"
#include "record.h"
#include "track.h"

static struct track entry_at(const struct location *l, uint64_t bytes)
{
    return (struct track){
        .kind = TRACK_POINTER, .device = (int8_t)l->device, .context = l->context, .bytes = bytes};
}

static void undo_pointer(uint64_t p) { REAL(cuMemFree_v2)(p); }
static void undo_pointer_v1(uint64_t p) { REAL(cuMemFree)((CUdeviceptr_v1)p); }

/* begin_allocation counts an allocation in the current context. Without a context, the answer is the
 * driver's own error. */
static CUresult begin_allocation(struct track *t, uint64_t bytes)
{
    struct location l;
    CUresult r = location_current(&l);

    if (r != CUDA_SUCCESS) return r;
    *t = entry_at(&l, bytes);
    return take_of_grant(l.device, t->bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* begin_pointer counts whole pages. Whether a small allocation needs a new page shows in its address
 * alone, and once it has, the GPU's memory is taken. */
static CUresult begin_pointer(struct track *t, uint64_t bytes) { return begin_allocation(t, whole_pages(bytes)); }

/* Arguments that the driver refuses are passed to it uncounted: the answer is the driver's. */

API CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes)
{
    struct track t;
    CUresult r;

    if (!p || !bytes) return REAL(cuMemAlloc_v2)(p, bytes);
    if ((r = begin_pointer(&t, bytes)) != CUDA_SUCCESS) return r;
    r = REAL(cuMemAlloc_v2)(p, bytes);
    t.key = *p;
    return finish_pointer(r, &t, bytes, undo_pointer);
}
API CUresult cuMemAlloc(CUdeviceptr_v1 *p, unsigned int bytes)
{
    struct track t;
    CUresult r;

    if (!p || !bytes) return REAL(cuMemAlloc)(p, bytes);
    if ((r = begin_pointer(&t, bytes)) != CUDA_SUCCESS) return r;
    r = REAL(cuMemAlloc)(p, bytes);
    t.key = *p;
    return finish_pointer(r, &t, bytes, undo_pointer_v1);
}
API CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned int flags)
{
    struct track t;
    CUresult r;

    if (!p || !bytes) return REAL(cuMemAllocManaged)(p, bytes, flags);
    if ((r = begin_pointer(&t, bytes)) != CUDA_SUCCESS) return r;
    r = REAL(cuMemAllocManaged)(p, bytes, flags);
    t.key = *p;
    return finish_pointer(r, &t, bytes, undo_pointer);
}

/* pitched_bytes is the size of rows that are padded to 512 bytes, as drivers do. If it does not fit
 * the type, it is UINT64_MAX. */
static uint64_t pitched_bytes(uint64_t width, uint64_t height)
{
    uint64_t bytes;
    if (width > UINT64_MAX - 511 || __builtin_mul_overflow((width + 511) & ~UINT64_C(511), height, &bytes)) return UINT64_MAX;
    return bytes;
}

/* recount makes the count agree with the pitch that the driver chose. False: the bytes do not
 * fit. */
static bool recount(struct track *t, uint64_t bytes)
{
    bytes = whole_pages(bytes);
    if (bytes > t->bytes && !take_of_grant(t->device, bytes - t->bytes)) return false;
    if (bytes < t->bytes) account_give(t->device, t->bytes - bytes);
    t->bytes = bytes;
    return true;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    struct track t;
    CUresult r;

    if (!p || !pitch || !width || !height) return REAL(cuMemAllocPitch_v2)(p, pitch, width, height, element);
    if ((r = begin_pointer(&t, pitched_bytes(width, height))) != CUDA_SUCCESS) return r;
    r = REAL(cuMemAllocPitch_v2)(p, pitch, width, height, element);
    t.key = *p;
    if (r == CUDA_SUCCESS && !recount(&t, *pitch * height)) {
        undo_pointer(*p);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return finish_pointer(r, &t, *pitch * height, undo_pointer);
}
API CUresult cuMemAllocPitch(CUdeviceptr_v1 *p, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element)
{
    struct track t;
    CUresult r;

    if (!p || !pitch || !width || !height) return REAL(cuMemAllocPitch)(p, pitch, width, height, element);
    if ((r = begin_pointer(&t, pitched_bytes(width, height))) != CUDA_SUCCESS) return r;
    r = REAL(cuMemAllocPitch)(p, pitch, width, height, element);
    t.key = *p;
    if (r == CUDA_SUCCESS && !recount(&t, (uint64_t)*pitch * height)) {
        undo_pointer_v1(*p);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return finish_pointer(r, &t, (uint64_t)*pitch * height, undo_pointer_v1);
}

/* An entry is removed before the driver frees, because the driver may return the address to another
 * thread at once. An unknown pointer has no entry, and the driver decides about it. */
static void untrack(uint64_t p, struct track *t)
{
    if (!untrack_pointer(p, t)) track_remove(TRACK_POOLED, p, t);
}

static CUresult finish_free(CUresult r, const struct track *t)
{
    if (r != CUDA_SUCCESS && t->kind) track_again(t);
    else if (t->kind == TRACK_POOLED) pool_release(t), pools_update();
    else uncount(t);
    return r;
}

API CUresult cuMemFree_v2(CUdeviceptr p)
{
    struct track t;
    untrack(p, &t);
    return finish_free(REAL(cuMemFree_v2)(p), &t);
}
API CUresult cuMemFree(CUdeviceptr_v1 p)
{
    struct track t;
    untrack(p, &t);
    return finish_free(REAL(cuMemFree)(p), &t);
}

/* ---- arrays ---- */

/* Compressed formats have blocks of 4 by 4 elements. */
enum { BC1_UNORM = 0x91, BC7_UNORM_SRGB = 0x9e };
static bool is_compressed(int format) { return format >= BC1_UNORM && format <= BC7_UNORM_SRGB; }

/* half_bytes is the size of an element with all its channels, in halves of a byte. The formats are
 * those of the documented enum CUarray_format, up to CUDA 13.3. A newer format counts as the largest
 * size that exists. */
static uint64_t half_bytes(int format, uint64_t channels)
{
    static const uint8_t of_format[0x100] = {
        [0x50] = 8,                                               /* 10, 10, 10 and 2 bits */
        [0x51] = 8, [0x52] = 8,                                   /* YUV packed */
        [0x53] = 3, [0x54] = 6, [0x59] = 3, [0x5a] = 6,           /* planar and semi-planar, 4:2:0, of 8 and 16 bits */
        [0x55] = 4, [0x56] = 8, [0x5b] = 4, [0x5c] = 8,           /* 4:2:2 */
        [0x57] = 6, [0x58] = 12, [0x5d] = 6, [0x5e] = 12,         /* 4:4:4 */
        [BC1_UNORM] = 1, 1, [0x93 ... 0x96] = 2, [0x97] = 1, 1,   /* BC1 to BC4 */
        [0x99 ... BC7_UNORM_SRGB] = 2,                            /* BC5 to BC7 */
        [0x9f] = 6, [0xa1] = 6, [0xa2] = 4, [0xa3] = 8, 8,        /* P010, P016, NV16, P210, P216 */
        [0xa5] = 4, 8, 8, 8, 8,                                   /* YUY2, Y210, Y216, AYUV, Y410 */
        [0xb0] = 3, 16, 6, 12, 6, 12,                             /* NV12, Y416, Y444 and YUV444 of 8 and more bits */
        [0xc0] = 2, 4, 8, 4, 8, 16,                               /* UNORM_INT8X1, X2, X4, UNORM_INT16X1, X2, X4 */
        [0xc6] = 2, 4, 8, 4, 8, 16,                               /* and SNORM_INT */
    };

    switch (format) {
    case 0x01: case 0x08: return 2 * channels;          /* 8 bits */
    case 0x02: case 0x09: case 0x10: return 4 * channels;
    case 0x03: case 0x0a: case 0x20: return 8 * channels;
    default: return format > 0 && format < 0x100 && of_format[format] ? of_format[format] : 2 * 16;
    }
}

/* times multiplies, with b = 0 as 1; UINT64_MAX if the product does not fit. */
static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b ? b : 1, &product) ? UINT64_MAX : product;
}

/* side is the length of a side at a level. It is at least an element, or a block. */
static uint64_t side(const CUDA_ARRAY3D_DESCRIPTOR *d, uint64_t length, unsigned int level)
{
    uint64_t n = length >> level ? length >> level : 1;
    return is_compressed(d->Format) && n <= UINT64_MAX - 3 ? (n + 3) & ~UINT64_C(3) : n;
}

/* array_bytes is the size of all levels. Sparse and deferred arrays have no memory of their own. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
    uint64_t sum = 0, element = half_bytes(d->Format, d->NumChannels);
    bool layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);

    if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
    for (unsigned int l = 0; l < levels; l++) {
        uint64_t area = times(times(side(d, d->Width, l), side(d, d->Height, l)), layers ? d->Depth : d->Depth >> l);
        if (__builtin_add_overflow(sum, times(area, element), &sum)) return UINT64_MAX;
    }
    return sum == UINT64_MAX ? sum : (sum + 1) / 2;
}

/* levels_of clamps a number of levels as drivers do: to at least one, and at most those until every
 * side has one element. (NVIDIA's documentation of cuMipmappedArrayCreate.) */
static unsigned int levels_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
    uint64_t sides = (uint64_t)d->Width | d->Height | d->Depth; /* has the highest bit of the largest */
    unsigned int most = sides ? 64 - (unsigned int)__builtin_clzll(sides) : 1;

    return levels < 1 ? 1 : levels < most ? levels : most;
}

static void undo_array(uint64_t a) { REAL(cuArrayDestroy)((CUarray)(uintptr_t)a); }
static void undo_mipmap(uint64_t a) { REAL(cuMipmappedArrayDestroy)((CUmipmappedArray)(uintptr_t)a); }

/* Small arrays share pages, too, but an array has no address that would show which. */
static CUresult begin_array(struct track *t, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
    uint64_t bytes = array_bytes(d, levels);
    CUresult r = begin_allocation(t, bytes > RECORD_GPU_PAGE / 2 ? whole_pages(bytes) : bytes);
    t->kind = TRACK_ARRAY;
    return r;
}

static CUresult finish_array(CUresult r, struct track *t, const void *array, void (*undo)(uint64_t))
{
    t->key = (uint64_t)(uintptr_t)array;
    return finish_allocation(r, t, undo);
}

#define ARRAY(function, type, depth, flags)                                                                               \
    API CUresult function(CUarray *a, const type *d)                                                                      \
    {                                                                                                                     \
        struct track t;                                                                                                   \
        CUresult r;                                                                                                       \
        if (!a || !d) return REAL(function)(a, d);                                                                        \
        r = begin_array(&t, &(CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, depth, d->Format, d->NumChannels, flags}, 1); \
        if (r != CUDA_SUCCESS) return r;                                                                                  \
        r = REAL(function)(a, d);                                                                                         \
        return finish_array(r, &t, *a, undo_array);                                                                       \
    }
ARRAY(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, 0, 0)
ARRAY(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, 0, 0)
ARRAY(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, d->Depth, d->Flags)
ARRAY(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, d->Depth, d->Flags)

API CUresult cuMipmappedArrayCreate(CUmipmappedArray *a, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
    struct track t;
    CUresult r;

    if (!a || !d) return REAL(cuMipmappedArrayCreate)(a, d, levels);
    if ((r = begin_array(&t, d, levels_of(d, levels))) != CUDA_SUCCESS) return r;
    r = REAL(cuMipmappedArrayCreate)(a, d, levels);
    return finish_array(r, &t, *a, undo_mipmap);
}

API CUresult cuArrayDestroy(CUarray a)
{
    struct track t;
    track_remove(TRACK_ARRAY, (uint64_t)(uintptr_t)a, &t);
    return finish_free(REAL(cuArrayDestroy)(a), &t);
}
API CUresult cuMipmappedArrayDestroy(CUmipmappedArray a)
{
    struct track t;
    track_remove(TRACK_ARRAY, (uint64_t)(uintptr_t)a, &t);
    return finish_free(REAL(cuMipmappedArrayDestroy)(a), &t);
}
