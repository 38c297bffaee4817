/* The ways in which programs find the driver: each must meet the limit. Built as a dynamic program, as a static one, and
 * linked against libcuda. */
#define _GNU_SOURCE
#include "driver.h"
#include "tap.h"

#include <dlfcn.h>
#include <unistd.h>

enum { GRANT = 256 };

typedef void *finder(const char *name);
static void *library;

/* allocate is what every way ends in. */
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
    OK(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) == library, "once more gives the same");
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
    IS(alloc(&p, 1), CUDA_ERROR_OUT_OF_MEMORY, "what was allocated counts still");
}

/* Where the real driver is not at its place the proxy does not load: nobody runs without a limit. */
static void no_driver(void) { OK(!dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1 does not load"); }

#ifndef STATIC
#if defined __x86_64__
#define FIRST_GLIBC "GLIBC_2.2.5"
#else
#define FIRST_GLIBC "GLIBC_2.17"
#endif
/* A program that gets dlsym itself by its version goes around whoever overrides it. */
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

/* core #279 #315 #215 #326 #174: whoever asks for the next dlsym or the next cuMemAlloc gets it. */
static void nobody_overrides_dlsym(void)
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
#ifndef STATIC
    {"dlvsym_of_dlsym", dlvsym_of_dlsym}, {"dlmopen_of_its_own", dlmopen_of_its_own}, {"nobody_overrides_dlsym", nobody_overrides_dlsym},
#endif
#ifdef LINKED
    {"linked", linked},
#else
    {"no_driver", no_driver},
#endif
    {NULL, NULL},
};

int main(int argc, char **argv) { return tap_main(argc, argv, tests); }
