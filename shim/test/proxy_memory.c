/* Every kind of memory, by all its calls, and memory that is freed with its context. */
#include "proxy.h"

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
    IS(cuMemAlloc(&v, MIB), 0, "cuMemAlloc from before CUDA 3.2");
    IS(cuMemAllocPitch_v2(&p, &pitch, 1000, 1024, 4), 0, "cuMemAllocPitch");
    IS(cuMemAllocPitch(&w, &pitch1, 1000, 1024, 4), 0, "cuMemAllocPitch from before CUDA 3.2");
    IS(cuMemAllocManaged(&m, MIB, 1), 0, "cuMemAllocManaged");
    IS(free_mib(), GRANT - 4, "each one MiB");
    IS(cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){1024, 256, 0x20, 1}), 0, "an array of floats");
    IS(cuArrayCreate(&b, &(CUDA_ARRAY_DESCRIPTOR_v1){1 << 20, 0, 0x01, 1}), 0, "an array of bytes, from before CUDA 3.2");
    IS(cuArray3DCreate_v2(&c, &(CUDA_ARRAY3D_DESCRIPTOR){64, 64, 64, 0x10, 2, 0}), 0, "an array in 3D");
    IS(cuArray3DCreate(&e, &(CUDA_ARRAY3D_DESCRIPTOR_v1){1024, 1024, 1024, 1, 1, CUDA_ARRAY3D_SPARSE}), 0, "a sparse one");
    IS(free_mib(), GRANT - 7, "each as large as its elements");
    IS(cuMipmappedArrayCreate(&mip, &(CUDA_ARRAY3D_DESCRIPTOR){1024, 1024, 0, 1, 1, 0}, 11), 0, "a mipmapped array");
    IS(fakedriverMine(0), 10 * MIB, "all its levels, in pages of the GPU");
    IS(free_mib(), GRANT - 9, "and the shim reports the same");
    IS(cuMemCreate(&h, 2 * MIB, &prop, 0), 0, "cuMemCreate");
    IS(cuMemAllocAsync(&q, 32 * MIB, NULL), 0, "cuMemAllocAsync");
    IS(free_mib(), GRANT - 9 - 2 - 32, "counted");
    IS(cuMemFree(v) | cuMemFree_v2(p) | cuMemFree(w) | cuMemFree_v2(m), 0, "freed");
    IS(cuArrayDestroy(a) | cuArrayDestroy(b) | cuArrayDestroy(c) | cuArrayDestroy(e) | cuMipmappedArrayDestroy(mip), 0, "destroyed");
    IS(cuMemRelease(h) | cuMemFreeAsync(q, NULL) | cuCtxSynchronize(), 0, "released");
    IS(free_mib(), GRANT, "and all is free");
    IS(fakedriverMine(0), 0, "in the driver, too");
}

static void arrays_of_all_formats(void)
{
    static const struct { int format; unsigned int channels; size_t bytes; const char *name; } formats[] = {
        {0x20, 4, 16, "four floats"}, {0xc2, 4, 4, "UNORM_INT8X4"}, {0xcb, 4, 8, "SNORM_INT16X4"}, {0x9d, 4, 1, "BC7"}, {0xfe, 4, 16, "a later format, as the largest"},
    };
    CUarray a;
    CUmipmappedArray mip;
    size_t free = 0;

    begin(0);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        IS(cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){4096, 1024, formats[i].format, formats[i].channels}), 0, formats[i].name);
        IS(free_mib(), GRANT - 4 * formats[i].bytes, "each element counts as large as it is");
        IS(fakedriverMine(0), 4 * formats[i].bytes * MIB, "in the driver, too");
        cuArrayDestroy(a);
    }
    IS(cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){4096, 1024, 0xb0, 3}), 0, "NV12");
    IS(free_mib(), GRANT - 6, "has one and a half bytes");
    IS(fakedriverMine(0), 6 * MIB, "in the driver, too");
    cuArrayDestroy(a);
    IS(cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){4096, 1024, 0x91, 4}), 0, "BC1");
    IS(free_mib(), GRANT - 2, "has half a byte");
    IS(fakedriverMine(0), 2 * MIB, "in the driver, too");
    cuArrayDestroy(a);
    IS(cuMipmappedArrayCreate(&mip, &(CUDA_ARRAY3D_DESCRIPTOR){8, 8, 0, 0x91, 4, 0}, 4), 0, "small levels");
    cuMemGetInfo_v2(&free, NULL);
    IS(GRANT * MIB - free, 32 + 8 + 8 + 8, "have at least a block of 8 bytes");
    IS(cuMipmappedArrayDestroy(mip), 0, "destroyed");
    IS(free_mib(), GRANT, "all is free");
}

