/* The throttle of kernel launches. */
#pragma once

#include <stdbool.h>

/* throttle_pass returns when the grant may launch on a device: at once while the device's gate is
 * open, else when it opens, at most five seconds later. It never fails. Before a wait it calls
 * capturing, and if that returns true it does not wait: a captured launch runs nothing yet. */
void throttle_pass(int device, bool (*capturing)(void *stream, bool per_thread), void *stream, bool per_thread);
