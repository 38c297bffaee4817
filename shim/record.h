/* The two files that a container's processes share with the node. Their layout is the same in internal/limits (Go);
 * a test of that package compiles this header and compares every offset.
 *
 * The limits: written by the node, read-only in the container, mapped by each process. A word changes in place (a
 * bind mount holds the file, so that a new one would never be seen): bytes and overhead of each device, and the generation
 * after them; share and gate of each, and the beat after them. The devices stay as they are.
 *
 * The region: one slot a process. Who holds the OFD lock on byte i of the file owns slot i and is the only one to write
 * into it. The kernel drops the lock with the process, however it ends. */
#pragma once

#include <stdint.h>

#define RECORD_LIMITS_MAGIC UINT64_C(0x314d494c47555047)  /* "GPUGLIM1", little endian */
#define RECORD_REGION_MAGIC UINT64_C(0x3147455247555047)  /* "GPUGREG1" */

enum {
    RECORD_VERSION = 1,
    RECORD_DEVICES = 16, /* of one grant */
    RECORD_SLOTS = 1024, /* processes of one grant at a time */
    RECORD_PAGE = 4096,
};

struct record_device {
    uint8_t uuid[16];
    uint64_t bytes;    /* the grant's, on this device */
    uint64_t overhead; /* used there beyond what the slots say: contexts, code, memory by other ways; from the watch */
    uint64_t share;    /* percent of the device's time; 0: none of its own, and nothing is throttled */
    uint64_t gate;     /* RECORD_GATE: when launches pass; 0: as the share says */
    uint64_t reserved[2];
};

/* A gate is open for the first so many microseconds of each period of so many. One word, so that no reader sees half of it. */
#define RECORD_GATE(open, period) ((uint64_t)(period) << 32 | (uint32_t)(open))

struct record_limits {
    uint64_t magic;
    uint32_t version;
    uint32_t devices;
    uint64_t id;         /* the same in the region: a file of another grant is noticed */
    uint64_t generation; /* counts changes */
    uint64_t beat;       /* counts the looks of who sets the gates: where it stands still nobody does */
    uint64_t reserved[3];
    struct record_device device[RECORD_DEVICES];
};

struct record_head {
    uint64_t magic;
    uint32_t version;
    uint32_t devices;
    uint64_t id;
    uint32_t slots;
    uint32_t slot_size;
    uint64_t reserved[4];
    uint32_t high; /* no slot from here on was ever used; only raised */
};

struct record_slot {
    uint64_t used[RECORD_DEVICES]; /* by the order of the limits' devices */
    uint32_t pid;                  /* as the process sees itself; for reports only */
    uint32_t claims;
    uint64_t reserved[7];
};

#define RECORD_SLOT(i) (RECORD_PAGE + (uint64_t)(i) * sizeof(struct record_slot))
#define RECORD_REGION_SIZE RECORD_SLOT(RECORD_SLOTS)

_Static_assert(sizeof(struct record_slot) == 192, "three cache lines a slot: neighbours never write to the same");
_Static_assert(sizeof(struct record_limits) <= RECORD_PAGE && sizeof(struct record_head) <= RECORD_PAGE, "one page each");
