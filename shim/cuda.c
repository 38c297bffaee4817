/* The proxy's start: the driver's own functions, devices and contexts, and cuGetProcAddress. */
#include "cuda.h"

#include "os.h"
#include "place.h"

#include <string.h>

/* ---- the driver's functions ---- */

static CUresult absent(void) { return CUDA_ERROR_NOT_SUPPORTED; }

#define NAME_ROW(name, how, why) #name,
#define NAME_USED(name) #name,
static const char *const names[real_count] = {CUDA_WRAPPED(NAME_ROW) CUDA_USED(NAME_USED)};

/* real_address looks a function up at its first use; threads that do so at once find the same. */
void *real_address(int entry)
{
    static void *found[real_count], *library;
    void *f = __atomic_load_n(&found[entry], __ATOMIC_RELAXED), *lib;

    if (f) return f;
    lib = __atomic_load_n(&library, __ATOMIC_RELAXED);
    if (!lib) {
        lib = os_library(PLACE_LIBCUDA);
        __atomic_store_n(&library, lib, __ATOMIC_RELAXED);
    }
    f = lib ? os_symbol(lib, names[entry]) : NULL;
    if (!f) f = (void *)absent;
    __atomic_store_n(&found[entry], f, __ATOMIC_RELAXED);
    return f;
}

/* ---- devices and contexts ---- */

enum { ORDINALS = 64 };
static int8_t devices[ORDINALS];           /* 0: not asked yet, 1: not in the grant, 2 + n: device n */
static uint64_t primary[ORDINALS];         /* contexts */

static void in_child(void)
{
    memset(devices, 0, sizeof devices);
    memset(primary, 0, sizeof primary);
    track_forget();
    pools_forget();
}

static bool open_account(void)
{
    static int registered;

    if (!__atomic_load_n(&registered, __ATOMIC_ACQUIRE)) {
        if (!os_at_fork(NULL, NULL, in_child)) return false;
        __atomic_store_n(&registered, 1, __ATOMIC_RELEASE);
    }
    return account_open(PLACE_LIMITS, PLACE_REGION);
}

/* device_of goes by UUID: CUDA_VISIBLE_DEVICES hides and reorders. */
int device_of(CUdevice ordinal)
{
    int8_t known;
    CUuuid uuid;
    int device;

    if (ordinal < 0 || ordinal >= ORDINALS) return -1;
    known = __atomic_load_n(&devices[ordinal], __ATOMIC_RELAXED);
    if (known) return known - 2;
    if (!open_account()) return -1;
    if (REAL(cuDeviceGetUuid_v2)(&uuid, ordinal) && REAL(cuDeviceGetUuid)(&uuid, ordinal)) return -1;
    device = account_device(uuid.bytes);
    __atomic_store_n(&devices[ordinal], (int8_t)(device + 2), __ATOMIC_RELAXED);
    return device;
}

CUresult place_current(struct place *p)
{
    CUcontext context;
    CUresult r = REAL(cuCtxGetDevice)(&p->ordinal);

    if (r == CUDA_SUCCESS) r = REAL(cuCtxGetCurrent)(&context);
    if (r != CUDA_SUCCESS) return r;
    p->context = (uint64_t)(uintptr_t)context;
    p->device = device_of(p->ordinal);
    return CUDA_SUCCESS;
}

/* A stream may be of another device than the current context is. */
CUresult place_of_stream(CUstream stream, struct place *p)
{
    CUcontext of_stream;
    CUresult r = place_current(p);

    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return r;
    if (REAL(cuStreamGetCtx)(stream, &of_stream)) return r;
    if (r == CUDA_SUCCESS && (uint64_t)(uintptr_t)of_stream == p->context) return r;
    r = REAL(cuCtxPushCurrent_v2)(of_stream);
    if (r != CUDA_SUCCESS) return r;
    r = place_current(p);
    REAL(cuCtxPopCurrent_v2)(&of_stream);
    return r;
}

/* cuInit comes before all that allocates, so this is where a container without an account ends. The slot is taken before
 * the driver opens its files, so that a dying process still counts while the driver closes them. */
API CUresult cuInit(unsigned int flags)
{
    if (!open_account()) return CUDA_ERROR_OPERATING_SYSTEM;
    account_join();
    return REAL(cuInit)(flags);
}

void give(const struct track *t)
{
    if (t->kind && t->device >= 0) account_give(t->device, t->bytes);
}

CUresult keep(CUresult result, const struct track *t, void (*undo)(uint64_t))
{
    struct track old;

    if (result == CUDA_SUCCESS && !track_put(t, &old)) {
        undo(t->key);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (result == CUDA_SUCCESS) {
        give(&old);
    }
    if (result != CUDA_SUCCESS) give(t);
    return result;
}

static bool in_context(const struct track *t, uint64_t context) { return t->context == context; }

static void forget_context(uint64_t context)
{
    if (context) track_remove_if(in_context, context, give);
}

static CUresult destroyed(CUresult r, CUcontext context)
{
    if (r == CUDA_SUCCESS) forget_context((uint64_t)(uintptr_t)context);
    return r;
}
API CUresult cuCtxDestroy(CUcontext c) { return destroyed(REAL(cuCtxDestroy)(c), c); }
API CUresult cuCtxDestroy_v2(CUcontext c) { return destroyed(REAL(cuCtxDestroy_v2)(c), c); }

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    CUresult r = REAL(cuDevicePrimaryCtxRetain)(context, ordinal);

    if (r == CUDA_SUCCESS && context && ordinal >= 0 && ordinal < ORDINALS)
        __atomic_store_n(&primary[ordinal], (uint64_t)(uintptr_t)*context, __ATOMIC_RELAXED);
    return r;
}

