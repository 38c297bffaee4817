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
enum { PERIOD = 20000, MAX_PERIOD = 5000000, HEARTBEAT_TIMEOUT = 10000000, MAX_SLEEP = 100000, WINDOW = 1000 };
enum { FIRST_RATE = 10000, NEXT_RATE = 1000000, LAST_RATE = 10000000 }; /* how long the counter is compared with the clock */

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

/* until_open is the time until the gate opens, 0 while it is open. *left is how long it stays so. */
static uint64_t until_open(const struct account_gate *g, uint64_t now, uint64_t *left)
{
    struct window w = window_of(g, now);
    uint64_t at = (now + g->phase) % w.period;

    *left = w.open >= w.period ? WINDOW : w.open - at;
    return at < w.open ? 0 : w.period - at;
}

struct throttle_windows throttle_windows __attribute__((aligned(64)));
static uint64_t rate; /* the counter's, per 1024 us; 0: not known yet */

/* measure_rate compares the counter with the clock, anew each second. The counter was read before
 * `now` here, and is read after it where the comparison begins. So whatever delays the thread in
 * between makes the rate smaller than it is, and windows shorter. */
static void measure_rate(uint64_t ticks, uint64_t now)
{
    static struct os_spin lock;
    static uint64_t began, ticks_then;

    if (!os_spin_try(&lock)) return;
    if (now - began >= (rate ? NEXT_RATE : FIRST_RATE)) {
        if (began && now - began <= LAST_RATE) {
            STORE(&rate, (ticks - ticks_then) * 1024 / (now - began));
            STORE(&throttle_windows.length, WINDOW * rate / 1024);
        }
        began = now;
        ticks_then = os_ticks();
    }
    os_spin_unlock(&lock);
}

/* open_window lets launches pass that come soon. The counter was read before the clock, which has no
 * parts of a microsecond: so the window ends no later than the gate. */
static void open_window(int device, uint64_t ticks, uint64_t left)
{
    uint64_t until = ticks + (left < WINDOW ? left - 1 : WINDOW) * LOAD(&rate) / 1024;

    STORE(&throttle_windows.until[device], until);
    if (account_devices() == 1) STORE(&throttle_windows.only, until);
}

/* wait_until sleeps for short times, so that it soon sees what the node changes. A change can only
 * make the wait shorter. */
static void wait_until(uint64_t opening, int device)
{
    struct account_gate g;
    uint64_t now, left, wait;

    while ((now = os_clock()) < opening) {
        os_pause(opening - now < MAX_SLEEP ? (unsigned int)(opening - now) : MAX_SLEEP);
        if (!account_gate(device, &g)) return;
        now = os_clock();
        wait = until_open(&g, now, &left);
        if (now + wait < opening) opening = now + wait;
    }
}

void throttle_pass(int device, bool (*capturing)(void *, bool), void *stream, bool per_thread)
{
    struct account_gate g;
    uint64_t ticks, now, wait, left;

    if (device >= 0 && throttle_within(&throttle_windows.until[device])) return;
    if (!account_gate(device, &g)) return;
    ticks = os_ticks();
    now = os_clock();
    measure_rate(ticks, now);
    wait = until_open(&g, now, &left);
    if (wait == 0) open_window(device, ticks, left);
    else if (!capturing(stream, per_thread)) wait_until(now + wait, device);
}
