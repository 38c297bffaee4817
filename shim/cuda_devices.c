/* The start of a process under the shim, its devices and its contexts. */
#include "cuda_devices.h"

#include "account.h"
#include "cuda_count.h"
#include "cuda_driver.h"
#include "cuda_pools.h"
#include "os.h"
#include "place.h"
#include "track.h"

#include <string.h>

static int8_t devices[ORDINALS];   /* 0: not looked up yet, 1: not in the grant, 2 + n: the account's n */
static uint64_t primary[ORDINALS]; /* each device's primary context */
static uint8_t counted[ORDINALS];  /* the primary context is counted, or is about to be */

/* A forked child has no context and none of its parent's memory. */
static void in_child(void)
{
    memset(devices, 0, sizeof devices);
    memset(primary, 0, sizeof primary);
    memset(counted, 0, sizeof counted);
    track_forget();
    pools_forget();
    left_forget();
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

/* cuInit comes before every allocation, so a container without an account fails here. The slot is
 * taken before the driver opens its files: a dying process still counts while the kernel closes
 * them. */
API CUresult cuInit(unsigned int flags)
{
    if (!open_account()) return CUDA_ERROR_OPERATING_SYSTEM;
    account_join();
    return REAL(cuInit)(flags);
}

/* ---- devices ---- */

/* The UUID decides, because CUDA_VISIBLE_DEVICES hides devices and changes their order. */
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

CUresult location_current(struct location *l)
{
    CUcontext context;
    CUresult r = REAL(cuCtxGetDevice)(&l->ordinal);

    if (r == CUDA_SUCCESS) r = REAL(cuCtxGetCurrent)(&context);
    if (r != CUDA_SUCCESS) return r;
    l->context = (uint64_t)(uintptr_t)context;
    l->device = device_of(l->ordinal);
    return CUDA_SUCCESS;
}

/* A stream may belong to another device than the current context. */
CUresult location_of_stream(CUstream stream, struct location *l)
{
    CUcontext of_stream;
    CUresult r = location_current(l);

    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return r;
    if (REAL(cuStreamGetCtx)(stream, &of_stream)) return r;
    if (r == CUDA_SUCCESS && (uint64_t)(uintptr_t)of_stream == l->context) return r;
    r = REAL(cuCtxPushCurrent_v2)(of_stream);
    if (r != CUDA_SUCCESS) return r;
    r = location_current(l);
    REAL(cuCtxPopCurrent_v2)(&of_stream);
    return r;
}

CUresult ordinal_of(const CUmemLocation *location, int allocation_type, CUdevice *ordinal)
{
    bool managed = allocation_type == CU_MEM_ALLOCATION_TYPE_MANAGED;

    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: *ordinal = location->id; return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: *ordinal = location->id & 0xff; return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        *ordinal = HOST_MEMORY;
        return managed ? REAL(cuCtxGetDevice)(ordinal) : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_NONE:
        if (managed) return REAL(cuCtxGetDevice)(ordinal);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- contexts ---- */

/* A context takes memory that its caller does not ask for. It counts before the driver makes the
 * context, as much as gpuledgerd has measured. What it takes beyond that is overhead. */
static CUresult begin_context(struct track *t, CUdevice ordinal)
{
    *t = (struct track){.kind = TRACK_CONTEXT, .device = (int8_t)device_of(ordinal)};
    t->bytes = account_context(t->device);
    return t->bytes == 0 || take_of_grant(t->device, t->bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult finish_context(CUresult r, struct track *t, const CUcontext *context, void (*undo)(uint64_t))
{
    if (t->bytes == 0) return r;
    t->key = (uint64_t)(uintptr_t)*context;
    return finish_allocation(r, t, undo);
}

static void undo_context(uint64_t context) { REAL(cuCtxDestroy_v2)((CUcontext)(uintptr_t)context); }

#define CREATE(function, parameters, ...)                                       \
    API CUresult function parameters                                            \
    {                                                                           \
        struct track t;                                                         \
        CUresult r;                                                             \
        if (!c) return REAL(function)(__VA_ARGS__);                             \
        if ((r = begin_context(&t, d)) != CUDA_SUCCESS) return r;               \
        return finish_context(REAL(function)(__VA_ARGS__), &t, c, undo_context); \
    }
CREATE(cuCtxCreate, (CUcontext *c, unsigned int flags, CUdevice d), c, flags, d)
CREATE(cuCtxCreate_v2, (CUcontext *c, unsigned int flags, CUdevice d), c, flags, d)
CREATE(cuCtxCreate_v3, (CUcontext *c, void *affinity, int n, unsigned int flags, CUdevice d), c, affinity, n, flags, d)
CREATE(cuCtxCreate_v4, (CUcontext *c, void *params, unsigned int flags, CUdevice d), c, params, flags, d)

static bool in_context(const struct track *t, uint64_t context)
{
    return t->context == context && t->kind != TRACK_CONTEXT;
}

/* uncount_context takes everything that was allocated in a context out of the account. */
static void uncount_context(uint64_t context)
{
    if (context) track_remove_if(in_context, context, uncount);
}

/* The context's own entry is removed before the driver destroys it, because another thread may get a
 * new context with the same handle at once. */
#define DESTROY(function)                                                     \
    API CUresult function(CUcontext c)                                        \
    {                                                                         \
        struct track t;                                                       \
        CUresult r;                                                           \
        track_remove(TRACK_CONTEXT, (uint64_t)(uintptr_t)c, &t);              \
        if ((r = REAL(function)(c)) != CUDA_SUCCESS) {                        \
            if (t.kind) track_again(&t);                                      \
            return r;                                                         \
        }                                                                     \
        uncount(&t);                                                          \
        uncount_context((uint64_t)(uintptr_t)c);                              \
        return r;                                                             \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

static void undo_primary(uint64_t context)
{
    for (int i = 0; i < ORDINALS; i++)
        if (__atomic_load_n(&primary[i], __ATOMIC_RELAXED) == context) REAL(cuDevicePrimaryCtxRelease)(i);
}

static CUresult retain(CUcontext *context, CUdevice ordinal)
{
    CUresult r = REAL(cuDevicePrimaryCtxRetain)(context, ordinal);

    if (r == CUDA_SUCCESS) __atomic_store_n(&primary[ordinal], (uint64_t)(uintptr_t)*context, __ATOMIC_RELAXED);
    return r;
}

/* Of threads that make the primary context at the same time, the first one counts it. If that is
 * refused, a context that another thread then makes is overhead until the next retain. */
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    struct track t;
    CUresult r;

    if (!context || ordinal < 0 || ordinal >= ORDINALS) return REAL(cuDevicePrimaryCtxRetain)(context, ordinal);
    if (__atomic_exchange_n(&counted[ordinal], 1, __ATOMIC_SEQ_CST)) return retain(context, ordinal);
    r = begin_context(&t, ordinal);
    if (r == CUDA_SUCCESS) r = finish_context(retain(context, ordinal), &t, context, undo_primary);
    if (r != CUDA_SUCCESS) __atomic_store_n(&counted[ordinal], 0, __ATOMIC_SEQ_CST);
    return r;
}

/* The last release destroys the primary context, and only the driver knows how many users there
 * are. Where there was none, a reset succeeds and frees nothing: contexts that the program made keep
 * what they have. */
static CUresult finish_release(CUresult r, CUdevice ordinal)
{
    unsigned int flags;
    int active = 1;
    uint64_t context;
    struct track t;

    if (r != CUDA_SUCCESS || ordinal < 0 || ordinal >= ORDINALS) return r;
    if (REAL(cuDevicePrimaryCtxGetState)(ordinal, &flags, &active) || active) return r;
    context = __atomic_exchange_n(&primary[ordinal], 0, __ATOMIC_RELAXED);
    if (!context) return r;
    if (track_remove(TRACK_CONTEXT, context, &t)) uncount(&t);
    __atomic_store_n(&counted[ordinal], 0, __ATOMIC_SEQ_CST);
    uncount_context(context);
    pools_reset(device_of(ordinal));
    left_reset(ordinal);
    return r;
}
#define RELEASE(function) \
    API CUresult function(CUdevice d) { return finish_release(REAL(function)(d), d); }
RELEASE(cuDevicePrimaryCtxRelease)
RELEASE(cuDevicePrimaryCtxRelease_v2)
RELEASE(cuDevicePrimaryCtxReset)
RELEASE(cuDevicePrimaryCtxReset_v2)
