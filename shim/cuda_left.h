/* Memory of graphs that the device still holds after their executable graphs were destroyed: what a
 * graph allocates and does not free stays until the program frees it. Only the driver knows how much
 * that is, and only for all graphs of a device together. So what counts is what the device holds
 * beyond what the remaining executable graphs may need, which count themselves. It is less than the
 * device holds if those have not been launched. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* left_instantiated: a new executable graph counts with these bytes. By the driver's number of the
 * device. */
void left_instantiated(int ordinal, uint64_t bytes);

/* left_destroyed: such a graph is destroyed. Its bytes leave the account, but for those that the
 * device still holds. device is the account's number. */
void left_destroyed(int ordinal, int device, uint64_t bytes);

/* left_update takes out of the account what has been freed since. It trims the devices' memory of
 * graphs, so it is for when memory is short. False: nothing was left. */
bool left_update(void);

/* left_reset: the driver reset a device, so its executable graphs are no longer valid. Their bytes
 * leave the account, but for those that the device still holds. */
void left_reset(int ordinal);

/* left_forget is for a forked child: the graphs are the parent's. */
void left_forget(void);
