/* Tests of the libcuda proxy. The files proxy_*.c have them by subject; this one has what they
 * share. */
#include "proxy.h"

CUcontext begin(int ordinal)
{
    CUcontext c = NULL;
    CUdevice d;
    CUresult r = cuInit(0);

    if (r == CUDA_SUCCESS) r = cuDeviceGet(&d, ordinal);
    if (r == CUDA_SUCCESS) r = cuCtxCreate_v2(&c, 0, d);
    IS(r, CUDA_SUCCESS, "CUDA starts");
    return c;
}

size_t free_mib(void)
{
    size_t free = 12345, total;
    cuMemGetInfo_v2(&free, &total);
    return free / MIB;
}

CUdeviceptr get(size_t mib)
{
    CUdeviceptr p = 0;
    return cuMemAlloc_v2(&p, mib * MIB) == CUDA_SUCCESS ? p : 0;
}

struct record_limits *limits(void)
{
    int fd = open(PLACE_LIMITS, O_RDWR | O_CLOEXEC);
    void *p = mmap(NULL, RECORD_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p;
}

struct record_head *region(void)
{
    int fd = open(PLACE_REGION, O_RDWR | O_CLOEXEC);
    void *p = mmap(NULL, RECORD_REGION_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p;
}
struct record_slot *slot(struct record_head *h, int i) { return (struct record_slot *)((char *)h + RECORD_SLOT(i)); }

int in_child(int (*f)(void))
{
    int status;
    pid_t pid = fork();

    if (pid == 0) _exit(f());
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

pid_t held(int device, int mib)
{
    int ready[2];
    char byte = 0;
    pid_t pid;

    if (pipe(ready) < 0) return -1;
    pid = fork();
    if (pid == 0) {
        CUcontext c;
        CUdeviceptr p;
        byte = cuInit(0) || cuCtxCreate_v2(&c, 0, device) || cuMemAlloc_v2(&p, (size_t)mib * MIB) ? 'n' : 'y';
        if (write(ready[1], &byte, 1) == 1)
            for (;;) pause();
        _exit(1);
    }
    if (read(ready[0], &byte, 1) != 1) byte = 'n';
    close(ready[0]);
    close(ready[1]);
    OK(byte == 'y', "another process holds %d MiB", mib);
    return pid;
}
void finish(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

extern const struct tap_test grant_tests[], memory_tests[], virtual_tests[], pool_tests[], process_tests[], life_tests[], closed_tests[], resolver_tests[],
    throttle_tests[];

int main(int argc, char **argv)
{
    static const struct tap_test *const subjects[] = {grant_tests, memory_tests, virtual_tests, pool_tests, process_tests, life_tests, closed_tests, resolver_tests, throttle_tests};
    const size_t n = sizeof subjects / sizeof *subjects;
    int result = 2;

    for (size_t i = 0; i < n && (result == 2 || tap_lists(argc, argv)); i++) result = tap_main(argc, argv, subjects[i]);
    return result;
}
