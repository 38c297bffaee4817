/* Stories of the libcuda proxy. The grant is 256 MiB on GPU 0 and 128 MiB on GPU 1; the stand-in's GPUs have 16 GiB and
 * its contexts take 256 MiB each, which nothing here is charged for: that is the watch's part. */
#define _GNU_SOURCE
#include "driver.h"
#include "tap.h"

#include "../place.h"
#include "../record.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRANT = 256, GRANT1 = 128 };

/* begin starts CUDA with a context on a device. */
static CUcontext begin(int ordinal)
{
    CUcontext c = NULL;
    CUdevice d;
    CUresult r = cuInit(0);

    if (r == CUDA_SUCCESS) r = cuDeviceGet(&d, ordinal);
    if (r == CUDA_SUCCESS) r = cuCtxCreate_v2(&c, 0, d);
    IS(r, CUDA_SUCCESS, "CUDA starts");
    return c;
}

static size_t free_mib(void)
{
    size_t free = 12345, total;
    cuMemGetInfo_v2(&free, &total);
    return free / MIB;
}

static CUdeviceptr get(size_t mib)
{
    CUdeviceptr p = 0;
    return cuMemAlloc_v2(&p, mib * MIB) == CUDA_SUCCESS ? p : 0;
}

/* limits opens the limits as the node does. */
static struct record_limits *limits(void)
{
    int fd = open(PLACE_LIMITS, O_RDWR | O_CLOEXEC);
    void *p = mmap(NULL, RECORD_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p;
}

static struct record_head *region(void)
{
    int fd = open(PLACE_REGION, O_RDWR | O_CLOEXEC);
    void *p = mmap(NULL, RECORD_REGION_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p;
}
static struct record_slot *slot(struct record_head *h, int i) { return (struct record_slot *)((char *)h + RECORD_SLOT(i)); }

/* in_child runs f in another process and returns its exit status, 128 + signal if it was killed. */
static int in_child(int (*f)(void))
{
    int status;
    pid_t pid = fork();

    if (pid == 0) _exit(f());
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* held starts a process that allocates and then waits to be killed. */
static int wanted_mib, wanted_left;
static pid_t held(int device, int mib)
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
static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* ---- the grant ---- */

static void the_grant_is_the_total(void)
{
    size_t free, total;
    unsigned int free1, total1;
    CUdeviceptr p;

    begin(0);
    IS(cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS, "cuDeviceTotalMem");
    IS(total, GRANT * MIB, "tells the grant");
    cuDeviceTotalMem_v2(&total, 1);
    IS(total, GRANT1 * MIB, "each device its own");
    IS(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS, "cuMemGetInfo");
    IS(total, GRANT * MIB, "tells the grant");
    IS(free, GRANT * MIB, "all of it free: contexts are charged from outside");
    p = get(100);
    cuMemGetInfo_v2(&free, &total);
    IS(free, 156 * MIB, "less what was allocated");
    IS(cuMemGetInfo(&free1, &total1), CUDA_SUCCESS, "the old cuMemGetInfo");
    IS(free1, 156 * MIB, "tells the same");
    IS(total1, GRANT * MIB, "in 32 bits");
    IS(cuMemFree_v2(p), CUDA_SUCCESS, "free");
    IS(free_mib(), GRANT, "gives it back");
}

static void beyond_the_grant_is_out_of_memory(void)
{
    CUdeviceptr p = 77, q;

    begin(0);
    IS(cuMemAlloc_v2(&p, GRANT * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte too much");
    IS(p, 77, "and the pointer is not touched");
    IS(cuMemAlloc_v2(&p, GRANT * MIB), CUDA_SUCCESS, "the grant to the byte");
    IS(cuMemAlloc_v2(&q, 1), CUDA_ERROR_OUT_OF_MEMORY, "then not a byte more");
    IS(cuMemAlloc_v2(&q, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY, "nor all there are");
    IS(cuMemAllocManaged(&q, 1, 1), CUDA_ERROR_OUT_OF_MEMORY, "nor managed");
    IS(cuMemFree_v2(p), CUDA_SUCCESS, "free");
    IS(cuMemAlloc_v2(&p, GRANT * MIB), CUDA_SUCCESS, "and the process goes on");
    IS(fakedriverPeak(0), GRANT * MIB, "the GPU never gave more");
}

static void every_kind_is_counted(void)
{
    CUdeviceptr p, q, m;
    CUdeviceptr_v1 v, w;
    size_t pitch;
    unsigned int pitch1;
    CUarray a, b, c, e;
    CUmipmappedArray mip;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

    begin(0);
    IS(cuMemAlloc(&v, MIB), 0, "cuMemAlloc of before 3.2");
    IS(cuMemAllocPitch_v2(&p, &pitch, 1000, 1024, 4), 0, "cuMemAllocPitch");
    IS(cuMemAllocPitch(&w, &pitch1, 1000, 1024, 4), 0, "cuMemAllocPitch of before 3.2");
    IS(cuMemAllocManaged(&m, MIB, 1), 0, "cuMemAllocManaged");
    IS(free_mib(), GRANT - 4, "each one MiB");
    IS(cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){1024, 256, 0x20, 1}), 0, "an array of floats");
    IS(cuArrayCreate(&b, &(CUDA_ARRAY_DESCRIPTOR_v1){1 << 20, 0, 0x01, 1}), 0, "an array of bytes, of before 3.2");
    IS(cuArray3DCreate_v2(&c, &(CUDA_ARRAY3D_DESCRIPTOR){64, 64, 64, 0x10, 2, 0}), 0, "an array in 3D");
    IS(cuArray3DCreate(&e, &(CUDA_ARRAY3D_DESCRIPTOR_v1){1024, 1024, 1024, 1, 1, CUDA_ARRAY3D_SPARSE}), 0, "a sparse one");
    IS(free_mib(), GRANT - 7, "each as large as its elements");
    IS(cuMipmappedArrayCreate(&mip, &(CUDA_ARRAY3D_DESCRIPTOR){1024, 1024, 0, 1, 1, 0}, 11), 0, "a mipmapped array");
    IS(fakedriverMine(0), 8 * MIB + (1 << 20) / 3, "all its levels");
    IS(free_mib(), GRANT - 9, "and the shim says so too");
    IS(cuMemCreate(&h, 2 * MIB, &prop, 0), 0, "cuMemCreate");
    IS(cuMemAllocAsync(&q, 32 * MIB, NULL), 0, "cuMemAllocAsync");
    IS(free_mib(), GRANT - 9 - 2 - 32, "counted");
    IS(cuMemFree(v) | cuMemFree_v2(p) | cuMemFree(w) | cuMemFree_v2(m), 0, "freed");
    IS(cuArrayDestroy(a) | cuArrayDestroy(b) | cuArrayDestroy(c) | cuArrayDestroy(e) | cuMipmappedArrayDestroy(mip), 0, "destroyed");
    IS(cuMemRelease(h) | cuMemFreeAsync(q, NULL) | cuCtxSynchronize(), 0, "released");
    IS(free_mib(), GRANT, "and all is back");
    IS(fakedriverMine(0), 0, "in the driver, too");
}

static void what_the_driver_refuses_is_not_counted(void)
{
    CUdeviceptr p;
    size_t pitch;
    CUarray a;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

    begin(0);
    IS(cuMemAllocManaged(&p, MIB, 99), CUDA_ERROR_INVALID_VALUE, "bad flags");
    IS(cuMemAllocPitch_v2(&p, &pitch, 100, 100, 3), CUDA_ERROR_INVALID_VALUE, "a bad element");
    IS(cuMemAllocPitch_v2(&p, &pitch, SIZE_MAX, 2, 4), CUDA_ERROR_OUT_OF_MEMORY, "a product that is no number");
    IS(cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){16, 16, 0x1f, 1}), CUDA_ERROR_INVALID_VALUE, "a bad format");
    IS(cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){SIZE_MAX, SIZE_MAX, 1, 1}), CUDA_ERROR_OUT_OF_MEMORY, "an array that is no number");
    IS(cuMemCreate(&h, 1000, &prop, 0), CUDA_ERROR_INVALID_VALUE, "a bad size");
    prop.location.id = 7;
    IS(cuMemCreate(&h, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY, "a device that is none");
    IS(free_mib(), GRANT, "nothing is counted");
}

static void null_arguments_are_the_drivers_affair(void) /* core #333 */
{
    size_t n;

    begin(0);
    IS(cuMemAlloc_v2(NULL, MIB), CUDA_ERROR_INVALID_VALUE, "cuMemAlloc(NULL)");
    IS(cuMemAlloc_v2((CUdeviceptr *)&n, 0), CUDA_ERROR_INVALID_VALUE, "no bytes");
    IS(cuMemAllocPitch_v2(NULL, NULL, 1, 1, 4), CUDA_ERROR_INVALID_VALUE, "cuMemAllocPitch(NULL)");
    IS(cuMemGetInfo_v2(NULL, &n), CUDA_ERROR_INVALID_VALUE, "cuMemGetInfo(NULL)");
    IS(cuDeviceTotalMem_v2(NULL, 0), CUDA_ERROR_INVALID_VALUE, "cuDeviceTotalMem(NULL)");
    IS(cuMemCreate(NULL, 0, NULL, 0), CUDA_ERROR_INVALID_VALUE, "cuMemCreate(NULL)");
    IS(cuArrayCreate_v2(NULL, NULL), CUDA_ERROR_INVALID_VALUE, "cuArrayCreate(NULL)");
    IS(cuMipmappedArrayCreate(NULL, NULL, 1), CUDA_ERROR_INVALID_VALUE, "cuMipmappedArrayCreate(NULL)");
    IS(cuMemAllocAsync(NULL, 1, NULL), CUDA_ERROR_INVALID_VALUE, "cuMemAllocAsync(NULL)");
    IS(cuMemAllocFromPoolAsync(NULL, 1, NULL, NULL), CUDA_ERROR_INVALID_VALUE, "cuMemAllocFromPoolAsync(NULL)");
    IS(cuMemPoolCreate(NULL, NULL), CUDA_ERROR_INVALID_VALUE, "cuMemPoolCreate(NULL)");
    IS(cuGraphInstantiateWithFlags(NULL, NULL, 0), CUDA_ERROR_INVALID_VALUE, "cuGraphInstantiate(NULL)");
    IS(cuDevicePrimaryCtxRetain(NULL, 0), CUDA_ERROR_INVALID_VALUE, "cuDevicePrimaryCtxRetain(NULL)");
    IS(cuGetProcAddress(NULL, NULL, 12000, 0), CUDA_ERROR_INVALID_VALUE, "cuGetProcAddress(NULL)");
    IS(cuGetProcAddress_v2(NULL, NULL, 12000, 0, NULL), CUDA_ERROR_INVALID_VALUE, "cuGetProcAddress_v2(NULL)");
    IS(cuMemFree_v2(0), CUDA_SUCCESS, "free of nothing");
}

static void unknown_pointers_go_to_the_driver(void)
{
    CUipcMemHandle h;
    CUdeviceptr p, q;
    uint64_t exported;
    CUmemGenericAllocationHandle a, b;
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

    begin(0);
    IS(cuMemFree_v2(4711), CUDA_ERROR_INVALID_VALUE, "a pointer that is none is the driver's to refuse");
    p = get(1);
    IS(cuMemFree_v2(p), CUDA_SUCCESS, "free");
    IS(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE, "free again");
    IS(free_mib(), GRANT, "counted once");
    p = get(1);
    IS(cuIpcGetMemHandle(&h, p) | cuIpcOpenMemHandle_v2(&q, h, 1), 0, "memory of another process");
    IS(free_mib(), GRANT - 1, "is counted there");
    IS(cuIpcCloseMemHandle(q), 0, "and closed by the driver");
    IS(cuMemCreate(&a, 2 * MIB, &prop, 0) | cuMemExportToShareableHandle(&exported, a, 1, 0) | cuMemImportFromShareableHandle(&b, &exported, 1), 0, "an imported handle");
    IS(free_mib(), GRANT - 3, "is counted where it was made");
    IS(cuMemRelease(b), 0, "and released by the driver");
    IS(cuMemRelease(b), CUDA_ERROR_INVALID_VALUE, "once");
    IS(free_mib(), GRANT - 3, "which changes nothing");
}

/* ---- VMM ---- */

static void vmm_memory_lives_with_its_last_handle_or_mapping(void) /* core #169 #172 #187 #188: prop.location.id */
{
    CUmemGenericAllocationHandle h, again;
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, host = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
    CUdeviceptr p;

    begin(0);
    IS(cuMemAddressReserve(&p, 128 * MIB, 0, 0, 0), 0, "addresses cost nothing");
    IS(cuMemCreate(&h, 64 * MIB, &prop, 0), 0, "create");
    IS(cuMemMap(p, 64 * MIB, 0, h, 0), 0, "map");
    IS(cuMemRelease(h), 0, "release the handle");
    IS(free_mib(), GRANT - 64, "mapped, so still there");
    IS(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)p), 0, "a handle from the address");
    IS(cuMemUnmap(p, 64 * MIB), 0, "unmap");
    IS(free_mib(), GRANT - 64, "held, so still there");
    IS(cuMemRelease(again), 0, "release");
    IS(free_mib(), GRANT, "gone");

    IS(cuMemCreate(&h, 32 * MIB, &prop, 0), 0, "create");
    IS(cuMemMap(p, 32 * MIB, 0, h, 0) | cuMemMap(p + 32 * MIB, 32 * MIB, 0, h, 0), 0, "mapped twice");
    IS(cuMemRelease(h), 0, "released");
    IS(cuMemUnmap(p, 16 * MIB), CUDA_ERROR_INVALID_VALUE, "half a mapping stays");
    IS(free_mib(), GRANT - 32, "counted once");
    IS(cuMemUnmap(p, 64 * MIB), 0, "both unmapped at once");
    IS(free_mib(), GRANT, "gone");

    prop.location.id = 1;
    IS(cuMemCreate(&h, 64 * MIB, &prop, 0), 0, "on the other device than the current one");
    IS(free_mib(), GRANT, "this one is free");
    IS(cuMemRelease(h), 0, "released");
    IS(cuMemCreate(&again, (GRANT1 + 2) * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY, "that one's grant is smaller");
    IS(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE, "a handle that is gone");
    IS(cuMemCreate(&h, 1024 * MIB, &host, 0), 0, "host memory is not the GPU's");
    IS(cuMemRelease(h), 0, "released");
    IS(fakedriverUsed(1), 0, "nothing is left");
}

