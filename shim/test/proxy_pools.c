/* Stream-ordered memory and memory of graphs. */
#include "proxy.h"

static void a_pool_is_limited(void) /* core #93 #217 */
{
    CUdeviceptr p[8], q;
    int n = 0;

    begin(0);
    while (n < 8 && cuMemAllocAsync(&p[n], 50 * MIB, NULL) == CUDA_SUCCESS) n++;
    IS(n, 5, "five times 50 MiB of 256");
    OK(fakedriverPeak(0) <= GRANT * MIB, "and the pool holds no more than the grant: %llu MiB", fakedriverPeak(0) / MIB);
    OK(cuMemAllocAsync(&q, 7 * MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY, "more is out of memory");
    IS(cuMemAllocAsync_ptsz(&q, 6 * MIB, CU_STREAM_PER_THREAD), 0, "the last bytes can be allocated, also by the per-thread variant");
    for (int i = 0; i < n; i++) cuMemFreeAsync(p[i], NULL);
    IS(cuMemFreeAsync_ptsz(q, CU_STREAM_PER_THREAD), 0, "freed");
    IS(free_mib(), 0, "what a pool holds counts");
    IS(cuMemAllocAsync(&q, 200 * MIB, NULL), 0, "and is used again without being counted twice");
    IS(cuMemFreeAsync(q, NULL) | cuStreamSynchronize(NULL), 0, "synchronised");
    IS(free_mib(), GRANT, "it is returned");
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
    IS(cuMemAllocAsync(&p, 128 * MIB, NULL) | cuMemFreeAsync(p, NULL) | cuCtxSynchronize(), 0, "128 MiB allocated and freed");
    IS(cuMemAlloc_v2(&q, 160 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "are not free for other allocations");
    IS(fakedriverUsed(0), 256 * MIB + 128 * MIB, "because the driver has them (and the context)");
    IS(cuMemPoolTrimTo(pool, 64 * MIB), 0, "trimmed to 64");
    IS(free_mib(), GRANT - 64, "that much is held");
    IS(cuMemAlloc_v2(&q, 192 * MIB), 0, "the rest is free");
    OK(fakedriverPeak(0) <= GRANT * MIB, "never more than the grant");
}

static void pools_of_the_program(void)
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
    IS(cuMemFreeAsync(q, NULL) | cuMemPoolDestroy(host), 0, "and is destroyed");
    cuDeviceGetDefaultMemPool(&other, 1);
    IS(cuMemAllocFromPoolAsync(&q, 200 * MIB, other, NULL), CUDA_ERROR_OUT_OF_MEMORY, "device 1's own pool is on device 1");
    IS(cuMemAllocFromPoolAsync(&q, 200 * MIB, (CUmemoryPool)&props, NULL), CUDA_ERROR_INVALID_VALUE, "an invalid pool");
    IS(free_mib(), GRANT, "device 0 was never used");
}

static void a_destroyed_pool_counts_until_its_last_pointer(void)
{
    CUmemoryPool pool, other;
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUdeviceptr p, q;

    begin(0);
    IS(cuMemPoolCreate(&pool, &props) | cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL) |
       cuMemAllocFromPoolAsync(&q, 32 * MIB, pool, NULL), 0, "a pool with two pointers");
    IS(cuMemPoolDestroy(pool), 0, "destroyed");
    IS(free_mib(), GRANT - 96, "counts");
    IS(fakedriverMine(0), 96 * MIB, "because the driver keeps it");
    IS(cuMemFreeAsync(p, NULL) | cuStreamSynchronize(NULL), 0, "one pointer is freed");
    IS(free_mib(), GRANT - 96, "it still counts");
    IS(cuMemPoolCreate(&other, &props) | cuMemAllocFromPoolAsync(&p, 32 * MIB, other, NULL), 0,
       "another pool");
    IS(cuMemFree_v2(q), 0, "the last pointer is freed");
    IS(free_mib(), GRANT - 32, "only the other pool counts");
    IS(fakedriverMine(0), 32 * MIB, "and is there");
    cuDeviceGetDefaultMemPool(&pool, 0);
    IS(cuMemAllocAsync(&q, 64 * MIB, NULL), 0, "the default pool");
    IS(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE, "cannot be destroyed");
    IS(free_mib(), GRANT - 96, "and still counts");
    IS(cuMemFreeAsync(q, NULL) | cuMemFreeAsync(p, NULL) | cuStreamSynchronize(NULL) |
       cuMemPoolDestroy(other), 0, "all is freed");
    IS(free_mib(), GRANT, "nothing counts");
}

