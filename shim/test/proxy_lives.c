/* The account of a process that forks, calls exec, has threads, or closes descriptors. */
#include "proxy.h"

static int child_allocates(void)
{
    CUcontext c;
    CUdeviceptr p;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || cuMemAlloc_v2(&p, 100 * MIB)) return 1;
    return free_mib() != 156;
}

static void fork_before_cuda(void)
{
    IS(in_child(child_allocates), 0, "a child that was forked before CUDA began uses its own slot");
    begin(0);
    IS(free_mib(), GRANT, "and leaves nothing");
}

static CUdeviceptr parents;
static int child_frees(void)
{
    struct record_head *h = region();
    uint64_t before = slot(h, 0)->used[0];
    size_t free, total;
    CUdeviceptr p;

    cuMemFree_v2(parents);
    if (cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS || cuMemAlloc_v2(&p, 1) == CUDA_SUCCESS) return 1;
    return slot(h, 0)->used[0] != before ? 2 : 0;
}
static int child_starts_anew(void)
{
    CUcontext c;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0)) return 1;
    return get(157) || !get(156) ? 2 : 0;
}

static void fork_after_cuda(void)
{
    CUdeviceptr p;
    struct record_head *h = region();

    begin(0);
    parents = p = get(100);
    IS(in_child(child_frees), 0, "a child does not touch its parent's account, and does not crash");
    IS(slot(h, 0)->used[0], 100 * MIB, "nor does its end");
    IS(in_child(child_starts_anew), 0, "it can start CUDA again, with what is left");
    IS(free_mib(), GRANT - 100, "and the parent goes on");
    IS(cuMemFree_v2(p), 0, "with its pointers");
}

static pid_t orphan_parent(int *alive)
{
    pid_t pid;
    if (pipe(alive) < 0) return -1;
    pid = fork();
    if (pid == 0) {
        CUcontext c;
        if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || !get(200)) _exit(1);
        if (fork() == 0) { /* lives on, with every inherited descriptor */
            pid_t me = getpid();
            if (write(alive[1], &me, sizeof me) != sizeof me) _exit(1);
            for (;;) pause();
        }
        for (;;) pause();
    }
    return pid;
}

static void a_child_does_not_keep_its_dead_parents_slot(void)
{
    int alive[2];
    pid_t child, parent = orphan_parent(alive);

    OK(read(alive[0], &child, sizeof child) == sizeof child, "a process with 200 MiB has a child");
    begin(0);
    OK(!get(100), "they count");
    finish(parent);
    OK(get(256), "killed, they no longer count, though the child lives");
    IS(kill(child, SIGKILL), 0, "as it does");
}

static void exec_releases_the_slot(void)
{
    struct record_head *h = region();
    pid_t pid = fork();

    if (pid == 0) {
        CUcontext c;
        if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || !get(200)) _exit(1);
        execl("/bin/sleep", "sleep", "100", (char *)NULL);
        _exit(1);
    }
    while (slot(h, 0)->used[0] != 200 * MIB) usleep(1000);
    begin(0);
    for (int i = 0; i < 30000 && free_mib() != GRANT; i++) usleep(1000);
    IS(free_mib(), GRANT, "another program in the same process holds nothing");
    finish(pid);
}

static int is_the_drivers(int fd)
{
    char path[32], target[256] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return readlink(path, target, sizeof target - 1) > 0 && strstr(target, "fakedriver");
}

static void closing_every_descriptor(void)
{
    struct record_head *h = region();
    CUdeviceptr p;
    pid_t other;

    begin(0);
    p = get(100);
    for (int fd = 3; fd < 1024; fd++) /* as daemons do; without the driver's own the driver would fail */
        if (!is_the_drivers(fd)) close(fd);
    other = held(0, 156);
    IS(slot(h, 0)->used[0], 100 * MIB, "a process that closed all descriptors keeps its slot");
    IS(slot(h, 1)->used[0], 156 * MIB, "and others do not get it");
    OK(!get(1), "and still sees them");
    (void)p;
    finish(other);
}