/* The driver clamps the number of levels to what the largest side allows, and to one. */
static void levels_of_a_mipmapped_array_are_clamped(void)
{
    CUmipmappedArray mip;
    size_t free = 0;

    begin(0);
    IS(cuMipmappedArrayCreate(&mip, &(CUDA_ARRAY3D_DESCRIPTOR){4096, 1024, 0, 0x20, 4, 0}, 0), 0,
       "a mipmapped array with no levels");
    IS(fakedriverMine(0), 64 * MIB, "has one");
    IS(free_mib(), GRANT - 64, "which counts");
    IS(cuMipmappedArrayDestroy(mip), 0, "destroyed");
    IS(free_mib(), GRANT, "it is free");
    IS(cuMipmappedArrayCreate(&mip, &(CUDA_ARRAY3D_DESCRIPTOR){8, 2, 0, 1, 1, 0}, 99), 0,
       "one with more levels than it can have");
    IS(cuMemGetInfo_v2(&free, NULL), 0, "asked");
    IS(GRANT * MIB - free, 16 + 4 + 2 + 1, "has those that its longest side allows");
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
    IS(cuMemAllocPitch_v2(&p, &pitch, SIZE_MAX, 2, 4), CUDA_ERROR_OUT_OF_MEMORY, "a product that overflows");
    IS(cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){16, 16, 0x1f, 1}), CUDA_ERROR_INVALID_VALUE, "a bad format");
    IS(cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){SIZE_MAX, SIZE_MAX, 1, 1}), CUDA_ERROR_OUT_OF_MEMORY, "an array whose size overflows");
    IS(cuMemCreate(&h, 1000, &prop, 0), CUDA_ERROR_INVALID_VALUE, "a bad size");
    prop.location.id = 7;
    IS(cuMemCreate(&h, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY, "no such device");
    IS(free_mib(), GRANT, "nothing is counted");
}

static void null_arguments_are_passed_to_the_driver(void) /* core #333 */
{
    size_t n = 0;
    unsigned int small = 0;

    begin(0);
    IS(cuMemAlloc_v2(NULL, MIB), CUDA_ERROR_INVALID_VALUE, "cuMemAlloc(NULL)");
    IS(cuMemAlloc_v2((CUdeviceptr *)&n, 0), CUDA_ERROR_INVALID_VALUE, "no bytes");
    IS(cuMemAllocPitch_v2(NULL, NULL, 1, 1, 4), CUDA_ERROR_INVALID_VALUE, "cuMemAllocPitch(NULL)");
    OK(cuMemGetInfo_v2(NULL, &n) == 0 && n == GRANT * MIB, "cuMemGetInfo of the total alone");
    OK(cuMemGetInfo_v2(&n, NULL) == 0 && n == GRANT * MIB, "of what is free alone");
    IS(cuMemGetInfo_v2(NULL, NULL), 0, "of nothing");
    OK(cuMemGetInfo(NULL, &small) == 0 && small == GRANT * MIB && cuMemGetInfo(&small, NULL) == 0, "the old one, too");
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
    IS(cuMemFree_v2(4711), CUDA_ERROR_INVALID_VALUE, "the driver refuses an invalid pointer");
    p = get(1);
    IS(cuMemFree_v2(p), CUDA_SUCCESS, "free");
    IS(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE, "free again");
    IS(free_mib(), GRANT, "counted once");
    p = get(1);
    IS(cuIpcGetMemHandle(&h, p) | cuIpcOpenMemHandle_v2(&q, h, 1), 0, "memory of another process");
    IS(free_mib(), GRANT - 2, "is counted there");
    IS(cuIpcCloseMemHandle(q), 0, "and closed by the driver");
    IS(cuMemCreate(&a, 2 * MIB, &prop, 0) | cuMemExportToShareableHandle(&exported, a, 1, 0) | cuMemImportFromShareableHandle(&b, &exported, 1), 0, "an imported handle");
    IS(free_mib(), GRANT - 4, "is counted where it was created");
    IS(cuMemRelease(b), 0, "and released by the driver");
    IS(cuMemRelease(b), CUDA_ERROR_INVALID_VALUE, "once");
    IS(free_mib(), GRANT - 4, "which changes nothing");
}