static void a_pointer_of_a_destroyed_pool_of_host_memory(void)
{
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                   in_host = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
    CUmemoryPool pool, host;
    CUdeviceptr p, q, of_host;

    begin(0);
    IS(cuMemPoolCreate(&host, &in_host) | cuMemAllocFromPoolAsync(&of_host, 1024 * MIB, host, NULL) |
       cuMemPoolDestroy(host), 0, "a pool of host memory, destroyed with a pointer");
    IS(cuMemPoolCreate(&pool, &props) | cuMemAllocFromPoolAsync(&p, 192 * MIB, pool, NULL), 0,
       "a pool of the GPU");
    IS(cuMemFreeAsync(of_host, NULL), 0, "the host's pointer is freed");
    IS(cuMemAllocFromPoolAsync(&q, 96 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY, "which is not the GPU's");
    OK(fakedriverPeak(0) <= GRANT * MIB, "nor was the driver asked: %llu MiB", fakedriverPeak(0) / MIB);
}

static void a_thousand_pools(void)
{
    enum { EACH = 500 };
    static CUmemoryPool pools[2 * EACH];
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                   in_host = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
    CUdeviceptr p, of_host;
    CUmemoryPool again;
    int failed = 0;

    begin(0);
    for (int i = 0; i < EACH; i++) {
        failed |= cuMemPoolCreate(&pools[i], &in_host);
        failed |= cuMemAllocFromPoolAsync(&of_host, MIB, pools[i], NULL);
    }
    for (int i = EACH; i < 2 * EACH; i++) failed |= cuMemPoolCreate(&pools[i], &props);
    IS(failed, 0, "500 pools of host memory, and as many of the GPU's");
    IS(cuMemAllocFromPoolAsync(&p, GRANT * MIB, pools[2 * EACH - 1], NULL), 0,
       "the last one can have the whole grant");
    IS(free_mib(), 0, "which counts");
    IS(cuMemFreeAsync(p, NULL) | cuStreamSynchronize(NULL), 0, "freed");
    IS(free_mib(), GRANT, "it is free");
    for (int i = 0; i < 2 * EACH; i++) failed |= cuMemPoolDestroy(pools[i]);
    IS(failed, 0, "all are destroyed");
    IS(cuMemPoolCreate(&again, &props) | cuMemAllocFromPoolAsync(&p, 64 * MIB, again, NULL), 0,
       "another pool");
    IS(free_mib(), GRANT - 64, "counts alone");
}

/* The stand-in driver ends the process at a question about a destroyed pool, and gives its handle
 * to the next new one. */
static void *create_and_destroy(void *failed)
{
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUcontext c = NULL;

    cuDevicePrimaryCtxRetain(&c, 0);
    cuCtxSetCurrent(c);
    for (int i = 0; i < 300; i++) {
        CUmemoryPool pool;
        CUdeviceptr p;
        CUresult r = cuMemPoolCreate(&pool, &props) | cuMemAllocFromPoolAsync(&p, MIB, pool, NULL);
        if (i % 2) r |= cuMemFreeAsync(p, NULL) | cuStreamSynchronize(NULL) | cuMemPoolDestroy(pool);
        else r |= cuMemPoolDestroy(pool) | cuMemFreeAsync(p, NULL) | cuStreamSynchronize(NULL);
        if (r) __atomic_fetch_add((int *)failed, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void threads_create_and_destroy_pools(void)
{
    pthread_t t[6];
    int failed = 0;

    begin(0);
    for (int i = 0; i < 6; i++) pthread_create(&t[i], NULL, create_and_destroy, &failed);
    for (int i = 0; i < 6; i++) pthread_join(t[i], NULL);
    IS(failed, 0, "six threads create, use and destroy pools");
    OK(fakedriverPeak(0) <= GRANT * MIB, "which never had more than the grant: %llu MiB",
       fakedriverPeak(0) / MIB);
    IS(fakedriverMine(0), 0, "all are gone");
    IS(free_mib(), GRANT, "and none counts");
}

static void *destroy_pools(void *done)
{
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;

    while (!__atomic_load_n((int *)done, __ATOMIC_RELAXED))
        if (cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS) cuMemPoolDestroy(pool);
    return NULL;
}

/* A new pool may get the handle of a pool of which cuMemPoolDestroy has not returned yet. */
static void a_new_pool_is_not_forgotten_with_an_old_one(void)
{
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUdeviceptr p;
    uint64_t keep = UINT64_MAX;
    int done = 0, failed = 0, forgotten = 0;
    pthread_t t;

    begin(0);
    pthread_create(&t, NULL, destroy_pools, &done);
    for (int i = 0; i < 200; i++) {
        failed |= cuMemPoolCreate(&pool, &props) | cuMemAllocFromPoolAsync(&p, 32 * MIB, pool, NULL);
        usleep(200); /* the other thread's call returns */
        failed |= cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
        failed |= cuMemFreeAsync(p, NULL) | cuStreamSynchronize(NULL);
        forgotten += free_mib() != GRANT - 32;
        failed |= cuMemPoolDestroy(pool);
        forgotten += free_mib() != GRANT;
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELAXED);
    pthread_join(t, NULL);
    IS(failed, 0, "pools that keep what is freed, beside a thread that destroys others");
    IS(forgotten, 0, "always count");
}

static CUmemoryPool default_pool(void)
{
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool = NULL;

    cuMemGetDefaultMemPool(&pool, &here, CU_MEM_ALLOCATION_TYPE_PINNED);
    return pool;
}

static void *destroy_the_default_pool(void *done)
{
    while (!__atomic_load_n((int *)done, __ATOMIC_RELAXED)) cuMemPoolDestroy(default_pool());
    return NULL;
}

static void a_pool_that_cannot_be_destroyed_counts_once(void)
{
    uint64_t keep = UINT64_MAX;
    int done = 0, failed = 0;
    CUdeviceptr p;
    pthread_t t;

    begin(0);
    IS(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), 0,
       "the default pool keeps everything");
    pthread_create(&t, NULL, destroy_the_default_pool, &done);
    for (int i = 0; i < 300; i++) {
        failed |= cuMemAllocFromPoolAsync(&p, MIB, default_pool(), NULL);
        failed |= cuMemFreeAsync(p, NULL) | cuStreamSynchronize(NULL);
        usleep(i);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELAXED);
    pthread_join(t, NULL);
    IS(failed, 0, "it is used beside a thread that tries to destroy it");
    IS(fakedriverMine(0), 32 * MIB, "what it holds");
    IS(cuStreamSynchronize(NULL), 0, "synchronised");
    IS(free_mib(), GRANT - 32, "counts once");
}

static void *destroy_current_pools(void *done)
{
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;

    while (!__atomic_load_n((int *)done, __ATOMIC_RELAXED)) {
        if (cuMemPoolCreate(&pool, &props)) continue;
        cuDeviceSetMemPool(0, pool);
        usleep(50);
        cuMemPoolDestroy(pool);
        usleep(100);
    }
    return NULL;
}

/* The stand-in driver ends the process at a question about a destroyed pool. */
static void the_current_pool_is_destroyed(void)
{
    int done = 0, failed = 0;
    CUdeviceptr p;
    pthread_t t;

    begin(0);
    pthread_create(&t, NULL, destroy_current_pools, &done);
    for (int i = 0; i < 3000; i++) {
        failed |= cuMemAllocAsync(&p, MIB, NULL);
        failed |= cuMemFreeAsync(p, NULL) | cuStreamSynchronize(NULL);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELAXED);
    pthread_join(t, NULL);
    IS(failed, 0, "allocations beside a thread that destroys the device's current pool");
    OK(fakedriverPeak(0) <= GRANT * MIB, "never had more than the grant: %llu MiB", fakedriverPeak(0) / MIB);
    IS(cuMemAllocAsync(&p, MIB, NULL) | cuMemFreeAsync(p, NULL) | cuStreamSynchronize(NULL), 0,
       "one more");
    IS(fakedriverMine(0), 0, "all is freed");
    IS(free_mib(), GRANT, "and nothing counts");
}

static void pools_of_other_locations(void)
{
    static const int unnamed[] = {CU_MEM_LOCATION_TYPE_NONE, CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA};
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, 1 | 2 << 8}};
    CUmemLocation nowhere = {CU_MEM_LOCATION_TYPE_NONE, 0};
    CUmemoryPool pool;
    CUdeviceptr p;

    begin(0);
    IS(cuMemPoolCreate(&pool, &props), 0, "a pool of a domain of device 1");
    IS(cuMemAllocFromPoolAsync(&p, (GRANT1 + 1) * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY, "has no more than the device's grant");
    IS(cuMemAllocFromPoolAsync(&p, GRANT1 * MIB, pool, NULL), 0, "but all of it");
    IS(free_mib(), GRANT, "and nothing of device 0's");
    IS(cuMemFreeAsync(p, NULL) | cuMemPoolDestroy(pool), 0, "destroyed");
    props.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
    for (size_t i = 0; i < sizeof unnamed / sizeof *unnamed; i++) {
        props.location = (CUmemLocation){unnamed[i], 0};
        IS(cuMemPoolCreate(&pool, &props) | cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL), 0, "64 MiB of a managed pool without a device");
        IS(free_mib(), GRANT - 64, "count on the current one");
        IS(cuMemAllocFromPoolAsync(&p, GRANT * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY, "which limits them");
        IS(cuMemFreeAsync(p, NULL) | cuMemPoolDestroy(pool), 0, "destroyed");
        IS(free_mib(), GRANT, "they are free");
    }
    IS(cuMemGetDefaultMemPool(&pool, &nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED) | cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL), 0, "and of the driver's own managed pool");
    IS(free_mib(), GRANT - 64, "count, too");
    IS(cuMemGetMemPool(&pool, &nowhere, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_ERROR_INVALID_VALUE, "pinned memory is somewhere");
    props = (CUmemPoolProps){.allocType = 1, .location = {99, 0}};
    IS(cuMemPoolCreate(&pool, &props), CUDA_ERROR_INVALID_VALUE, "a later driver's kind of location is refused");
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

static void async_frees_leak_nothing(void) /* core #306 */
{
    CUdeviceptr p, q;
    int failed = 0;

    begin(0);
    for (int i = 0; i < 1000; i++) {
        failed |= cuMemAllocAsync(&p, (1 + i % 60) * MIB, NULL) | cuMemFreeAsync(p, NULL);
        if (i % 10 == 9) failed |= cuStreamSynchronize(NULL);
    }
    IS(failed, 0, "a thousand allocations and their frees, in the stream's order");
    IS(free_mib(), GRANT, "leave nothing counted");
    IS(cuMemAllocAsync(&p, 32 * MIB, NULL) | cuMemAlloc_v2(&q, 32 * MIB), 0, "one from a pool and one without");
    IS(cuMemFree_v2(p) | cuMemFreeAsync(q, NULL) | cuCtxSynchronize(), 0, "each freed by the other's call");
    IS(free_mib(), GRANT, "leave nothing, too");
    IS(fakedriverMine(0), 0, "says the driver");
}

/* A pool may return memory when the proxy does not see it, here in a copy that waits for the GPU. */
static void what_a_pool_returned_unseen_is_free(void)
{
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUDA_MEM_ALLOC_NODE_PARAMS node = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 200 * MIB};
    CUmemGenericAllocationHandle h;
    CUcontext c = begin(0), other;
    CUdeviceptr p, q;
    CUgraph g;
    CUgraphNode n;
    CUgraphExec e;
    CUarray a;
    size_t pitch;
    char byte;

#define RETURN_UNSEEN (cuMemAllocAsync(&q, 128 * MIB, NULL) | cuMemFreeAsync(q, NULL) | cuMemcpyDtoH_v2(&byte, 0, 1))
    IS(RETURN_UNSEEN | cuMemAlloc_v2(&p, 200 * MIB) | cuMemFree_v2(p), 0, "plain memory");
    IS(RETURN_UNSEEN | cuMemAllocPitch_v2(&p, &pitch, 1 << 20, 200, 4) | cuMemFree_v2(p), 0, "pitched memory");
    IS(RETURN_UNSEEN | cuMemAllocManaged(&p, 200 * MIB, 1) | cuMemFree_v2(p), 0, "managed memory");
    IS(RETURN_UNSEEN | cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){1 << 20, 200, 1, 1}) | cuArrayDestroy(a), 0, "an array");
    IS(RETURN_UNSEEN | cuMemCreate(&h, 200 * MIB, &prop, 0) | cuMemRelease(h), 0, "VMM memory");
    IS(cuGraphCreate(&g, 0) | cuGraphAddMemAllocNode(&n, g, NULL, 0, &node), 0, "a graph");
    IS(RETURN_UNSEEN | cuGraphInstantiateWithFlags(&e, g, 0) | cuGraphExecDestroy(e), 0, "is instantiated");
    limits()->device[0].context = 200 * MIB;
    IS(RETURN_UNSEEN | cuCtxCreate_v2(&other, 0, 0) | cuCtxDestroy_v2(other) | cuCtxSetCurrent(c), 0, "a context");
    IS(RETURN_UNSEEN, 0, "once more");
    IS(free_mib(), GRANT, "reported as free");
    IS(cuMemAllocAsync(&q, 128 * MIB, NULL) | cuMemFreeAsync(q, NULL) | cuCtxSynchronize_v2(c), 0, "with CUDA 13's synchronisation");
    IS(free_mib(), GRANT, "free");
}