/* replace_file puts another file in place of one, as an upgrade does. */
static int replace_file(const char *path)
{
    char command[1024];
    snprintf(command, sizeof command, "cp '%s' '%s.new' && mv '%s.new' '%s'", path, path, path, path);
    return system(command);
}

static void libraries_that_are_replaced_under_a_live_process(void) /* hami #753 */
{
    Dl_info proxy = {.dli_fname = NULL};
    CUdeviceptr p;

    begin(0);
    OK(get(100), "a process has 100 MiB");
    OK(dladdr((void *)cuInit, &proxy) && proxy.dli_fname && strstr(proxy.dli_fname, "libcuda.so.1"), "by the proxy");
    IS(replace_file(proxy.dli_fname), 0, "another proxy is put in its place");
    IS(replace_file(PLACE_LIBCUDA), 0, "and another driver");
    IS(cuMemAllocManaged(&p, 100 * MIB, 1), 0, "what it calls for the first time is still the old driver's");
    IS(cuMemAllocManaged(&p, 57 * MIB, 1), CUDA_ERROR_OUT_OF_MEMORY, "by the old account");
    IS(fakedriverMine(0), 200 * MIB, "in one account");
    IS(free_mib(), 56, "and both agree");
}

/* Threads share a grant of 256 MiB, with allocations of several kinds of 1 to 16 MiB. */
static int over;
static void *churn(void *seed)
{
    unsigned int s = (unsigned int)(uintptr_t)seed;
    CUcontext c = NULL;
    CUdeviceptr p[16] = {0};
    CUmemGenericAllocationHandle h[4] = {0};
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

    cuDevicePrimaryCtxRetain(&c, 0);
    cuCtxSetCurrent(c);
    for (int round = 0; round < 600; round++) {
        unsigned int i = rand_r(&s) % 16, k = i % 4;
        size_t bytes = (1 + rand_r(&s) % 16) * MIB;
        if (h[k]) cuMemRelease(h[k]), h[k] = 0;
        else if (cuMemCreate(&h[k], 2 * bytes, &prop, 0)) h[k] = 0;
        if (p[i]) {
            if (i < 8) cuMemFree_v2(p[i]);
            else cuMemFreeAsync(p[i], NULL);
            p[i] = 0;
        } else if (i < 8 ? cuMemAlloc_v2(&p[i], bytes) : cuMemAllocAsync(&p[i], bytes, NULL)) {
            p[i] = 0;
        }
        if (round % 16 == 0) cuStreamSynchronize(NULL), free_mib();
        if (fakedriverMine(0) > GRANT * MIB) over = 1;
    }
    for (int i = 0; i < 16; i++)
        if (p[i]) cuMemFree_v2(p[i]);
    for (int i = 0; i < 4; i++)
        if (h[i]) cuMemRelease(h[i]);
    cuCtxSynchronize();
    return NULL;
}

static void threads(void)
{
    pthread_t t[8];

    begin(0);
    for (uintptr_t i = 0; i < 8; i++) pthread_create(&t[i], NULL, churn, (void *)(i + 1));
    for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
    IS(over, 0, "eight threads together never had more than the grant");
    OK(fakedriverPeak(0) <= GRANT * MIB, "says the driver: %llu MiB at most", fakedriverPeak(0) / MIB);
    cuCtxSynchronize();
    IS(fakedriverMine(0), 0, "all is freed");
    IS(free_mib(), GRANT, "and the account agrees");
}

const struct tap_test life_tests[] = {
    TEST(fork_before_cuda), TEST(fork_after_cuda), TEST(a_child_does_not_keep_its_dead_parents_slot),
    TEST(exec_releases_the_slot), TEST(closing_every_descriptor), TEST(libraries_that_are_replaced_under_a_live_process), TEST(threads), {NULL, NULL},
};