static void a_context_is_one_however_often_it_is_retained(void) /* core #304, hami #2865 */
{
    CUcontext c;

    cuInit(0);
    for (int i = 0; i < 10; i++) cuDevicePrimaryCtxRetain(&c, 0);
    cuCtxSetCurrent(c);
    IS(free_mib(), GRANT, "retaining a context ten times counts nothing");
    get(100);
    for (int i = 0; i < 9; i++) cuDevicePrimaryCtxRelease_v2(0);
    IS(free_mib(), GRANT - 100, "nine releases free nothing");
    IS(cuDevicePrimaryCtxRelease_v2(0), 0, "the tenth");
    IS(cuDevicePrimaryCtxRetain(&c, 0) | cuCtxSetCurrent(c), 0, "a new one");
    IS(free_mib(), GRANT, "has all of it");
}

static void memory_is_freed_with_its_context(void)
{
    CUcontext c, same;
    CUdeviceptr p;

    cuInit(0);
    IS(cuDevicePrimaryCtxRetain(&same, 0) | cuCtxSetCurrent(same), 0, "a primary context");
    get(50);
    IS(cuDevicePrimaryCtxReset_v2(0) | cuDevicePrimaryCtxRetain(&same, 0) | cuCtxSetCurrent(same), 0, "reset");
    IS(free_mib(), GRANT, "frees all");
    begin(0);
    get(30);
    cuCtxGetCurrent(&c);
    IS(cuCtxDestroy_v2(c), 0, "another context, destroyed");
    IS(cuCtxSetCurrent(same), 0, "back");
    IS(free_mib(), GRANT, "freed its memory");
    IS(cuMemAlloc_v2(&p, MIB), 0, "and the other goes on");
    IS(cuCtxSetCurrent(NULL), 0, "without a context");
    IS(cuMemAlloc_v2(&p, MIB), CUDA_ERROR_INVALID_CONTEXT, "the driver's error");
}

/* The driver's pages have 2 MiB, and what is larger than half of one shares none. */
static void pages_are_counted(void)
{
    CUdeviceptr p[4], small[GRANT] = {0};
    CUcontext c, first;
    int n = 0, odd = 0;

    begin(0);
    IS(cuMemAlloc_v2(&p[0], 3 * MIB), 0, "3 MiB");
    IS(free_mib(), GRANT - 4, "have two pages");
    IS(cuMemAlloc_v2(&p[1], MIB + 1), 0, "little more than half a page");
    IS(free_mib(), GRANT - 6, "has one");
    IS(cuMemAlloc_v2(&p[2], 1) | cuMemAlloc_v2(&p[3], MIB), 0, "a byte and half a page");
    IS(free_mib(), GRANT - 8, "share one");
    IS(fakedriverMine(0), 8 * MIB, "says the driver");
    IS(cuMemFree_v2(p[2]), 0, "one is freed");
    IS(free_mib(), GRANT - 8, "the other one keeps the page");
    IS(cuMemFreeAsync(p[3], NULL), 0, "that, too, in the order of a stream");
    IS(free_mib(), GRANT - 6, "the page is free");
    IS(cuMemFree_v2(p[0]) | cuMemFree_v2(p[1]), 0, "all");
    IS(free_mib(), GRANT, "is free");
    while (n < GRANT && cuMemAlloc_v2(&small[n], 700 << 10) == 0) n++;
    IS(n, GRANT - 1, "of 700 KiB a page has two, but for the last one: it might have needed another page");
    IS(cuMemAlloc_v2(&p[0], 1), CUDA_ERROR_OUT_OF_MEMORY, "no page is left");
    IS(fakedriverPeak(0), GRANT * MIB, "and the driver was not asked for one");
    while (n > 0) cuMemFree_v2(small[--n]);
    while (odd < GRANT && cuMemAlloc_v2(&small[odd], 3 * MIB) == 0) odd++;
    IS(odd, GRANT / 4, "3 MiB take 4");
    IS(fakedriverPeak(0), GRANT * MIB, "never more than the grant");
    while (odd > 0) cuMemFree_v2(small[--odd]);
    IS(free_mib(), GRANT, "all is free again");
    IS(cuMemAlloc_v2(&p[0], 4096) | cuMemAlloc_v2(&p[1], 4096), 0, "two in a page");
    while (n < GRANT / 2 - 1 && cuMemAlloc_v2(&small[n], 2 * MIB) == 0) n++;
    IS(free_mib(), 0, "the grant is full");
    IS(cuMemFree_v2(p[0] + 512), CUDA_ERROR_INVALID_VALUE, "the driver refuses an address inside one");
    IS(cuMemFree_v2(p[0]), 0, "one is freed");
    IS(free_mib(), 0, "and the other one still keeps the page");
    IS(cuMemFree_v2(p[1]), 0, "that, too");
    IS(free_mib(), 2, "and the page is free");
    while (n > 0) cuMemFree_v2(small[--n]);
    IS(cuCtxGetCurrent(&first) | cuCtxCreate_v2(&c, 0, 0) | cuMemAlloc_v2(&p[0], 1) | cuMemAlloc_v2(&p[1], 1), 0, "in another context");
    IS(cuCtxDestroy_v2(c) | cuCtxSetCurrent(first), 0, "which is destroyed");
    IS(free_mib(), GRANT, "its page is free");
}