/* The driver writes an answer to a page that cannot be written yet, so a thread is in the driver for as
 * long as the test wants, and no other thread gets in. */
static char *answer_page;
static int in_driver, leave_driver;

static void stay_in_driver(int number)
{
    (void)number;
    __atomic_store_n(&in_driver, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&leave_driver, __ATOMIC_SEQ_CST)) usleep(1000);
    mprotect(answer_page, 4096, PROT_READ | PROT_WRITE);
}

static void *ask_slowly(void *pool)
{
    cuMemPoolGetAttribute((CUmemoryPool)pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, answer_page);
    return NULL;
}

static void *create_100_mib(void *result)
{
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle h;

    *(CUresult *)result = cuMemCreate(&h, 100 * MIB, &prop, 0);
    return NULL;
}

/* One thread asks the driver what the pools hold. The other one's memory depends on the answer, too. */
static void two_threads_need_what_a_pool_returned(void)
{
    CUresult results[2] = {-1, -1};
    pthread_t asking, t[2];
    CUdeviceptr q;
    char byte;

    begin(0);
    IS(cuMemAllocAsync(&q, 192 * MIB, NULL), 0, "a pool has memory");
    IS(cuMemFreeAsync(q, NULL) | cuMemcpyDtoH_v2(&byte, 0, 1), 0, "and has returned it unseen");
    answer_page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGSEGV, stay_in_driver);
    pthread_create(&asking, NULL, ask_slowly, default_pool());
    while (!__atomic_load_n(&in_driver, __ATOMIC_SEQ_CST)) usleep(1000);
    for (int i = 0; i < 2; i++) {
        pthread_create(&t[i], NULL, create_100_mib, &results[i]);
        usleep(200000); /* until it waits for the driver */
    }
    __atomic_store_n(&leave_driver, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    pthread_join(asking, NULL);
    IS(results[0], 0, "a thread gets it");
    IS(results[1], 0, "and one that came while the driver was asked");
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
    IS(free_mib(), GRANT, "the pool returned them, and the shim sees it");
}

