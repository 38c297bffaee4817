/* A libcuda that computes nothing and counts everything: contexts, memory of each kind, and what becomes of it. It is
 * as strict about handles as the driver is and keeps to the documented rules of life (a VMM allocation lives while a
 * handle or a mapping does, a pool keeps what was freed, graph memory lives with its executable graph). */
#define _GNU_SOURCE
#include "../../shim/cuda_abi.h"
#include "shared.h"
#include "objects.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ready;
static int ordinals[SHARED_GPUS], devices; /* CUDA_VISIBLE_DEVICES: ordinal -> GPU */
static struct CUctx_st *primary[SHARED_GPUS];

/* Each thread's stack of contexts. No __thread: in a program with a static C library dlopen cannot give it. */
enum { DEPTH = 16 };
struct contexts { int depth; CUcontext at[DEPTH]; };
static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

#define CHECK(condition, error) do { if (!(condition)) return error; } while (0)
#define READY CHECK(ready, CUDA_ERROR_NOT_INITIALIZED)
#define DEVICE(d) READY; CHECK((d) >= 0 && (d) < devices, CUDA_ERROR_INVALID_DEVICE)
#define CURRENT READY; CHECK(current(), CUDA_ERROR_INVALID_CONTEXT)

static void make_key(void) { pthread_key_create(&key, free); }

static struct contexts *contexts(void)
{
    struct contexts *c;

    pthread_once(&key_once, make_key);
    c = pthread_getspecific(key);
    if (!c) {
        c = calloc(1, sizeof *c);
        pthread_setspecific(key, c);
    }
    return c;
}

static CUcontext current(void)
{
    const struct contexts *c = contexts();
    return c->depth > 0 ? c->at[c->depth - 1] : NULL;
}
static int gpu(void) { return current()->gpu; }

/* ---- start and devices ---- */

/* see reads one entry of CUDA_VISIBLE_DEVICES: an index or the start of a UUID. The first invalid one ends the list. */
static bool see(const char *word)
{
    char *end;
    long index = strtol(word, &end, 10);

    if (end == word || *end) {
        for (index = 0; index < shared_gpus(); index++)
            if (*word && strncmp(word, shared_gpu((int)index)->uuid, strlen(word)) == 0) break;
    }
    if (index < 0 || index >= shared_gpus()) return false;
    ordinals[devices++] = (int)index;
    return true;
}

static void look(void)
{
    const char *env = getenv("CUDA_VISIBLE_DEVICES");
    char list[1024], *rest = list, *word;

    devices = 0;
    if (!env) {
        for (int i = 0; i < shared_gpus(); i++) ordinals[devices++] = i;
        return;
    }
    snprintf(list, sizeof list, "%s", env);
    while (devices < SHARED_GPUS && (word = strsep(&rest, ",")) && see(word)) {}
}

API CUresult cuInit(unsigned int flags)
{
    CHECK(flags == 0, CUDA_ERROR_INVALID_VALUE);
    CHECK(shared_open(), CUDA_ERROR_NO_DEVICE);
    if (!ready) look();
    CHECK(devices > 0, CUDA_ERROR_NO_DEVICE);
    ready = true;
    objects_forget_in_child(&ready);
    return CUDA_SUCCESS;
}