/* What the node has measured of contexts counts before they are made. */
static void contexts_are_counted(void)
{
    struct record_limits *l = limits();
    unsigned long long before;
    CUcontext c, again, primary;
    CUdeviceptr p;

    begin(0);
    IS(free_mib(), GRANT, "one that was made before that was known");
    l->device[0].context = 100 * MIB;
    IS(cuCtxCreate_v2(&c, 0, 0), 0, "another one");
    IS(free_mib(), GRANT - 100, "is counted");
    IS(cuDevicePrimaryCtxRetain(&primary, 0) | cuDevicePrimaryCtxRetain(&again, 0), 0, "the primary one, twice");
    IS(free_mib(), GRANT - 200, "is counted once");
    before = fakedriverUsed(0);
    IS(cuCtxCreate_v4(&again, NULL, 0, 0), CUDA_ERROR_OUT_OF_MEMORY, "one more does not fit");
    IS(fakedriverUsed(0), before, "and the driver was not asked for it");
    IS(cuCtxCreate_v3(NULL, NULL, 0, 0, 0), CUDA_ERROR_INVALID_VALUE, "what the driver refuses");
    IS(cuCtxCreate_v2(&again, 0, 77), CUDA_ERROR_INVALID_DEVICE, "of a GPU that is not there");
    IS(free_mib(), GRANT - 200, "is not counted");
    IS(cuCtxSetCurrent(primary) | cuMemAlloc_v2(&p, 8 * MIB), 0, "memory in the primary context");
    IS(cuDevicePrimaryCtxRelease(0), 0, "released once");
    IS(free_mib(), GRANT - 208, "it is there");
    IS(cuCtxSetCurrent(c) | cuDevicePrimaryCtxRelease(0), 0, "released again");
    IS(free_mib(), GRANT - 100, "it is gone with its memory");
    IS(cuDevicePrimaryCtxRetain(&primary, 0) | cuDevicePrimaryCtxReset(0), 0, "retained and reset");
    IS(free_mib(), GRANT - 100, "it is gone again");
    l->device[0].context = 50 * MIB;
    IS(cuCtxCreate(&again, 0, 0), 0, "the node has measured less");
    IS(free_mib(), GRANT - 150, "which counts");
    IS(cuCtxDestroy_v2(again) | cuCtxSetCurrent(c), 0, "destroyed");
    IS(free_mib(), GRANT - 100, "as much as was counted is free");
}

static void a_module_is_not_counted_here(void) /* OVERHEAD in the table */
{
    void *module;
    begin(0);
    IS(cuModuleLoadData(&module, "code"), 0, "code is loaded");
    IS(fakedriverMine(0), 2 * MIB, "which takes memory");
    IS(free_mib(), GRANT, "that the node publishes as overhead");
}

const struct tap_test memory_tests[] = {
    TEST(every_kind_is_counted), TEST(arrays_of_all_formats), TEST(levels_of_a_mipmapped_array_are_clamped),
    TEST(what_the_driver_refuses_is_not_counted), TEST(null_arguments_are_passed_to_the_driver),
    TEST(unknown_pointers_go_to_the_driver), TEST(a_context_is_one_however_often_it_is_retained), TEST(memory_is_freed_with_its_context), TEST(pages_are_counted), TEST(contexts_are_counted), TEST(a_module_is_not_counted_here), {NULL, NULL},
};
