/* Launches with a share of compute, in the variant of the proxy that throttles them. The gate is
 * closed while there is a share. The tests replace nanosleep, so that they count the proxy's sleeps
 * and can do what the node does meanwhile. No test depends on time. */
#include "proxy.h"

#include <errno.h>
#include <time.h>

static int sleeps, launched_before_sleep;
static void (*node)(void);

/* It replaces the C library's nanosleep in the whole program, and sleeps if the test sets no
 * node. */
int nanosleep(const struct timespec *t, struct timespec *left)
{
    int error;

    if (!node) {
        if ((error = clock_nanosleep(CLOCK_MONOTONIC, 0, t, left)) == 0) return 0;
        errno = error;
        return -1;
    }
    sleeps++;
    launched_before_sleep += (int)(fakedriverLaunches(0) + fakedriverLaunches(1));
    node();
    return 0;
}

static void set_share(int device, uint64_t share)
{
    struct record_limits *l = limits();
    __atomic_store_n(&l->device[device].gate, RECORD_GATE(0, 5000000), __ATOMIC_SEQ_CST);
    __atomic_store_n(&l->device[device].share, share, __ATOMIC_SEQ_CST);
    munmap(l, RECORD_PAGE);
}
static void close_gate(int device) { set_share(device, 30); }
static void open_gates(void)
{
    set_share(0, 0);
    set_share(1, 0);
}

/* Every launch function, on the null stream or on the stream that the test sets. */
static CUstream stream;
static CUgraphExec graph;
static CUlaunchConfig config;
static CUDA_LAUNCH_PARAMS one;
#define GRID 1, 1, 1, 1, 1, 1, 0
static CUresult by_kernel(void) { return cuLaunchKernel(NULL, GRID, stream, NULL, NULL); }
static CUresult by_kernel_ptsz(void) { return cuLaunchKernel_ptsz(NULL, GRID, stream, NULL, NULL); }
static CUresult by_kernel_ex(void) { return config.hStream = stream, cuLaunchKernelEx(&config, NULL, NULL, NULL); }
static CUresult by_kernel_ex_ptsz(void) { return config.hStream = stream, cuLaunchKernelEx_ptsz(&config, NULL, NULL, NULL); }
static CUresult by_cooperative(void) { return cuLaunchCooperativeKernel(NULL, GRID, stream, NULL); }
static CUresult by_cooperative_ptsz(void) { return cuLaunchCooperativeKernel_ptsz(NULL, GRID, stream, NULL); }
static CUresult by_devices(void) { return one.hStream = stream, cuLaunchCooperativeKernelMultiDevice(&one, 1, 0); }
static CUresult by_graph(void) { return cuGraphLaunch(graph, stream); }
static CUresult by_graph_ptsz(void) { return cuGraphLaunch_ptsz(graph, stream); }
static CUresult by_launch(void) { return cuLaunch(NULL); }
static CUresult by_grid(void) { return cuLaunchGrid(NULL, 1, 1); }
static CUresult by_grid_async(void) { return cuLaunchGridAsync(NULL, 1, 1, stream); }

#define LAUNCH(function, f, streams) {#function, f, (void *)function, streams}
static const struct { const char *name; CUresult (*launch)(void); void *function; int streams; } launches[] = {
    LAUNCH(cuLaunchKernel, by_kernel, 1), LAUNCH(cuLaunchKernel_ptsz, by_kernel_ptsz, 1), LAUNCH(cuLaunchKernelEx, by_kernel_ex, 1),
    LAUNCH(cuLaunchKernelEx_ptsz, by_kernel_ex_ptsz, 1), LAUNCH(cuLaunchCooperativeKernel, by_cooperative, 1),
    LAUNCH(cuLaunchCooperativeKernel_ptsz, by_cooperative_ptsz, 1), LAUNCH(cuLaunchCooperativeKernelMultiDevice, by_devices, 1),
    LAUNCH(cuGraphLaunch, by_graph, 1), LAUNCH(cuGraphLaunch_ptsz, by_graph_ptsz, 1), LAUNCH(cuLaunch, by_launch, 0),
    LAUNCH(cuLaunchGrid, by_grid, 0), LAUNCH(cuLaunchGridAsync, by_grid_async, 1),
};
enum { LAUNCHES = sizeof launches / sizeof *launches };

static void start(void)
{
    CUgraph g;

    begin(0);
    IS(cuGraphCreate(&g, 0) || cuGraphInstantiateWithFlags(&graph, g, 0), 0, "there is a graph");
}

static void each_launch_waits_at_the_gate(void)
{
    start();
    node = open_gates;
    for (int i = 0; i < LAUNCHES; i++) {
        unsigned long long before = fakedriverLaunches(0);
        close_gate(0);
        sleeps = 0;
        launched_before_sleep = -(int)before;
        IS(launches[i].launch(), CUDA_SUCCESS, launches[i].name);
        OK(sleeps == 1 && launched_before_sleep == 0, "waited for the gate");
        IS(fakedriverLaunches(0) - before, 1, "and then was launched, once");
    }
}

static void an_open_gate_is_passed(void)
{
    start();
    node = open_gates;
    for (int i = 0; i < LAUNCHES; i++) IS(launches[i].launch(), CUDA_SUCCESS, launches[i].name);
    IS(sleeps, 0, "nothing waits without a share");
    IS(fakedriverLaunches(0), LAUNCHES, "all are launched");
}

