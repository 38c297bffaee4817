/* What this process has allocated, so that a free can be taken back from the account. In time that does not depend on how much
 * there is; a forked child starts with nothing. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum track_kind {
    TRACK_POINTER = 1, /* key: device address */
    TRACK_ARRAY,       /* key: array or mipmapped array */
    TRACK_HANDLE,      /* key: VMM handle; link: its block; count: how often it must be released */
    TRACK_MAPPING,     /* key: start address; link: its block; bytes: of the range */
    TRACK_BLOCK,       /* key: number of our own; count: handles and mappings that keep it */
    TRACK_EXEC,        /* key: executable graph; link: a number of our own for more than one device */
    TRACK_POOLED,      /* key: device address; link: the pool */
};

struct track {
    uint64_t key, bytes, link;
    uint64_t context; /* with which it goes; 0: none */
    uint32_t count;
    uint8_t kind;
    int8_t device; /* of the account; -1: not counted */
};

/* track_put enters t, false if there is no memory for it. What stood there under the same key is gone (the driver gives a key
 * out again only when it is free, so an unseen way freed it) and is left in *old with kind 0 if there was none. */
bool track_put(const struct track *t, struct track *old);

bool track_find(enum track_kind kind, uint64_t key, struct track *found);
bool track_remove(enum track_kind kind, uint64_t key, struct track *removed);

/* track_count adds to an entry's count and removes it at 0; *t is the entry afterwards. False if there is none. */
bool track_count(enum track_kind kind, uint64_t key, int by, struct track *t);

/* track_remove_if removes every entry that match says yes to, and tells each to gone. Neither may call back here. */
void track_remove_if(bool (*match)(const struct track *, uint64_t), uint64_t argument, void (*gone)(const struct track *));

/* track_forget is for a forked child: the memory is the parent's. */
void track_forget(void);