API CUresult cuDriverGetVersion(int *version)
{
    CHECK(version, CUDA_ERROR_INVALID_VALUE);
    *version = 13000;
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult e, const char **text)
{
    CHECK(text, CUDA_ERROR_INVALID_VALUE);
    *text = e == CUDA_SUCCESS ? "no error" : e == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error";
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *n)
{
    READY;
    CHECK(n, CUDA_ERROR_INVALID_VALUE);
    *n = devices;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice *d, int ordinal)
{
    CHECK(d, CUDA_ERROR_INVALID_VALUE);
    DEVICE(ordinal);
    *d = ordinal;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char *name, int length, CUdevice d)
{
    DEVICE(d);
    snprintf(name, (size_t)length, "%s", shared_gpu(ordinals[d])->name);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice d)
{
    DEVICE(d);
    CHECK(uuid, CUDA_ERROR_INVALID_VALUE);
    memcpy(uuid->bytes, shared_gpu(ordinals[d])->bytes, 16);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice d) { return cuDeviceGetUuid_v2(uuid, d); }
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice d)
{
    DEVICE(d);
    CHECK(bytes, CUDA_ERROR_INVALID_VALUE);
    *bytes = shared_memory(ordinals[d]);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice d)
{
    DEVICE(d);
    CHECK(bytes, CUDA_ERROR_INVALID_VALUE);
    *bytes = (unsigned int)shared_memory(ordinals[d]);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice d)
{
    (void)attribute;
    DEVICE(d);
    *value = 1;
    return CUDA_SUCCESS;
}

/* ---- contexts ---- */

static CUcontext create_context(CUdevice d)
{
    CUcontext c;

    if (!shared_add(ordinals[d], SHARED_CONTEXTS, shared_context_bytes())) return NULL;
    if (!shared_add(ordinals[d], SHARED_UNLISTED, shared_unlisted_bytes())) {
        shared_sub(ordinals[d], SHARED_CONTEXTS, shared_context_bytes());
        return NULL;
    }
    c = object_new(OBJECT_CONTEXT, sizeof *c);
    c->gpu = ordinals[d];
    c->device = d;
    return c;
}

static void destroy_context(CUcontext c)
{
    free_context_memory(c);
    shared_sub(c->gpu, SHARED_CONTEXTS, shared_context_bytes());
    shared_sub(c->gpu, SHARED_UNLISTED, shared_unlisted_bytes());
    for (int i = 0; i < contexts()->depth; i++)
        if (contexts()->at[i] == c) contexts()->at[i] = NULL;
    object_delete(&c->head);
}

