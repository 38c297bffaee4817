/* The table of what this process has allocated, so that a free finds the bytes to take out of the
 * account. The time of a call does not depend on the number of entries. A forked child starts with
 * an empty table. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum track_kind {
    TRACK_POINTER = 1, /* key: device address */
    TRACK_PAGE,        /* key: device address of a page of the GPU; count: small allocations in it */
    TRACK_CONTEXT,     /* key: context */
    TRACK_ARRAY,       /* key: array or mipmapped array */
    TRACK_HANDLE,      /* key: VMM handle; link: its block; count: releases until it is invalid */
    TRACK_MAPPING,     /* key: start address; link: its block, 0 if not counted; bytes: of the range */
    TRACK_BLOCK,       /* key: number of the block; count: handles and mappings that refer to it */
    TRACK_EXEC,        /* key: executable graph, with a device's ordinal in the highest byte */
    TRACK_POOLED,      /* key: device address; link: address of the pool's entry */
};

struct track {
    uint64_t key, bytes, link;
    uint64_t context; /* that it is freed with; 0: none */
    uint32_t count;
    uint8_t kind;
    int8_t device; /* of the account; -1: not counted */
};

/* track_put enters t, false if there is no memory for it. It replaces an entry of the same key: the
 * driver returns a key again only when it is free, so the old allocation was freed by a call that
 * is not wrapped. *old is the replaced entry, with kind 0 if there was none. */
bool track_put(const struct track *t, struct track *old);

/* track_find and track_remove copy the entry. False, and kind 0 in the copy, if there is none. */
bool track_find(enum track_kind kind, uint64_t key, struct track *found);
bool track_remove(enum track_kind kind, uint64_t key, struct track *removed);

/* track_count adds to an entry's count and removes the entry at 0. *t is the entry afterwards.
 * False if there is none. */
bool track_count(enum track_kind kind, uint64_t key, int by, struct track *t);

/* track_join enters t, or adds t's count to the entry of the same key. *joined: there was one. False
 * if there is no memory for it. */
bool track_join(const struct track *t, bool *joined);

/* track_remove_if removes every entry for which match returns true, and calls removed with each.
 * Neither function may call one of this header: a lock is held. */
void track_remove_if(bool (*match)(const struct track *, uint64_t), uint64_t argument, void (*removed)(const struct track *));

/* track_forget empties the table in a forked child: the allocations are the parent's. */
void track_forget(void);
