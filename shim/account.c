/* Publish, then sum. A process adds to its own slot what it is about to allocate and only then adds up all slots: of two
 * that together would exceed the limit, the one that published last sees the other. No word has two writing
 * processes, so there is no counter to drift, and a lock that outlives its process does not exist: the kernel drops it
 * when the slot's mapping goes. */
#include "account.h"

#include "os.h"
#include "record.h"

#include <stddef.h>

#define LOAD(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)

static struct os_spin files; /* held while a descriptor of the region is open */
static const struct record_limits *limits;
static struct record_head *head; /* set last: who sees it sees the rest */
static struct record_slot *mine; /* NULL until the process has a slot */
static const char *region_path;

/* A fork waits until no descriptor of the region is open: the child would inherit it, and with it the lock. */
static void before_fork(void) { os_spin_lock(&files); }
static void in_parent(void) { os_spin_unlock(&files); }

/* in_child forgets the parent's slot: the mapping was not inherited (MADV_DONTFORK). The limits stay mapped. */
static void in_child(void)
{
    mine = NULL;
    head = NULL;
    os_spin_unlock(&files);
}

static bool limits_sound(const struct record_limits *l)
{
    return l->magic == RECORD_LIMITS_MAGIC && l->version == RECORD_VERSION && l->devices <= RECORD_DEVICES;
}

static bool region_sound(const struct record_head *h)
{
    return h->magic == RECORD_REGION_MAGIC && h->version == RECORD_VERSION && h->slots == RECORD_SLOTS &&
           h->slot_size == sizeof(struct record_slot) && h->id == limits->id && h->devices == limits->devices;
}

static bool open_limits(const char *path)
{
    static bool registered;
    const struct record_limits *l = limits;

    if (!registered) registered = os_at_fork(before_fork, in_parent, in_child);
    if (!registered) return false;
    if (l) return true;
    l = os_map_limits(path, RECORD_PAGE);
    if (!l || !limits_sound(l)) return false;
    __atomic_store_n(&limits, l, __ATOMIC_SEQ_CST);
    return true;
}

static struct record_slot *slot_at(struct record_head *h, uint32_t i)
{
    return (struct record_slot *)((char *)h + RECORD_SLOT(i));
}

/* raise_high makes every reader look as far as slot i. It comes before the slot's first word is written: a reader that
 * did not look that far had published before, so the slot's owner sees it. */