/* Expandable segments: many parts, mapped and unmapped in any order, and a range of many mappings at once. */
static void many_mappings(void)
{
    enum { PARTS = 100 };
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUdeviceptr p;
    int failed = 0;

    begin(0);
    cuMemAddressReserve(&p, PARTS * 2 * MIB, 0, 0, 0);
    for (int i = 0; i < PARTS; i++) {
        CUmemGenericAllocationHandle h;
        failed |= cuMemCreate(&h, 2 * MIB, &prop, 0) | cuMemMap(p + (size_t)i * 2 * MIB, 2 * MIB, 0, h, 0) | cuMemRelease(h);
    }
    IS(failed, 0, "100 parts");
    IS(free_mib(), GRANT - 2 * PARTS, "counted");
    IS(cuMemUnmap(p + 20 * MIB, 2 * MIB), 0, "one of them unmapped");
    IS(free_mib(), GRANT - 2 * PARTS + 2, "is free");
    IS(cuMemUnmap(p + 22 * MIB, (PARTS * 2 - 22) * MIB), 0, "89 unmapped at once");
    IS(free_mib(), GRANT - 20, "are free");
    IS(cuMemUnmap(p, 20 * MIB), 0, "the rest");
    IS(free_mib(), GRANT, "is free");
}

/* ---- pools ---- */

