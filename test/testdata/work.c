/* work WORD...: what frameworks do with a GPU, by the driver's interface alone, as far as a grant can get in its way. Words are done in their order:
 *   cache    keeps blocks of 20 MiB until there are no more, frees them and takes them again, as PyTorch's caching allocator does
 *   async    the same by cuMemAllocAsync
 *   vmm      the same by memory that is mapped into one range of addresses, as expandable segments do
 *   graph    a CUDA graph with memory of its own, and one with more than there is
 *   product:N  matrix products for N seconds, how many a second, and whether they were right
 *   beside:LIBRARY  compares what follows with the calls of that library, in turns
 *   allocate:N  for N seconds each, pairs of cuMemAlloc and cuMemFree of 4 KiB and of 32 MiB: nanoseconds a pair
 *   launch:N   for N seconds, launches of a kernel that does nothing: nanoseconds a launch
 *   train:N    for N seconds steps of what a small training does: stream-ordered memory, products, a number back
 *   cpu:N    stays on processor N from then on
 *   seen:N   for N seconds, which part of the GPU's time NVML says that each process has
 *   settle   waits until what a context takes counts, or a minute
 *   fill     takes all that there is, says how much that was, and waits for ever
 *   fill:N   the same in blocks of N KiB
 * A call that the driver does not have is said and passed over. */
#define _GNU_SOURCE
#include "../../shim/cuda_abi.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define CALLS(C)                                                                                                      \
    C(cuInit, (unsigned int)) C(cuDeviceGet, (CUdevice *, int)) C(cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice)) \
    C(cuCtxSynchronize, (void)) C(cuMemGetInfo_v2, (size_t *, size_t *)) C(cuMemAlloc_v2, (CUdeviceptr *, size_t))    \
    C(cuMemFree_v2, (CUdeviceptr)) C(cuMemsetD32_v2, (CUdeviceptr, unsigned int, size_t))                             \
    C(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) C(cuModuleGetFunction, (CUfunction *, void *, const char *))    \
    C(cuModuleLoadDataEx, (void **, const void *, unsigned int, int *, void **))                                      \
    C(cuLaunchKernel, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, CUstream, void **, void **)) \
    C(cuStreamCreate, (CUstream *, unsigned int)) C(cuStreamSynchronize, (CUstream))                                  \
    C(cuStreamBeginCapture_v2, (CUstream, int)) C(cuStreamEndCapture, (CUstream, CUgraph *))                          \
    C(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream)) C(cuMemFreeAsync, (CUdeviceptr, CUstream))                  \
    C(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice)) C(cuMemPoolTrimTo, (CUmemoryPool, size_t))               \
    C(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) C(cuGraphLaunch, (CUgraphExec, CUstream)) \
    C(cuGraphExecDestroy, (CUgraphExec)) C(cuGraphDestroy, (CUgraph)) C(cuDeviceGraphMemTrim, (CUdevice))             \
    C(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))         \
    C(cuMemRelease, (CUmemGenericAllocationHandle)) C(cuMemAddressFree, (CUdeviceptr, size_t))                        \
    C(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                          \
    C(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                      \
    C(cuMemUnmap, (CUdeviceptr, size_t)) C(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))    \
    C(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, int))

#define DECLARE(name, parameters) static CUresult (*name) parameters;
CALLS(DECLARE)

static CUdevice device;
static CUfunction product_of, idle;
static CUstream stream;

/* need ends the program with a sentence. */
static void need(CUresult r, const char *what)
{
    if (r == CUDA_SUCCESS) return;
    printf("%s: error %d\n", what, r);
    exit(1);
}

static void stay(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) perror("sched_setaffinity");
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static size_t total(void)
{
    size_t free, all;
    need(cuMemGetInfo_v2(&free, &all), "cuMemGetInfo");
    return all;
}

/* ---- memory: each way takes blocks until there are no more ---- */

enum { BLOCKS = 100000 };
static const size_t block = 20 * MIB;

