/* The ways in which programs find the driver: in each, the limit must hold. Built as a dynamic
 * program, as a static one, and linked with libcuda. */
#define _GNU_SOURCE
#include "driver.h"
#include "tap.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRANT = 256 };

typedef void *finder(const char *name);
static void *library;

/* allocate checks the limit with the functions that one of the ways finds. */
static void allocate(finder *find)
{
    CUresult (*init)(unsigned int) = (CUresult(*)(unsigned int))find("cuInit");
    CUresult (*create)(CUcontext *, unsigned int, CUdevice) = (CUresult(*)(CUcontext *, unsigned int, CUdevice))find("cuCtxCreate_v2");
    CUresult (*alloc)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))find("cuMemAlloc_v2");
    CUcontext c;
    CUdeviceptr p;

    OK(init && create && alloc, "the functions are found");
    if (!init || !create || !alloc) return;
    IS(init(0), CUDA_SUCCESS, "cuInit");
    IS(create(&c, 0, 0), CUDA_SUCCESS, "cuCtxCreate");
    IS(alloc(&p, GRANT * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY, "a byte beyond the grant");
    IS(alloc(&p, GRANT * MIB), CUDA_SUCCESS, "the grant");
}

static void *by_dlsym(const char *name) { return dlsym(library, name); }

static void dlopen_and_dlsym(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    OK(library, "dlopen: %s", library ? "done" : dlerror());
    OK(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) == library, "a second dlopen returns the same");
    if (library) allocate(by_dlsym);
}

static CUresult (*resolve)(const char *, void **, int, uint64_t, int *);
static void *by_resolver(const char *name)
{
    void *f = NULL;
    char base[64];
    snprintf(base, sizeof base, "%.*s", (int)strcspn(name, "_"), name);
    return resolve(base, &f, 11000, 0, NULL) == CUDA_SUCCESS ? f : NULL;
}

/* As the CUDA runtime does since 11.3: one dlsym, the rest through cuGetProcAddress. */
static void cuda_runtime(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    OK(library, "dlopen: %s", library ? "done" : dlerror());
    if (!library) return;
    resolve = (CUresult(*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
    OK(resolve, "cuGetProcAddress_v2");
    allocate(by_resolver);
}

static void closed_and_opened_again(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    allocate(by_dlsym);
    IS(dlclose(library), 0, "closed");
    library = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*alloc)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))dlsym(library, "cuMemAlloc_v2");
    CUdeviceptr p;
    IS(alloc(&p, 1), CUDA_ERROR_OUT_OF_MEMORY, "what was allocated still counts");
}

/* hami #1112 #1090 #2125: a login by ssh, or su, starts programs with nothing of the container's
 * environment. */