/* The context goes with its last user, and only the driver knows how many there are. */
static CUresult released(CUresult r, CUdevice ordinal)
{
    unsigned int flags;
    int active = 1;

    if (r != CUDA_SUCCESS || ordinal < 0 || ordinal >= ORDINALS) return r;
    if (REAL(cuDevicePrimaryCtxGetState)(ordinal, &flags, &active) || active) return r;
    forget_context(__atomic_exchange_n(&primary[ordinal], 0, __ATOMIC_RELAXED));
    pools_reset(device_of(ordinal));
    return r;
}
API CUresult cuDevicePrimaryCtxRelease(CUdevice d) { return released(REAL(cuDevicePrimaryCtxRelease)(d), d); }
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) { return released(REAL(cuDevicePrimaryCtxRelease_v2)(d), d); }
API CUresult cuDevicePrimaryCtxReset(CUdevice d) { return released(REAL(cuDevicePrimaryCtxReset)(d), d); }
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice d) { return released(REAL(cuDevicePrimaryCtxReset_v2)(d), d); }

/* ---- reports ---- */

static unsigned int clamp(uint64_t bytes) { return bytes > ~0u ? ~0u : (unsigned int)bytes; }

static struct account_usage view(CUdevice ordinal) { return account_usage(device_of(ordinal)); }

API CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUresult r = REAL(cuMemGetInfo_v2)(free, total);
    struct place p;
    struct account_usage v;

    if (r != CUDA_SUCCESS || (r = place_current(&p)) != CUDA_SUCCESS) return r;
    v = account_usage(p.device);
    if (free) *free = v.free;
    if (total) *total = v.total;
    return r;
}
API CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    size_t f = 0, t = 0;
    CUresult r = REAL(cuMemGetInfo)(free, total);

    if (r != CUDA_SUCCESS || (r = cuMemGetInfo_v2(&f, &t)) != CUDA_SUCCESS) return r;
    if (free) *free = clamp(f);
    if (total) *total = clamp(t);
    return r;
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice d)
{
    CUresult r = REAL(cuDeviceTotalMem_v2)(bytes, d);
    if (r == CUDA_SUCCESS && bytes) *bytes = view(d).total;
    return r;
}
API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice d)
{
    CUresult r = REAL(cuDeviceTotalMem)(bytes, d);
    if (r == CUDA_SUCCESS && bytes) *bytes = clamp(view(d).total);
    return r;
}

/* ---- resolvers ---- */

enum how { COUNTED, FREED, REPORTED, RESOLVED, WATCHED, THROTTLED };
#define WRAPPER_ROW(name, how, why) {#name, (void *)name, how},
static const struct { const char *name; void *wrapper; enum how how; } wrappers[real_wrapped] = {CUDA_WRAPPED(WRAPPER_ROW)};

/* is_variant: cuMemAlloc_v2 and cuMemAllocAsync_ptsz are variants of cuMemAlloc and cuMemAllocAsync. */
static bool is_variant(const char *symbol, const char *name)
{
    size_t n = strlen(name);
    return strncmp(symbol, name, n) == 0 && (symbol[n] == 0 || (symbol[n] == '_' && (symbol[n + 1] == 'v' || symbol[n + 1] == 'p')));
}

/* wrapped_for is what a caller gets in place of the driver's function: ours, if we wrap it. NULL is for a variant of an
 * allocation that we don't know: a later driver's, by which memory would be had uncounted. One of a launch is had, and not throttled: a
 * program that can't launch is of no use, and the node sees what it takes. */
static void *wrapped_for(void *real, const char *name)
{
    bool hole = false;

    for (int i = 0; i < real_wrapped; i++) {
        if (real == real_address(i)) return wrappers[i].wrapper;
        hole |= wrappers[i].how == COUNTED && is_variant(wrappers[i].name, name);
    }
    return hole ? NULL : real;
}

API CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
    CUresult r = REAL(cuGetProcAddress_v2)(name, address, version, flags, status);

    if (r != CUDA_SUCCESS || !address || !*address) return r;
    *address = wrapped_for(*address, name);
    if (*address) return r;
    if (status) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_ERROR_NOT_FOUND;
}
API CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
    CUresult r = REAL(cuGetProcAddress)(name, address, version, flags);

    if (r != CUDA_SUCCESS || !address || !*address) return r;
    *address = wrapped_for(*address, name);
    return *address ? r : CUDA_ERROR_NOT_FOUND;
}
