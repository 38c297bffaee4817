/* The gate before kernel launches. */
#pragma once

#include <stdbool.h>

/* throttle_pass returns when the grant may launch on a device: at once while its gate is open, else when it next opens, which is never
 * more than five seconds away. It asks captured only where it would have to wait, and does not for what is captured: that runs
 * nothing yet. It fails never. */
void throttle_pass(int device, bool (*captured)(void *stream, bool per_thread), void *stream, bool per_thread);
