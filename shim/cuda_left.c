#include "cuda_left.h"

#include "account.h"
#include "cuda_devices.h"
#include "cuda_driver.h"
#include "track.h"

#include <string.h>

#define LOAD(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)

static uint64_t needed[ORDINALS]; /* by executable graphs */
static struct left { uint64_t bytes; int device; } left[ORDINALS]; /* bytes in the account */
static int some;                                                   /* some device has bytes left */

void left_instantiated(int ordinal, uint64_t bytes) { __atomic_fetch_add(&needed[ordinal], bytes, __ATOMIC_SEQ_CST); }

/* settle makes what is left on a device agree with what it holds. `bytes` more are in the account. Two
 * threads at once may both keep the same bytes: the next one puts that right. */
static void settle(int ordinal, int device, uint64_t bytes)
{
    uint64_t held = 0, keep, need = LOAD(&needed[ordinal]);

    bytes += __atomic_exchange_n(&left[ordinal].bytes, 0, __ATOMIC_SEQ_CST);
    REAL(cuDeviceGraphMemTrim)(ordinal);
    REAL(cuDeviceGetGraphMemAttribute)(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &held);
    keep = held > need ? held - need : 0;
    if (keep > bytes) keep = bytes;
    account_give(device, bytes - keep);
    if (keep == 0) return;
    __atomic_store_n(&left[ordinal].device, device, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&left[ordinal].bytes, keep, __ATOMIC_SEQ_CST);
    __atomic_store_n(&some, 1, __ATOMIC_SEQ_CST);
}

void left_destroyed(int ordinal, int device, uint64_t bytes)
{
    __atomic_fetch_sub(&needed[ordinal], bytes, __ATOMIC_SEQ_CST);
    settle(ordinal, device, bytes);
}

bool left_update(void)
{
    if (!LOAD(&some)) return false;
    __atomic_store_n(&some, 0, __ATOMIC_SEQ_CST);
    for (int i = 0; i < ORDINALS; i++)
        if (LOAD(&left[i].bytes)) settle(i, LOAD(&left[i].device), 0);
    return true;
}

static bool is_of_ordinal(const struct track *t, uint64_t ordinal)
{
    return t->kind == TRACK_EXEC && t->key >> 56 == ordinal;
}

/* leave counts a graph's bytes as left. The driver is asked later: a lock of the table is held. */
static void leave(const struct track *t)
{
    int ordinal = (int)(t->key >> 56);

    __atomic_fetch_sub(&needed[ordinal], t->bytes, __ATOMIC_SEQ_CST);
    __atomic_store_n(&left[ordinal].device, t->device, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&left[ordinal].bytes, t->bytes, __ATOMIC_SEQ_CST);
    __atomic_store_n(&some, 1, __ATOMIC_SEQ_CST);
}

void left_reset(int ordinal)
{
    track_remove_if(is_of_ordinal, (uint64_t)ordinal, leave);
    left_update();
}

void left_forget(void)
{
    memset(needed, 0, sizeof needed);
    memset(left, 0, sizeof left);
    some = 0;
}
