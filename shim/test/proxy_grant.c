/* The grant as programs see it: the total, the limit, overhead, changes, and devices. */
#include "proxy.h"

static void the_grant_is_the_total(void)
{
    size_t free, total;
    unsigned int free1, total1;
    CUdeviceptr p;

    begin(0);
    IS(cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS, "cuDeviceTotalMem");
    IS(total, GRANT * MIB, "reports the grant");
    cuDeviceTotalMem_v2(&total, 1);
    IS(total, GRANT1 * MIB, "for each device its own");
    IS(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS, "cuMemGetInfo");
    IS(total, GRANT * MIB, "reports the grant");
    IS(free, GRANT * MIB, "all of it free: the node measures contexts");
    p = get(100);
    cuMemGetInfo_v2(&free, &total);
    IS(free, 156 * MIB, "less what was allocated");
    IS(cuMemGetInfo(&free1, &total1), CUDA_SUCCESS, "the old cuMemGetInfo");
    IS(free1, 156 * MIB, "reports the same");
    IS(total1, GRANT * MIB, "in 32 bits");
    IS(cuMemFree_v2(p), CUDA_SUCCESS, "free");
    IS(free_mib(), GRANT, "makes it free again");
}

static void beyond_the_grant_is_out_of_memory(void)
{
    CUdeviceptr p = 77, q;

    begin(0);
    IS(cuMemAlloc_v2(&p, GRANT * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte too much");
    IS(p, 77, "and the pointer is not touched");
    IS(cuMemAlloc_v2(&p, GRANT * MIB), CUDA_SUCCESS, "the grant to the byte");
    IS(cuMemAlloc_v2(&q, 1), CUDA_ERROR_OUT_OF_MEMORY, "then not a byte more");
    IS(cuMemAlloc_v2(&q, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY, "nor the largest number");
    IS(cuMemAllocManaged(&q, 1, 1), CUDA_ERROR_OUT_OF_MEMORY, "nor managed");
    IS(cuMemFree_v2(p), CUDA_SUCCESS, "free");
    IS(cuMemAlloc_v2(&p, GRANT * MIB), CUDA_SUCCESS, "and the process goes on");
    IS(fakedriverPeak(0), GRANT * MIB, "the GPU never gave more");
}

static void overhead_counts(void) /* core #79, hami #446 #1026 */
{
    struct record_limits *l = limits();
    CUdeviceptr p;

    begin(0);
    l->device[0].overhead = 56 * MIB;
    IS(free_mib(), GRANT - 56, "what the node measured counts");
    OK(!get(201), "against the grant");
    p = get(200);
    OK(p, "to the byte");
    l->device[0].overhead = 0;
    IS(free_mib(), 56, "removed again");
    IS(cuMemFree_v2(p), 0, "freed");
}

static void more_used_than_granted_leaves_nothing_free(void) /* hami #1181: 17 TB free */
{
    struct record_limits *l = limits();
    size_t free, total;

    begin(0);
    OK(get(200), "200 MiB");
    l->device[0].overhead = 1024 * MIB;
    IS(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS, "with more overhead than the grant is");
    IS(free, 0, "nothing is free, and there is no underflow");
    IS(total, GRANT * MIB, "the grant is the grant");
    l->device[0].overhead = UINT64_MAX;
    IS(free_mib(), 0, "nor with an invalid number");
    OK(!get(1), "with which no allocation succeeds");
    l->device[0].overhead = 0;
    slot(region(), 0)->used[0] = UINT64_MAX - 1;
    IS(free_mib(), 0, "nor with an invalid number in a slot");
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
    OK(!get(1), "no allocation succeeds");
    l->device[0].bytes = 300 * MIB;
    IS(free_mib(), 100, "grown to 300");
    OK(get(100), "free at once");
    cuDeviceTotalMem_v2(&total, 0);
    IS(total, 300 * MIB, "and the total reports it");
}

static void visible_devices_are_identified_by_uuid(void) /* core #319 #234; CUDA_VISIBLE_DEVICES=1,0 */
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
    IS(fakedriverMine(1), GRANT1 * MIB, "and the driver reports the same");
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
    CUmemoryPool pool;
    CUdeviceptr p;

    l->devices = 1;
    region()->devices = 1;
    begin(1);
    IS(cuMemAlloc_v2(&p, 1), CUDA_ERROR_OUT_OF_MEMORY, "not a byte");
    IS(cuMemAllocAsync(&p, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY, "from no pool");
    IS(cuMemGetInfo_v2(&free, &total), 0, "it is reported");
    IS(free + total, 0, "0 of 0");
    begin(0);
    IS(cuDeviceGetDefaultMemPool(&pool, 1), 0, "its own pool");
    IS(cuMemAllocFromPoolAsync(&p, 1, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY, "gives nothing to a stream of another device");
}

const struct tap_test grant_tests[] = {
    TEST(the_grant_is_the_total), TEST(beyond_the_grant_is_out_of_memory), TEST(overhead_counts), TEST(more_used_than_granted_leaves_nothing_free),
    TEST(a_grant_grows_and_shrinks), TEST(visible_devices_are_identified_by_uuid), TEST(a_subset_of_devices),
    TEST(a_device_that_is_not_granted_gives_nothing), {NULL, NULL},
};
