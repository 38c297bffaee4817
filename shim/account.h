/* The account: how much of its grant a container's processes use together. No call waits for another process. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct account_view { uint64_t total, used, free; };
struct account_process { uint32_t pid; uint64_t used; };

/* account_open maps the container's two files; later calls are no more than a look. False as long as the files are not
 * there or not sound: then nothing may be allocated. */
bool account_open(const char *limits, const char *region);

/* account_join takes the process's slot early, which account_take otherwise does. */
bool account_join(void);

/* account_device is the place of a GPU in the grant, -1 if it is not in it. */
int account_device(const uint8_t uuid[16]);

/* account_take counts bytes if they fit the grant; false is "out of memory". account_give takes them back. */
bool account_take(int device, uint64_t bytes);
void account_give(int device, uint64_t bytes);

/* account_look tells a device's grant, what is used of it and what is free. Dead processes' slots are emptied first. */
struct account_view account_look(int device);

/* account_processes lists who uses the device, as many as there is room for, and returns how many there are. */
unsigned int account_processes(int device, struct account_process *list, unsigned int room);

/* account_gate tells when the grant may launch on a device, as the node last said it; false where it has no share of the device's
 * time, or is not known. phase is the grant's own, so that the gates of several do not open together. */
struct account_gate { uint64_t share, gate, beat, phase; };
bool account_gate(int device, struct account_gate *g);

/* account_devices is how many devices the grant has, 0 before account_open. */
int account_devices(void);

/* account_bury empties the slots of processes that are no more and returns how many there were. */
unsigned int account_bury(void);
