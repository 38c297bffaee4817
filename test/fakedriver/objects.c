/* The list of objects, and plain memory. */
#define _GNU_SOURCE
#include "objects.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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

void object_add(struct object *o, enum object_kind kind)
{
    o->kind = kind;
    o->previous = NULL;
    pthread_mutex_lock(&mutex);
    o->next = list;
    if (list) list->previous = o;
    list = o;
    pthread_mutex_unlock(&mutex);
}

void *object_new(enum object_kind kind, size_t size)
{
    struct object *o = calloc(1, size);

    object_add(o, kind);
    return o;
}

static void unlink_object(struct object *o)
{
    if (o->next) o->next->previous = o->previous;
    if (o->previous) o->previous->next = o->next;
    else list = o->next;
}

void object_remove(struct object *o)
{
    pthread_mutex_lock(&mutex);
    unlink_object(o);
    pthread_mutex_unlock(&mutex);
}

void object_delete(struct object *o)
{
    object_remove(o);
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

enum { PAGE = 2 << 20, BLOCK = 512, BLOCKS = PAGE / BLOCK };

struct page {
    struct object head;
    CUcontext context;
    int gpu;
    bool low;
    CUdeviceptr address;
    unsigned int used;
    bool taken[BLOCKS];
};

static uint64_t round_up(uint64_t bytes, uint64_t to) { return bytes > UINT64_MAX - to ? bytes : (bytes + to - 1) & ~(to - 1); }

/* Addresses of a GPU are given out once. The old entry points have pointers of 32 bits. */
CUdeviceptr address_new(uint64_t bytes)
{
    static CUdeviceptr next = 0x7f0000000000;
    return __atomic_fetch_add(&next, round_up(bytes, PAGE), __ATOMIC_RELAXED);
}

static CUdeviceptr low_address(uint64_t bytes)
{
    static CUdeviceptr next = PAGE;
    return __atomic_fetch_add(&next, round_up(bytes, PAGE), __ATOMIC_RELAXED);
}

/* room is the first of so many free blocks in a row, BLOCKS if there are none. */
static unsigned int room(const struct page *p, unsigned int blocks)
{
    for (unsigned int at = 0, free = 0; at < BLOCKS; at++) {
        free = p->taken[at] ? 0 : free + 1;
        if (free == blocks) return at + 1 - blocks;
    }
    return BLOCKS;
}

struct place { CUcontext context; int gpu; bool low; unsigned int blocks; };

static bool has_room(void *object, const void *key)
{
    const struct page *p = object;
    const struct place *wanted = key;
    return p->context == wanted->context && p->gpu == wanted->gpu && p->low == wanted->low && room(p, wanted->blocks) < BLOCKS;
}

static struct page *page_new(const struct place *place)
{
    struct page *p;

    if (!shared_add(place->gpu, SHARED_MEMORY, PAGE)) return NULL;
    p = object_new(OBJECT_PAGE, sizeof *p);
    p->context = place->context;
    p->gpu = place->gpu;
    p->low = place->low;
    p->address = p->low ? low_address(PAGE) : address_new(PAGE);
    return p;
}

bool pages_take(CUcontext context, int gpu, uint64_t bytes, struct page **page, CUdeviceptr *address)
{
    struct place place = {context, gpu, *address == MEMORY_BELOW_4G, (unsigned int)((bytes + BLOCK - 1) / BLOCK)};
    unsigned int first;
    GUARD;

    *page = NULL;
    if (bytes > PAGE / 2 || bytes == 0) {
        if (!shared_add(gpu, SHARED_MEMORY, round_up(bytes, PAGE))) return false;
        *address = place.low ? low_address(bytes) : address_new(bytes);
        return true;
    }
    *page = object_find(OBJECT_PAGE, has_room, &place);
    if (!*page && !(*page = page_new(&place))) return false;
    first = room(*page, place.blocks);
    memset((*page)->taken + first, true, place.blocks);
    (*page)->used += place.blocks;
    *address = (*page)->address + (CUdeviceptr)first * BLOCK;
    return true;
}

void pages_give(int gpu, uint64_t bytes, struct page *page, CUdeviceptr address)
{
    unsigned int blocks = (unsigned int)((bytes + BLOCK - 1) / BLOCK);
    GUARD;

    if (!page) {
        shared_sub(gpu, SHARED_MEMORY, round_up(bytes, PAGE));
        return;
    }
    memset(page->taken + (address - page->address) / BLOCK, false, blocks);
    page->used -= blocks;
    if (page->used > 0) return;
    shared_sub(gpu, SHARED_MEMORY, PAGE);
    object_delete(&page->head);
}

struct memory { struct object head; CUcontext context; int gpu; uint64_t bytes; CUdeviceptr address; struct page *page; };

bool memory_new(CUcontext context, int gpu, uint64_t bytes, CUdeviceptr *p)
{
    struct memory *m;
    struct page *page;
    CUdeviceptr address = *p;

    if (!pages_take(context, gpu, bytes, &page, &address)) return false;
    m = object_new(OBJECT_MEMORY, sizeof *m);
    m->page = page;
    m->context = context;
    m->gpu = gpu;
    m->bytes = bytes;
    *p = m->address = address;
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
    pages_give(m->gpu, m->bytes, m->page, m->address);
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
            pages_give(a->gpu, a->bytes, a->page, a->address);
            object_delete(&a->head);
        }
}
