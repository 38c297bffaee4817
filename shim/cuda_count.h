/* Allocations that are in the account and in the table of track.h.
 *
 * The driver gives memory in pages of 2 MiB. What is larger than 1 MiB has pages of its own, and
 * smaller allocations of a context share pages. (Measured on an H100, driver 580:
 * docs/gpu-results.md.) A page of small allocations has one entry, with their number. */
#pragma once

#include "cuda_abi.h"
#include "track.h"

/* whole_pages rounds up to pages of the GPU. UINT64_MAX: it is larger than any GPU. */
uint64_t whole_pages(uint64_t bytes);

/* finish_allocation ends an allocation whose bytes, t->bytes, are in the account already. result is
 * the driver's answer. If the driver refused, the bytes leave the account. If there is no memory to
 * track the allocation, undo frees it, the bytes leave the account, and the answer is
 * CUDA_ERROR_OUT_OF_MEMORY. */
CUresult finish_allocation(CUresult result, const struct track *t, void (*undo)(uint64_t key));

/* finish_pointer does the same for plain memory of so many bytes. The account already has its whole
 * pages. */
CUresult finish_pointer(CUresult result, const struct track *t, uint64_t bytes, void (*undo)(uint64_t key));

/* untrack_pointer removes what is at an address. *t is what uncount takes out of the account, or
 * track_again enters again. False, and kind 0, if nothing is there. */
bool untrack_pointer(uint64_t address, struct track *t);
void track_again(const struct track *t);

/* uncount takes an entry's bytes out of the account, if they are in it. */
void uncount(const struct track *t);
