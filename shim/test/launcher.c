/* launcher KIND: launches for ever, each time as soon as it can: kernels, cooperative ones, or a
 * graph. With "waits", every kernel ends before it launches the next. It replaces the C library's
 * clock_gettime and nanosleep by the stand-in driver's clock, for itself and for the proxy, which is
 * built with OS_TICKS_BY_CLOCK. So what the stand-in's GPU runs depends only on what was launched,
 * not on the machine's speed. */
#define _GNU_SOURCE
#include "driver.h"

#include "../place.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static unsigned long long (*stand_in_clock)(void);
static void (*stand_in_sleep)(unsigned long long microseconds);

int clock_gettime(clockid_t clock, struct timespec *t)
{
    if (!stand_in_clock) return (int)syscall(SYS_clock_gettime, clock, t);
    *t = (struct timespec){.tv_sec = (time_t)(stand_in_clock() / 1000000), .tv_nsec = (long)(stand_in_clock() % 1000000) * 1000};
    return 0;
}

int nanosleep(const struct timespec *t, struct timespec *left)
{
    if (!stand_in_sleep) return (int)syscall(SYS_nanosleep, t, left);
    stand_in_sleep((unsigned long long)t->tv_sec * 1000000 + (unsigned long long)t->tv_nsec / 1000);
    return 0;
}

/* need ends the program with a message if a condition does not hold. */
static void need(int good, const char *what)
{
    if (good) return;
    printf("cannot launch: %s\n", what);
    exit(1);
}

static void use_stand_in_clock(void)
{
    void *driver = dlopen(PLACE_LIBCUDA, RTLD_NOW | RTLD_NOLOAD);

    need(driver != NULL, "there is no stand-in");
    *(void **)&stand_in_clock = dlsym(driver, "fakedriverClock");
    *(void **)&stand_in_sleep = dlsym(driver, "fakedriverSleep");
    need(stand_in_clock && stand_in_sleep, "the driver has no clock");
    stand_in_sleep(0);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    CUcontext context;
    CUgraph graph;
    CUgraphExec exec;
    CUdevice device;

    need(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS && cuCtxCreate_v2(&context, 0, device) == CUDA_SUCCESS, "no context");
    need(cuGraphCreate(&graph, 0) == CUDA_SUCCESS && cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS, "no graph");
    use_stand_in_clock();
    puts("launches");
    fflush(stdout);
    for (CUresult r = CUDA_SUCCESS; r == CUDA_SUCCESS;) {
        if (strcmp(kind, "graph") == 0)
            r = cuGraphLaunch(exec, NULL);
        else if (strcmp(kind, "cooperative") == 0)
            r = cuLaunchCooperativeKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL);
        else
            r = cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
        if (strcmp(kind, "waits") == 0 && r == CUDA_SUCCESS) r = cuCtxSynchronize();
    }
    need(0, "a launch failed");
}
