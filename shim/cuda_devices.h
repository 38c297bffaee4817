/* Devices and contexts, by the account's numbers. */
#pragma once

#include "cuda_abi.h"

enum { ORDINALS = 64 }; /* more devices than the driver has: its numbers of them are below */

/* A location is where memory is allocated: the driver's and the account's number of the device, and
 * the context that the memory is freed with. device is -1 if the device is not in the grant:
 * nothing fits there. */
struct location { CUdevice ordinal; int device; uint64_t context; };

/* device_of is the account's number of a device, -1 if it is not in the grant or the account cannot
 * be read. */
int device_of(CUdevice ordinal);

/* location_current is of the calling thread's current context. location_of_stream is of the context
 * that the stream belongs to. On failure the result is the driver's error. */
CUresult location_current(struct location *l);
CUresult location_of_stream(CUstream stream, struct location *l);

/* ordinal_of is the driver's number of the device on which memory of a location counts, HOST_MEMORY
 * if it is the host's alone. Managed memory moves to the device that uses it: if its location is no
 * device, it counts on the current one, as that of cuMemAllocManaged does. Without a current one the
 * result is the driver's error. CUDA_ERROR_INVALID_VALUE is the answer to a kind of location that is
 * not known, as a driver gives it that does not know it. */
enum { HOST_MEMORY = -1 };
CUresult ordinal_of(const CUmemLocation *location, int allocation_type, CUdevice *ordinal);