static void a_pool_is_limited(void) /* core #93 #217 */
{
    CUdeviceptr p[8], q;
    int n = 0;

    begin(0);
    while (n < 8 && cuMemAllocAsync(&p[n], 50 * MIB, NULL) == CUDA_SUCCESS) n++;
    IS(n, 5, "five times 50 MiB of 256");
    OK(fakedriverPeak(0) <= GRANT * MIB, "and the pool holds no more than the grant: %llu MiB", fakedriverPeak(0) / MIB);
    OK(cuMemAllocAsync(&q, 7 * MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY, "more is out of memory");
    IS(cuMemAllocAsync_ptsz(&q, 6 * MIB, CU_STREAM_PER_THREAD), 0, "the last bytes are to be had, by the per-thread variant, too");
    for (int i = 0; i < n; i++) cuMemFreeAsync(p[i], NULL);
    IS(cuMemFreeAsync_ptsz(q, CU_STREAM_PER_THREAD), 0, "freed");
    IS(free_mib(), 0, "what a pool keeps counts");
    IS(cuMemAllocAsync(&q, 200 * MIB, NULL), 0, "and is used again without being counted twice");
    IS(cuMemFreeAsync(q, NULL) | cuStreamSynchronize(NULL), 0, "synchronised");
    IS(free_mib(), GRANT, "it is given back");
    IS(fakedriverMine(0), 0, "by the driver, too");
}

static void a_pool_keeps_what_was_freed(void) /* threshold: PyTorch's cudaMallocAsync backend */
{
    CUmemoryPool pool;
    CUdeviceptr p, q;
    uint64_t keep = UINT64_MAX;

    begin(0);
    cuDeviceGetDefaultMemPool(&pool, 0);
    IS(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), 0, "a pool that keeps everything");
    IS(cuMemAllocAsync(&p, 128 * MIB, NULL) | cuMemFreeAsync(p, NULL) | cuCtxSynchronize(), 0, "128 MiB there and back");
    IS(cuMemAlloc_v2(&q, 160 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "are not free for others");
    IS(fakedriverUsed(0), 256 * MIB + 128 * MIB, "because the driver has them (and the context)");
    IS(cuMemPoolTrimTo(pool, 64 * MIB), 0, "trimmed to 64");
    IS(free_mib(), GRANT - 64, "that much is held");
    IS(cuMemAlloc_v2(&q, 192 * MIB), 0, "the rest is free");
    OK(fakedriverPeak(0) <= GRANT * MIB, "never more than the grant");
}

static void pools_of_ones_own(void)
{
    CUmemoryPool pool, host, other;
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}}, in_host = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
    CUdeviceptr p, q;

    begin(0);
    IS(cuMemPoolCreate(&pool, &props), 0, "a pool of device 1");
    IS(cuMemAllocFromPoolAsync(&p, 32 * MIB, pool, NULL), 0, "used from device 0's stream");
    IS(free_mib(), GRANT, "is not on device 0");
    IS(cuMemAllocFromPoolAsync(&q, 100 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY, "but on device 1, of which there are 128 MiB");
    IS(cuMemAllocFromPoolAsync_ptsz(&q, 96 * MIB, pool, NULL), 0, "all of it");
    IS(cuMemPoolDestroy(pool), 0, "a destroyed pool");
    IS(cuMemPoolCreate(&host, &in_host), 0, "a pool of host memory");
    IS(cuMemAllocFromPoolAsync(&q, 4096 * MIB, host, NULL), 0, "is not limited");
    IS(cuMemFreeAsync(q, NULL) | cuMemPoolDestroy(host), 0, "and goes");
    cuDeviceGetDefaultMemPool(&other, 1);
    IS(cuMemAllocFromPoolAsync(&q, 200 * MIB, other, NULL), CUDA_ERROR_OUT_OF_MEMORY, "device 1's own pool is on device 1");
    IS(cuMemAllocFromPoolAsync(&q, 200 * MIB, (CUmemoryPool)&props, NULL), CUDA_ERROR_INVALID_VALUE, "a pool that is none");
    IS(free_mib(), GRANT, "device 0 was never used");
}

