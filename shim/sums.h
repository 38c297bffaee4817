/* The bytes of all slots of a block, remembered until one of them changes. With 1,000 processes a sum
 * of all slots reads 1,000 cache lines. A sum of blocks reads a count for each block, and the slots
 * of those blocks alone that have changed.
 *
 * A process that changes its slot counts the change afterwards, and sums after that. A reader loads
 * the count before it sums the block. So a sum that is remembered for a count has every change that
 * was counted by then. A process that is killed between a change and its count never got what it
 * published, or had given it back: a remembered sum without the first is right, and one without the
 * second is too large until sums_forget. Nothing else depends on the counts: no sum is kept in the
 * region, so none can drift, and there is no lock between processes. */
#pragma once

#include "record.h"

#include <stdbool.h>

/* No device has this much memory: a word with one of these bits is invalid, and without them no sum
 * overflows. */
#define INVALID_BITS (~UINT64_C(0) << 48)

#define INVALID_BIT (UINT64_C(1) << 48) /* one of them */

/* sums_changes is where the changes of a slot are counted, one word for each device. NULL: they are
 * not counted, because sums always read the slot. */
uint64_t *sums_changes(struct record_head *h, uint32_t slot);

/* sums_changed counts a change that was made. */
static inline void sums_changed(uint64_t *changes, int device)
{
    if (changes) __atomic_fetch_add(&changes[device], 1, __ATOMIC_SEQ_CST);
}

/* sums_blocks adds up the slots from RECORD_SINGLE to `high`. An invalid word gives the sum a bit of
 * INVALID_BITS. False if some process of the region does not count its changes, or if another thread
 * is adding up: then the slots themselves have to be read. */
bool sums_blocks(struct record_head *h, int device, uint32_t high, uint64_t *sum);

/* sums_forget makes the next sum read every slot. sums_reset does so in a forked child, where no
 * other thread holds the lock. */
void sums_forget(void);
void sums_reset(void);
