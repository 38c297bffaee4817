/* Virtual memory management: handles and mappings. */
#include "proxy.h"

static void vmm_memory_is_freed_with_its_last_handle_or_mapping(void)
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
    IS(free_mib(), GRANT - 64, "it has a handle, so still there");
    IS(cuMemRelease(again), 0, "release");
    IS(free_mib(), GRANT, "freed");

    IS(cuMemCreate(&h, 32 * MIB, &prop, 0), 0, "create");
    IS(cuMemMap(p, 32 * MIB, 0, h, 0) | cuMemMap(p + 32 * MIB, 32 * MIB, 0, h, 0), 0, "mapped twice");
    IS(cuMemRelease(h), 0, "released");
    IS(cuMemUnmap(p, 16 * MIB), CUDA_ERROR_INVALID_VALUE, "half a mapping stays");
    IS(free_mib(), GRANT - 32, "counted once");
    IS(cuMemUnmap(p, 64 * MIB), 0, "both unmapped at once");
    IS(free_mib(), GRANT, "freed");

    IS(cuMemCreate(&h, 1024 * MIB, &host, 0), 0, "host memory is not the GPU's");
    IS(cuMemRelease(h), 0, "released");
    IS(fakedriverMine(0), 0, "nothing is left");
}

static void vmm_memory_is_of_the_device_that_it_names(void) /* core #169 #172 #187 #188, hami #1764: prop.location.id */
{
    CUmemGenericAllocationHandle h, again;
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

    begin(0);
    prop.location.id = 1;
    IS(cuMemCreate(&h, 64 * MIB, &prop, 0), 0, "on the other device than the current one");
    IS(free_mib(), GRANT, "the current one is free");
    IS(cuMemRelease(h), 0, "released");
    IS(cuMemCreate(&again, (GRANT1 + 2) * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY, "that one's grant is smaller");
    IS(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE, "a handle that is gone");
    IS(fakedriverUsed(1), 0, "nothing is left");
}

/* Every memory that is not the host's alone counts: CUDA 13 has more kinds of locations. */
static void vmm_memory_of_other_locations(void)
{
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp domain = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, 1 | 3 << 8}};
    CUmemAllocationProp managed = {.type = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}};
    CUmemAllocationProp later = {.type = 1, .location = {99, 0}}, none = {.type = 1};

    begin(0);
    IS(cuMemCreate(&h, (GRANT1 + 2) * MIB, &domain, 0), CUDA_ERROR_OUT_OF_MEMORY, "a domain of device 1 has no more than the device's grant");
    IS(cuMemCreate(&h, GRANT1 * MIB, &domain, 0), 0, "but all of it");
    IS(free_mib(), GRANT, "and nothing of device 0's");
    IS(cuMemRelease(h), 0, "released");
    IS(cuMemCreate(&h, 64 * MIB, &managed, 0), 0, "managed memory that begins on the host");
    IS(free_mib(), GRANT - 64, "counts on the current device");
    IS(cuMemRelease(h), 0, "released");
    IS(free_mib(), GRANT, "it is free");
    IS(cuMemCreate(&h, 64 * MIB, &later, 0), CUDA_ERROR_INVALID_VALUE, "a later driver's kind of location");
    IS(cuMemCreate(&h, 64 * MIB, &none, 0), CUDA_ERROR_INVALID_VALUE, "and none");
    IS(fakedriverMine(0) + fakedriverMine(1), 0, "take nothing");
}

/* As PyTorch's expandable segments do: many mappings, unmapped one at a time and many at once. */
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

/* One call may unmap memory that counts together with memory that does not. */
static void mappings_of_uncounted_memory_between_others(void)
{
    CUmemGenericAllocationHandle counted, host, imported, again;
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                        in_host = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
    uint64_t exported;
    CUdeviceptr p;

    begin(0);
    cuMemAddressReserve(&p, 128 * MIB, 0, 0, 0);
    IS(cuMemCreate(&counted, 32 * MIB, &prop, 0) | cuMemCreate(&host, 32 * MIB, &in_host, 0), 0,
       "memory of the GPU and of the host");
    IS(cuMemExportToShareableHandle(&exported, counted, 1, 0) |
       cuMemImportFromShareableHandle(&imported, &exported, 1), 0, "and an imported handle");
    IS(cuMemMap(p, 32 * MIB, 0, host, 0) | cuMemMap(p + 32 * MIB, 32 * MIB, 0, imported, 0) |
       cuMemMap(p + 64 * MIB, 32 * MIB, 0, counted, 0), 0, "mapped, the GPU's last");
    IS(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)p) | cuMemRelease(again), 0,
       "a handle of the host's from its address");
    IS(cuMemRelease(counted) | cuMemRelease(host) | cuMemRelease(imported), 0, "released");
    IS(free_mib(), GRANT - 32, "the GPU's counts");
    IS(cuMemUnmap(p, 128 * MIB), CUDA_ERROR_INVALID_VALUE, "more than is mapped cannot be unmapped");
    IS(free_mib(), GRANT - 32, "which changes nothing");
    IS(cuMemUnmap(p, 96 * MIB), 0, "all unmapped at once");
    IS(fakedriverMine(0), 0, "nothing is left");
    IS(free_mib(), GRANT, "and nothing counts");
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

const struct tap_test virtual_tests[] = {
    TEST(vmm_memory_is_freed_with_its_last_handle_or_mapping),
    TEST(vmm_memory_is_of_the_device_that_it_names), TEST(vmm_memory_of_other_locations), TEST(many_mappings),
    TEST(mappings_of_uncounted_memory_between_others),
    TEST(a_failed_create_leaves_other_handles_alone), {NULL, NULL},
};
