/* Launches, in the variant of the proxy for grants with a share of compute. The other variant does
 * not have this file: there, a program calls the driver's own functions. */
#include "account.h"
#include "cuda_devices.h"
#include "cuda_driver.h"
#include "record.h"
#include "throttle.h"

/* A captured launch runs nothing yet. A stream that the driver reports an error for counts as
 * capturing: the launch is passed without a wait, and the driver refuses it. A driver without the
 * call has no captures. */
static bool is_capturing(void *stream, bool per_thread)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status) : REAL(cuStreamIsCapturing)(stream, &status);

    return r != CUDA_ERROR_NOT_SUPPORTED && (r != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* A grant over several devices has a gate for each, and only the driver knows the device of a
 * stream. */
static __attribute__((noinline)) void find_gate(CUstream stream, bool per_thread)
{
    struct location l = {.device = 0};

    if (account_devices() > 1 && location_of_stream(stream, &l) != CUDA_SUCCESS) return;
    throttle_pass(l.device, is_capturing, stream, per_thread);
}

static inline void pass_gate(CUstream stream, bool per_thread)
{
    if (__builtin_expect(!throttle_within(&throttle_windows.only), false)) find_gate(stream, per_thread);
}

#define LAUNCH(function, parameters, stream, per_thread, ...) \
    API CUresult function parameters                          \
    {                                                         \
        pass_gate(stream, per_thread);                        \
        return REAL(function)(__VA_ARGS__);                   \
    }
#define GRID_OF gx, gy, gz, bx, by, bz, shared

LAUNCH(cuLaunch, (CUfunction f), NULL, false, f)
LAUNCH(cuLaunchGrid, (CUfunction f, int width, int height), NULL, false, f, width, height)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), stream, false, f, width, height, stream)
LAUNCH(cuLaunchKernel, (CUfunction f, CUDA_GRID, CUstream stream, void **params, void **extra), stream, false, f, GRID_OF, stream, params, extra)
LAUNCH(cuLaunchKernel_ptsz, (CUfunction f, CUDA_GRID, CUstream stream, void **params, void **extra), stream, true, f, GRID_OF, stream, params, extra)
LAUNCH(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra), config ? config->hStream : NULL, false, config, f, params, extra)
LAUNCH(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra), config ? config->hStream : NULL, true, config, f, params, extra)
LAUNCH(cuLaunchCooperativeKernel, (CUfunction f, CUDA_GRID, CUstream stream, void **params), stream, false, f, GRID_OF, stream, params)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (CUfunction f, CUDA_GRID, CUstream stream, void **params), stream, true, f, GRID_OF, stream, params)
LAUNCH(cuGraphLaunch, (CUgraphExec exec, CUstream stream), stream, false, exec, stream)
LAUNCH(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), stream, true, exec, stream)

/* One call launches on several devices: it passes the gates of all. */
API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int n, unsigned int flags)
{
    for (unsigned int i = 0; launches && i < n && i < RECORD_DEVICES; i++) pass_gate(launches[i].hStream, false);
    return REAL(cuLaunchCooperativeKernelMultiDevice)(launches, n, flags);
}
