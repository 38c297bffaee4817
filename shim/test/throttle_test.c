/* The gate by itself, on a clock of its own: a nap is what lets time pass, so that nothing here waits or is measured. */
#include "../account.h"
#include "../os.h"
#include "../record.h"
#include "../throttle.h"
#include "tap.h"

enum { PERIOD = 20000, LONGEST = 5000000, UNATTENDED = 10000000, NAP = 100000 };

static uint64_t now, naps, longest_nap;
static struct account_gate told;   /* what the node says; share 0: nothing */
static void (*node)(void);         /* what the node does meanwhile */
static bool capturing;
static int asked;

uint64_t os_clock(void) { return now; }
void os_pause(unsigned int microseconds)
{
    naps++;
    if (microseconds > longest_nap) longest_nap = microseconds;
    now += microseconds;
    if (node) node();
}
bool account_gate(int device, struct account_gate *g)
{
    *g = told;
    return device == 0 && told.share > 0;
}
static bool captured(void *stream, bool per_thread) { return asked++, (void)stream, (void)per_thread, capturing; }

/* launch is how long one had to wait. */
static uint64_t launch(void)
{
    uint64_t before = now;
    throttle_pass(0, captured, NULL, false);
    return now - before;
}

/* begin is a machine that has been up for a while, on which the node looks after the gate. at goes to a place in the next period. */
static void begin(uint64_t share, uint64_t gate)
{
    told = (struct account_gate){.share = share, .gate = gate, .beat = told.beat + 1};
    node = NULL;
    if (now == 0) now = 1000 * (uint64_t)LONGEST + 12345;
}
static void at(uint64_t place, uint64_t period) { now += period - now % period + place; }

static void without_a_share_nothing_waits(void)
{
    begin(0, RECORD_GATE(0, LONGEST));
    IS(launch(), 0, "a closed gate without a share");
    told.share = 30;
    throttle_pass(-1, captured, NULL, false);
    throttle_pass(1, captured, NULL, false);
    IS(naps + (uint64_t)asked, 0, "nor does a launch on another device");
}

static void it_is_open_for_the_share(void)
{
    for (uint64_t share = 1; share <= 100; share += 33) {
        uint64_t passed = 0, longest = 0;
        begin(share, 0);
        for (uint64_t place = 0; place < PERIOD; place += 10) {
            uint64_t waited, at_once = now;
            at(place, PERIOD);
            at_once = now;
            waited = launch();
            passed += waited == 0;
            if (waited > longest) longest = waited;
            if (waited > 0 && now % PERIOD != 0) OK(false, "%llu: whoever waits goes on at the opening", (unsigned long long)at_once);
        }
        IS(passed * 100 / (PERIOD / 10), share, "so many percent of the time are open");
        IS(longest, share == 100 ? 0 : PERIOD - share * PERIOD / 100, "and the rest is what is waited at most");
    }
}

static void the_nodes_gate_counts(void)
{
    begin(30, RECORD_GATE(1000, 400000));
    at(999, 400000);
    IS(launch(), 0, "open in its first millisecond");
    at(1000, 400000);
    IS(launch(), 399000, "closed for the rest of its period");
    OK(longest_nap <= NAP, "in naps");
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
    told.phase = PERIOD / 2;
    IS(launch(), PERIOD / 2, "when another's closes");
}

static void nonsense_holds_nobody(void)
{
    begin(30, RECORD_GATE(0, UINT32_MAX));
    at(1, LONGEST);
    IS(launch(), LONGEST - 1, "a period of an hour is one of five seconds");
    told.gate = RECORD_GATE(UINT32_MAX, 1);
    IS(launch(), 0, "an opening longer than its period is open");
    told.gate = RECORD_GATE(5, 0);
    at(PERIOD / 2, PERIOD);
    IS(launch(), PERIOD / 2, "without a period the share counts");
    told.share = UINT64_MAX / 2;
    at(PERIOD / 2, PERIOD);
    OK(launch() <= PERIOD, "a share above all is no longer a wait");
}

static void open_it(void) { told.share = 0; }
static void widen_it(void) { told.gate = RECORD_GATE(9000, 10000); }
static void narrow_it(void) { told.gate = RECORD_GATE(0, LONGEST); }
static void a_change_is_seen_while_waiting(void)
{
    begin(30, RECORD_GATE(0, LONGEST));
    at(1, LONGEST);
    node = open_it;
    IS(launch(), NAP, "a share that is taken off ends the wait");
    begin(30, RECORD_GATE(0, LONGEST));
    at(1, LONGEST);
    node = widen_it;
    IS(launch(), NAP, "so does a gate that is opened");
    begin(30, RECORD_GATE(0, 400000));
    at(1, 400000);
    node = narrow_it;
    IS(launch(), 399999, "one that is narrowed makes no wait longer");
}

static void a_gate_that_nobody_looks_after(void)
{
    begin(50, RECORD_GATE(0, LONGEST));
    for (int i = 0; i < 10; i++) {
        told.beat++;
        at(1, LONGEST);
        if (launch() != LONGEST - 1) OK(false, "attended, it is as the node says");
    }
    now += UNATTENDED - LONGEST; /* with the last wait */
    at(PERIOD / 2 - 1, PERIOD);
    IS(launch(), 0, "ten seconds without a look, and it is open for the share");
    IS(launch(), 0, "of each period");
    now++;
    IS(launch(), PERIOD / 2, "and for no more");
    told.beat++;
    at(1, LONGEST);
    IS(launch(), LONGEST - 1, "until the node looks again");
}

static void a_capture_waits_for_nothing(void)
{
    begin(30, RECORD_GATE(0, LONGEST));
    at(1, LONGEST);
    asked = 0;
    capturing = true;
    IS(launch(), 0, "what is captured passes a closed gate");
    IS(asked, 1, "after a question");
    told.gate = RECORD_GATE(LONGEST, LONGEST);
    launch();
    IS(asked, 1, "that an open gate does not ask");
}

int main(int argc, char **argv)
{
    static const struct tap_test tests[] = {
        {"without_a_share_nothing_waits", without_a_share_nothing_waits}, {"it_is_open_for_the_share", it_is_open_for_the_share},
        {"the_nodes_gate_counts", the_nodes_gate_counts}, {"each_waits_once", each_waits_once}, {"several_grants_take_turns", several_grants_take_turns},
        {"nonsense_holds_nobody", nonsense_holds_nobody}, {"a_change_is_seen_while_waiting", a_change_is_seen_while_waiting},
        {"a_gate_that_nobody_looks_after", a_gate_that_nobody_looks_after}, {"a_capture_waits_for_nothing", a_capture_waits_for_nothing}, {NULL, NULL},
    };
    return tap_main(argc, argv, tests);
}
