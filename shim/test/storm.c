/* storm KILLS PROCESSES OTHERS SEED: processes that allocate in every way are killed at random times
 * and replaced. They have slots behind those of `others`. The GPU must never give more than the
 * grant, and at the end nothing must be left. Prints TAP. */
#define _GNU_SOURCE
#include "driver.h"
#include "tap.h"

#include "../place.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GRANT = 256, MOST = 64 };

static CUresult one(unsigned int *seed, CUdeviceptr *p, CUmemGenericAllocationHandle *h)
{
    static const CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    size_t bytes = (1 + rand_r(seed) % 60) * MIB, pitch;
    CUarray a;
    CUresult r;

    switch (rand_r(seed) % 6) {
    case 0: return cuMemAllocManaged(p, bytes, 1);
    case 1: return cuMemAllocAsync(p, bytes, NULL);
    case 2: return cuMemAllocPitch_v2(p, &pitch, 1000, bytes / 1024, 4);
    case 3:
        if (*h) r = cuMemRelease(*h), *h = 0;
        else r = cuMemCreate(h, 2 * (bytes / 2 / MIB + 1) * MIB, &prop, 0);
        if (r != CUDA_SUCCESS) *h = 0;
        return CUDA_ERROR_INVALID_VALUE;
    case 4:
        /* More than half a page: a smaller array counts its elements alone (ADR 22), and two
         * processes with one each would have a page more than they count. */
        if (cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){1024, (bytes + MIB) / 4096, 0x20, 1}) == CUDA_SUCCESS) cuArrayDestroy(a);
        return CUDA_ERROR_INVALID_VALUE;
    default: return cuMemAlloc_v2(p, bytes);
    }
}

static void work(unsigned int seed)
{
    CUdeviceptr p[8] = {0};
    CUmemGenericAllocationHandle h = 0;
    CUcontext c;

    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0)) _exit(1);
    for (;;) {
        unsigned int i = rand_r(&seed) % 8;
        if (p[i]) cuMemFree_v2(p[i]), p[i] = 0;
        else if (one(&seed, &p[i], &h) != CUDA_SUCCESS) p[i] = 0;
        if (rand_r(&seed) % 32 == 0) cuCtxSynchronize();
    }
}

/* take_slots locks the first slots for as long as this process and its children live. */
static bool take_slots(int n)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = n};
    int fd = open(PLACE_REGION, O_RDWR | O_CLOEXEC);

    return n == 0 || (fd >= 0 && fcntl(fd, F_OFD_SETLK, &l) == 0);
}

static pid_t start(unsigned int seed)
{
    pid_t pid = fork();
    if (pid == 0) work(seed);
    return pid;
}

int main(int argc, char **argv)
{
    int kills = argc > 1 ? atoi(argv[1]) : 100, processes = argc > 2 ? atoi(argv[2]) : 8, others = argc > 3 ? atoi(argv[3]) : 0, died = 0;
    unsigned int seed = argc > 4 ? (unsigned int)atoi(argv[4]) : (unsigned int)time(NULL);
    pid_t pids[MOST];
    size_t free, total;
    CUcontext c;

    if (processes > MOST) processes = MOST;
    printf("# seed %u\n", seed);
    OK(take_slots(others), "the first %d slots are others'", others);
    for (int i = 0; i < processes; i++) pids[i] = start(seed + (unsigned int)i);
    for (int k = 0; k < kills; k++) {
        int victim = rand_r(&seed) % processes, status;
        usleep(rand_r(&seed) % 8000);
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], &status, 0);
        died += !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
        pids[victim] = start(seed + (unsigned int)k);
    }
    for (int i = 0; i < processes; i++) kill(pids[i], SIGKILL), waitpid(pids[i], NULL, 0);
    IS(died, 0, "no process died of anything else");
    IS(cuInit(0) | cuCtxCreate_v2(&c, 0, 0), 0, "CUDA still starts");
    OK(fakedriverPeak(0) <= GRANT * MIB && fakedriverPeak(0) > 0, "the GPU gave %llu bytes at most, of %zu", fakedriverPeak(0), GRANT * MIB);
    cuMemGetInfo_v2(&free, &total);
    IS(free, GRANT * MIB, "all is free");
    IS(fakedriverUsed(0), 256 * MIB, "and the GPU has only this context");
    printf("1..%d\n", tap_count);
    return tap_failed > 0;
}
