/* cuGetProcAddress: a program that looks up a function which is wrapped gets the wrapper. */
#include "cuda_driver.h"

#include <string.h>

enum how { COUNTED, FREED, REPORTED, RESOLVED, TRACKED, THROTTLED };
#define WRAPPER_ROW(name, how, why) {#name, (void *)name, how},
static const struct { const char *name; void *wrapper; enum how how; } wrappers[real_wrapped] = {CUDA_WRAPPED(WRAPPER_ROW)};

/* is_variant: cuMemAlloc_v2 and cuMemAllocAsync_ptsz are variants of cuMemAlloc and
 * cuMemAllocAsync. */
static bool is_variant(const char *symbol, const char *name)
{
    size_t n = strlen(name);
    return strncmp(symbol, name, n) == 0 && (symbol[n] == 0 || (symbol[n] == '_' && (symbol[n + 1] == 'v' || symbol[n + 1] == 'p')));
}

/* wrapper_of is what the caller gets in place of the driver's function: the wrapper if there is
 * one, else the function itself. NULL is for an unknown variant of an allocation: a later driver's,
 * whose memory would not be counted. An unknown variant of a launch passes and is not throttled: a
 * program that cannot launch is useless, and the node measures what the launch uses. */
static void *wrapper_of(void *real, const char *name)
{
    bool uncounted = false;

    for (int i = 0; i < real_wrapped; i++) {
        if (real == real_function(i)) return wrappers[i].wrapper;
        uncounted |= wrappers[i].how == COUNTED && is_variant(wrappers[i].name, name);
    }
    return uncounted ? NULL : real;
}

/* by_newer_call asks the driver. One before CUDA 12 has only the older call, which reports no
 * status. A program finds the newer one here all the same, and does not look for the older. */
static CUresult by_newer_call(const char *name, void **address, int version, uint64_t flags, int *status)
{
    CUresult r;

    if (real_has(real_cuGetProcAddress_v2)) return REAL(cuGetProcAddress_v2)(name, address, version, flags, status);
    r = REAL(cuGetProcAddress)(name, address, version, flags);
    if (status) *status = r == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return r;
}

API CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
    CUresult r = by_newer_call(name, address, version, flags, status);

    if (r != CUDA_SUCCESS || !address || !*address) return r;
    *address = wrapper_of(*address, name);
    if (*address) return r;
    if (status) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_ERROR_NOT_FOUND;
}
API CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
    CUresult r = REAL(cuGetProcAddress)(name, address, version, flags);

    if (r != CUDA_SUCCESS || !address || !*address) return r;
    *address = wrapper_of(*address, name);
    return *address ? r : CUDA_ERROR_NOT_FOUND;
}
