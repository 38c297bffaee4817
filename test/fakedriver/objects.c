/* The list of objects, and plain memory. */
#define _GNU_SOURCE
#include "objects.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t driver = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct object *list;
static bool *flag_of_readiness;

int driver_enter(void) { return pthread_mutex_lock(&driver); }
void driver_leave(const int *unused)
{
    (void)unused;
    pthread_mutex_unlock(&driver);
}

void *object_new(enum object_kind kind, size_t size)
{
    struct object *o = calloc(1, size);

    o->kind = kind;
    pthread_mutex_lock(&mutex);
    o->next = list;
    if (list) list->previous = o;
    list = o;
    pthread_mutex_unlock(&mutex);
    return o;
}

static void unlink_object(struct object *o)
{
    if (o->next) o->next->previous = o->previous;
    if (o->previous) o->previous->next = o->next;
    else list = o->next;
}

void object_delete(struct object *o)
{
    pthread_mutex_lock(&mutex);
    unlink_object(o);
    pthread_mutex_unlock(&mutex);
    free(o);
}

void *object_find(enum object_kind kind, bool (*match)(void *, const void *), const void *key)
{
    struct object *o;

    pthread_mutex_lock(&mutex);
    for (o = list; o; o = o->next)
        if (o->kind == kind && match(o, key)) break;
    pthread_mutex_unlock(&mutex);
    return o;
}

static bool same(void *object, const void *key) { return object == key; }
bool object_is(const void *handle, enum object_kind kind) { return handle && object_find(kind, same, handle); }

static void forget(void)
{
    list = NULL; /* the parent's, and leaked: its memory is a copy */
    if (flag_of_readiness) *flag_of_readiness = false;
    pthread_mutex_init(&mutex, NULL);
    driver = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

void objects_forget_in_child(bool *flag)
{
    if (flag_of_readiness) return;
    flag_of_readiness = flag;
    pthread_atfork(NULL, NULL, forget);
}

/* ---- memory ---- */

struct memory { struct object head; CUcontext context; int gpu; uint64_t bytes; CUdeviceptr address; };

/* A GPU's addresses are given out once; 2 MiB apart at least, as the driver's pages are. */
CUdeviceptr address_new(uint64_t bytes)
{
    static CUdeviceptr next = 0x7f0000000000;
    return __atomic_fetch_add(&next, (bytes + (2 << 20) - 1) & ~(CUdeviceptr)((2 << 20) - 1), __ATOMIC_RELAXED);
}

static CUdeviceptr low_address(uint64_t bytes)
{
    static CUdeviceptr next = 0x10000;
    return __atomic_fetch_add(&next, (bytes + 511) & ~(CUdeviceptr)511, __ATOMIC_RELAXED);
}

bool memory_new(CUcontext context, int gpu, uint64_t bytes, CUdeviceptr *p)
{
    struct memory *m;

    if (!shared_add(gpu, SHARED_MEMORY, bytes)) return false;
    m = object_new(OBJECT_MEMORY, sizeof *m);
    m->context = context;
    m->gpu = gpu;
    m->bytes = bytes;
    m->address = *p == MEMORY_BELOW_4G ? low_address(bytes) : address_new(bytes);
    *p = m->address;
    return true;
}

static bool at(void *m, const void *p) { return ((struct memory *)m)->address == *(const CUdeviceptr *)p; }
static bool within(void *object, const void *p)
{
    const struct memory *m = object;
    return *(const CUdeviceptr *)p - m->address < m->bytes;
}
static bool of(void *m, const void *context) { return ((struct memory *)m)->context == context; }
static bool array_of(void *a, const void *context) { return ((CUarray)a)->context == context; }

static void discard(struct memory *m)
{
    shared_sub(m->gpu, SHARED_MEMORY, m->bytes);
    object_delete(&m->head);
}

bool memory_free(CUdeviceptr p)
{
    struct memory *m = object_find(OBJECT_MEMORY, at, &p);

    if (m) discard(m);
    return m != NULL;
}

bool memory_range(CUdeviceptr p, CUdeviceptr *base, size_t *size)
{
    const struct memory *m = object_find(OBJECT_MEMORY, within, &p);

    if (m && base) *base = m->address;
    if (m && size) *size = m->bytes;
    return m != NULL;
}

void free_context_memory(CUcontext context)
{
    static const enum object_kind arrays[] = {OBJECT_ARRAY, OBJECT_MIPMAP, OBJECT_MODULE};
    struct memory *m;
    CUarray a;

    while ((m = object_find(OBJECT_MEMORY, of, context))) discard(m);
    for (int i = 0; i < 3; i++)
        while ((a = object_find(arrays[i], array_of, context))) {
            shared_sub(a->gpu, SHARED_MEMORY, a->bytes);
            object_delete(&a->head);
        }
}
