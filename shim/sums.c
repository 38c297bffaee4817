#include "sums.h"

#include "os.h"

#include <string.h>

#define LOAD(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)

/* What this process knows of a block. `next` is one more than the count of changes before the slots
 * were read, 0 if nothing is known. */
struct known { uint64_t next, bytes; };

static struct known known[RECORD_DEVICES][RECORD_BLOCKS];
static struct os_spin lock; /* of known, for the threads of this process */

static uint64_t *changes_of(struct record_head *h, uint32_t block)
{
    return (uint64_t *)((char *)h + RECORD_CHANGES(block));
}

uint64_t *sums_changes(struct record_head *h, uint32_t slot)
{
    return slot < RECORD_SINGLE ? NULL : changes_of(h, (slot - RECORD_SINGLE) / RECORD_BLOCK);
}

/* read_block adds up the slots of a block. Sums of valid words stay far below 2^64. */
static uint64_t read_block(struct record_head *h, int device, uint32_t block)
{
    const uint64_t *used = (const uint64_t *)((char *)h + RECORD_SLOT(RECORD_SINGLE + block * RECORD_BLOCK)) + device;
    uint64_t sum = 0, bits = 0;

#pragma GCC unroll 8
    for (uint32_t i = 0; i < RECORD_BLOCK; i++, used += sizeof(struct record_slot) / sizeof *used) {
        uint64_t one = LOAD(used);
        sum += one;
        bits |= one;
    }
    return bits & INVALID_BITS ? INVALID_BIT : sum;
}

/* The mark is loaded after the caller has published. If an older gpuledger takes it away after that,
 * a process of an older shim begins later, and sees what was published. */
bool sums_blocks(struct record_head *h, int device, uint32_t high, uint64_t *sum)
{
    uint32_t blocks = (high - RECORD_SINGLE + RECORD_BLOCK - 1) / RECORD_BLOCK;
    uint64_t total = 0; /* adding to *sum would make each block wait for the one before */

    if (LOAD(&h->slots) != (RECORD_SLOTS | RECORD_COUNTED) || !os_spin_try(&lock)) return false;
    for (uint32_t b = 0; b < blocks; b++) {
        struct known *k = &known[device][b];
        uint64_t next = LOAD(&changes_of(h, b)[device]) + 1;
        if (k->next != next) {
            k->bytes = read_block(h, device, b);
            k->next = next;
        }
        total += k->bytes;
    }
    *sum = total;
    os_spin_unlock(&lock);
    return true;
}

void sums_forget(void)
{
    os_spin_lock(&lock);
    memset(known, 0, sizeof known);
    os_spin_unlock(&lock);
}

/* Another thread may have been in the middle of an entry. */
void sums_reset(void)
{
    os_spin_unlock(&lock);
    memset(known, 0, sizeof known);
}