static void a_stream_of_another_device(void) /* core #311 */
{
    CUcontext zero = begin(0), one = begin(1);
    CUstream s;
    CUdeviceptr p;

    IS(cuStreamCreate(&s, 0) | cuCtxSetCurrent(zero), 0, "a stream of device 1, while device 0 is current");
    IS(cuMemAllocAsync(&p, 32 * MIB, s), 0, "allocates");
    IS(free_mib(), GRANT, "not on device 0");
    cuCtxSetCurrent(one);
    IS(free_mib(), GRANT1 - 32, "but on its own");
    cuCtxSetCurrent(zero);
    IS(cuMemFreeAsync(p, s) | cuStreamSynchronize(s), 0, "freed from device 0");
    cuCtxSetCurrent(one);
    IS(free_mib(), GRANT1, "on its own");
}

/* ---- graphs ---- */

static void graph_memory_is_counted_when_it_is_instantiated(void) /* core #67 #181 #192 */
{
    CUDA_MEM_ALLOC_NODE_PARAMS node = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 100 * MIB};
    CUgraph g, parent;
    CUgraphNode n;
    CUgraphExec e, f;

    begin(0);
    IS(cuGraphCreate(&g, 0) | cuGraphAddMemAllocNode(&n, g, NULL, 0, &node), 0, "a graph with 100 MiB");
    IS(free_mib(), GRANT, "is a plan");
    IS(cuGraphInstantiateWithFlags(&e, g, 0), 0, "instantiated");
    IS(free_mib(), GRANT - 100, "it counts");
    IS(cuGraphLaunch(e, NULL), 0, "launched");
    IS(fakedriverMine(0), 100 * MIB, "it takes what was counted");
    IS(cuGraphCreate(&parent, 0) | cuGraphAddChildGraphNode(&n, parent, NULL, 0, g) | cuGraphAddMemAllocNode(&n, parent, NULL, 0, &node), 0, "a graph with a child");
    IS(cuGraphInstantiate_v2(&f, parent, NULL, NULL, 0), CUDA_ERROR_OUT_OF_MEMORY, "of 200 MiB does not fit");
    IS(cuGraphInstantiateWithParams(&f, g, &(CUDA_GRAPH_INSTANTIATE_PARAMS){0}), 0, "one of 100 does");
    IS(cuGraphInstantiate(&f, g, NULL, NULL, 0), CUDA_ERROR_OUT_OF_MEMORY, "but no third");
    IS(cuGraphExecDestroy(e), 0, "destroyed");
    IS(free_mib(), GRANT - 100, "it counts no more");
    IS(fakedriverMine(0), 0, "and the device does not keep it");
    IS(cuGraphExecDestroy((CUgraphExec)&e), CUDA_ERROR_INVALID_VALUE, "a graph that is none");
    IS(free_mib(), GRANT - 100, "changes nothing");
}