static void reset(void)
{
    CUcontext c;

    IS(cuDevicePrimaryCtxReset_v2(0) | cuDevicePrimaryCtxRetain(&c, 0) | cuCtxSetCurrent(c), 0, "reset");
}

static void a_reset_ends_destroyed_pools(void)
{
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUcontext c;
    CUdeviceptr p;

    cuInit(0);
    cuDevicePrimaryCtxRetain(&c, 0);
    cuCtxSetCurrent(c);
    IS(cuMemPoolCreate(&pool, &props) | cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL) |
       cuMemPoolDestroy(pool), 0, "a pool, destroyed with a pointer");
    IS(free_mib(), GRANT - 64, "counts");
    reset();
    IS(fakedriverMine(0), 0, "it is gone");
    IS(free_mib(), GRANT, "and does not count");
}

struct destruction { CUmemoryPool pool; int begins; };

static void *destroy_pool(void *destruction)
{
    struct destruction *d = destruction;

    __atomic_store_n(&d->begins, 1, __ATOMIC_RELEASE);
    cuMemPoolDestroy(d->pool);
    return NULL;
}

/* In most rounds the reset comes before the other thread's call returns. */
static void a_reset_while_a_pool_is_destroyed(void)
{
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    int failed = 0, ended = 0, counts = 0;
    CUcontext c;
    CUdeviceptr p;
    pthread_t t;

    cuInit(0);
    for (int i = 0; i < 100; i++) {
        struct destruction d = {.begins = 0};
        failed |= cuDevicePrimaryCtxRetain(&c, 0) | cuCtxSetCurrent(c);
        failed |= cuMemPoolCreate(&d.pool, &props) | cuMemAllocFromPoolAsync(&p, 64 * MIB, d.pool, NULL);
        pthread_create(&t, NULL, destroy_pool, &d);
        while (!__atomic_load_n(&d.begins, __ATOMIC_ACQUIRE)) sched_yield();
        usleep(i % 50);
        failed |= cuDevicePrimaryCtxReset_v2(0);
        pthread_join(t, NULL);
        failed |= cuDevicePrimaryCtxRetain(&c, 0) | cuCtxSetCurrent(c);
        ended += fakedriverMine(0) == 0;
        counts += fakedriverMine(0) == 0 && free_mib() != GRANT;
        failed |= cuDevicePrimaryCtxReset_v2(0);
    }
    IS(failed, 0, "resets while another thread destroys a pool with a pointer");
    OK(ended > 0, "the driver ended the pool %d times", ended);
    IS(counts, 0, "after which it never counts");
}

