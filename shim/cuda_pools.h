/* Memory pools of this process. What counts is what a pool holds, because a pool keeps memory that
 * was freed: until the next synchronisation, or for ever if its release threshold is high. A pool's
 * charge is at least what the driver says that it holds. While allocations are pending, it is at
 * least what they may make the pool hold. */
#pragma once

#include "account.h"
#include "cuda_abi.h"
#include "cuda_left.h"
#include "track.h"

#include <stdbool.h>

/* pools_add enters a pool. device is the account's, -1 if it is not in the grant: nothing fits
 * there. POOL_OF_HOST is host memory, which is not counted. Without effect if the pool is known or
 * there is no memory for its entry. */
enum { POOL_OF_HOST = -2 };
void pools_add(CUmemoryPool handle, int device);
bool pools_known(CUmemoryPool handle);

/* An allocator is the driver's function for an allocation, with its arguments, and the function
 * that frees. */
struct allocator {
    CUstream stream;
    bool per_thread; /* stream 0 is the per-thread default stream */
    CUmemoryPool pool;
    CUresult (*from_device)(CUdeviceptr *, size_t, CUstream); /* one of these two is set */
    CUresult (*from_pool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
    CUresult (*free)(CUdeviceptr, CUstream);
    CUdevice ordinal; /* of the stream */
};

static inline CUresult call_driver(const struct allocator *a, CUdeviceptr *p, size_t bytes)
{
    return a->from_device ? a->from_device(p, bytes, a->stream) : a->from_pool(p, bytes, a->pool, a->stream);
}

/* pool_allocate calls the driver if the allocation fits, counts it and tracks it. a->pool is the
 * pool that the driver will use. An unknown pool is entered with the given device. If another
 * thread has destroyed the device's current pool, a->pool is then the new one. */
CUresult pool_allocate(struct allocator *a, CUdeviceptr *p, size_t bytes, int device);

/* pool_release subtracts a freed pointer's bytes, t->bytes, from its pool, whose entry is at
 * t->link. */
void pool_release(const struct track *t);

/* pool_destroy calls the driver to destroy a pool. Pointers that were not freed stay valid, and the
 * pool keeps what it holds until the last of them is freed. */
CUresult pool_destroy(CUmemoryPool handle);

/* pools_update makes every pool's charge agree with what the pool holds now. False: the process never
 * had a pool. */
bool pools_update(void);

/* take_of_grant counts bytes if they fit the grant, as account_take does. If they do not, pools may
 * have returned memory since they were last looked at, or the program has freed that of a graph. */
static inline bool take_of_grant(int device, uint64_t bytes)
{
    return account_take(device, bytes) || ((pools_update() | left_update()) && account_take(device, bytes));
}

/* pools_reset: the driver reset a device. The pointers of its pools are no longer valid, but the
 * pools may still hold the memory. */
void pools_reset(int device);

/* pools_forget empties the table in a forked child: the pools are the parent's. */
void pools_forget(void);