static void raise_high(struct record_head *h, uint32_t i)
{
    uint32_t high = LOAD(&h->high);

    while (high <= i && !__atomic_compare_exchange_n(&h->high, &high, i + 1, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}

static void empty(struct record_slot *s)
{
    for (int d = 0; d < RECORD_DEVICES; d++)
        if (LOAD(&s->used[d])) __atomic_store_n(&s->used[d], 0, __ATOMIC_SEQ_CST);
}

/* claim takes the lowest slot that is free, so that sums stay short. */
static struct record_slot *claim(struct record_head *h, int fd)
{
    for (uint32_t i = 0; i < RECORD_SLOTS; i++) {
        struct record_slot *s = slot_at(h, i);
        if (!os_lock(fd, i)) continue;
        raise_high(h, i);
        empty(s);
        __atomic_store_n(&s->pid, os_pid(), __ATOMIC_RELAXED);
        __atomic_fetch_add(&s->claims, 1, __ATOMIC_RELAXED);
        return s;
    }
    return NULL;
}

/* open_region maps the region. The descriptor is closed at once: a program that closes all it did not open
 * (daemons do) would drop the lock, and the number would become another file's. The mapping keeps both. It also lets
 * go of the lock after the driver's descriptors are closed, because exit frees the mappings first and the kernel ends files
 * in the reverse order: what a dying process holds is still counted while the driver still has it. */
static bool open_region(bool join)
{
    int fd = os_open_region(region_path, RECORD_REGION_SIZE);
    struct record_head *h;
    struct record_slot *s = NULL;

    if (fd < 0) return false;
    h = os_map_region(fd, RECORD_REGION_SIZE);
    if (h && region_sound(h) && join) s = claim(h, fd);
    os_close(fd);
    if (!h) return false;
    if (!region_sound(h) || (join && !s)) {
        os_pages_free(h, RECORD_REGION_SIZE);
        return false;
    }
    __atomic_store_n(&head, h, __ATOMIC_SEQ_CST);
    __atomic_store_n(&mine, s, __ATOMIC_SEQ_CST);
    return true;
}

bool account_open(const char *limits_file, const char *region_file)
{
    bool ok;

    if (LOAD(&head)) return true;
    os_spin_lock(&files);
    region_path = region_file;
    ok = head || (open_limits(limits_file) && open_region(false));
    os_spin_unlock(&files);
    return ok;
}

/* join maps the region once more, with a slot. The mapping without one stays: another thread may be reading it. */
static struct record_slot *join(void)
{
    struct record_slot *s;

    os_spin_lock(&files);
    if (!mine && limits && region_path) open_region(true);
    s = mine;
    os_spin_unlock(&files);
    return s;
}

bool account_join(void) { return LOAD(&mine) || join(); }

int account_device(const uint8_t uuid[16])
{
    const struct record_limits *l = LOAD(&limits);

    for (uint32_t d = 0; l && d < l->devices && d < RECORD_DEVICES; d++)
        if (__builtin_memcmp(l->device[d].uuid, uuid, 16) == 0) return (int)d;
    return -1;
}

/* No device has this much memory: a word with such a bit is nonsense, and without them no sum can overflow. */
#define NONSENSE (~UINT64_C(0) << 48)

/* What the last sum was. A hint for the next one, of no consequence when it is wrong. */
static uint64_t recent[RECORD_DEVICES];

/* sum adds up a device's use; nonsense in it makes it the largest number. */
static uint64_t sum(struct record_head *h, int device)
{
    uint32_t high = LOAD(&h->high);
    const uint64_t *used = &slot_at(h, 0)->used[device];
    uint64_t total = LOAD(&limits->device[device].overhead), bits = total;

    if (high > RECORD_SLOTS) high = RECORD_SLOTS;
#pragma GCC unroll 8 /* over 64 slots it saves 9 of 57 ns */
    for (uint32_t i = 0; i < high; i++, used += sizeof(struct record_slot) / sizeof *used) {
        uint64_t one = LOAD(used);
        total += one;
        bits |= one;
    }
    if (bits & NONSENSE) total = UINT64_MAX;
    __atomic_store_n(&recent[device], total, __ATOMIC_RELAXED);
    return total;
}

/* try_take publishes and then sums. What can't fit is not published, because it would only make others fail: where the
 * last sum leaves doubt, a sum comes first. */
static bool try_take(struct record_head *h, struct record_slot *s, int device, uint64_t bytes)
{
    uint64_t limit = LOAD(&limits->device[device].bytes), used = __atomic_load_n(&recent[device], __ATOMIC_RELAXED);

    if (bytes > limit) return false;
    if (used > limit - bytes && sum(h, device) > limit - bytes) return false;
    __atomic_fetch_add(&s->used[device], bytes, __ATOMIC_SEQ_CST);
    if (sum(h, device) <= LOAD(&limits->device[device].bytes)) return true;
    __atomic_fetch_sub(&s->used[device], bytes, __ATOMIC_SEQ_CST);
    return false;
}

/* take_again is for what did not fit: perhaps a dead process still held something, perhaps others had published what
 * they then did not get. Of racers that keep failing each other the pauses let one through. */
static bool take_again(struct record_slot *s, int device, uint64_t bytes)
{
    struct record_head *h = LOAD(&head);

    if (bytes > LOAD(&limits->device[device].bytes)) return false;
    account_bury();
    for (unsigned int i = 0; i < 3; i++) {
        if (try_take(h, s, device, bytes)) return true;
        os_pause(1 + (os_pid() * 2654435761u >> 8 * i) % 50);
    }
    return false;
}

bool account_take(int device, uint64_t bytes)
{
    struct record_slot *s = LOAD(&mine);

    if (!s) s = join();
    if (!s || device < 0 || device >= RECORD_DEVICES) return false;
    return try_take(LOAD(&head), s, device, bytes) || take_again(s, device, bytes);
}

/* account_give after a fork is about memory that is the parent's. */
void account_give(int device, uint64_t bytes)
{
    struct record_slot *s = LOAD(&mine);
    uint64_t had, left;

    if (!s || device < 0 || device >= RECORD_DEVICES) return;
    had = LOAD(&s->used[device]);
    do left = had > bytes ? had - bytes : 0;
    while (!__atomic_compare_exchange_n(&s->used[device], &had, left, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}

static bool in_use(const struct record_slot *s)
{
    for (int d = 0; d < RECORD_DEVICES; d++)
        if (LOAD(&s->used[d])) return true;
    return false;
}

/* account_bury: a slot whose lock can be had has no owner. Whoever gets the lock is its owner for the moment. */
unsigned int account_bury(void)
{
    struct record_head *h;
    unsigned int buried = 0;
    int fd = -1;

    os_spin_lock(&files);
    h = head;
    for (uint32_t i = 0; h && i < RECORD_SLOTS && i < LOAD(&h->high); i++) {
        struct record_slot *s = slot_at(h, i);
        if (s == mine || !in_use(s)) continue;
        if (fd < 0) fd = os_open_region(region_path, RECORD_REGION_SIZE);
        if (fd < 0) break;
        if (!os_lock(fd, i)) continue;
        empty(s);
        buried++;
    }
    if (fd >= 0) os_close(fd);
    os_spin_unlock(&files);
    return buried;
}

struct account_view account_look(int device)
{
    struct record_head *h = LOAD(&head);
    struct account_view v = {0, 0, 0};

    if (!h || device < 0 || device >= RECORD_DEVICES) return v;
    account_bury();
    v.total = LOAD(&limits->device[device].bytes);
    v.used = sum(h, device);
    if (v.used > v.total) v.used = v.total; /* a grant that was shrunk, or overhead beyond it */
    v.free = v.total - v.used;
    return v;
}

unsigned int account_processes(int device, struct account_process *list, unsigned int room)
{
    struct record_head *h = LOAD(&head);
    unsigned int found = 0;

    if (!h || device < 0 || device >= RECORD_DEVICES) return 0;
    account_bury();
    for (uint32_t i = 0; i < RECORD_SLOTS && i < LOAD(&h->high); i++) {
        struct record_slot *s = slot_at(h, i);
        uint64_t used = LOAD(&s->used[device]);
        if (used && found++ < room) list[found - 1] = (struct account_process){LOAD(&s->pid), used};
    }
    return found;
}

bool account_gate(int device, struct account_gate *g)
{
    const struct record_limits *l = LOAD(&limits);

    if (!l || device < 0 || device >= RECORD_DEVICES) return false;
    g->share = LOAD(&l->device[device].share);
    if (g->share == 0) return false;
    g->gate = LOAD(&l->device[device].gate);
    g->beat = LOAD(&l->beat);
    g->phase = l->id >> 32;
    return true;
}

int account_devices(void)
{
    const struct record_limits *l = LOAD(&limits);
    return l ? (int)l->devices : 0;
}