static void a_reset_ends_executable_graphs(void)
{
    CUDA_MEM_ALLOC_NODE_PARAMS node = {
        .poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 100 * MIB};
    CUcontext c;
    CUgraph g;
    CUgraphNode n;
    CUgraphExec e, other;
    CUdeviceptr p;

    cuInit(0);
    cuDevicePrimaryCtxRetain(&c, 0);
    cuCtxSetCurrent(c);
    IS(cuGraphCreate(&g, 0) | cuGraphAddMemAllocNode(&n, g, NULL, 0, &node), 0,
       "a graph with 100 MiB that it does not free");
    IS(cuGraphInstantiateWithFlags(&e, g, 0) | cuGraphLaunch(e, NULL) |
       cuGraphInstantiateWithFlags(&other, g, 0), 0, "instantiated twice, launched once");
    IS(free_mib(), GRANT - 200, "counts twice");
    reset();
    IS(free_mib(), GRANT, "nothing counts");
    IS(fakedriverMine(0), 0, "nor is anything there");
    IS(cuGraphInstantiateWithFlags(&e, g, 0) | cuGraphLaunch(e, NULL) | cuGraphExecDestroy(e), 0,
       "instantiated, launched and destroyed");
    IS(free_mib(), GRANT - 100, "what it leaves counts");
    reset();
    IS(free_mib(), GRANT, "until the next reset");
    IS(cuMemAlloc_v2(&p, GRANT * MIB), 0, "all can be allocated");
}

