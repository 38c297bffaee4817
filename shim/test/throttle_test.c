/* Tests of throttle.c with a clock of their own, which advances only when throttle.c sleeps: no
 * test waits. */
#include "../account.h"
#include "../os.h"
#include "../record.h"
#include "../throttle.h"
#include "tap.h"

enum { PERIOD = 20000, MAX_PERIOD = 5000000, HEARTBEAT_TIMEOUT = 10000000, MAX_SLEEP = 100000 };

static uint64_t now, sleeps, longest_sleep;
static struct account_gate written;   /* what the node wrote; share 0: nothing */
static void (*node)(void);         /* what the node does meanwhile */
static bool capturing;
static int calls;

uint64_t os_clock(void) { return now; }
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

int main(int argc, char **argv)
{
    static const struct tap_test tests[] = {
        {"without_a_share_nothing_waits", without_a_share_nothing_waits}, {"it_is_open_for_the_share", it_is_open_for_the_share},
        {"the_nodes_gate_counts", the_nodes_gate_counts}, {"each_waits_once", each_waits_once}, {"several_grants_take_turns", several_grants_take_turns},
        {"invalid_values_do_not_block", invalid_values_do_not_block}, {"a_change_is_seen_while_waiting", a_change_is_seen_while_waiting},
        {"a_gate_without_heartbeat", a_gate_without_heartbeat}, {"a_capture_does_not_wait", a_capture_does_not_wait}, {NULL, NULL},
    };
    return tap_main(argc, argv, tests);
}
