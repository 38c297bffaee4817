/* How functions are found: cuGetProcAddress, dlsym, export tables. */
#include "proxy.h"

static void cu_get_proc_address(void)
{
    CUresult (*alloc)(CUdeviceptr *, size_t), (*alloc_v1)(CUdeviceptr_v1 *, unsigned int), (*async)(CUdeviceptr *, size_t, CUstream);
    CUresult (*again)(const char *, void **, int, uint64_t, int *);
    CUdeviceptr p;
    void *f;
    int status = 9, answer = 0;

    begin(0);
    IS(cuGetProcAddress("cuMemAlloc", (void **)&alloc, 12000, 0), 0, "cuMemAlloc for CUDA 12");
    OK(alloc == cuMemAlloc_v2, "is the wrapper of version 2");
    IS(cuGetProcAddress("cuMemAlloc", (void **)&alloc_v1, 3000, 0), 0, "for CUDA 3.0");
    OK((void *)alloc_v1 == (void *)cuMemAlloc, "is the wrapper of version 1");
    IS(cuGetProcAddress_v2("cuMemAllocAsync", (void **)&async, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status), 0, "with the per-thread flag");
    OK(async == cuMemAllocAsync_ptsz && status == 0, "is the wrapper of the per-thread variant");
    IS(cuGetProcAddress("cuGetProcAddress", (void **)&again, 12000, 0), 0, "cuGetProcAddress itself");
    OK(again == cuGetProcAddress_v2, "is the wrapper");
    IS(again("cuCtxCreate", &f, 11040, 0, NULL), 0, "what is not wrapped");
    OK(f && f == dlsym(RTLD_DEFAULT, "cuCtxCreate_v3"), "is the driver's");
    IS(again("cuFutureThing", &f, 13000, 0, &status), 0, "an unknown function");
    OK(((CUresult(*)(int *))f)(&answer) == 0 && answer == 42, "is the driver's");
    IS(again("cuNothing", &f, 13000, 0, &status), CUDA_ERROR_NOT_FOUND, "a function that does not exist");
    IS(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "is not found");
    status = 9;
    IS(again("cuMemAlloc", &f, 99000, 0, &status), CUDA_ERROR_NOT_FOUND, "an unknown allocation of a later driver");
    OK(!f && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, "is refused: it would not be counted");
    IS(cuGetProcAddress("cuMemAlloc", &f, 99000, 0), CUDA_ERROR_NOT_FOUND, "also by the older call");
    IS(alloc(&p, GRANT * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY, "and what was returned is limited");
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
    OK(dlsym(lib, "cuMemAlloc_v2") == (void *)cuMemAlloc_v2, "what is wrapped is the wrapper");
}

static void the_export_table_is_the_drivers(void)
{
    const void *table = NULL;
    begin(0);
    IS(cuGetExportTable(&table, &(CUuuid){{1}}), 0, "the runtime's tables are there");
    OK(table, "as the driver returns them");
}

/* Without a share of compute, no launch passes through the proxy, so the shim cannot make one
 * slower. */
static void kernel_launches_are_the_drivers(void) /* core #274 #314 #317 #104 #37 #76, hami #2863 */
{
    static const char *const launches[] = {"cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch"};
    void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *f;
    int found = 0;

    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        Dl_info of = {.dli_fname = NULL};
        if (!(f = dlsym(lib, launches[i]))) continue;
        found++;
        OK(dladdr(f, &of) && strcmp(of.dli_fname, PLACE_LIBCUDA) == 0, "%s is the driver's", launches[i]);
    }
    OK(found > 1, "the stand-in has some");
}

const struct tap_test resolver_tests[] = {
    TEST(cu_get_proc_address), TEST(unknown_symbols_fall_through), TEST(the_export_table_is_the_drivers), TEST(kernel_launches_are_the_drivers), {NULL, NULL},
};