/* The primary context was never made. The program has one of its own. */
static void a_reset_without_a_primary_context_ends_nothing(void)
{
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUDA_MEM_ALLOC_NODE_PARAMS node = {.poolProps = props, .bytesize = 100 * MIB};
    CUmemoryPool pool;
    CUgraph g;
    CUgraphNode n;
    CUgraphExec e;
    CUdeviceptr p;

    begin(0);
    IS(cuMemPoolCreate(&pool, &props) | cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL) |
       cuMemPoolDestroy(pool), 0, "a pool, destroyed with a pointer");
    IS(cuGraphCreate(&g, 0) | cuGraphAddMemAllocNode(&n, g, NULL, 0, &node) |
       cuGraphInstantiateWithFlags(&e, g, 0), 0, "and a graph that is instantiated");
    IS(cuDevicePrimaryCtxReset_v2(0), 0, "reset");
    IS(free_mib(), GRANT - 164, "both still count");
    IS(cuGraphLaunch(e, NULL), 0, "the graph is launched");
    IS(fakedriverMine(0), 164 * MIB, "and the driver has both");
    IS(cuMemFreeAsync(p, NULL) | cuMemFreeAsync(node.dptr, NULL) | cuGraphExecDestroy(e), 0, "freed");
    IS(free_mib(), GRANT, "nothing counts");
}

static void graph_memory_is_counted_when_it_is_instantiated(void) /* core #67 #181 #192 */
{
    CUDA_MEM_ALLOC_NODE_PARAMS node = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 100 * MIB};
    CUgraph g, parent;
    CUgraphNode n;
    CUgraphExec e, f;
    CUdeviceptr first;

    begin(0);
    IS(cuGraphCreate(&g, 0) | cuGraphAddMemAllocNode(&n, g, NULL, 0, &node), 0, "a graph with 100 MiB");
    first = node.dptr;
    IS(free_mib(), GRANT, "takes nothing yet");
    IS(cuGraphInstantiateWithFlags(&e, g, 0), 0, "instantiated");
    IS(free_mib(), GRANT - 100, "it counts");
    IS(cuGraphLaunch(e, NULL), 0, "launched");
    IS(fakedriverMine(0), 100 * MIB, "it takes what was counted");
    IS(cuGraphCreate(&parent, 0) | cuGraphAddChildGraphNode(&n, parent, NULL, 0, g) | cuGraphAddMemAllocNode(&n, parent, NULL, 0, &node), 0, "a graph with a child");
    IS(cuGraphInstantiate_v2(&f, parent, NULL, NULL, 0), CUDA_ERROR_OUT_OF_MEMORY, "of 200 MiB does not fit");
    IS(cuGraphInstantiateWithParams(&f, g, &(CUDA_GRAPH_INSTANTIATE_PARAMS){0}), 0, "one of 100 does");
    IS(cuGraphInstantiate(&f, g, NULL, NULL, 0), CUDA_ERROR_OUT_OF_MEMORY, "but no third");
    IS(cuMemFree_v2(first) | cuGraphExecDestroy(e), 0, "its memory is freed and it is destroyed");
    IS(free_mib(), GRANT - 100, "it no longer counts");
    IS(fakedriverMine(0), 0, "and the device does not keep it");
    IS(cuGraphExecDestroy((CUgraphExec)&e), CUDA_ERROR_INVALID_VALUE, "an invalid graph");
    IS(free_mib(), GRANT - 100, "changes nothing");
}

