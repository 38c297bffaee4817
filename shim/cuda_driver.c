/* Finds the driver's own functions. */
#include "cuda_driver.h"

#include "os.h"
#include "place.h"

static CUresult absent(void) { return CUDA_ERROR_NOT_SUPPORTED; }

#define NAME_ROW(name, how, why) #name,
#define NAME_USED(name) #name,
static const char *const names[real_count] = {CUDA_WRAPPED(NAME_ROW) CUDA_USED(NAME_USED)};

void *real_found[real_count];

/* A function is looked up at its first use. Threads that look up the same one at the same time find
 * the same address. */
void *real_address(int entry)
{
    static void *library;
    void *lib = __atomic_load_n(&library, __ATOMIC_RELAXED), *f;

    if (!lib) {
        lib = os_library(PLACE_LIBCUDA);
        __atomic_store_n(&library, lib, __ATOMIC_RELAXED);
    }
    f = lib ? os_symbol(lib, names[entry]) : NULL;
    if (!f) f = (void *)absent;
    __atomic_store_n(&real_found[entry], f, __ATOMIC_RELAXED);
    return f;
}
bool real_has(int entry) { return real_function(entry) != (void *)absent; }
