/* Hash tables with open addressing, one for each shard, so that threads seldom wait for the same
 * lock. */
#include "track.h"

#include "os.h"

#include <stddef.h>

enum { SHARDS = 64, FIRST_BUCKETS = 64 }; /* buckets are a power of two */

struct shard {
    struct os_spin lock;
    uint32_t buckets, used;
    struct track *table;
} __attribute__((aligned(64)));

static struct shard shards[SHARDS];

/* hash puts up to 16 neighbours side by side. Small allocations are 512 bytes apart, so successive
 * ones are then in the same cache lines and the same page. Longer runs would collide with each
 * other. */
static uint64_t hash(enum track_kind kind, uint64_t key)
{
    uint64_t run = (key >> 13 ^ (uint64_t)kind << 56) * UINT64_C(0x9e3779b97f4a7c15);
    return (run ^ (run >> 32 & UINT32_MAX)) + (key >> 9 & 0xf);
}

static struct shard *lock_shard(uint64_t h)
{
    struct shard *s = &shards[h >> 58];
    os_spin_lock(&s->lock);
    return s;
}

/* bucket_of is the bucket of the key, or the free bucket where it belongs. */
static uint32_t bucket_of(const struct shard *s, enum track_kind kind, uint64_t key, uint64_t h)
{
    uint32_t i = (uint32_t)h & (s->buckets - 1);

    while (s->table[i].kind && (s->table[i].key != key || s->table[i].kind != kind)) i = (i + 1) & (s->buckets - 1);
    return i;
}

static bool grow(struct shard *s)
{
    struct shard larger = {.buckets = s->buckets ? s->buckets * 2 : FIRST_BUCKETS};

    if (s->buckets > 0 && s->used < s->buckets / 2) return true;
    larger.table = os_pages(larger.buckets * sizeof *larger.table);
    if (!larger.table) return s->used + 1 < s->buckets; /* one stays free: it ends every search */
    for (uint32_t i = 0; i < s->buckets; i++) {
        const struct track *t = &s->table[i];
        if (t->kind) larger.table[bucket_of(&larger, t->kind, t->key, hash(t->kind, t->key))] = *t;
    }
    if (s->table) os_pages_free(s->table, s->buckets * sizeof *s->table);
    s->table = larger.table;
    s->buckets = larger.buckets;
    return true;
}

/* remove_bucket empties bucket i and moves later entries forward, so that no search ends before
 * them. */
static void remove_bucket(struct shard *s, uint32_t i)
{
    uint32_t mask = s->buckets - 1;

    s->used--;
    for (uint32_t j = (i + 1) & mask; s->table[j].kind; j = (j + 1) & mask) {
        uint32_t home = (uint32_t)hash(s->table[j].kind, s->table[j].key) & mask;
        if (((j - home) & mask) < ((j - i) & mask)) continue;
        s->table[i] = s->table[j];
        i = j;
    }
    s->table[i].kind = 0;
}

bool track_put(const struct track *t, struct track *old)
{
    uint64_t h = hash(t->kind, t->key);
    struct shard *s = lock_shard(h);
    bool ok = grow(s);

    old->kind = 0;
    if (ok) {
        uint32_t i = bucket_of(s, t->kind, t->key, h);
        if (s->table[i].kind) *old = s->table[i];
        else s->used++;
        s->table[i] = *t;
    }
    os_spin_unlock(&s->lock);
    return ok;
}

/* lock_and_copy copies the entry, if there is one, and leaves its shard locked. */
static struct shard *lock_and_copy(enum track_kind kind, uint64_t key, struct track *copy, uint32_t *i)
{
    uint64_t h = hash(kind, key);
    struct shard *s = lock_shard(h);

    copy->kind = 0;
    if (s->buckets > 0) {
        *i = bucket_of(s, kind, key, h);
        *copy = s->table[*i];
    }
    return s;
}

bool track_find(enum track_kind kind, uint64_t key, struct track *found)
{
    uint32_t i;
    os_spin_unlock(&lock_and_copy(kind, key, found, &i)->lock);
    return found->kind != 0;
}

bool track_remove(enum track_kind kind, uint64_t key, struct track *removed)
{
    uint32_t i = 0;
    struct shard *s = lock_and_copy(kind, key, removed, &i);

    if (removed->kind) remove_bucket(s, i);
    os_spin_unlock(&s->lock);
    return removed->kind != 0;
}

bool track_count(enum track_kind kind, uint64_t key, int by, struct track *t)
{
    uint32_t i = 0;
    struct shard *s = lock_and_copy(kind, key, t, &i);

    if (t->kind) {
        t->count += (uint32_t)by;
        s->table[i].count = t->count;
        if (t->count == 0) remove_bucket(s, i);
    }
    os_spin_unlock(&s->lock);
    return t->kind != 0;
}

bool track_join(const struct track *t, bool *joined)
{
    uint64_t h = hash(t->kind, t->key);
    struct shard *s = lock_shard(h);
    bool ok = grow(s);

    *joined = false;
    if (ok) {
        struct track *at = &s->table[bucket_of(s, t->kind, t->key, h)];
        *joined = at->kind != 0;
        if (*joined) at->count += t->count;
        else *at = *t, s->used++;
    }
    os_spin_unlock(&s->lock);
    return ok;
}

void track_remove_if(bool (*match)(const struct track *, uint64_t), uint64_t argument, void (*removed)(const struct track *))
{
    for (int n = 0; n < SHARDS; n++) {
        struct shard *s = &shards[n];
        os_spin_lock(&s->lock);
        for (uint32_t i = 0; i < s->buckets;) {
            struct track t = s->table[i];
            if (t.kind && match(&t, argument)) {
                remove_bucket(s, i); /* another entry may be in bucket i now */
                removed(&t);
            } else {
                i++;
            }
        }
        os_spin_unlock(&s->lock);
    }
}

void track_forget(void)
{
    for (int n = 0; n < SHARDS; n++) shards[n] = (struct shard){.table = NULL};
}
