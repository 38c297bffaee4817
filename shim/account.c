/* Publish, then sum. A process adds to its own slot what it is about to allocate, and only then
 * adds up all slots, from the 65th on by blocks (sums.h). Of two processes that together would
 * exceed the limit, the one that published last sees the other. No word has two writing processes,
 * so no counter can drift. No lock outlives its process: the kernel releases it with the slot's
 * mapping. */
#include "account.h"

#include "os.h"
#include "record.h"
#include "sums.h"

#include <stddef.h>

#define LOAD(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)

static struct os_spin files; /* held while a descriptor of the region is open */
static unsigned int forks;   /* that have begun and are not over; under files */
static const struct record_limits *limits;
static struct record_head *head; /* set last: a thread that sees it set sees the others set */
static struct record_slot *mine; /* NULL until the process has a slot */
static uint64_t *changes;        /* of the slot; set before mine */
static const char *region_path;

/* A child would inherit an open descriptor of the region, with its lock. So a fork waits until none
 * is open, and none is opened until the fork is over. No lock is held during the fork: the program's
 * own handlers run after before_fork, and may wait for a lock of a thread that is in lock_files. So
 * lock_files gives up a fork that takes long. By then the fork waits for something, or the kernel
 * has copied the descriptors, which it does first. */
static void before_fork(void)
{
    os_spin_lock(&files);
    forks++;
    os_spin_unlock(&files);
}

static void in_parent(void)
{
    os_spin_lock(&files);
    if (forks > 0) forks--; /* 0: given up */
    os_spin_unlock(&files);
}

/* The mapping of the parent's slot is not inherited (MADV_DONTFORK). The limits stay mapped. */
static void in_child(void)
{
    mine = NULL;
    head = NULL;
    sums_reset();
    forks = 0;
    os_spin_unlock(&files);
}

static void lock_files(void)
{
    enum { MILLISECONDS = 100 };

    os_spin_lock(&files);
    for (int waited = 0; forks > 0; waited++) {
        os_spin_unlock(&files);
        os_pause(1000);
        os_spin_lock(&files);
        if (waited >= MILLISECONDS) forks = 0;
    }
}

static bool limits_valid(const struct record_limits *l)
{
    return l->magic == RECORD_LIMITS_MAGIC && l->version == RECORD_VERSION && l->devices <= RECORD_DEVICES;
}

static bool region_valid(const struct record_head *h)
{
    return h->magic == RECORD_REGION_MAGIC && h->version == RECORD_VERSION &&
           (h->slots & ~RECORD_COUNTED) == RECORD_SLOTS && h->slot_size == sizeof(struct record_slot) &&
           h->id == limits->id && h->devices == limits->devices;
}

static bool open_limits(const char *path)
{
    static bool registered;
    const struct record_limits *l = limits;

    if (!registered) registered = os_at_fork(before_fork, in_parent, in_child);
    if (!registered) return false;
    if (l) return true;
    l = os_map_limits(path, RECORD_PAGE);
    if (!l || !limits_valid(l)) return false;
    __atomic_store_n(&limits, l, __ATOMIC_SEQ_CST);
    return true;
}

static struct record_slot *slot_at(struct record_head *h, uint32_t i)
{
    return (struct record_slot *)((char *)h + RECORD_SLOT(i));
}

/* raise_high makes every reader include slot i. It comes before the slot's first word is written: a
 * reader that did not include slot i had published before, so the slot's owner sees what it
 * published. */