static void each_resolution_returns_the_wrapper(void)
{
    static const struct { const char *name; int version; uint64_t flags; void *wrapper; } asked[] = {
        {"cuLaunchKernel", 12000, 0, (void *)cuLaunchKernel},
        {"cuLaunchKernel", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, (void *)cuLaunchKernel_ptsz},
        {"cuLaunchKernelEx", 12000, 0, (void *)cuLaunchKernelEx},
        {"cuLaunchKernelEx", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, (void *)cuLaunchKernelEx_ptsz},
        {"cuLaunchCooperativeKernel", 12000, 0, (void *)cuLaunchCooperativeKernel},
        {"cuLaunchCooperativeKernel", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, (void *)cuLaunchCooperativeKernel_ptsz},
        {"cuLaunchCooperativeKernelMultiDevice", 12000, 0, (void *)cuLaunchCooperativeKernelMultiDevice},
        {"cuGraphLaunch", 12000, 0, (void *)cuGraphLaunch},
        {"cuGraphLaunch", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, (void *)cuGraphLaunch_ptsz},
        {"cuLaunch", 12000, 0, (void *)cuLaunch}, {"cuLaunchGrid", 12000, 0, (void *)cuLaunchGrid}, {"cuLaunchGridAsync", 12000, 0, (void *)cuLaunchGridAsync},
    };
    void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *f;

    begin(0);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        OK(cuGetProcAddress_v2(asked[i].name, &f, asked[i].version, asked[i].flags, NULL) == 0 && f == asked[i].wrapper, "%s by cuGetProcAddress, flags %llu",
           asked[i].name, (unsigned long long)asked[i].flags);
    }
    for (int i = 0; i < LAUNCHES; i++) {
        Dl_info of = {.dli_fname = ""};
        f = dlsym(lib, launches[i].name);
        OK(f && dladdr(f, &of) && strcmp(of.dli_fname, PLACE_LIBCUDA) != 0, "%s by dlsym is not the driver's", launches[i].name);
    }
}

static void a_captured_launch_does_not_wait(void)
{
    CUgraph g;

    start();
    IS(cuStreamCreate(&stream, 0) || cuStreamBeginCapture_v2(stream, 0), 0, "a stream captures");
    node = open_gates;
    close_gate(0);
    for (int i = 0; i < LAUNCHES; i++)
        if (launches[i].streams) IS(launches[i].launch(), CUDA_SUCCESS, launches[i].name);
    IS(sleeps, 0, "nothing waits");
    IS(fakedriverCaptured(), LAUNCHES - 2, "what is launched into it is captured");
    IS(cuStreamEndCapture(stream, &g), 0, "the capture ends well");
    IS(launches[0].launch(), 0, "a launch into the same stream");
    IS(sleeps, 1, "waits again");
}

static void each_device_has_its_gate(void)
{
    CUcontext c;

    start();
    IS(cuStreamCreate(&stream, 0), 0, "a stream of device 0");
    IS(cuCtxCreate_v2(&c, 0, 1), 0, "and a context of device 1");
    node = open_gates;
    close_gate(0);
    IS(cuLaunch(NULL), 0, "a launch on device 1");
    IS(sleeps, 0, "does not wait for device 0's gate");
    IS(launches[0].launch(), 0, "one into the stream of device 0");
    IS(sleeps, 1, "does, whatever context is current");
    close_gate(1);
    IS(cuLaunch(NULL), 0, "a launch on device 1 whose gate is closed");
    IS(sleeps, 2, "waits");
}

static void errors_are_the_drivers(void)
{
    begin(0);
    node = open_gates;
    close_gate(0);
    IS(cuLaunchKernelEx(NULL, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE, "the driver reports wrong arguments");
    IS(cuLaunchCooperativeKernelMultiDevice(NULL, 1, 0), CUDA_ERROR_INVALID_VALUE, "here too");
    close_gate(0);
    sleeps = 0;
    OK(cuLaunchKernel(NULL, GRID, (CUstream)&sleeps, NULL, NULL) != CUDA_SUCCESS, "an invalid stream");
    IS(cuCtxSetCurrent(NULL), 0, "without a context");
    OK(cuLaunch(NULL) != CUDA_SUCCESS, "a launch is refused");
}

static int launches_killed(void)
{
    node = NULL; /* it really sleeps */
    if (cuInit(0)) return 1;
    for (CUcontext c; cuCtxCreate_v2(&c, 0, 0) == CUDA_SUCCESS && cuLaunch(NULL) == CUDA_SUCCESS;) {}
    return 1;
}
static void a_process_killed_at_the_gate_blocks_no_other(void)
{
    pid_t waiting[8];

    close_gate(0);
    for (int i = 0; i < 8; i++)
        if ((waiting[i] = fork()) == 0) _exit(launches_killed());
    for (int i = 0; i < 8; i++) finish(waiting[i]);
    start();
    node = open_gates;
    IS(cuLaunch(NULL), 0, "a launch after them");
    IS(sleeps, 1, "waits only for the clock and the node");
}

const struct tap_test throttle_tests[] = {
    TEST(each_launch_waits_at_the_gate), TEST(an_open_gate_is_passed), TEST(each_resolution_returns_the_wrapper), TEST(a_captured_launch_does_not_wait),
    TEST(each_device_has_its_gate), TEST(errors_are_the_drivers), TEST(a_process_killed_at_the_gate_blocks_no_other), {NULL, NULL},
};