struct way {
    const char *name;
    CUresult (*take)(int i), (*give)(int i);
    void (*end)(void);
    bool there;
};

static CUdeviceptr at[BLOCKS];
static CUresult take_plain(int i) { return cuMemAlloc_v2(&at[i], block); }
static CUresult give_plain(int i) { return cuMemFree_v2(at[i]); }
static void nothing(void) {}

static CUresult take_async(int i)
{
    CUresult r = cuMemAllocAsync(&at[i], block, stream);
    return r == CUDA_SUCCESS ? cuStreamSynchronize(stream) : r;
}
static CUresult give_async(int i) { return cuMemFreeAsync(at[i], stream); }
static void end_async(void)
{
    CUmemoryPool pool;
    need(cuStreamSynchronize(stream), "cuStreamSynchronize");
    if (cuDeviceGetDefaultMemPool && cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS && cuMemPoolTrimTo) cuMemPoolTrimTo(pool, 0);
}

/* One range of addresses, into which memory is put piece by piece. */
static CUmemGenericAllocationHandle piece[BLOCKS];
static CUdeviceptr range;
static CUresult take_mapped(int i)
{
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemAccessDesc access = {.location = prop.location, .flags = 3};
    CUdeviceptr here = range + (CUdeviceptr)i * block;
    CUresult r = cuMemCreate(&piece[i], block, &prop, 0);

    if (r != CUDA_SUCCESS) return r;
    if ((r = cuMemMap(here, block, 0, piece[i], 0)) == CUDA_SUCCESS) r = cuMemSetAccess(here, block, &access, 1);
    return r;
}
static CUresult give_mapped(int i)
{
    CUresult r = cuMemUnmap(range + (CUdeviceptr)i * block, block);
    return r == CUDA_SUCCESS ? cuMemRelease(piece[i]) : r;
}

static int take_all(const struct way *w, CUresult *why)
{
    int n = 0;
    while (n < BLOCKS && (*why = w->take(n)) == CUDA_SUCCESS) n++;
    return n;
}
static void give_all(const struct way *w, int n)
{
    for (int i = 0; i < n; i++) need(w->give(i), "giving back");
    w->end();
}

static void take_twice(const struct way *w)
{
    CUresult why = CUDA_SUCCESS, then = CUDA_SUCCESS;
    int n, again;

    if (!w->there) {
        printf("%s: this driver has no such calls\n", w->name);
        return;
    }
    n = take_all(w, &why);
    give_all(w, n);
    again = take_all(w, &then);
    give_all(w, again);
    printf("%s: had %zu of %zu MiB, then error %d, again %zu MiB\n", w->name, (size_t)n * block / MIB, total() / MIB, why, (size_t)again * block / MIB);
}

static void cache(void) { take_twice(&(struct way){"cache", take_plain, give_plain, nothing, true}); }
static void async(void) { take_twice(&(struct way){"async", take_async, give_async, end_async, cuMemAllocAsync && cuMemFreeAsync}); }
static void vmm(void)
{
    struct way w = {"vmm", take_mapped, give_mapped, nothing, cuMemCreate && cuMemMap && cuMemAddressReserve && cuMemSetAccess};
    size_t room = (total() / block + 1) * block;

    if (w.there) need(cuMemAddressReserve(&range, room, 0, 0, 0), "cuMemAddressReserve");
    take_twice(&w);
    if (w.there) need(cuMemAddressFree(range, room), "cuMemAddressFree");
}

/* ---- kernels ---- */