static void a_capture_is_a_plan(void) /* hami #1445 */
{
    CUstream s;
    CUgraph g;
    CUgraphExec e;
    CUdeviceptr p, before;

    begin(0);
    cuStreamCreate(&s, 0);
    IS(cuMemAllocAsync(&before, 32 * MIB, s), 0, "allocated before");
    IS(cuStreamBeginCapture_v2(s, 0), 0, "capture");
    IS(cuMemAllocAsync(&p, 64 * MIB, s), 0, "an allocation in it");
    IS(free_mib(), GRANT - 32, "takes nothing");
    IS(cuMemFreeAsync(p, s), 0, "nor does a free in it");
    IS(cuStreamEndCapture(s, &g) | cuGraphInstantiateWithParams_ptsz(&e, g, &(CUDA_GRAPH_INSTANTIATE_PARAMS){0}), 0, "instantiated");
    IS(free_mib(), GRANT - 32 - 64, "it counts");
    IS(cuGraphExecDestroy(e) | cuGraphDestroy(g) | cuMemFreeAsync(before, s) | cuStreamSynchronize(s), 0, "all gone");
    IS(free_mib(), GRANT, "all free");
}

/* ---- contexts ---- */

static void memory_goes_with_its_context(void) /* core #304, hami #2865 */
{
    CUcontext c, same;
    CUdeviceptr p;

    cuInit(0);
    for (int i = 0; i < 10; i++) cuDevicePrimaryCtxRetain(&c, 0);
    cuCtxSetCurrent(c);
    IS(free_mib(), GRANT, "retaining a context ten times counts nothing");
    get(100);
    for (int i = 0; i < 9; i++) cuDevicePrimaryCtxRelease_v2(0);
    IS(free_mib(), GRANT - 100, "nine releases free nothing");
    IS(cuDevicePrimaryCtxRelease_v2(0), 0, "the tenth");
    IS(cuDevicePrimaryCtxRetain(&same, 0) | cuCtxSetCurrent(same), 0, "a new one");
    IS(free_mib(), GRANT, "has all of it");
    get(50);
    IS(cuDevicePrimaryCtxReset_v2(0) | cuDevicePrimaryCtxRetain(&same, 0) | cuCtxSetCurrent(same), 0, "reset");
    IS(free_mib(), GRANT, "frees all");
    begin(0);
    get(30);
    cuCtxGetCurrent(&c);
    IS(cuCtxDestroy_v2(c), 0, "another context, destroyed");
    IS(cuCtxSetCurrent(same), 0, "back");
    IS(free_mib(), GRANT, "took its memory with it");
    IS(cuMemAlloc_v2(&p, MIB), 0, "and the other goes on");
    IS(cuCtxSetCurrent(NULL), 0, "without a context");
    IS(cuMemAlloc_v2(&p, MIB), CUDA_ERROR_INVALID_CONTEXT, "the driver's error");
}

static void a_reset_leaves_what_pools_still_hold(void)
{
    CUcontext c;
    CUdeviceptr p;

    cuInit(0);
    cuDevicePrimaryCtxRetain(&c, 0);
    cuCtxSetCurrent(c);
    IS(cuMemAllocAsync(&p, 64 * MIB, NULL), 0, "64 MiB of a pool");
    IS(cuDevicePrimaryCtxReset_v2(0) | cuDevicePrimaryCtxRetain(&c, 0) | cuCtxSetCurrent(c), 0, "reset");
    IS(free_mib(), GRANT - 64, "the stand-in's pool still has them");
    IS(cuMemFreeAsync(p, NULL) | cuCtxSynchronize(), 0, "freed");
    IS(free_mib(), GRANT, "it gave them back, and that is noticed");
}