API CUresult cuCtxCreate_v2(CUcontext *c, unsigned int flags, CUdevice d)
{
    (void)flags;
    DEVICE(d);
    CHECK(c && contexts()->depth < DEPTH, CUDA_ERROR_INVALID_VALUE);
    *c = create_context(d);
    CHECK(*c, CUDA_ERROR_OUT_OF_MEMORY);
    contexts()->at[contexts()->depth++] = *c;
    return CUDA_SUCCESS;
}
API CUresult cuCtxCreate(CUcontext *c, unsigned int flags, CUdevice d) { return cuCtxCreate_v2(c, flags, d); }
API CUresult cuCtxCreate_v3(CUcontext *c, void *affinity, int n, unsigned int flags, CUdevice d)
{
    (void)affinity, (void)n;
    return cuCtxCreate_v2(c, flags, d);
}
API CUresult cuCtxCreate_v4(CUcontext *c, void *params, unsigned int flags, CUdevice d)
{
    (void)params;
    return cuCtxCreate_v2(c, flags, d);
}
API CUresult cuCtxDestroy_v2(CUcontext c)
{
    READY;
    CHECK(object_is(c, OBJECT_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    destroy_context(c);
    return CUDA_SUCCESS;
}
API CUresult cuCtxDestroy(CUcontext c) { return cuCtxDestroy_v2(c); }

API CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
    DEVICE(d);
    CHECK(c, CUDA_ERROR_INVALID_VALUE);
    if (!primary[d]) primary[d] = create_context(d);
    CHECK(primary[d], CUDA_ERROR_OUT_OF_MEMORY);
    primary[d]->references++;
    *c = primary[d];
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice d)
{
    DEVICE(d);
    if (!primary[d]) return CUDA_SUCCESS;
    destroy_context(primary[d]);
    primary[d] = NULL;
    pools_reset(d);
    graphs_reset(d);
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxReset(CUdevice d) { return cuDevicePrimaryCtxReset_v2(d); }
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d)
{
    DEVICE(d);
    CHECK(primary[d], CUDA_ERROR_INVALID_CONTEXT);
    return --primary[d]->references == 0 ? cuDevicePrimaryCtxReset_v2(d) : CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease(CUdevice d) { return cuDevicePrimaryCtxRelease_v2(d); }
API CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned int *flags, int *active)
{
    DEVICE(d);
    CHECK(flags && active, CUDA_ERROR_INVALID_VALUE);
    *flags = 0;
    *active = primary[d] != NULL;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *c)
{
    READY;
    CHECK(c, CUDA_ERROR_INVALID_VALUE);
    *c = current();
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext c)
{
    READY;
    CHECK(!c || object_is(c, OBJECT_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    if (contexts()->depth == 0) contexts()->depth = 1;
    contexts()->at[contexts()->depth - 1] = c;
    return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext c)
{
    READY;
    CHECK(object_is(c, OBJECT_CONTEXT) && contexts()->depth < DEPTH, CUDA_ERROR_INVALID_CONTEXT);
    contexts()->at[contexts()->depth++] = c;
    return CUDA_SUCCESS;
}
API CUresult cuCtxPopCurrent_v2(CUcontext *c)
{
    CURRENT;
    if (c) *c = current();
    contexts()->depth--;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *d)
{
    CURRENT;
    CHECK(d, CUDA_ERROR_INVALID_VALUE);
    *d = current()->device;
    return CUDA_SUCCESS;
}

/* A caller that asks for one of the numbers gets only that. */
API CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CURRENT;
    if (total) *total = shared_memory(gpu());
    if (free) *free = shared_free(gpu());
    return CUDA_SUCCESS;
}
API CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    size_t f, t;
    CURRENT;
    cuMemGetInfo_v2(&f, &t);
    if (free) *free = (unsigned int)f;
    if (total) *total = (unsigned int)t;
    return CUDA_SUCCESS;
}

/* ---- plain memory ---- */

static CUresult allocate(CUdeviceptr *p, size_t bytes)
{
    CURRENT;
    CHECK(p && bytes, CUDA_ERROR_INVALID_VALUE);
    return memory_new(current(), gpu(), bytes, p) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) { return allocate(p, bytes); }
API CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned int flags)
{
    CHECK(flags == 1 || flags == 2, CUDA_ERROR_INVALID_VALUE);
    return allocate(p, bytes);
}
API CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    CHECK(pitch && width && height && (element == 4 || element == 8 || element == 16), CUDA_ERROR_INVALID_VALUE);
    *pitch = (width + 511) & ~(size_t)511;
    return allocate(p, *pitch * height);
}

