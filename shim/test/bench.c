/* Measures what the shim adds to an allocation and its free, while other processes hold slots, and
 * to the load of libcuda. With the argument "launch", what it adds to a launch. The driver alone
 * and the driver with the shim are measured in turns. Each line has the median of the rounds, and
 * the best, which a busy machine disturbs least. */
#define _GNU_SOURCE
#include "../cuda_api.h"
#include "../place.h"
#include "../record.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 401, PAIRS = 2000, LOADS = 61 };

typedef CUresult alloc_function(CUdeviceptr *, size_t);
typedef CUresult free_function(CUdeviceptr);
struct driver { alloc_function *alloc; free_function *free; };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }
static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

static void *map_new(const char *path, size_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    void *p = ftruncate(fd, (off_t)size) == 0 ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (p == MAP_FAILED) abort();
    close(fd);
    return p;
}

static void *map_old(const char *path, size_t size)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) abort();
    close(fd);
    return p;
}

static void write_records(void)
{
    struct record_limits *l = map_new(PLACE_LIMITS, RECORD_PAGE);
    struct record_head *h = map_new(PLACE_REGION, RECORD_REGION_SIZE);
    *l = (struct record_limits){.magic = RECORD_LIMITS_MAGIC, .version = RECORD_VERSION, .devices = 1, .id = 1, .device[0] = {.uuid = {1}, .bytes = 1ull << 40}};
    *h = (struct record_head){.magic = RECORD_REGION_MAGIC, .version = RECORD_VERSION, .devices = 1, .id = 1, .slots = RECORD_SLOTS | RECORD_COUNTED, .slot_size = sizeof(struct record_slot)};
}

static struct driver load(const char *path)
{
    void *lib = dlopen(path, RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "cannot load: %s\n", dlerror());
        exit(1);
    }
    ((CUresult(*)(unsigned int))dlsym(lib, "cuInit"))(0);
    return (struct driver){(alloc_function *)dlsym(lib, "cuMemAlloc_v2"), (free_function *)dlsym(lib, "cuMemFree_v2")};
}

static double pairs(struct driver d)
{
    double start = now();
    for (int i = 0; i < PAIRS; i++) {
        CUdeviceptr p;
        if (d.alloc(&p, 4096) != CUDA_SUCCESS) abort();
        d.free(p);
    }
    return (now() - start) / PAIRS;
}

static void measure(int processes, int busy, int earlier)
{
    static struct driver bare, shim;
    double without[ROUNDS], with[ROUNDS];
    CUdeviceptr *held = malloc(sizeof *held * (size_t)(earlier + 1));

    /* The proxy first: if the driver were loaded first, it would be found as "libcuda.so.1". */
    if (!bare.alloc) shim = load("libcuda.so.1"), bare = load(PLACE_LIBCUDA);
    for (int i = 0; i < earlier; i++) shim.alloc(&held[i], 4096);
    for (int r = 0; r < ROUNDS; r++) without[r] = pairs(bare), with[r] = pairs(shim);
    for (int i = 0; i < earlier; i++) shim.free(held[i]);
    free(held);
    double usual = median(without, ROUNDS), usual_with = median(with, ROUNDS); /* sorts them: the first is the best */
    printf("alloc+free, %4d processes (%d busy), %7d earlier allocations: median %5.1f ns -> %6.1f ns, best %5.1f ns -> %6.1f ns: +%.1f ns\n", processes,
           busy, earlier, usual, usual_with, without[0], with[0], with[0] - without[0]);
    fflush(stdout);
}

/* hold starts another process, with a slot and some memory. A busy one allocates and frees all the
 * time. */
