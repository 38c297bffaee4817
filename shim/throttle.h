/* The throttle of kernel launches. */
#pragma once

#include "os.h"
#include "record.h"

#include <stdbool.h>

/* After a launch has found the gate open, later ones pass for up to a millisecond and look at
 * nothing but the processor's counter. On a real host the clock, the gate and the code that reads
 * both are no longer in the caches when a program launches again, and cost more than they do here.
 * A window ends when the gate closes. A gate that the node closes earlier is seen at its end.
 *
 * `until` is a value of the counter. It is taken for the end of a window only if it is ahead by at
 * most `length`. So a counter that jumps, or that another processor has otherwise, ends the window,
 * and the next launch looks at the gate again. */
struct throttle_windows {
    uint64_t length;                /* of the longest window; 0: the counter's rate is not known yet */
    uint64_t only;                  /* of the device, in a grant over one */
    uint64_t until[RECORD_DEVICES]; /* of each device */
};
extern struct throttle_windows throttle_windows;

/* throttle_within reports whether the counter is in a window that ends at *until. */
static inline bool throttle_within(const uint64_t *until)
{
    uint64_t length = __atomic_load_n(&throttle_windows.length, __ATOMIC_RELAXED);
    return __atomic_load_n(until, __ATOMIC_RELAXED) - os_ticks() - 1 < length;
}

/* throttle_pass returns when the grant may launch on a device: at once while the device's gate is
 * open, else when it opens, at most five seconds later. It never fails. Before a wait it calls
 * capturing, and if that returns true it does not wait: a captured launch runs nothing yet. */
void throttle_pass(int device, bool (*capturing)(void *stream, bool per_thread), void *stream, bool per_thread);
