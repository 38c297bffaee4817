/* The driver's own functions, and what every file with wrappers begins with. */
#pragma once

#include "cuda_api.h"
#include "cuda_entries.h"

#include <stdbool.h>
#include <stddef.h>

/* API marks what the library exports. */
#define API __attribute__((visibility("default")))

/* REAL(f) is the driver's f. Where the driver has none, calling it returns
 * CUDA_ERROR_NOT_SUPPORTED. */
#define REAL(f) ((__typeof__(f) *)real_function(real_##f))
#define REAL_ROW(name, how, why) real_##name,
#define REAL_USED(name) real_##name,
enum { CUDA_WRAPPED(REAL_ROW) real_wrapped, real_before_used = real_wrapped - 1, CUDA_USED(REAL_USED) real_count };

/* real_has reports whether the driver has the function. */
bool real_has(int entry);

/* real_address finds a function of the driver by its number in that enum. It is never NULL. */
void *real_address(int entry);

/* The functions that were found, NULL for the others. A call of one that was found is as short as
 * possible: a launch makes it. */
extern void *real_found[real_count];
static inline void *real_function(int entry)
{
    void *f = __atomic_load_n(&real_found[entry], __ATOMIC_RELAXED);
    return __builtin_expect(f != NULL, true) ? f : real_address(entry);
}
