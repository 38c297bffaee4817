/* A share of a GPU's time without MPS: launches pass while the grant's gate is open. It opens at the same moments for all processes of
 * the grant, because it is a matter of the clock and of two words that the node writes: no process waits for another, and none
 * can leave anything held. Whoever has waited passes, however short the gate is open, so that each thread gets on.
 *
 * What a launch costs the GPU only the node sees, from outside. It makes the gate narrower or wider until the grant has its share
 * (internal/throttle). Where it does not look any more, the gate is open for the share of the time. */
#include "throttle.h"

#include "account.h"
#include "os.h"

/* Microseconds. */
enum { PERIOD = 20000, LONGEST = 5000000, UNATTENDED = 10000000, NAP = 100000 };

struct window { uint32_t open, period; };

#define LOAD(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define STORE(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)

/* attended reports whether the node has looked within the last seconds. By this process's own clock: what it has not seen move, and when it
 * first saw it. */
static bool attended(uint64_t beat, uint64_t now)
{
    static uint64_t last, since;

    if (LOAD(&since) == 0 || LOAD(&last) != beat) {
        STORE(&since, now);
        STORE(&last, beat);
    }
    return now < LOAD(&since) + UNATTENDED;
}

static struct window window_of(const struct account_gate *g, uint64_t now)
{
    struct window w = {.open = (uint32_t)g->gate, .period = (uint32_t)(g->gate >> 32)};

    if (!attended(g->beat, now) || w.period == 0) w = (struct window){.open = (uint32_t)(g->share * (PERIOD / 100)), .period = PERIOD};
    if (w.period > LONGEST) w.period = LONGEST;
    return w;
}

/* until_open is 0 while the gate is open. */
static uint64_t until_open(const struct account_gate *g, uint64_t now)
{
    struct window w = window_of(g, now);
    uint64_t at = (now + g->phase) % w.period;

    return at < w.open ? 0 : w.period - at;
}

/* wait_until naps, so that it soon sees what the node changes. Nothing that it changes makes the wait longer. */
static void wait_until(uint64_t opening, int device)
{
    struct account_gate g;
    uint64_t now;

    while ((now = os_clock()) < opening) {
        os_pause(opening - now < NAP ? (unsigned int)(opening - now) : NAP);
        if (!account_gate(device, &g)) return;
        now = os_clock();
        if (now + until_open(&g, now) < opening) opening = now + until_open(&g, now);
    }
}

void throttle_pass(int device, bool (*captured)(void *, bool), void *stream, bool per_thread)
{
    struct account_gate g;
    uint64_t now, wait;

    if (!account_gate(device, &g)) return;
    now = os_clock();
    wait = until_open(&g, now);
    if (wait > 0 && !captured(stream, per_thread)) wait_until(now + wait, device);
}
