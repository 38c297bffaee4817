/* A program that uses CUDA as it finds it: the driver, or a library that limits it. test/bench
 * compares these. It reads a command a line and answers each with one line:
 *   who          the file that cuMemAlloc_v2 is in
 *   pairs N      nanoseconds of a cuMemAlloc of 4 KiB and its cuMemFree, the mean of N or of what 20 ms
 *                have room for
 *   launches N   nanoseconds of a cuLaunchKernel, the mean of N
 *   keep N       the result of the last of N allocations of 4 KiB, which are kept
 *   take BYTES   the result of one allocation, which is kept
 * "storm PROCESSES TURNS KILLED SEED" as arguments: processes allocate and free 1 to 60 MiB at a time.
 * After each of the first KILLED turns, of 8 ms on average, one is killed and replaced. It prints how
 * many allocations they had. "peak" prints the most bytes that the stand-in driver ever gave. */
#define _GNU_SOURCE
#include "../cuda_api.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, HELD = 8 };

typedef CUresult init_function(unsigned int);
typedef CUresult create_function(CUcontext *, unsigned int, CUdevice);
typedef CUresult alloc_function(CUdeviceptr *, size_t);
typedef CUresult free_function(CUdeviceptr);
typedef CUresult launch_function(CUfunction, CUDA_GRID, CUstream, void **, void **);

static alloc_function *allocate;
static free_function *release;

static void die(const char *why)
{
    fprintf(stderr, "peers: %s\n", why);
    exit(1);
}

static void *load(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);

    if (!lib) die(dlerror());
    allocate = (alloc_function *)dlsym(lib, "cuMemAlloc_v2");
    release = (free_function *)dlsym(lib, "cuMemFree_v2");
    if (((init_function *)dlsym(lib, "cuInit"))(0) != CUDA_SUCCESS) die("cuInit fails");
    return lib;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double pairs(long n)
{
    double start = now(), end = start + 2e7, last = start;
    long done = 0;
    CUdeviceptr p;

    while (done < n && last < end) {
        for (long i = done + 20; done < i; done++)
            if (allocate(&p, 4096) != CUDA_SUCCESS || release(p) != CUDA_SUCCESS) die("an allocation fails");
        last = now();
    }
    return (last - start) / (double)done;
}

static double launches(launch_function *launch, long n)
{
    double start = now();

    for (long i = 0; i < n; i++)
        if (launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS) die("a launch fails");
    return (now() - start) / (double)n;
}

static CUresult keep(long n)
{
    CUdeviceptr p;
    CUresult r = CUDA_SUCCESS;

    for (long i = 0; i < n && r == CUDA_SUCCESS; i++) r = allocate(&p, 4096);
    return r;
}

static const char *library(void)
{
    Dl_info of = {.dli_fname = "none"};
    dladdr((void *)allocate, &of);
    return of.dli_fname;
}

static void serve(void)
{
    void *lib = load();
    launch_function *launch = (launch_function *)dlsym(lib, "cuLaunchKernel");
    char line[64], word[16];
    long n;
    CUdeviceptr p;

    while (fgets(line, sizeof line, stdin)) {
        n = 0;
        if (sscanf(line, "%15s %ld", word, &n) < 1) die("it reads an empty line");
        if (strcmp(word, "library") == 0) puts(library());
        else if (strcmp(word, "pairs") == 0) printf("%.2f\n", pairs(n));
        else if (strcmp(word, "launches") == 0) printf("%.2f\n", launches(launch, n));
        else if (strcmp(word, "keep") == 0) printf("%d\n", keep(n));
        else if (strcmp(word, "take") == 0) printf("%d\n", allocate(&p, (size_t)n));
        else die("it knows no such word");
        fflush(stdout);
    }
}

/* work allocates and frees until it is killed. It counts what it had in *had. */
static void work(unsigned int seed, long *had)
{
    CUdeviceptr p[HELD] = {0};
    CUcontext c;
    create_function *create = (create_function *)dlsym(load(), "cuCtxCreate_v2");

    if (create(&c, 0, 0) != CUDA_SUCCESS) die("cuCtxCreate fails");
    for (;;) {
        int i = rand_r(&seed) % HELD;
        size_t bytes = (size_t)(1 + rand_r(&seed) % 60) << 20;
        if (p[i]) release(p[i]), p[i] = 0;
        else if (allocate(&p[i], bytes) != CUDA_SUCCESS) p[i] = 0;
        else __atomic_fetch_add(had, 1, __ATOMIC_RELAXED);
    }
}

static pid_t start(unsigned int seed, long *had)
{
    pid_t pid = fork();
    if (pid == 0) work(seed, had);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void storm(int processes, int turns, int killed, unsigned int seed)
{
    long *had = mmap(NULL, sizeof *had, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[MOST];

    if (had == MAP_FAILED || processes > MOST) die("it has no room");
    for (int i = 0; i < processes; i++) pids[i] = start(seed * 1000 + (unsigned int)i, had);
    usleep(200000); /* all of them have begun */
    for (int turn = 0; turn < turns; turn++) {
        int victim = rand_r(&seed) % processes;
        usleep((useconds_t)(rand_r(&seed) % 16000));
        if (turn >= killed) continue;
        end(pids[victim]);
        pids[victim] = start(seed + (unsigned int)turn, had);
    }
    for (int i = 0; i < processes; i++) end(pids[i]);
    printf("%ld\n", *had);
}

static void peak(void)
{
    unsigned long long (*most)(int) = (unsigned long long (*)(int))dlsym(load(), "fakedriverPeak");
    printf("%llu\n", most(0));
}

int main(int argc, char **argv)
{
    if (argc == 1) serve();
    else if (argc == 6 && strcmp(argv[1], "storm") == 0)
        storm(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), (unsigned int)atoi(argv[5]));
    else if (argc == 2 && strcmp(argv[1], "peak") == 0) peak();
    else die("it takes no argument, or: storm PROCESSES TURNS KILLED SEED, or: peak");
    return 0;
}
