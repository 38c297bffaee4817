/* Tests of throttle.c with a clock of their own, which advances only when throttle.c sleeps: no
 * test waits. */
#include "../account.h"
#include "../os.h"
#include "../record.h"
#include "../throttle.h"
#include "tap.h"

enum { PERIOD = 20000, MAX_PERIOD = 5000000, HEARTBEAT_TIMEOUT = 10000000, MAX_SLEEP = 100000 };

enum { WINDOW = 1000, TICKS = 2100 }; /* a microsecond has so many */

static uint64_t now, sleeps, longest_sleep, looks;
static uint64_t ticks_ahead, ticks_each = TICKS; /* the processor's counter */
static int devices = 1;
static struct account_gate written;   /* what the node wrote; share 0: nothing */
static void (*node)(void);         /* what the node does meanwhile */
static bool capturing;
static int calls;

uint64_t os_clock(void) { return looks++, now; }
uint64_t os_ticks(void) { return now * ticks_each + ticks_ahead; }
bool os_spin_try(struct os_spin *s) { return (void)s, true; }
void os_spin_unlock(struct os_spin *s) { (void)s; }
int account_devices(void) { return devices; }
void os_pause(unsigned int microseconds)
{
    sleeps++;
    if (microseconds > longest_sleep) longest_sleep = microseconds;
    now += microseconds;
    if (node) node();
}
bool account_gate(int device, struct account_gate *g)
{
    *g = written;
    return device == 0 && written.share > 0;
}
static bool is_capturing(void *stream, bool per_thread) { return calls++, (void)stream, (void)per_thread, capturing; }

/* launch is how long a launch waited. */
static uint64_t launch(void)
{
    uint64_t before = now;
    throttle_pass(0, is_capturing, NULL, false);
    return now - before;
}

/* begin starts a test: the node has just written its heartbeat. at advances the clock to an offset
 * in the next period. */
static void begin(uint64_t share, uint64_t gate)
{
    written = (struct account_gate){.share = share, .gate = gate, .beat = written.beat + 1};
    node = NULL;
    if (now == 0) now = 1000 * (uint64_t)MAX_PERIOD + 12345;
}
static void at(uint64_t offset, uint64_t period) { now += period - now % period + offset; }

static void without_a_share_nothing_waits(void)
{
    begin(0, RECORD_GATE(0, MAX_PERIOD));
    IS(launch(), 0, "a closed gate without a share");
    written.share = 30;
    throttle_pass(-1, is_capturing, NULL, false);
    throttle_pass(1, is_capturing, NULL, false);
    IS(sleeps + (uint64_t)calls, 0, "nor does a launch on another device");
}

static void it_is_open_for_the_share(void)
{
    for (uint64_t share = 1; share <= 100; share += 33) {
        uint64_t passed = 0, longest = 0;
        begin(share, 0);
        for (uint64_t offset = 0; offset < PERIOD; offset += 10) {
            uint64_t waited, at_once = now;
            at(offset, PERIOD);
            at_once = now;
            waited = launch();
            passed += waited == 0;
            if (waited > longest) longest = waited;
            if (waited > 0 && now % PERIOD != 0) OK(false, "%llu: a launch that waits continues when the gate opens", (unsigned long long)at_once);
        }
        IS(passed * 100 / (PERIOD / 10), share, "the gate is open for that percentage of the time");
        IS(longest, share == 100 ? 0 : PERIOD - share * PERIOD / 100, "and a launch waits at most for the rest");
    }
}

static void the_nodes_gate_counts(void)
{
    begin(30, RECORD_GATE(1000, 400000));
    at(999, 400000);
    IS(launch(), 0, "open in its first millisecond");
    at(1000, 400000);
    IS(launch(), 399000, "closed for the rest of its period");
    OK(longest_sleep <= MAX_SLEEP, "in short sleeps");
}

