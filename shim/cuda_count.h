/* Allocations that are in the account and in the table of track.h. */
#pragma once

#include "cuda_abi.h"
#include "track.h"

/* finish_allocation ends an allocation whose bytes, t->bytes, are in the account already. result is
 * the driver's answer. If the driver refused, the bytes leave the account. If there is no memory to
 * track the allocation, undo frees it, the bytes leave the account, and the answer is
 * CUDA_ERROR_OUT_OF_MEMORY. */
CUresult finish_allocation(CUresult result, const struct track *t, void (*undo)(uint64_t key));

/* uncount takes an entry's bytes out of the account, if they are in it. */
void uncount(const struct track *t);