/* C = A * B of N x N, one thread an element. For any GPU: its driver compiles it. */
static const char code[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry product(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n{\n"
    ".reg .pred %p<3>;\n.reg .b32 %r<10>;\n.reg .b64 %d<11>;\n.reg .f32 %f<4>;\n"
    "ld.param.u64 %d1, [a];\nld.param.u64 %d2, [b];\nld.param.u64 %d3, [c];\nld.param.u32 %r1, [n];\n"
    "cvta.to.global.u64 %d1, %d1;\ncvta.to.global.u64 %d2, %d2;\ncvta.to.global.u64 %d3, %d3;\n"
    "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmov.u32 %r4, %tid.x;\nmad.lo.u32 %r5, %r2, %r3, %r4;\n" /* column */
    "mov.u32 %r6, %ctaid.y;\n"                                                                                  /* row */
    "setp.ge.u32 %p1, %r5, %r1;\n@%p1 bra DONE;\n"
    "mul.lo.u32 %r7, %r6, %r1;\nmul.wide.u32 %d4, %r7, 4;\nadd.s64 %d5, %d1, %d4;\n"
    "mul.wide.u32 %d6, %r5, 4;\nadd.s64 %d7, %d2, %d6;\nmul.wide.u32 %d8, %r1, 4;\n"
    "mov.f32 %f1, 0f00000000;\nmov.u32 %r8, 0;\n"
    "LOOP:\nld.global.f32 %f2, [%d5];\nld.global.f32 %f3, [%d7];\nfma.rn.f32 %f1, %f2, %f3, %f1;\n"
    "add.s64 %d5, %d5, 4;\nadd.s64 %d7, %d7, %d8;\nadd.u32 %r8, %r8, 1;\nsetp.lt.u32 %p2, %r8, %r1;\n@%p2 bra LOOP;\n"
    "add.u32 %r9, %r7, %r5;\nmul.wide.u32 %d9, %r9, 4;\nadd.s64 %d10, %d3, %d9;\nst.global.f32 [%d10], %f1;\n"
    "DONE:\nret;\n}\n"
    ".visible .entry idle()\n{\nret;\n}\n";

static void load_code(void)
{
    static char log[4096];
    int options[] = {5, 6}; /* CU_JIT_ERROR_LOG_BUFFER, and its size */
    void *values[] = {log, (void *)sizeof log}, *module;
    CUresult r;

    if (product_of) return;
    r = cuModuleLoadDataEx(&module, code, 2, options, values);
    if (r != CUDA_SUCCESS) printf("%s\n", log);
    need(r, "cuModuleLoadDataEx");
    need(cuModuleGetFunction(&product_of, module, "product"), "cuModuleGetFunction");
    need(cuModuleGetFunction(&idle, module, "idle"), "cuModuleGetFunction");
}

enum { N = 1024, THREADS = 256 };
static CUresult multiply(CUdeviceptr a, CUdeviceptr b, CUdeviceptr c, unsigned int n, CUstream s)
{
    void *parameters[] = {&a, &b, &c, &n};
    return cuLaunchKernel(product_of, (n + THREADS - 1) / THREADS, n, 1, THREADS, 1, 1, 0, s, parameters, NULL);
}

static CUdeviceptr matrix(unsigned int bits)
{
    CUdeviceptr p;
    need(cuMemAlloc_v2(&p, N * N * 4), "a matrix");
    need(cuMemsetD32_v2(p, bits, N * N), "cuMemsetD32");
    return p;
}

/* verdict is of ones times twos. */
static const char *verdict(CUdeviceptr c)
{
    static float row[N];
    int right = 0, empty = 0;

    need(cuMemcpyDtoH_v2(row, c, sizeof row), "cuMemcpyDtoH");
    for (int i = 0; i < N; i++) right += row[i] == 2.0f * N, empty += row[i] == 0;
    return right == N ? "right" : empty == N ? "nothing computed" : "wrong";
}

static void product(double seconds)
{
    CUdeviceptr a, b, c;
    double start = 0;
    long done = 0;

    load_code();
    a = matrix(0x3f800000), b = matrix(0x40000000), c = matrix(0);
    for (int batch = 0; batch == 0 || now() < start + seconds; batch++, done += 20) {
        for (int i = 0; i < 20; i++) need(multiply(a, b, c, N, NULL), "cuLaunchKernel");
        need(cuCtxSynchronize(), "cuCtxSynchronize");
        if (batch == 0) start = now(), done = -20; /* the first is to warm up */
    }
    printf("product: %.1f a second, %s\n", (double)done / (now() - start), verdict(c));
    need(cuMemFree_v2(a) || cuMemFree_v2(b) || cuMemFree_v2(c), "cuMemFree");
}

static void train(double seconds)
{
    CUdeviceptr weights, layer[4], input;
    double start = 0;
    long done = 0;

    if (!cuMemAllocAsync) {
        puts("train: this driver has no stream-ordered memory");
        return;
    }
    load_code();
    weights = matrix(0x3f800000), input = matrix(0x40000000);
    for (long step = 0; step < 5 || now() < start + seconds; step++, done++) {
        float loss;
        if (step == 4) start = now(), done = -1;
        for (int i = 0; i < 4; i++) {
            need(cuMemAllocAsync(&layer[i], 16 * MIB, stream), "cuMemAllocAsync");
            need(multiply(weights, i ? layer[i - 1] : input, layer[i], N, stream), "cuLaunchKernel");
        }
        need(cuStreamSynchronize(stream), "cuStreamSynchronize");
        need(cuMemcpyDtoH_v2(&loss, layer[3], sizeof loss), "cuMemcpyDtoH");
        for (int i = 0; i < 4; i++) need(cuMemFreeAsync(layer[i], stream), "cuMemFreeAsync");
    }
    end_async();
    printf("train: %.1f steps a second\n", (double)done / (now() - start));
    need(cuMemFree_v2(weights) || cuMemFree_v2(input), "cuMemFree");
}

/* ---- what single calls cost ---- */

struct calls {
    CUresult (*alloc)(CUdeviceptr *, size_t), (*free)(CUdeviceptr);
    CUresult (*launch)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, CUstream, void **, void **);
};
static struct calls theirs; /* of the library beside */

/* A library that stands before the driver may have another dlsym, which the C library's own finds nothing of. */
static void look_beside(const char *name)
{
    void *library = dlopen(name, RTLD_NOW), *c = dlopen("libc.so.6", RTLD_NOW);
    void *(*find)(void *, const char *) = NULL;

    if (c) *(void **)&find = dlsym(c, "dlsym");
    if (!library || !find) {
        printf("no library beside: %s\n", dlerror());
        exit(1);
    }
    *(void **)&theirs.alloc = find(library, "cuMemAlloc_v2");
    *(void **)&theirs.free = find(library, "cuMemFree_v2");
    *(void **)&theirs.launch = find(library, "cuLaunchKernel");
}

enum { SAMPLES = 1 << 18 };
static double sample[2][SAMPLES];

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *of, int n)
{
    qsort(of, (size_t)n, sizeof *of, by_value);
    return of[n / 2] * 1e9;
}

/* in_turns calls measure for each side, in another order each time, so that both have the same GPU and processor. */
static void in_turns(const char *name, double seconds, double (*measure)(const struct calls *, size_t), size_t argument)
{
    struct calls ours = {cuMemAlloc_v2, cuMemFree_v2, cuLaunchKernel};
    double start = now();
    int n = 0;

    for (; n < SAMPLES && (n < 2 || now() < start + seconds); n++)
        for (int turn = 0; turn < 2; turn++) {
            int side = turn ^ (n & 1);
            if (side == 0 || theirs.alloc) sample[side][n] = measure(side ? &theirs : &ours, argument);
        }
    printf("%s: %.1f ns, the median of %d", name, median(sample[0], n), n);
    if (theirs.alloc) {
        double own = median(sample[1], n);
        printf("; %.1f ns by the library beside, so %+.1f", own, median(sample[0], n) - own);
    }
    printf("\n");
}

static double pair(const struct calls *c, size_t bytes)
{
    CUdeviceptr p;
    double before = now();
    CUresult r = c->alloc(&p, bytes);

    if (r == CUDA_SUCCESS) r = c->free(p);
    before = now() - before;
    need(r, "cuMemAlloc and cuMemFree");
    return before;
}

static void pairs(const char *name, size_t bytes, double seconds)
{
    CUdeviceptr kept;

    need(cuMemAlloc_v2(&kept, bytes), "cuMemAlloc"); /* what the driver keeps for it is there from now on */
    in_turns(name, seconds, pair, bytes);
    need(cuMemFree_v2(kept), "cuMemFree");
}

static void allocate(double seconds)
{
    pairs("small", 4 << 10, seconds / 2);
    pairs("large", 32 * MIB, seconds / 2);
}

/* A batch is shorter than the driver's queue, so that no launch waits for the GPU. */
static double once(const struct calls *c, size_t size)
{
    double before = now();
    CUresult r = CUDA_SUCCESS;

    for (size_t i = 0; i < size && r == CUDA_SUCCESS; i++) r = c->launch(idle, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    before = (now() - before) / (double)size;
    need(r, "cuLaunchKernel");
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    return before;
}

/* A batch in which a launch has waited for its gate to open is measured again. It would say nothing of
 * what a launch costs. With such batches among ours, their median would be a higher part of the rest
 * than the median of the driver's is. */
static double batch(const struct calls *c, size_t size)
{
    static double least = 1;
    double took = once(c, size);

    for (int i = 0; i < 10 && took > 5 * least; i++) took = once(c, size);
    if (took < least) least = took;
    return took;
}

static void launch(double seconds)
{
    load_code();
    in_turns("launch", seconds, batch, 100);
}

/* ---- graphs ---- */

/* plan captures an allocation, a kernel on it and its free. */
static CUgraph plan(size_t bytes)
{
    CUdeviceptr p;
    CUgraph g;

    need(cuStreamBeginCapture_v2(stream, 2), "cuStreamBeginCapture");
    need(cuMemAllocAsync(&p, bytes, stream), "cuMemAllocAsync in a capture");
    need(multiply(p, p, p, 256, stream), "cuLaunchKernel in a capture");
    need(cuMemFreeAsync(p, stream), "cuMemFreeAsync in a capture");
    need(cuStreamEndCapture(stream, &g), "cuStreamEndCapture");
    return g;
}

static CUresult carry_out(CUgraph g, CUgraphExec *e)
{
    CUresult r = cuGraphInstantiateWithFlags(e, g, 0);

    if (r != CUDA_SUCCESS) return r;
    for (int i = 0; i < 3 && r == CUDA_SUCCESS; i++) r = cuGraphLaunch(*e, stream);
    if (r == CUDA_SUCCESS) r = cuStreamSynchronize(stream);
    if (r != CUDA_SUCCESS) cuGraphExecDestroy(*e);
    return r;
}

static void graph(void)
{
    CUgraph small, large;
    CUgraphExec e, f;
    CUresult first, beyond, again;

    if (!cuStreamBeginCapture_v2 || !cuMemAllocAsync || !cuGraphInstantiateWithFlags) {
        puts("graph: this driver has no such calls");
        return;
    }
    load_code();
    small = plan(total() / 2), large = plan(total() + MIB);
    first = carry_out(small, &e);
    beyond = carry_out(large, &f);
    if (first == CUDA_SUCCESS) cuGraphExecDestroy(e);
    cuDeviceGraphMemTrim(device);
    again = carry_out(small, &e);
    if (again == CUDA_SUCCESS) cuGraphExecDestroy(e);
    cuDeviceGraphMemTrim(device);
    printf("graph: half of it error %d, more than all of it error %d, half again error %d\n", first, beyond, again);
    need(cuGraphDestroy(small) || cuGraphDestroy(large), "cuGraphDestroy");
}

/* ---- a full grant ---- */

static void settle(void)
{
    double start = now();
    size_t free, all;

    do {
        usleep(20000);
        need(cuMemGetInfo_v2(&free, &all), "cuMemGetInfo");
    } while (free == all && now() < start + 60);
}

/* ---- what NVML says ---- */

struct utilization { unsigned int pid; unsigned long long at; unsigned int sm, memory, encoder, decoder; };

/* seen asks as gpuledgerd does: twice a second, for what is new since the last time. */
static void seen(double seconds)
{
    enum { MOST = 256 };
    static struct { unsigned int pid, samples; double percent; } of[MOST];
    static struct utilization samples[MOST];
    int (*init)(void) = NULL, (*handle)(unsigned int, void **) = NULL;
    int (*ask)(void *, struct utilization *, unsigned int *, unsigned long long) = NULL;
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *gpu;
    unsigned long long newest = (unsigned long long)time(NULL) * 1000000;
    size_t known = 0;

    if (nvml) {
        *(void **)&init = dlsym(nvml, "nvmlInit_v2");
        *(void **)&handle = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
        *(void **)&ask = dlsym(nvml, "nvmlDeviceGetProcessUtilization");
    }
    if (!init || !handle || !ask || init() || handle(0, &gpu)) {
        puts("seen: no NVML that says");
        return;
    }
    for (double start = now(); now() < start + seconds;) {
        unsigned int n = MOST;
        usleep(500000);
        if (ask(gpu, samples, &n, newest)) continue;
        for (unsigned int i = 0; i < n; i++) {
            size_t j = 0;
            if (samples[i].sm > 100) continue;
            while (j < known && of[j].pid != samples[i].pid) j++;
            if (j == MOST) continue;
            if (j == known) of[known++].pid = samples[i].pid;
            of[j].percent += samples[i].sm, of[j].samples++;
            if (samples[i].at > newest) newest = samples[i].at;
        }
    }
    for (size_t j = 0; j < known; j++)
        printf("seen: process %u: %.1f percent, the mean of %u samples\n", of[j].pid,
               of[j].percent / of[j].samples, of[j].samples);
}

static void fill(size_t block_of)
{
    size_t bytes = 0;
    CUdeviceptr p;

    for (size_t size = block_of ? block_of : 256 * MIB; size >= 64 << 10;)
        if (cuMemAlloc_v2(&p, size) == CUDA_SUCCESS) bytes += size;
        else size = block_of ? 0 : size / 2;
    printf("filled with %zu bytes\n", bytes);
    for (;;) pause();
}

static void begin(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CUcontext context;

    if (!library) {
        printf("no driver: %s\n", dlerror());
        exit(1);
    }
#define FIND(name, parameters) *(void **)&name = dlsym(library, #name);
    CALLS(FIND)
    need(cuInit(0), "cuInit");
    need(cuDeviceGet(&device, 0), "cuDeviceGet");
    need(cuCtxCreate_v2(&context, 0, device), "cuCtxCreate");
    need(cuStreamCreate(&stream, 1), "cuStreamCreate");
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    begin();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "cache") == 0) cache();
        else if (strcmp(argv[i], "async") == 0) async();
        else if (strcmp(argv[i], "vmm") == 0) vmm();
        else if (strcmp(argv[i], "graph") == 0) graph();
        else if (strncmp(argv[i], "product:", 8) == 0) product(atof(argv[i] + 8));
        else if (strncmp(argv[i], "allocate:", 9) == 0) allocate(atof(argv[i] + 9));
        else if (strncmp(argv[i], "launch:", 7) == 0) launch(atof(argv[i] + 7));
        else if (strncmp(argv[i], "train:", 6) == 0) train(atof(argv[i] + 6));
        else if (strncmp(argv[i], "cpu:", 4) == 0) stay(atoi(argv[i] + 4));
        else if (strncmp(argv[i], "seen:", 5) == 0) seen(atof(argv[i] + 5));
        else if (strcmp(argv[i], "settle") == 0) settle();
        else if (strcmp(argv[i], "fill") == 0) fill(0);
        else if (strncmp(argv[i], "fill:", 5) == 0) fill((size_t)atol(argv[i] + 5) << 10);
        else if (strncmp(argv[i], "beside:", 7) == 0) look_beside(argv[i] + 7);
        else return printf("it knows no %s\n", argv[i]), 2;
    }
    return 0;
}
