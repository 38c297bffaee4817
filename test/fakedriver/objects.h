/* The stand-in's objects: what a handle points to, all on one list, so that a handle that is none is noticed. */
#pragma once

#include "../../shim/cuda_abi.h"
#include "shared.h"

#define API __attribute__((visibility("default")))

enum object_kind {
    OBJECT_CONTEXT = 1, OBJECT_MEMORY, OBJECT_ARRAY, OBJECT_MIPMAP, OBJECT_MODULE, OBJECT_BLOCK, OBJECT_MAPPING, OBJECT_POOL,
    OBJECT_POOL_MEMORY, OBJECT_STREAM, OBJECT_EVENT, OBJECT_GRAPH, OBJECT_NODE, OBJECT_EXEC, OBJECT_PAGE,
    OBJECT_UNFREED, OBJECT_DESTROYED_POOL,
};

struct object {
    enum object_kind kind;
    struct object *next, *previous;
};

struct CUctx_st { struct object head; int gpu, device, references; };
struct page;
struct CUarray_st { struct object head; CUcontext context; int gpu; uint64_t bytes; struct page *page; CUdeviceptr address; };

/* Where memory_new may lay memory: the old entry points have pointers of 32 bits. */
#define MEMORY_BELOW_4G ((CUdeviceptr)1)
#define IPC_MAPPED ((CUdeviceptr)1 << 62)

/* GUARD lets one thread at a time into the rest of a function. It may be entered again. */
int driver_enter(void);
void driver_leave(const int *unused);
#define GUARD __attribute__((cleanup(driver_leave), unused)) int guard = driver_enter()

void *object_new(enum object_kind kind, size_t size);
void object_delete(struct object *o);

/* object_add and object_remove do the same without the object's memory, so that a handle can be
 * given again. */
void object_add(struct object *o, enum object_kind kind);
void object_remove(struct object *o);

bool object_is(const void *handle, enum object_kind kind);

/* object_find calls match for each object of the kind until it says yes. */
void *object_find(enum object_kind kind, bool (*match)(void *object, const void *key), const void *key);

/* objects_forget_in_child: a forked child starts with none, and *flag false. */
void objects_forget_in_child(bool *flag);

/* The GPU's memory is given in pages of 2 MiB. Up to a MiB shares pages with others of its context, in the first one
 * that has room; what is larger has pages of its own (as driver 580 does it on an H100). */
bool pages_take(CUcontext context, int gpu, uint64_t bytes, struct page **page, CUdeviceptr *address);
void pages_give(int gpu, uint64_t bytes, struct page *page, CUdeviceptr address);

bool memory_new(CUcontext context, int gpu, uint64_t bytes, CUdeviceptr *p);
bool memory_free(CUdeviceptr p);
bool memory_range(CUdeviceptr p, CUdeviceptr *base, size_t *size);
void free_context_memory(CUcontext context);
CUdeviceptr address_new(uint64_t bytes);

/* pools_reset and graphs_reset: the device is reset. What it had allocated in graphs is freed, and
 * so is the memory of pools that were destroyed. Other pools keep theirs. */
void pools_reset(CUdevice d);
void graphs_reset(CUdevice d);

bool pool_memory_free(CUdeviceptr p);
bool graph_memory_free(CUdeviceptr p);

/* synchronised: the host has waited for the GPU, which is when pools give back what is above their thresholds. */
void synchronised(void);

int device_gpu(CUdevice d);

/* location_device is the device that memory of a location takes: -1 for the host's, LOCATION_UNKNOWN for one that is
 * none. Managed memory moves to the device that uses it: here it is always on one, the current one if none is named. A
 * later driver may have more kinds of locations: here that is LOCATION_LATER, on a device. */
enum { LOCATION_UNKNOWN = -2, LOCATION_LATER = 99 };
int location_device(const CUmemLocation *l, int allocation_type);
CUcontext device_current(void);

/* ptsz is the stream that a call of the kind _ptsz means: stream 0 is the per-thread default stream. */
static inline CUstream ptsz(CUstream s) { return s ? s : CU_STREAM_PER_THREAD; }

/* stream_gpu is where a stream runs what is launched into it: -1 is a handle that is none, STREAM_CAPTURES nowhere yet. */
enum { STREAM_CAPTURES = -2 };
int stream_gpu(CUstream s);

/* launched counts one launch, and has the GPU run it. launches_end waits until the current device has run all. */
CUresult launched(CUstream s);
void launches_end(void);