/* The entry points of before CUDA 3.2 have pointers of 32 bits. */
static CUresult shorten(CUresult r, CUdeviceptr wide, CUdeviceptr_v1 *p)
{
    if (r == CUDA_SUCCESS) *p = (CUdeviceptr_v1)wide;
    return r;
}
API CUresult cuMemAlloc(CUdeviceptr_v1 *p, unsigned int bytes)
{
    CUdeviceptr wide = MEMORY_BELOW_4G;
    CUresult r;
    CHECK(p, CUDA_ERROR_INVALID_VALUE);
    r = allocate(&wide, bytes);
    return shorten(r, wide, p);
}
API CUresult cuMemAllocPitch(CUdeviceptr_v1 *p, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element)
{
    CUdeviceptr wide = MEMORY_BELOW_4G;
    size_t rows = 0;
    CUresult r;
    CHECK(p && pitch, CUDA_ERROR_INVALID_VALUE);
    r = cuMemAllocPitch_v2(&wide, &rows, width, height, element);
    *pitch = (unsigned int)rows;
    return shorten(r, wide, p);
}
API CUresult cuMemFree_v2(CUdeviceptr p)
{
    READY;
    if (p == 0) return CUDA_SUCCESS;
    return memory_free(p) || pool_memory_free(p) || graph_memory_free(p) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemFree(CUdeviceptr_v1 p) { return cuMemFree_v2(p); }
API CUresult cuMemAllocHost_v2(void **p, size_t bytes)
{
    CURRENT;
    *p = malloc(bytes);
    return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
API CUresult cuMemFreeHost(void *p)
{
    free(p);
    return CUDA_SUCCESS;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
    READY;
    return memory_range(p, base, size) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* The stand-in stores no contents of memory. */
API CUresult cuMemsetD32_v2(CUdeviceptr p, unsigned int value, size_t n)
{
    (void)value, (void)n;
    CURRENT;
    return memory_range(p, NULL, NULL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr p, size_t bytes)
{
    (void)p;
    CURRENT;
    launches_end();
    synchronised();
    memset(to, 0, bytes);
    return CUDA_SUCCESS;
}

/* ---- arrays: as large as their elements ---- */

enum { FORMAT_BC1 = 0x91, FORMAT_BC7 = 0x9d, FORMAT_LATER = 0xfe };

/* element_bits knows some of the formats. */
static unsigned int element_bits(int format, unsigned int channels)
{
    switch (format) {
    case 0x01: case 0x08: return 8 * channels;
    case 0x02: case 0x09: case 0x10: return 16 * channels;
    case 0x03: case 0x0a: case 0x20: return 32 * channels;
    case 0xb0: return 12;                       /* NV12 */
    case 0xc2: return 32;                       /* UNORM_INT8X4 */
    case 0xcb: return 64;                       /* SNORM_INT16X4 */
    case FORMAT_BC1: return 4;
    case FORMAT_BC7: return 8;
    case FORMAT_LATER: return 128;
    default: return 0;
    }
}

static CUresult array_new(CUarray *a, enum object_kind kind, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
    bool blocks; /* of 4 by 4 elements */
    size_t bytes = 0;
    struct page *page;
    CUdeviceptr address = 0;

    CURRENT;
    CHECK(a && d && d->Width && element_bits(d->Format, 1), CUDA_ERROR_INVALID_VALUE);
    blocks = d->Format == FORMAT_BC1 || d->Format == FORMAT_BC7;
    for (unsigned int l = 0; l < levels; l++) {
        size_t w = d->Width >> l, h = d->Height >> l, z = d->Flags & CUDA_ARRAY3D_LAYERED ? d->Depth : d->Depth >> l;
        w = w ? w : 1;
        h = h ? h : 1;
        if (blocks) w = (w + 3) / 4 * 4, h = (h + 3) / 4 * 4;
        bytes += w * h * (z ? z : 1) * element_bits(d->Format, d->NumChannels) / 8;
    }
    if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) bytes = 0;
    CHECK(pages_take(current(), gpu(), bytes, &page, &address), CUDA_ERROR_OUT_OF_MEMORY);
    *a = object_new(kind, sizeof **a);
    **a = (struct CUarray_st){.head = (*a)->head, .context = current(), .gpu = gpu(), .bytes = bytes, .page = page, .address = address};
    return CUDA_SUCCESS;
}

API CUresult cuArray3DCreate_v2(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *d) { return array_new(a, OBJECT_ARRAY, d, 1); }
API CUresult cuArrayCreate_v2(CUarray *a, const CUDA_ARRAY_DESCRIPTOR *d)
{
    CHECK(d, CUDA_ERROR_INVALID_VALUE);
    return array_new(a, OBJECT_ARRAY, &(CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0}, 1);
}
API CUresult cuArrayCreate(CUarray *a, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
    CHECK(d, CUDA_ERROR_INVALID_VALUE);
    return array_new(a, OBJECT_ARRAY, &(CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0}, 1);
}
API CUresult cuArray3DCreate(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
    CHECK(d, CUDA_ERROR_INVALID_VALUE);
    return array_new(a, OBJECT_ARRAY, &(CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags}, 1);
}
/* The number of levels is clamped, as documented. */
API CUresult cuMipmappedArrayCreate(CUmipmappedArray *a, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
    size_t largest = 1;
    unsigned int most = 1;

    CHECK(d, CUDA_ERROR_INVALID_VALUE);
    if (d->Width > largest) largest = d->Width;
    if (d->Height > largest) largest = d->Height;
    if (d->Depth > largest) largest = d->Depth;
    while (largest >>= 1) most++;
    if (levels > most) levels = most;
    return array_new((CUarray *)a, OBJECT_MIPMAP, d, levels ? levels : 1);
}
static CUresult array_destroy(CUarray a, enum object_kind kind)
{
    READY;
    CHECK(object_is(a, kind), CUDA_ERROR_INVALID_HANDLE);
    pages_give(a->gpu, a->bytes, a->page, a->address);
    object_delete(&a->head);
    return CUDA_SUCCESS;
}
API CUresult cuArrayDestroy(CUarray a) { return array_destroy(a, OBJECT_ARRAY); }
API CUresult cuMipmappedArrayDestroy(CUmipmappedArray a) { return array_destroy((CUarray)a, OBJECT_MIPMAP); }

/* ---- modules: their code takes memory without an allocation call ---- */

API CUresult cuModuleLoadData(void **module, const void *image)
{
    CURRENT;
    CHECK(module && image, CUDA_ERROR_INVALID_VALUE);
    return array_new((CUarray *)module, OBJECT_MODULE, &(CUDA_ARRAY3D_DESCRIPTOR){1 << 20, 0, 0, 1, 1, 0}, 1);
}
API CUresult cuModuleLoadDataEx(void **module, const void *image, unsigned int n, int *options, void **values)
{
    (void)n, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}
API CUresult cuModuleGetFunction(CUfunction *f, void *module, const char *name)
{
    READY;
    CHECK(f && name && object_is(module, OBJECT_MODULE), CUDA_ERROR_INVALID_VALUE);
    *f = module; /* nothing reads it */
    return CUDA_SUCCESS;
}
API CUresult cuModuleUnload(void *module) { return array_destroy(module, OBJECT_MODULE); }

/* ---- between processes: a handle names memory that stays the exporter's ---- */

typedef struct { unsigned char bytes[64]; } CUipcMemHandle;

API CUresult cuIpcGetMemHandle(CUipcMemHandle *h, CUdeviceptr p)
{
    CURRENT;
    CHECK(h, CUDA_ERROR_INVALID_VALUE);
    memset(h, 0, sizeof *h);
    memcpy(h->bytes, &p, sizeof p);
    return CUDA_SUCCESS;
}
API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle h, unsigned int flags)
{
    (void)flags;
    CURRENT;
    CHECK(p, CUDA_ERROR_INVALID_VALUE);
    memcpy(p, h.bytes, sizeof *p);
    *p |= IPC_MAPPED;
    return CUDA_SUCCESS;
}
API CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
    CURRENT;
    return p & IPC_MAPPED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- not the driver's, for tests ---- */

/* An entry point that the proxy cannot know, as the next CUDA release brings them. */
API CUresult cuFutureThing(int *answer)
{
    *answer = 42;
    return CUDA_SUCCESS;
}
API unsigned long long fakedriverPeak(int index) { return shared_open() ? shared_peak(index) : ~0ull; }
API unsigned long long fakedriverMine(int index) { return shared_mine(index, SHARED_MEMORY); }
API unsigned long long fakedriverUsed(int index) { return shared_used(index); }
int device_gpu(CUdevice d) { return d >= 0 && d < devices ? ordinals[d] : -1; }
CUcontext device_current(void) { return ready ? current() : NULL; }
int location_device(const CUmemLocation *l, int allocation_type)
{
    bool managed = allocation_type == CU_MEM_ALLOCATION_TYPE_MANAGED;

    switch (l->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: case LOCATION_LATER: return l->id;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: return managed ? LOCATION_UNKNOWN : l->id & 0xff;
    case CU_MEM_LOCATION_TYPE_HOST: case CU_MEM_LOCATION_TYPE_HOST_NUMA: case CU_MEM_LOCATION_TYPE_NONE:
        if (managed) return device_current() ? device_current()->device : 0;
        return l->type == CU_MEM_LOCATION_TYPE_NONE ? LOCATION_UNKNOWN : -1;
    default: return LOCATION_UNKNOWN;
    }
}
