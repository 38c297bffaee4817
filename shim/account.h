/* The account: how much of its grant a container's processes use together. No call waits for
 * another process. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* account_open maps the container's two files. Later calls only check that it is done. False while
 * the files are missing or not valid: then nothing may be allocated. */
bool account_open(const char *limits, const char *region);

/* account_join claims the process's slot early. Otherwise account_take does. */
bool account_join(void);

/* account_device is the number of a GPU in the grant, -1 if it is not in the grant. */
int account_device(const uint8_t uuid[16]);

/* account_take counts bytes if they fit the grant; false means "out of memory". account_give
 * subtracts them. */
bool account_take(int device, uint64_t bytes);
void account_give(int device, uint64_t bytes);

/* account_context is what a context takes of a device, as far as the node knows it; else 0. */
uint64_t account_context(int device);

/* account_usage is a device's grant, what is used of it and what is free, in bytes. The slots of
 * dead processes are emptied first. */
struct account_usage { uint64_t total, used, free; };
struct account_usage account_usage(int device);

/* account_processes lists the processes that use the device, up to room, and returns how many there
 * are. */
struct account_process { uint32_t pid; uint64_t used; };
unsigned int account_processes(int device, struct account_process *list, unsigned int room);

/* account_gate reads when the grant may launch on a device, as the node wrote it last. False if the
 * grant has no share of the device's time, or the device is not in the grant. phase differs between
 * grants, so that their gates do not open together. */
struct account_gate { uint64_t share, gate, beat, phase; };
bool account_gate(int device, struct account_gate *g);

/* account_devices is the number of devices in the grant, 0 before account_open. */
int account_devices(void);

/* account_reap empties the slots of dead processes and returns how many there were. */
unsigned int account_reap(void);