static void a_failed_create_leaves_other_handles_alone(void)
{
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

    begin(0);
    IS(cuMemCreate(&h, 64 * MIB, &prop, 0), 0, "a handle");
    limits()->device[0].bytes = (uint64_t)1 << 40;
    IS(cuMemCreate(&h, ((size_t)1 << 30) * 32, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY, "more than the GPU has, into the same variable");
    limits()->device[0].bytes = GRANT * MIB;
    IS(free_mib(), GRANT - 64, "the handle is there and counted");
    IS(cuMemRelease(h), 0, "until it is released");
    IS(free_mib(), GRANT, "once");
}

static void overhead_counts(void) /* core #79, hami #446 #1026 */
{
    struct record_limits *l = limits();
    CUdeviceptr p;

    begin(0);
    l->device[0].overhead = 56 * MIB;
    IS(free_mib(), GRANT - 56, "what the node found from outside counts");
    OK(!get(201), "against the grant");
    p = get(200);
    OK(p, "to the byte");
    l->device[0].overhead = 1024 * MIB;
    IS(free_mib(), 0, "more than the grant leaves nothing, and no underflow"); /* hami #1181 */
    l->device[0].overhead = UINT64_MAX;
    IS(free_mib(), 0, "nor does nonsense");
    OK(!get(1), "and gives nothing");
    l->device[0].overhead = 0;
    IS(free_mib(), 56, "gone again");
    IS(cuMemFree_v2(p), 0, "freed");
}

static void a_grant_grows_and_shrinks(void)
{
    struct record_limits *l = limits();
    size_t total, free;

    begin(0);
    OK(get(200), "200 MiB");
    l->device[0].bytes = 100 * MIB;
    cuMemGetInfo_v2(&free, &total);
    IS(total, 100 * MIB, "shrunk to 100");
    IS(free, 0, "nothing is free");
    OK(!get(1), "nothing to be had");
    l->device[0].bytes = 300 * MIB;
    IS(free_mib(), 100, "grown to 300");
    OK(get(100), "to be had at once");
    cuDeviceTotalMem_v2(&total, 0);
    IS(total, 300 * MIB, "and the total says so");
}

/* ---- devices ---- */

static void visible_devices_are_told_apart_by_uuid(void) /* core #319 #234; CUDA_VISIBLE_DEVICES=1,0 */
{
    size_t total;

    setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    begin(0);
    cuDeviceTotalMem_v2(&total, 0);
    IS(total, GRANT1 * MIB, "the first is GPU 1");
    OK(!get(GRANT1 + 1), "with GPU 1's grant");
    OK(get(GRANT1), "all of it");
    begin(1);
    IS(free_mib(), GRANT, "the second is GPU 0");
    IS(fakedriverMine(1), GRANT1 * MIB, "which the driver agrees on");
}

static void a_subset_of_devices(void) /* CUDA_VISIBLE_DEVICES=GPU-...2 */
{
    setenv("CUDA_VISIBLE_DEVICES", "GPU-00000000-fa4e-d41e-0000-000000000002", 1);
    begin(0);
    IS(free_mib(), GRANT1, "only GPU 1");
    OK(get(GRANT1) && !get(1), "with GPU 1's grant");
}

static void a_device_that_is_not_granted_gives_nothing(void)
{
    struct record_limits *l = limits();
    size_t free = 1, total = 1;
    CUdeviceptr p;

    l->devices = 1;
    region()->devices = 1;
    begin(1);
    IS(cuMemAlloc_v2(&p, 1), CUDA_ERROR_OUT_OF_MEMORY, "not a byte");
    IS(cuMemAllocAsync(&p, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY, "from no pool");
    IS(cuMemGetInfo_v2(&free, &total), 0, "and it says so");
    IS(free + total, 0, "0 of 0");
}

/* ---- several processes and threads ---- */

static void a_second_process_sees_the_first(void) /* core #191 */
{
    pid_t first = held(0, 200);

    begin(0);
    IS(free_mib(), 56, "what the first holds is not free");
    OK(!get(57), "nor to be had");
    OK(get(56), "the rest is");
    end(first);
    IS(free_mib(), 200, "killed, it holds nothing");
    OK(get(200), "and all is to be had at once"); /* core #248: 327 s */
}

static void out_of_memory_buries_the_dead_first(void) /* hami #2500, core #260 */
{
    pid_t others[4];

    begin(0);
    for (int i = 0; i < 4; i++) others[i] = held(0, 60);
    OK(!get(100), "four others hold nearly all");
    for (int i = 0; i < 4; i++) end(others[i]);
    OK(get(256), "and nobody has to ask for what they leave");
}

static void a_dying_process_counts_until_the_driver_let_go(void)
{
    int got = 0;

    begin(0);
    for (int round = 0; round < 50; round++) {
        CUcontext c;
        CUdeviceptr p = 0;
        int ready[2];
        char byte;
        pid_t pid;

        if (pipe(ready) < 0 || (pid = fork()) < 0) break;
        if (pid == 0) {
            if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || !get(GRANT) || write(ready[1], "y", 1) != 1) _exit(1);
            for (;;) pause();
        }
        if (read(ready[0], &byte, 1) != 1) break;
        kill(pid, SIGKILL);
        for (int i = 0; i < 100000 && !p; i++) p = get(GRANT); /* while it dies */
        got += p != 0;
        cuMemFree_v2(p);
        waitpid(pid, NULL, 0);
        close(ready[0]);
        close(ready[1]);
    }
    IS(got, 50, "what a killed process had is granted again, 50 times");
    IS(fakedriverPeak(0), GRANT * MIB, "and never before the GPU had it back");
}

static void slots_never_move(void) /* core #241 #242 */
{
    struct record_head *h = region();
    pid_t a = held(0, 10), b = held(0, 20), c = held(0, 30);

    IS(slot(h, 0)->used[0] + slot(h, 1)->used[0] + slot(h, 2)->used[0], 60 * MIB, "three processes in three slots");
    IS(slot(h, 2)->used[0], 30 * MIB, "the last in the third");
    IS(slot(h, 2)->pid, c, "with its pid");
    end(b);
    begin(0);
    get(5);
    IS(slot(h, 1)->used[0], 5 * MIB, "a new one takes the dead one's place");
    IS(slot(h, 2)->used[0], 30 * MIB, "the others stay where they are");
    IS(slot(h, 0)->pid, a, "all of them");
    end(a);
    end(c);
}

static int child_allocates(void)
{
    CUcontext c;
    CUdeviceptr p;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || cuMemAlloc_v2(&p, (size_t)wanted_mib * MIB)) return 1;
    return free_mib() != (size_t)wanted_left;
}

