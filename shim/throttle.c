/* A share of a GPU's time without MPS: launches pass while the grant's gate is open. The gate opens
 * at the same time for all processes of the grant, because it depends only on the clock and on two
 * words that the node writes. No process waits for another, and no process that ends leaves a lock.
 * A launch that has waited passes, however short the gate is open, so every thread makes progress.
 *
 * Only the node can measure what a launch costs the GPU. It makes the gate shorter or longer until
 * the grant has its share (internal/throttle). If the node stops doing so, the gate is open for the
 * share of the time. */
#include "throttle.h"

#include "account.h"
#include "os.h"

/* Microseconds. */
enum { PERIOD = 20000, MAX_PERIOD = 5000000, HEARTBEAT_TIMEOUT = 10000000, MAX_SLEEP = 100000 };

struct window { uint32_t open, period; };

#define LOAD(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define STORE(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)

/* heartbeat_seen reports whether the node's heartbeat changed within the last seconds. It goes by
 * when this process first saw the current value. */
static bool heartbeat_seen(uint64_t beat, uint64_t now)
{
    static uint64_t last, since;

    if (LOAD(&since) == 0 || LOAD(&last) != beat) {
        STORE(&since, now);
        STORE(&last, beat);
    }
    return now < LOAD(&since) + HEARTBEAT_TIMEOUT;
}

static struct window window_of(const struct account_gate *g, uint64_t now)
{
    struct window w = {.open = (uint32_t)g->gate, .period = (uint32_t)(g->gate >> 32)};

    if (!heartbeat_seen(g->beat, now) || w.period == 0) w = (struct window){.open = (uint32_t)(g->share * (PERIOD / 100)), .period = PERIOD};
    if (w.period > MAX_PERIOD) w.period = MAX_PERIOD;
    return w;
}

/* until_open is the time until the gate opens, 0 while it is open. */
static uint64_t until_open(const struct account_gate *g, uint64_t now)
{
    struct window w = window_of(g, now);
    uint64_t at = (now + g->phase) % w.period;

    return at < w.open ? 0 : w.period - at;
}

/* wait_until sleeps for short times, so that it soon sees what the node changes. A change can only
 * make the wait shorter. */
static void wait_until(uint64_t opening, int device)
{
    struct account_gate g;
    uint64_t now;

    while ((now = os_clock()) < opening) {
        os_pause(opening - now < MAX_SLEEP ? (unsigned int)(opening - now) : MAX_SLEEP);
        if (!account_gate(device, &g)) return;
        now = os_clock();
        if (now + until_open(&g, now) < opening) opening = now + until_open(&g, now);
    }
}

void throttle_pass(int device, bool (*capturing)(void *, bool), void *stream, bool per_thread)
{
    struct account_gate g;
    uint64_t now, wait;

    if (!account_gate(device, &g)) return;
    now = os_clock();
    wait = until_open(&g, now);
    if (wait > 0 && !capturing(stream, per_thread)) wait_until(now + wait, device);
}