static pid_t hold(bool busy)
{
    int ready[2];
    char byte;
    pid_t pid;

    if (pipe(ready) < 0) abort();
    if ((pid = fork()) == 0) {
        CUdeviceptr p;
        struct driver d = load("libcuda.so.1");
        d.alloc(&p, 4096);
        if (write(ready[1], "y", 1) == 1)
            for (;;) busy ? (void)pairs(d) : (void)pause();
        _exit(1);
    }
    if (read(ready[0], &byte, 1) != 1) abort();
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static void at(int processes, int busy)
{
    pid_t others[RECORD_SLOTS], me;

    for (int i = 1; i < processes; i++) others[i] = hold(i >= processes / 2 && i < processes / 2 + busy);
    if ((me = fork()) == 0) {
        measure(processes, busy, 0);
        if (processes == 1) measure(1, 0, 1000), measure(1, 0, 100000), measure(1, 0, 1000000);
        _exit(0);
    }
    waitpid(me, NULL, 0);
    for (int i = 1; i < processes; i++) kill(others[i], SIGKILL), waitpid(others[i], NULL, 0);
}

static double changes(uint64_t *word)
{
    double start = now();
    for (int i = 0; i < PAIRS; i++) {
        __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
        __atomic_sub_fetch(word, 1, __ATOMIC_SEQ_CST);
    }
    return (now() - start) / PAIRS;
}

/* one_word measures the least that an account can be: one word that all processes change, with no
 * limit and no owner. What another process adds to it, the caches of this machine take. */
static void one_word(int busy)
{
    uint64_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double took[ROUNDS];
    pid_t other = busy ? fork() : -1;

    if (other == 0)
        for (;;) changes(word);
    usleep(2000);
    for (int r = 0; r < ROUNDS; r++) took[r] = changes(word);
    if (busy) kill(other, SIGKILL), waitpid(other, NULL, 0);
    double usual = median(took, ROUNDS);
    printf("one shared word changed twice (%d busy): median %.1f ns, best %.1f ns\n", busy, usual, took[0]);
    fflush(stdout);
    munmap(word, 4096);
}

/* load_time is the time of dlopen and cuInit in a new process. */
static double load_time(const char *path)
{
    double *t = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), took;

    if (fork() == 0) {
        double start = now();
        load(path);
        *t = now() - start;
        _exit(0);
    }
    wait(NULL);
    took = *t;
    munmap(t, 4096);
    return took;
}

typedef CUresult launch_function(CUfunction, CUDA_GRID, CUstream, void **, void **);

static double launches(launch_function *launch, int n)
{
    double start = now();
    for (int i = 0; i < n; i++)
        if (launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS) abort();
    return (now() - start) / n;
}

static launch_function *launch_shim, *launch_bare;

static void compare_launches(const char *what, int n)
{
    double without[ROUNDS], with[ROUNDS];

    for (int r = 0; r < ROUNDS; r++) without[r] = launches(launch_bare, n), with[r] = launches(launch_shim, n);
    double usual = median(without, ROUNDS), usual_with = median(with, ROUNDS);
    printf("launch, %s: median %.1f ns -> %.1f ns, best %.1f ns -> %.1f ns: %+.1f ns\n", what, usual, usual_with, without[0], with[0], with[0] - without[0]);
    fflush(stdout);
}

static void *launch_always(void *stop)
{
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) launches(launch_shim, 100);
    return NULL;
}

/* half_closed counts how many launches pass while the gate is closed. The period is 20 ms of the
 * clock, and the gate is open for its first half. */
static void half_closed(void)
{
    double end = now() + 2e9, before, after;
    long passed = 0, late = 0;

    do {
        before = now();
        launches(launch_shim, 1);
        after = now();
        passed++;
        late += after - before < 1e6 && (long)(before / 1e3) % 20000 >= 10000;
    } while (after < end);
    printf("launch, through a gate that is open for half of the time: %ld of %ld passed while it was closed\n", late, passed);
}

/* launch_times measures the proxy that programs find. The share is 100 percent, so nothing
 * waits. */
static void launch_times(void)
{
    struct record_limits *l;
    size_t *walk;
    pthread_t threads[3];
    int stop = 0;

    write_records();
    l = map_old(PLACE_LIMITS, RECORD_PAGE);
    l->id = 1; /* so that periods begin with the clock's */
    l->device[0].share = 100;
    load("libcuda.so.1");
    load(PLACE_LIBCUDA);
    *(void **)&launch_shim = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
    *(void **)&launch_bare = dlsym(dlopen(PLACE_LIBCUDA, RTLD_NOW), "cuLaunchKernel");
    walk = dlsym(dlopen(PLACE_LIBCUDA, RTLD_NOW), "benchWalk");
    compare_launches(launch_shim == launch_bare ? "the driver's own function" : "through an open gate", PAIRS);
    if (launch_shim == launch_bare) return;
    *walk = 512 << 10;
    compare_launches("with a driver that uses the caches", PAIRS / 20);
    *walk = 0;
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, launch_always, &stop);
    compare_launches("while three threads launch", PAIRS);
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    l->device[0].share = 50;
    usleep(2000); /* a window of the earlier gate may still be open */
    half_closed();
}

int main(int argc, char **argv)
{
    double without[LOADS], with[LOADS];

    if (argc > 1 && strcmp(argv[1], "launch") == 0) return launch_times(), 0;
    write_records();
    for (int i = 0; i < LOADS; i++) without[i] = load_time(PLACE_LIBCUDA), with[i] = load_time("libcuda.so.1");
    printf("load and cuInit: %.0f us without, %.0f us with: +%.0f us\n", median(without, LOADS) / 1e3, median(with, LOADS) / 1e3,
           (median(with, LOADS) - median(without, LOADS)) / 1e3);
    fflush(stdout);
    at(1, 0);
    at(8, 0);
    at(64, 0);
    at(64, 1);
    at(1000, 0);
    at(1000, 1);
    one_word(0);
    one_word(1);
    return 0;
}
