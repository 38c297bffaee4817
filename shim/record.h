/* The two files that a container's processes share with the node. Their layout is the same in
 * internal/limits (Go); a test of that package compiles this header and compares every offset.
 *
 * The limits file is written by the node, read-only in the container, and mapped by each process.
 * Words change in place: a bind mount holds the file, so a container would never see a new one.
 * These words change: bytes, overhead and context of each device, then generation; share and gate of
 * each device, then beat. The devices do not change.
 *
 * The region file has one slot for each process. The process that holds the OFD lock on byte i of
 * the file owns slot i, and no other process writes to the slot. The kernel releases the lock when
 * the process ends.
 *
 * Behind the region's head, in the same page, each block of slots has a count of its changes for
 * each device (sums.h). Shims before these counts do not count what they change. So a region states
 * in `slots` that all of its shims do, and those shims do not accept it: their cuInit fails. An
 * older gpuledger reads it, and before its shim gets it, that gpuledger writes a head of its own. */
#pragma once

#include <stdint.h>

#define RECORD_LIMITS_MAGIC UINT64_C(0x314d494c47555047)  /* "GPUGLIM1", little endian */
#define RECORD_REGION_MAGIC UINT64_C(0x3147455247555047)  /* "GPUGREG1" */

enum {
    RECORD_VERSION = 1,
    RECORD_DEVICES = 16, /* of one grant */
    RECORD_SLOTS = 1024, /* processes of one grant at a time */
    RECORD_SINGLE = 64,  /* the first slots, which are in no block */
    RECORD_BLOCK = 32,   /* slots of a block */
    RECORD_BLOCKS = (RECORD_SLOTS - RECORD_SINGLE) / RECORD_BLOCK,
    RECORD_PAGE = 4096,
    RECORD_GPU_PAGE = 2 << 20, /* in which GPUs give memory, in bytes */
};

struct record_device {
    uint8_t uuid[16];
    uint64_t bytes;    /* the grant's, on this device */
    uint64_t overhead; /* bytes that the node measured beyond the slots: contexts, code, uncounted calls */
    uint64_t share;    /* percent of the device's time; 0: no share, and nothing is throttled */
    uint64_t gate;     /* RECORD_GATE: when launches pass; 0: as share says */
    uint64_t context;  /* bytes that a context takes, as the node measured it; 0: not known yet */
    uint64_t reserved;
};

/* In `slots` of a head: every process counts the changes of its slot. */
#define RECORD_COUNTED UINT32_C(0x80000000)

/* A gate is open for the first `open` microseconds of each `period` microseconds. It is one word,
 * so that no reader sees only half of a change. */
#define RECORD_GATE(open, period) ((uint64_t)(period) << 32 | (uint32_t)(open))

struct record_limits {
    uint64_t magic;
    uint32_t version;
    uint32_t devices;
    uint64_t id;         /* the same in the region, so that a file of another grant is detected */
    uint64_t generation; /* counts changes */
    uint64_t beat;       /* a heartbeat: counts the rounds in which the node set the gates */
    uint64_t reserved[3];
    struct record_device device[RECORD_DEVICES];
};

struct record_head {
    uint64_t magic;
    uint32_t version;
    uint32_t devices;
    uint64_t id;
    uint32_t slots; /* RECORD_SLOTS, with RECORD_COUNTED or without */
    uint32_t slot_size;
    uint64_t reserved[4];
    uint32_t high; /* no slot from here on has an owner; it falls when processes have ended */
};

struct record_slot {
    uint64_t used[RECORD_DEVICES]; /* bytes, in the order of the limits' devices */
    uint32_t pid;                  /* in the process's own pid namespace; for reports only */
    uint32_t claims;
    uint64_t reserved[7];
};

/* RECORD_CHANGES is where the counts of a block begin, one word for each device. */
#define RECORD_CHANGES(block) (128 + (uint64_t)(block) * RECORD_DEVICES * sizeof(uint64_t))

#define RECORD_SLOT(i) (RECORD_PAGE + (uint64_t)(i) * sizeof(struct record_slot))
#define RECORD_REGION_SIZE RECORD_SLOT(RECORD_SLOTS)

_Static_assert(sizeof(struct record_slot) == 192, "three cache lines a slot: no line belongs to two slots");
_Static_assert(sizeof(struct record_limits) <= RECORD_PAGE && sizeof(struct record_head) <= RECORD_PAGE, "one page each");
_Static_assert(sizeof(struct record_head) <= RECORD_CHANGES(0), "the counts are behind the head");
_Static_assert(RECORD_CHANGES(RECORD_BLOCKS) <= RECORD_PAGE, "and in its page");
