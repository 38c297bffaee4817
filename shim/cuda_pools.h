/* Memory pools of this process. What counts is what a pool holds, because a pool keeps memory that
 * was freed: until the next synchronisation, or for ever if its release threshold is high. A pool's
 * charge is at least what the driver says that it holds. While allocations are pending, it is at
 * least what they may make the pool hold. */
#pragma once

#include "cuda_abi.h"
#include "track.h"

#include <stdbool.h>

/* pools_add enters a pool; device is the account's, -1 for host memory, which is not counted.
 * Without effect if the pool is known or the table is full. */
void pools_add(CUmemoryPool handle, int device);
bool pools_known(CUmemoryPool handle);

/* pool_begin charges a pool for an allocation before the driver is called, and returns the pool's
 * number. An unknown pool is entered with the given device. -1: the allocation does not fit, or the
 * table is full. */
int pool_begin(CUmemoryPool handle, int device, uint64_t bytes);

/* pool_end follows each successful pool_begin. allocated is whether the driver succeeded. False:
 * the pool holds more than fits, and the caller must free the allocation. */
bool pool_end(int pool, uint64_t bytes, bool allocated);

/* pool_release subtracts a freed pointer's bytes, t->bytes, from its pool, which is number
 * t->link. */
void pool_release(const struct track *t);

/* pool_destroyed: the driver destroyed a pool. Pointers that were not freed stay valid, and the
 * pool keeps what it holds until the last of them is freed. */
void pool_destroyed(CUmemoryPool handle);

/* pools_update makes every pool's charge agree with what the pool holds now. False: nothing was
 * freed since all charges agreed, so there was nothing to do. */
bool pools_update(void);

/* pools_reset: the driver reset a device. Only the driver knows what the device's pools hold
 * now. */
void pools_reset(int device);

/* pools_forget is for a forked child: the pools are the parent's. */
void pools_forget(void);