static void raise_high(struct record_head *h, uint32_t i)
{
    uint32_t high = LOAD(&h->high);

    while (high <= i &&
           !__atomic_compare_exchange_n(&h->high, &high, i + 1, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}

static void empty(struct record_head *h, uint32_t i)
{
    struct record_slot *s = slot_at(h, i);

    for (int d = 0; d < RECORD_DEVICES; d++) {
        if (!LOAD(&s->used[d])) continue;
        __atomic_store_n(&s->used[d], 0, __ATOMIC_SEQ_CST);
        sums_changed(sums_changes(h, i), d);
    }
}

/* Up to this many slots a sum costs little, and the mark stays. It is also the step in which free
 * slots are looked for. */
#define STEP RECORD_SINGLE

/* owned_below returns one more than the highest slot below `high` that a process has. */
static uint32_t owned_below(int fd, uint32_t high)
{
    uint64_t from = high, end;

    do {
        end = from;
        from = from > STEP ? from - STEP : 0;
    } while (from > 0 && os_locked(fd, from, end - from) == from);
    for (uint64_t next; (next = os_locked(fd, from, end - from)) > from && from < end; from = next) {}
    return from < end ? (uint32_t)from : (uint32_t)end;
}

/* lower_high brings the mark down after processes have ended. It holds the locks of all slots that
 * it leaves out: a process raises the mark after it has locked its slot, and only for a slot above
 * the mark. So if the mark is still the same, no process has one of them. A process that is killed
 * here leaves nothing, because its locks go with the descriptor. */
static void lower_high(struct record_head *h)
{
    uint32_t high = LOAD(&h->high), to;
    int fd;

    if (high <= STEP || high > RECORD_SLOTS) return;
    fd = os_open_region(region_path, RECORD_REGION_SIZE); /* its own locks */
    if (fd < 0) return;
    to = owned_below(fd, high);
    if (to < high && os_lock(fd, to, high - to)) {
        for (uint32_t i = to; i < high; i++) empty(h, i);
        __atomic_compare_exchange_n(&h->high, &high, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    os_close(fd);
}

/* claim takes the lowest free slot, so that sums stay short. */
static struct record_slot *claim(struct record_head *h, int fd)
{
    for (uint32_t i = 0; i < RECORD_SLOTS; i++) {
        struct record_slot *s = slot_at(h, i);
        if (!os_lock(fd, i, 1)) continue;
        raise_high(h, i);
        empty(h, i);
        __atomic_store_n(&s->pid, os_pid(), __ATOMIC_RELAXED);
        __atomic_fetch_add(&s->claims, 1, __ATOMIC_RELAXED);
        return s;
    }
    return NULL;
}

/* open_region maps the region. The descriptor is closed at once: a program that closes descriptors
 * which it did not open (daemons do) would release the lock, and the number would become another
 * file's. The mapping keeps the lock. At exit it also releases the lock after the driver's
 * descriptors are closed, because exit frees the mappings first and the kernel ends files in the
 * reverse order. So what a dying process holds is counted for as long as the driver has it. */
static bool open_region(bool join)
{
    int fd = os_open_region(region_path, RECORD_REGION_SIZE);
    struct record_head *h;
    struct record_slot *s = NULL;

    if (fd < 0) return false;
    h = os_map_region(fd, RECORD_REGION_SIZE);
    if (h && region_valid(h) && join) s = claim(h, fd);
    os_close(fd);
    if (s) lower_high(h);
    if (!h) return false;
    if (!region_valid(h) || (join && !s)) {
        os_pages_free(h, RECORD_REGION_SIZE);
        return false;
    }
    __atomic_store_n(&head, h, __ATOMIC_SEQ_CST);
    if (s) changes = sums_changes(h, (uint32_t)(s - slot_at(h, 0)));
    __atomic_store_n(&mine, s, __ATOMIC_SEQ_CST);
    return true;
}

bool account_open(const char *limits_file, const char *region_file)
{
    bool ok;

    if (LOAD(&head)) return true;
    lock_files();
    region_path = region_file;
    ok = head || (open_limits(limits_file) && open_region(false));
    os_spin_unlock(&files);
    return ok;
}

/* join maps the region again, with a slot. The mapping without a slot stays: another thread may be
 * reading it. */
static struct record_slot *join(void)
{
    struct record_slot *s;

    lock_files();
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

/* The last sum of each device. It is a hint for the next one and may be wrong. */
static uint64_t recent[RECORD_DEVICES];

/* sum adds up a device's use. An invalid word makes it UINT64_MAX. */
static uint64_t sum(struct record_head *h, int device)
{
    uint32_t high = LOAD(&h->high);
    const uint64_t *used = &slot_at(h, 0)->used[device];
    uint64_t total = LOAD(&limits->device[device].overhead), bits = total, blocks;

    if (high > RECORD_SLOTS) high = RECORD_SLOTS;
    if (high > RECORD_SINGLE && sums_blocks(h, device, high, &blocks)) {
        total += blocks;
        bits |= blocks;
        high = RECORD_SINGLE;
    }
#pragma GCC unroll 8 /* over 64 slots it saves 9 of 57 ns */
    for (uint32_t i = 0; i < high; i++, used += sizeof(struct record_slot) / sizeof *used) {
        uint64_t one = LOAD(used);
        total += one;
        bits |= one;
    }
    if (bits & INVALID_BITS) total = UINT64_MAX;
    __atomic_store_n(&recent[device], total, __ATOMIC_RELAXED);
    return total;
}

/* try_take publishes and then sums. What cannot fit is not published, because it would only make
 * others fail: if it does not fit by the last sum, a new sum is made first. */
static bool try_take(struct record_head *h, struct record_slot *s, int device, uint64_t bytes)
{
    uint64_t limit = LOAD(&limits->device[device].bytes);
    uint64_t used = __atomic_load_n(&recent[device], __ATOMIC_RELAXED);

    if (bytes > limit) return false;
    if (used > limit - bytes && sum(h, device) > limit - bytes) return false;
    __atomic_fetch_add(&s->used[device], bytes, __ATOMIC_SEQ_CST);
    sums_changed(changes, device);
    if (sum(h, device) <= LOAD(&limits->device[device].bytes)) return true;
    __atomic_fetch_sub(&s->used[device], bytes, __ATOMIC_SEQ_CST);
    sums_changed(changes, device);
    return false;
}

/* take_again is for what did not fit. A dead process may have held memory, or ended before it counted
 * that it gave some back, or others may have published what they then did not get. Where processes
 * make each other fail, the pauses let one of them succeed. */
static bool take_again(struct record_slot *s, int device, uint64_t bytes)
{
    struct record_head *h = LOAD(&head);

    if (bytes > LOAD(&limits->device[device].bytes)) return false;
    account_reap();
    sums_forget();
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

/* A forked child has no slot until it allocates: what it frees before is the parent's. */
void account_give(int device, uint64_t bytes)
{
    struct record_slot *s = LOAD(&mine);
    uint64_t had, left;

    if (!s || device < 0 || device >= RECORD_DEVICES) return;
    had = LOAD(&s->used[device]);
    do left = had > bytes ? had - bytes : 0;
    while (!__atomic_compare_exchange_n(&s->used[device], &had, left, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST));
    sums_changed(changes, device);
}

uint64_t account_context(int device)
{
    const struct record_limits *l = LOAD(&limits);
    return l && device >= 0 && device < RECORD_DEVICES ? LOAD(&l->device[device].context) : 0;
}

static bool in_use(const struct record_slot *s)
{
    for (int d = 0; d < RECORD_DEVICES; d++)
        if (LOAD(&s->used[d])) return true;
    return false;
}

/* A slot whose lock is free has no owner. The lock makes this process its owner while it empties
 * the slot. */
unsigned int account_reap(void)
{
    struct record_head *h;
    unsigned int reaped = 0;
    int fd = -1;

    lock_files();
    h = head;
    for (uint32_t i = 0; h && i < RECORD_SLOTS && i < LOAD(&h->high); i++) {
        struct record_slot *s = slot_at(h, i);
        if (s == mine || !in_use(s)) continue;
        if (fd < 0) fd = os_open_region(region_path, RECORD_REGION_SIZE);
        if (fd < 0) break;
        if (!os_lock(fd, i, 1)) continue;
        empty(h, i);
        reaped++;
    }
    if (fd >= 0) os_close(fd);
    if (h) lower_high(h);
    os_spin_unlock(&files);
    return reaped;
}

struct account_usage account_usage(int device)
{
    struct record_head *h = LOAD(&head);
    struct account_usage u = {0, 0, 0};

    if (!h || device < 0 || device >= RECORD_DEVICES) return u;
    account_reap();
    sums_forget();
    u.total = LOAD(&limits->device[device].bytes);
    u.used = sum(h, device);
    if (u.used > u.total) u.used = u.total; /* a smaller grant, or overhead */
    u.free = u.total - u.used;
    return u;
}

unsigned int account_processes(int device, struct account_process *list, unsigned int room)
{
    struct record_head *h = LOAD(&head);
    unsigned int found = 0;

    if (!h || device < 0 || device >= RECORD_DEVICES) return 0;
    account_reap();
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