static void each_waits_once(void)
{
    begin(30, RECORD_GATE(0, 50000));
    at(1, 50000);
    IS(launch(), 49999, "a gate that is never open holds a launch until the next period");
    IS(launch(), 50000, "and lets one pass in each");
}

static void several_grants_take_turns(void)
{
    begin(50, 0);
    at(0, PERIOD);
    IS(launch(), 0, "one grant's gate opens");
    written.phase = PERIOD / 2;
    IS(launch(), PERIOD / 2, "when another's closes");
}

static void invalid_values_do_not_block(void)
{
    begin(30, RECORD_GATE(0, UINT32_MAX));
    at(1, MAX_PERIOD);
    IS(launch(), MAX_PERIOD - 1, "a period of an hour is one of five seconds");
    written.gate = RECORD_GATE(UINT32_MAX, 1);
    IS(launch(), 0, "an opening longer than its period is open");
    written.gate = RECORD_GATE(5, 0);
    at(PERIOD / 2, PERIOD);
    IS(launch(), PERIOD / 2, "without a period the share counts");
    written.share = UINT64_MAX / 2;
    at(PERIOD / 2, PERIOD);
    OK(launch() <= PERIOD, "a share above all is no longer a wait");
}

static void open_it(void) { written.share = 0; }
static void widen_it(void) { written.gate = RECORD_GATE(9000, 10000); }
static void narrow_it(void) { written.gate = RECORD_GATE(0, MAX_PERIOD); }
static void a_change_is_seen_while_waiting(void)
{
    begin(30, RECORD_GATE(0, MAX_PERIOD));
    at(1, MAX_PERIOD);
    node = open_it;
    IS(launch(), MAX_SLEEP, "a share that is removed ends the wait");
    begin(30, RECORD_GATE(0, MAX_PERIOD));
    at(1, MAX_PERIOD);
    node = widen_it;
    IS(launch(), MAX_SLEEP, "so does a gate that is opened");
    begin(30, RECORD_GATE(0, 400000));
    at(1, 400000);
    node = narrow_it;
    IS(launch(), 399999, "a shorter opening makes no wait longer");
}

static void a_gate_without_heartbeat(void)
{
    begin(50, RECORD_GATE(0, MAX_PERIOD));
    for (int i = 0; i < 10; i++) {
        written.beat++;
        at(1, MAX_PERIOD);
        if (launch() != MAX_PERIOD - 1) OK(false, "with a heartbeat, the gate is as the node wrote it");
    }
    now += HEARTBEAT_TIMEOUT - MAX_PERIOD; /* with the last wait */
    at(PERIOD / 2 - 1, PERIOD);
    IS(launch(), 0, "after ten seconds without a heartbeat it is open for the share");
    IS(launch(), 0, "of each period");
    now++;
    IS(launch(), PERIOD / 2, "and for no more");
    written.beat++;
    at(1, MAX_PERIOD);
    IS(launch(), MAX_PERIOD - 1, "until the next heartbeat");
}

static void a_capture_does_not_wait(void)
{
    begin(30, RECORD_GATE(0, MAX_PERIOD));
    at(1, MAX_PERIOD);
    calls = 0;
    capturing = true;
    IS(launch(), 0, "what is captured passes a closed gate");
    IS(calls, 1, "after one call of capturing");
    written.gate = RECORD_GATE(MAX_PERIOD, MAX_PERIOD);
    launch();
    IS(calls, 1, "an open gate does not call it");
}

/* know_rate launches until the counter's rate is known, through a gate that stays open. */
static void know_rate(void)
{
    begin(100, 0);
    for (int i = 0; i < 3; i++, now += 1100000) launch();
    looks = 0;
}

static void a_window_needs_no_clock(void)
{
    know_rate();
    IS(launch(), 0, "a launch passes");
    IS(looks, 1, "and looks at the clock");
    for (int i = 0; i < WINDOW - 2; i++, now++) launch();
    IS(looks, 1, "those of the next millisecond do not");
    OK(throttle_within(&throttle_windows.only), "nor do they look for their device");
    now += 3;
    OK(!throttle_within(&throttle_windows.only), "then the window ends");
    launch();
    IS(looks, 2, "and the next one looks");
}

