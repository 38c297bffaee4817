/* Launches: each occupies the GPU for the time in "devices", one after the other, for all processes. A launch waits
 * only if many of its process are ahead; a synchronisation always does. */
#define _GNU_SOURCE
#include "objects.h"


#define CHECK(condition, error) do { if (!(condition)) return error; } while (0)

enum { AHEAD = 64 }; /* launches that a process may be ahead of the GPU */

static unsigned long long counts[SHARED_GPUS], captured;

CUresult launched(CUstream s)
{
    int gpu = stream_gpu(s);
    uint64_t left;

    CHECK(gpu != -1, CUDA_ERROR_INVALID_CONTEXT);
    if (gpu == STREAM_CAPTURES) {
        __atomic_fetch_add(&captured, 1, __ATOMIC_SEQ_CST);
        return CUDA_SUCCESS;
    }
    __atomic_fetch_add(&counts[gpu], 1, __ATOMIC_SEQ_CST);
    left = shared_run(gpu);
    if (left > AHEAD * shared_launch_time()) shared_sleep(left - AHEAD * shared_launch_time());
    return CUDA_SUCCESS;
}

void launches_end(void)
{
    CUcontext c = device_current();
    if (c) shared_sleep(shared_running(c->gpu));
}

typedef struct CUfunc_st *F;
#define GRID unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared
#define UNUSED (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)params

API CUresult cuLaunchKernel(F f, GRID, CUstream s, void **params, void **extra) { return UNUSED, (void)extra, launched(s); }
API CUresult cuLaunchKernel_ptsz(F f, GRID, CUstream s, void **params, void **extra) { return UNUSED, (void)extra, launched(ptsz(s)); }
API CUresult cuLaunchCooperativeKernel(F f, GRID, CUstream s, void **params) { return UNUSED, launched(s); }
API CUresult cuLaunchCooperativeKernel_ptsz(F f, GRID, CUstream s, void **params) { return UNUSED, launched(ptsz(s)); }
API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, F f, void **params, void **extra)
{
    (void)f, (void)params, (void)extra;
    CHECK(config, CUDA_ERROR_INVALID_VALUE);
    return launched(config->hStream);
}
API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, F f, void **params, void **extra)
{
    (void)f, (void)params, (void)extra;
    CHECK(config, CUDA_ERROR_INVALID_VALUE);
    return launched(ptsz(config->hStream));
}
API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int n, unsigned int flags)
{
    CUresult r = CUDA_SUCCESS;

    (void)flags;
    CHECK(list && n > 0, CUDA_ERROR_INVALID_VALUE);
    for (unsigned int i = 0; i < n && r == CUDA_SUCCESS; i++) r = launched(list[i].hStream);
    return r;
}
API CUresult cuLaunch(F f) { return (void)f, launched(NULL); }
API CUresult cuLaunchGrid(F f, int width, int height) { return (void)f, (void)width, (void)height, launched(NULL); }
API CUresult cuLaunchGridAsync(F f, int width, int height, CUstream s) { return (void)f, (void)width, (void)height, launched(s); }

/* Not the driver's: how many launches of this process a GPU has had, and how many went into captures. */
API unsigned long long fakedriverLaunches(int gpu) { return __atomic_load_n(&counts[gpu], __ATOMIC_SEQ_CST); }
API unsigned long long fakedriverCaptured(void) { return __atomic_load_n(&captured, __ATOMIC_SEQ_CST); }

/* And its clock, for programs that run by it: in microseconds, from cuInit on. */
API unsigned long long fakedriverClock(void) { return shared_clock(); }
API void fakedriverSleep(unsigned long long microseconds) { shared_sleep(microseconds); }
