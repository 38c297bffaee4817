/* What the parts of the libcuda proxy share. */
#pragma once

#include "account.h"
#include "cuda_api.h"
#include "cuda_entries.h"
#include "track.h"

#define API __attribute__((visibility("default")))

/* REAL(f) is the driver's f. Where the driver has none, calling it gives CUDA_ERROR_NOT_SUPPORTED. */
#define REAL(f) ((__typeof__(f) *)real_address(real_##f))
#define REAL_ROW(name, how, why) real_##name,
#define REAL_USED(name) real_##name,
enum { CUDA_WRAPPED(REAL_ROW) real_wrapped, real_before_used = real_wrapped - 1, CUDA_USED(REAL_USED) real_count };
void *real_address(int entry);

/* Where memory comes to lie: the device in the account, -1 for one that is not in the grant (nothing fits there), and
 * the context that it goes with. */
struct place { CUdevice ordinal; int device; uint64_t context; };

int device_of(CUdevice ordinal);
CUresult place_current(struct place *p);
CUresult place_of_stream(CUstream stream, struct place *p);

/* keep ends an allocation that was counted as *t: what the driver refused, or what can't be kept in mind, is not counted and
 * is given back. undo frees it. */
CUresult keep(CUresult result, const struct track *t, void (*undo)(uint64_t key));
void give(const struct track *t);

/* pool_release tells a pool that a pointer of it was freed. pools_settle counts anew what the pools hold. */
void pool_release(const struct track *t);
void pools_settle(void);
void pools_forget(void);

/* pools_reset: a device was reset. What its pools hold then, only the driver knows. */
void pools_reset(int device);