static void a_capture_takes_no_memory(void) /* hami #1445 */
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

/* Memory that a graph frees before it allocates again may have the same addresses. */
static void a_graph_counts_each_address_once(void)
{
    CUstream s;
    CUgraph g;
    CUgraphExec e;
    CUdeviceptr p, q, apart[200];
    size_t free = 0;
    int failed = 0;

    begin(0);
    cuStreamCreate(&s, 0);
    cuStreamBeginCapture_v2(s, 0);
    for (int i = 0; i < 200; i++) failed |= cuMemAllocAsync(&apart[i], (200 - i) * (MIB / 200), s);
    for (int i = 0; i < 200; i++) failed |= cuMemFreeAsync(apart[i], s);
    for (int i = 0; i < 5; i++) failed |= cuMemAllocAsync(&p, (100 - i) * MIB, s) | cuMemFreeAsync(p, s);
    failed |= cuMemAllocAsync(&p, 50 * MIB, s) | cuMemAllocAsync(&q, 50 * MIB, s);
    IS(failed | cuStreamEndCapture(s, &g), 0, "a graph that allocates and frees again and again");
    IS(cuGraphInstantiateWithFlags(&e, g, 0), 0, "fits, though the sum of its allocations does not");
    IS(cuGraphLaunch(e, s), 0, "launched");
    IS(cuMemGetInfo_v2(&free, NULL), 0, "asked");
    IS(fakedriverMine(0), GRANT * MIB - free, "it takes what was counted");
    IS(cuMemFreeAsync(p, s) | cuMemFreeAsync(q, s) | cuGraphExecDestroy(e), 0, "the last two are freed, and it is destroyed");
    IS(free_mib(), GRANT, "all is free");
}

/* What a graph does not free stays when it is destroyed. */
static void graph_memory_that_outlives_its_graph(void)
{
    CUDA_MEM_ALLOC_NODE_PARAMS node = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 100 * MIB};
    CUgraph g;
    CUgraphNode n;
    CUgraphExec e;
    CUdeviceptr p;

    begin(0);
    IS(cuGraphCreate(&g, 0) | cuGraphAddMemAllocNode(&n, g, NULL, 0, &node), 0, "a graph with 100 MiB that it does not free");
    IS(cuGraphInstantiateWithFlags(&e, g, 0) | cuGraphExecDestroy(e), 0, "destroyed without a launch");
    IS(free_mib(), GRANT, "leaves nothing");
    IS(cuGraphInstantiateWithFlags(&e, g, 0) | cuGraphLaunch(e, NULL) | cuGraphExecDestroy(e), 0, "launched and destroyed");
    IS(fakedriverMine(0), 100 * MIB, "it leaves its memory");
    IS(free_mib(), GRANT - 100, "which counts");
    IS(cuMemAlloc_v2(&p, 200 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "for all allocations");
    IS(cuMemFree_v2(node.dptr), 0, "until it is freed");
    IS(cuMemAlloc_v2(&p, 200 * MIB) | cuMemFree_v2(p), 0, "and needed");
    IS(fakedriverMine(0), 0, "then the device does not hold it");
    IS(free_mib(), GRANT, "and all is free");
    IS(cuGraphInstantiateWithFlags(&e, g, 0) | cuGraphLaunch(e, NULL) | cuMemFreeAsync(node.dptr, NULL) | cuGraphExecDestroy(e), 0, "freed before the graph");
    IS(free_mib(), GRANT, "nothing is left");
}