static void fork_before_cuda(void)
{
    wanted_mib = 100, wanted_left = 156;
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
    IS(in_child(child_starts_anew), 0, "it may start CUDA anew, with what is left");
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
        if (fork() == 0) { /* lives on, with every descriptor that it was left */
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
    end(parent);
    OK(get(256), "killed, they count no more, though the child lives");
    IS(kill(child, SIGKILL), 0, "as it does");
}

static void exec_gives_the_slot_up(void)
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
    end(pid);
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
    for (int fd = 3; fd < 1024; fd++) /* as daemons do; the driver's own would end the driver */
        if (!is_the_drivers(fd)) close(fd);
    other = held(0, 156);
    IS(slot(h, 0)->used[0], 100 * MIB, "a process that closed all it has keeps its slot");
    IS(slot(h, 1)->used[0], 156 * MIB, "against others");
    OK(!get(1), "and still sees them");
    (void)p;
    end(other);
}

/* Threads: a shared grant of 256 MiB in pieces of 1 to 16 MiB, by every kind of allocation. */
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

static void sixty_four_processes(void)
{
    pid_t pids[64];
    int status, fine = 0;

    for (int i = 0; i < 64; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            unsigned int s = (unsigned int)i;
            CUcontext c;
            if (cuInit(0) || cuCtxCreate_v2(&c, 0, i % 2)) _exit(1);
            for (int round = 0; round < 30; round++) {
                CUdeviceptr p = get(1 + rand_r(&s) % 40);
                if (free_mib() > GRANT) _exit(2);
                if (p) cuMemFree_v2(p);
            }
            _exit(0);
        }
    }
    for (int i = 0; i < 64; i++) {
        waitpid(pids[i], &status, 0);
        fine += status == 0;
    }
    IS(fine, 64, "64 processes on two devices ran to their end"); /* hami #1461 #1479 #1219 #1438 */
    begin(0);
    OK(fakedriverPeak(0) <= GRANT * MIB && fakedriverPeak(1) <= GRANT1 * MIB, "within their grants");
    IS(free_mib(), GRANT, "and left nothing");
}

/* ---- failing closed ---- */

static void without_limits_nothing_starts(void)
{
    CUdeviceptr p;
    unlink(PLACE_LIMITS);
    IS(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM, "cuInit fails");
    OK(cuMemAlloc_v2(&p, 1) != CUDA_SUCCESS, "and so does what comes after");
}
static void without_a_region_nothing_starts(void)
{
    unlink(PLACE_REGION);
    IS(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM, "cuInit fails");
}
static void a_region_of_another_grant(void)
{
    region()->id++;
    IS(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM, "cuInit fails");
}
static void a_record_of_another_version(void)
{
    limits()->version = 2;
    IS(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM, "cuInit fails");
}
static void half_a_region(void)
{
    OK(truncate(PLACE_REGION, RECORD_REGION_SIZE - 1) == 0, "a region that is a byte too short");
    IS(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM, "cuInit fails");
}
/* Where the account goes away later: a process has its slot, a new one gets none. */
static void a_region_that_goes_away(void)
{
    begin(0);
    OK(get(100), "allocated");
    unlink(PLACE_REGION);
    OK(get(56) && !get(101), "the account goes on without the name");
    IS(in_child(child_starts_anew), 1, "but nobody new joins");
}
/* 1024 processes have a slot each: a region in which all are taken. */
static void no_slot_is_out_of_memory(void)
{
    int fd = open(PLACE_REGION, O_RDWR);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = RECORD_SLOTS};

    IS(fcntl(fd, F_OFD_SETLK, &all), 0, "every slot is taken");
    begin(0);
    OK(!get(1), "nothing to be had");
    all.l_type = F_UNLCK;
    fcntl(fd, F_OFD_SETLK, &all);
    OK(get(1), "until there is one");
}

/* ---- resolvers ---- */