static void each_device_has_its_window(void)
{
    devices = 2;
    know_rate();
    launch();
    OK(!throttle_within(&throttle_windows.only), "one of several devices opens a window");
    OK(throttle_within(&throttle_windows.until[0]) && !throttle_within(&throttle_windows.until[1]), "of its own");
}

static void a_window_ends_with_the_gate(void)
{
    uint64_t passed = 0, late = 0;

    know_rate();
    written.share = 50;
    now += WINDOW;
    for (unsigned int i = 0, seed = 1; i < 200000; i++) {
        uint64_t open = now % PERIOD < PERIOD / 2;
        if (!throttle_within(&throttle_windows.only)) {
            if (launch() > 0) open = now % PERIOD == 0;
        }
        passed++;
        late += !open;
        now += rand_r(&seed) % 300;
    }
    IS(late, 0, "no launch passes a closed gate");
    OK(looks < passed / 3, "and most do not look: %llu of %llu do", (unsigned long long)looks, (unsigned long long)passed);
}

static void a_change_is_seen_after_a_window(void)
{
    know_rate();
    at(0, MAX_PERIOD);
    launch();
    written.share = 30;
    written.gate = RECORD_GATE(0, MAX_PERIOD);
    IS(launch(), 0, "a gate that closes early is not seen in a window");
    now += WINDOW + 1;
    OK(launch() > 0, "and is at its end");
}

static void counters_that_jump_open_nothing(void)
{
    know_rate();
    at(0, PERIOD);
    launch();
    looks = 0;
    ticks_ahead = (uint64_t)1 << 40;
    launch();
    IS(looks, 1, "after a jump the next launch looks");
    ticks_ahead = 0;
    launch();
    IS(looks, 2, "as it does when a processor's counter is far behind");
    launch();
    IS(looks, 2, "and its window is in that one's time");
}

static void counters_of_another_rate(void)
{
    know_rate();
    ticks_each = 21; /* as after a move to another machine */
    ticks_ahead = now * (TICKS - 21);
    launch();
    for (int i = 0; i < 12; i++, now += 100000) launch();
    looks = 0;
    launch();
    now += WINDOW + 1;
    launch();
    IS(looks, 2, "after a second, windows are a millisecond again");
}

static void a_counter_that_stands_still(void)
{
    ticks_each = 0;
    know_rate();
    launch();
    launch();
    IS(looks, 2, "each launch looks");
}

int main(int argc, char **argv)
{
    static const struct tap_test tests[] = {
        {"without_a_share_nothing_waits", without_a_share_nothing_waits}, {"it_is_open_for_the_share", it_is_open_for_the_share},
        {"the_nodes_gate_counts", the_nodes_gate_counts}, {"each_waits_once", each_waits_once}, {"several_grants_take_turns", several_grants_take_turns},
        {"invalid_values_do_not_block", invalid_values_do_not_block}, {"a_change_is_seen_while_waiting", a_change_is_seen_while_waiting},
        {"a_gate_without_heartbeat", a_gate_without_heartbeat}, {"a_capture_does_not_wait", a_capture_does_not_wait},
        {"a_window_needs_no_clock", a_window_needs_no_clock}, {"each_device_has_its_window", each_device_has_its_window},
        {"a_window_ends_with_the_gate", a_window_ends_with_the_gate}, {"a_change_is_seen_after_a_window", a_change_is_seen_after_a_window},
        {"counters_that_jump_open_nothing", counters_that_jump_open_nothing}, {"counters_of_another_rate", counters_of_another_rate},
        {"a_counter_that_stands_still", a_counter_that_stands_still}, {NULL, NULL},
    };
    return tap_main(argc, argv, tests);
}