/* As programs do that are compiled for per-thread default streams. */
static void a_capture_of_the_per_thread_stream(void)
{
    CUmemoryPool pool;
    CUgraph g;
    CUgraphExec e;
    CUdeviceptr p, q, before;

    begin(0);
    cuDeviceGetDefaultMemPool(&pool, 0);
    IS(cuMemAllocAsync_ptsz(&before, 32 * MIB, NULL), 0, "allocated before");
    IS(cuStreamBeginCapture_v2_ptsz(NULL, 0), 0, "capture");
    IS(cuMemAllocAsync_ptsz(&p, 64 * MIB, NULL) | cuMemAllocFromPoolAsync_ptsz(&q, 64 * MIB, pool, NULL), 0, "two allocations in it");
    IS(free_mib(), GRANT - 32, "take nothing");
    IS(cuMemFreeAsync_ptsz(p, NULL) | cuMemFreeAsync_ptsz(q, NULL), 0, "nor do frees in it");
    IS(cuStreamEndCapture_ptsz(NULL, &g) | cuGraphInstantiateWithParams_ptsz(&e, g, &(CUDA_GRAPH_INSTANTIATE_PARAMS){0}), 0, "instantiated");
    IS(free_mib(), GRANT - 32 - 128, "they count");
    IS(cuGraphExecDestroy(e) | cuGraphDestroy(g) | cuMemFreeAsync_ptsz(before, NULL) | cuStreamSynchronize_ptsz(NULL), 0, "all gone");
    IS(free_mib(), GRANT, "all free");
}

/* The constructor of constructor.so calls when_loaded, while this thread has the loader's lock. */
static int loading;
static CUcontext context_of_loader;

void when_loaded(void)
{
    CUdeviceptr p;

    __atomic_store_n(&loading, 1, __ATOMIC_SEQ_CST);
    usleep(500000); /* the other thread is in its allocation, or has it */
    IS(cuMemAllocAsync(&p, 4 * MIB, NULL), 0, "a library's constructor allocates");
}

static void *allocates_while_a_library_is_loaded(void *got)
{
    CUdeviceptr p;

    cuCtxSetCurrent(context_of_loader);
    while (!__atomic_load_n(&loading, __ATOMIC_SEQ_CST)) usleep(1000);
    *(int *)got = cuMemAllocAsync(&p, 4 * MIB, NULL) == CUDA_SUCCESS;
    return NULL;
}

/* The first allocation fails, so it finds all functions of the driver that an allocation uses, except
 * those for which there has to be a pool with memory. */
static void a_constructor_allocates_while_another_thread_does(void)
{
    char path[4096] = "";
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    CUdeviceptr p;
    pthread_t thread;
    int got = 0;

    context_of_loader = begin(0);
    IS(cuMemAllocAsync(&p, 2 * GRANT * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY, "more than the grant");
    OK(n > 0 && strrchr(path, '/'), "the program has a path");
    strcpy(strrchr(path, '/'), "/constructor.so");
    alarm(30);
    pthread_create(&thread, NULL, allocates_while_a_library_is_loaded, &got);
    OK(dlopen(path, RTLD_NOW), "a library is loaded");
    pthread_join(thread, NULL);
    OK(got, "and another thread allocates meanwhile");
}

const struct tap_test pool_tests[] = {
    TEST(a_pool_is_limited), TEST(a_pool_keeps_what_was_freed), TEST(pools_of_the_program),
    TEST(a_destroyed_pool_counts_until_its_last_pointer), TEST(a_pointer_of_a_destroyed_pool_of_host_memory),
    TEST(a_thousand_pools), TEST(threads_create_and_destroy_pools),
    TEST(a_new_pool_is_not_forgotten_with_an_old_one),
    TEST(a_pool_that_cannot_be_destroyed_counts_once), TEST(the_current_pool_is_destroyed),
    TEST(pools_of_other_locations), TEST(a_stream_of_another_device), TEST(async_frees_leak_nothing),
    TEST(what_a_pool_returned_unseen_is_free), TEST(two_threads_need_what_a_pool_returned),
    TEST(a_reset_leaves_what_pools_still_hold),
    TEST(a_reset_ends_destroyed_pools), TEST(a_reset_while_a_pool_is_destroyed),
    TEST(a_reset_ends_executable_graphs),
    TEST(a_reset_without_a_primary_context_ends_nothing),
    TEST(graph_memory_is_counted_when_it_is_instantiated),
    TEST(a_capture_takes_no_memory), TEST(a_capture_of_the_per_thread_stream), TEST(a_graph_counts_each_address_once), TEST(graph_memory_that_outlives_its_graph),
    TEST(a_constructor_allocates_while_another_thread_does), {NULL, NULL},
};