static void cu_get_proc_address(void)
{
    CUresult (*alloc)(CUdeviceptr *, size_t), (*alloc_v1)(CUdeviceptr_v1 *, unsigned int), (*async)(CUdeviceptr *, size_t, CUstream);
    CUresult (*again)(const char *, void **, int, uint64_t, int *);
    CUdeviceptr p;
    void *f;
    int status = 9, answer = 0;

    begin(0);
    IS(cuGetProcAddress("cuMemAlloc", (void **)&alloc, 12000, 0), 0, "cuMemAlloc for CUDA 12");
    OK(alloc == cuMemAlloc_v2, "is our version 2");
    IS(cuGetProcAddress("cuMemAlloc", (void **)&alloc_v1, 3000, 0), 0, "for CUDA 3.0");
    OK((void *)alloc_v1 == (void *)cuMemAlloc, "our version 1");
    IS(cuGetProcAddress_v2("cuMemAllocAsync", (void **)&async, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status), 0, "with the per-thread flag");
    OK(async == cuMemAllocAsync_ptsz && status == 0, "is our per-thread variant");
    IS(cuGetProcAddress("cuGetProcAddress", (void **)&again, 12000, 0), 0, "cuGetProcAddress itself");
    OK(again == cuGetProcAddress_v2, "is ours");
    IS(again("cuCtxCreate", &f, 11040, 0, NULL), 0, "what is not wrapped");
    OK(f && f == dlsym(RTLD_DEFAULT, "cuCtxCreate_v3"), "is the driver's");
    IS(again("cuFutureThing", &f, 13000, 0, &status), 0, "what we do not know");
    OK(((CUresult(*)(int *))f)(&answer) == 0 && answer == 42, "is the driver's");
    IS(again("cuNothing", &f, 13000, 0, &status), CUDA_ERROR_NOT_FOUND, "what nobody knows");
    IS(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "is not found");
    status = 9;
    IS(again("cuMemAlloc", &f, 99000, 0, &status), CUDA_ERROR_NOT_FOUND, "an allocation of a later driver that we do not know");
    OK(!f && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, "is not had: it would not be counted");
    IS(cuGetProcAddress("cuMemAlloc", &f, 99000, 0), CUDA_ERROR_NOT_FOUND, "by the older call neither");
    IS(alloc(&p, GRANT * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY, "and what was got is limited");
}

static void unknown_symbols_fall_through(void) /* core #233 #57 #36 #52, hami #1834 */
{
    int answer = 0;
    void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

    OK(lib, "libcuda.so.1 is loaded");
    OK(dlsym(lib, "cuFutureThing"), "it has what only the driver has");
    IS(cuFutureThing(&answer), 0, "which works");
    IS(answer, 42, "untouched");
    OK(!dlsym(lib, "cuNothing"), "and nothing else");
    OK(dlsym(lib, "cuMemAlloc_v2") == (void *)cuMemAlloc_v2, "what is wrapped is ours");
}

static void the_export_table_is_the_drivers(void)
{
    const void *table = NULL;
    begin(0);
    IS(cuGetExportTable(&table, &(CUuuid){{1}}), 0, "the runtime's tables are there");
    OK(table, "as the driver gives them");
}

static void a_module_is_not_counted_here(void) /* TRUTH in the table */
{
    void *module;
    begin(0);
    IS(cuModuleLoadData(&module, "code"), 0, "code is loaded");
    IS(fakedriverMine(0), MIB, "which takes memory");
    IS(free_mib(), GRANT, "that the node publishes as overhead");
}

static const struct tap_test tests[] = {
#define TEST(name) {#name, name}
    TEST(the_grant_is_the_total), TEST(beyond_the_grant_is_out_of_memory), TEST(every_kind_is_counted), TEST(what_the_driver_refuses_is_not_counted),
    TEST(null_arguments_are_the_drivers_affair), TEST(unknown_pointers_go_to_the_driver), TEST(vmm_memory_lives_with_its_last_handle_or_mapping),
    TEST(many_mappings), TEST(a_pool_is_limited), TEST(a_pool_keeps_what_was_freed), TEST(pools_of_ones_own), TEST(a_stream_of_another_device),
    TEST(graph_memory_is_counted_when_it_is_instantiated), TEST(a_capture_is_a_plan), TEST(memory_goes_with_its_context), TEST(a_reset_leaves_what_pools_still_hold), TEST(a_failed_create_leaves_other_handles_alone), TEST(overhead_counts),
    TEST(a_grant_grows_and_shrinks), TEST(visible_devices_are_told_apart_by_uuid), TEST(a_subset_of_devices),
    TEST(a_device_that_is_not_granted_gives_nothing), TEST(a_second_process_sees_the_first), TEST(out_of_memory_buries_the_dead_first),
    TEST(a_dying_process_counts_until_the_driver_let_go), TEST(slots_never_move), TEST(fork_before_cuda), TEST(fork_after_cuda),
    TEST(a_child_does_not_keep_its_dead_parents_slot), TEST(exec_gives_the_slot_up), TEST(closing_every_descriptor), TEST(threads),
    TEST(sixty_four_processes), TEST(without_limits_nothing_starts), TEST(without_a_region_nothing_starts), TEST(a_region_of_another_grant),
    TEST(a_record_of_another_version), TEST(half_a_region), TEST(a_region_that_goes_away), TEST(no_slot_is_out_of_memory), TEST(cu_get_proc_address),
    TEST(unknown_symbols_fall_through), TEST(the_export_table_is_the_drivers), TEST(a_module_is_not_counted_here),
    {NULL, NULL},
};

int main(int argc, char **argv) { return tap_main(argc, argv, tests); }
