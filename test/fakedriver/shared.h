/* The state that the stand-in's libraries share: the GPUs, and how much of them each process uses. One file that all
 * processes map stands in for the kernel: what a process holds is freed when it ends, however it ends. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SHARED_GPUS 16

struct shared_gpu {
    char uuid[64]; /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
    unsigned char bytes[16];
    char name[64];
    uint64_t memory;
};

/* Unlisted is what the driver uses for a context and lists for no process. */
enum shared_kind { SHARED_MEMORY, SHARED_CONTEXTS, SHARED_UNLISTED, SHARED_KINDS };

struct shared_process {
    unsigned int pid;
    uint64_t used; /* memory and contexts */
};

/* All return false if the state cannot be opened. Threads may call them at once. */
bool shared_open(void);
int shared_gpus(void);
const struct shared_gpu *shared_gpu(int index);
uint64_t shared_context_bytes(void);
uint64_t shared_unlisted_bytes(void);

/* shared_add takes bytes of a GPU for this process; false if it does not have them free. */
bool shared_add(int gpu, enum shared_kind kind, uint64_t bytes);
void shared_sub(int gpu, enum shared_kind kind, uint64_t bytes);

/* A cgroup's limit on what its processes and those below it hold together, by the path of its directory below
 * /sys/fs/cgroup; SHARED_NO_LIMIT without one. The limit ends with the cgroup. A process belongs to the cgroup that
 * /proc/self/cgroup shows when it first uses a GPU. It must not be in a cgroup namespace of its own. */
#define SHARED_NO_LIMIT UINT64_MAX
bool shared_set_limit(int gpu, const char *directory, uint64_t soft, uint64_t hard);
bool shared_limit(int gpu, const char *directory, uint64_t *soft, uint64_t *hard, uint64_t *used);
/* The memory of a GPU for this process: all of it, or the limit of its cgroup. And how much of that is free. */
uint64_t shared_memory(int gpu);
uint64_t shared_free(int gpu);
/* The word in the file "limits" beside "devices", which says how to treat a set of a limit; "" without one. */
void shared_wish(char *word, int size);

/* What is used of a GPU, and the most that its memory (not contexts) ever was. */
uint64_t shared_used(int gpu);
uint64_t shared_mine(int gpu, enum shared_kind kind);
uint64_t shared_peak(int gpu);
int shared_processes(int gpu, struct shared_process *list, int room);

/* Time, in microseconds. shared_launch_time is how long each launch runs; 0: launches take no time, and none is
 * reported. shared_run adds a launch of this process to a GPU, and returns when it will have run. shared_running is how
 * long the GPU still runs. shared_busy is how long each process has run.
 *
 * With "look MICROSECONDS" in "devices" the clock is not the machine's. It stands still, except that each shared_look
 * advances it by so much and then returns. Meanwhile sleeping processes wake in the order of time. A process takes
 * part, with one thread, from its first shared_sleep on, even of 0. A minute then takes as long as what its programs do
 * in it, and is the same on a busy machine. */
uint64_t shared_clock(void);
void shared_sleep(uint64_t microseconds);
void shared_look(void);
uint64_t shared_launch_time(void);
uint64_t shared_run(int gpu);
uint64_t shared_running(int gpu);
int shared_busy(int gpu, struct shared_process *list, int room);