static void a_login_that_drops_the_environment(void)
{
    pid_t pid = fork();
    int status = -1;

    if (pid == 0) {
        char *nothing[] = {NULL}, *args[] = {"client", "dlopen_and_dlsym", NULL};
        dup2(open("/dev/null", O_WRONLY), 1); /* its checks are not counted here */
        execve("/proc/self/exe", args, nothing);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    IS(status, 0, "the limit holds for the same program without any environment");
}

/* hami #1346 #2017 #1713 #971: without the real driver at its path the proxy does not load, so no
 * program runs without a limit. The same holds for a container in the container that got only this
 * one's libcuda (hami #1777). */
static void without_the_driver_nothing_loads(void) { OK(!dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1 does not load"); }

/* core #218: if the driver lacks a function that is wrapped, the answer is "not supported", and
 * nothing is counted. */
static void a_call_that_the_driver_dropped(void)
{
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    CUresult (*managed)(CUdeviceptr *, size_t, unsigned int), (*init)(unsigned int), (*alloc)(CUdeviceptr *, size_t);
    nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t *), (*memory_v2)(nvmlDevice_t, nvmlMemory_v2_t *), (*list)(nvmlDevice_t, unsigned int *, void *);
    nvmlMemory_t m = {0, 0, 0};
    nvmlMemory_v2_t v = {.version = NVML_MEMORY_V2};
    unsigned int n = 0;
    CUdeviceptr p;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    OK(library && nvml, "both load");
    if (!library || !nvml) return;
    init = (CUresult(*)(unsigned int))dlsym(library, "cuInit");
    alloc = (CUresult(*)(CUdeviceptr *, size_t))dlsym(library, "cuMemAlloc_v2");
    managed = (CUresult(*)(CUdeviceptr *, size_t, unsigned int))dlsym(library, "cuMemAllocManaged");
    IS(init(0), CUDA_SUCCESS, "CUDA starts");
    IS(managed(&p, MIB, 1), CUDA_ERROR_NOT_SUPPORTED, "managed memory is not supported");
    IS(alloc(&p, GRANT * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY, "what is there is limited");
    IS(alloc(&p, GRANT * MIB), CUDA_SUCCESS, "to all of the grant");
    OK(!dlsym(library, "cuMemAdvise"), "a function that is not wrapped is not found");
    memory = (nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_t *))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    memory_v2 = (nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_v2_t *))dlsym(nvml, "nvmlDeviceGetMemoryInfo_v2");
    list = (nvmlReturn_t(*)(nvmlDevice_t, unsigned int *, void *))dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    IS(memory((nvmlDevice_t)8, &m), NVML_SUCCESS, "the report that NVML has");
    IS(m.total, GRANT * MIB, "is the grant");
    IS(memory_v2((nvmlDevice_t)8, &v), NVML_ERROR_FUNCTION_NOT_FOUND, "those that it lacks are not found");
    IS(list((nvmlDevice_t)8, &n, NULL), NVML_ERROR_FUNCTION_NOT_FOUND, "lists of processes, too");
    OK(!dlsym(nvml, "nvmlDeviceGetProcessUtilization"), "nor the utilisation that driver 580 dropped");
}

/* R470 with a runtime of CUDA 12: the runtime finds the newer resolver here and asks it for
 * everything, first for the driver's version. */
static void a_runtime_newer_than_the_driver(void)
{
    CUresult (*version)(int *), (*init)(unsigned int), (*alloc)(CUdeviceptr *, size_t);
    CUdeviceptr p;
    void *f = NULL;
    int n = 0, status = -1;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    OK(library, "libcuda loads");
    if (!library) return;
    init = (CUresult(*)(unsigned int))dlsym(library, "cuInit");
    resolve = (CUresult(*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
    IS(resolve("cuDriverGetVersion", &f, 12000, 0, &status), CUDA_SUCCESS, "the resolver of CUDA 12 answers");
    IS(status, CU_GET_PROC_ADDRESS_SUCCESS, "with a status");
    version = (CUresult(*)(int *))f;
    if (!version) return;
    IS(version(&n), CUDA_SUCCESS, "the version is known");
    IS(n, 11040, "and is the driver's");
    IS(resolve("cuMemAllocAsync", &f, 12000, 0, &status), CUDA_ERROR_NOT_FOUND, "what the driver lacks is not found");
    IS(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "with a status, too");
    IS(resolve("cuDriverGetVersion", &f, 12000, 0, NULL), CUDA_SUCCESS, "nobody needs to take the status");
    IS(init(0), CUDA_SUCCESS, "CUDA starts");
    IS(resolve("cuMemAlloc", &f, 12000, 0, &status), CUDA_SUCCESS, "an allocation is found");
    alloc = (CUresult(*)(CUdeviceptr *, size_t))f;
    IS(alloc(&p, GRANT * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY, "and is limited");
}

#ifndef STATIC
#if defined __x86_64__
#define FIRST_GLIBC "GLIBC_2.2.5"
#else
#define FIRST_GLIBC "GLIBC_2.17"
#endif
/* A program that looks up dlsym by its version avoids any override of dlsym. */
static void *(*versioned)(void *, const char *);
static void *by_versioned(const char *name) { return versioned(library, name); }
static void dlvsym_of_dlsym(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    versioned = (void *(*)(void *, const char *))dlvsym(RTLD_DEFAULT, "dlsym", FIRST_GLIBC);
    OK(library && versioned, "dlsym by its version");
    if (library && versioned) allocate(by_versioned);
}

static void dlmopen_of_its_own(void)
{
    library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    OK(library, "dlmopen: %s", library ? "done" : dlerror());
    if (library) allocate(by_dlsym);
}

/* core #279 #315 #215 #326 #174: a lookup of dlsym finds the C library's. */
static void dlsym_is_not_overridden(void)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);

    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    OK(dlsym(RTLD_DEFAULT, "dlsym") == dlsym(libc, "dlsym"), "dlsym is the C library's");
    OK(dlsym(library, "dlsym") == dlsym(libc, "dlsym"), "seen from the driver, too");
}
#endif

#ifdef LINKED
static void *by_link(const char *name)
{
    return strcmp(name, "cuInit") == 0 ? (void *)cuInit : strcmp(name, "cuCtxCreate_v2") == 0 ? (void *)cuCtxCreate_v2 : (void *)cuMemAlloc_v2;
}
static void linked(void) { allocate(by_link); }
#endif

static const struct tap_test tests[] = {
    {"dlopen_and_dlsym", dlopen_and_dlsym}, {"cuda_runtime", cuda_runtime}, {"closed_and_opened_again", closed_and_opened_again},
    {"a_login_that_drops_the_environment", a_login_that_drops_the_environment},
#ifndef STATIC
    {"dlvsym_of_dlsym", dlvsym_of_dlsym}, {"dlmopen_of_its_own", dlmopen_of_its_own}, {"dlsym_is_not_overridden", dlsym_is_not_overridden},
#endif
#ifdef LINKED
    {"linked", linked},
#else
    {"without_the_driver_nothing_loads", without_the_driver_nothing_loads}, {"a_call_that_the_driver_dropped", a_call_that_the_driver_dropped},
    {"a_runtime_newer_than_the_driver", a_runtime_newer_than_the_driver},
#endif
    {NULL, NULL},
};

int main(int argc, char **argv) { return tap_main(argc, argv, tests); }
