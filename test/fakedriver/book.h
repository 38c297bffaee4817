/* What the stand-in's libraries have in common: which GPUs there are, and who uses how much of them. One file shared by
 * all processes plays the kernel: what a process holds is gone with it, however it ends. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BOOK_GPUS 16

struct book_gpu {
    char uuid[64]; /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
    unsigned char bytes[16];
    char name[64];
    uint64_t memory;
};

enum book_kind { BOOK_MEMORY, BOOK_CONTEXTS, BOOK_KINDS };

struct book_process {
    unsigned int pid;
    uint64_t used; /* of both kinds */
};

/* All return false when the book can't be opened. Threads may call them at once. */
bool book_open(void);
int book_gpus(void);
const struct book_gpu *book_gpu(int index);
uint64_t book_context_bytes(void);

/* book_add takes bytes of a GPU for this process; false if it does not have them free. */
bool book_add(int gpu, enum book_kind kind, uint64_t bytes);
void book_sub(int gpu, enum book_kind kind, uint64_t bytes);

/* A cgroup's limit, by the path of its directory below /sys/fs/cgroup, BOOK_NO_LIMIT without one: what its processes and those below it
 * hold together. It is gone with the cgroup. A process belongs to the cgroup that it is in when it first uses a GPU, as
 * /proc/self/cgroup tells it: not in a cgroup namespace of its own. */
#define BOOK_NO_LIMIT UINT64_MAX
bool book_set_limit(int gpu, const char *directory, uint64_t soft, uint64_t hard);
bool book_limit(int gpu, const char *directory, uint64_t *soft, uint64_t *hard, uint64_t *used);
/* What a GPU has for this process: all of it, or the limit of its cgroup. And what is free of that. */
uint64_t book_memory(int gpu);
uint64_t book_free(int gpu);
/* What the file "limits" beside "devices" wants of a set: "" or a word that the caller knows. */
void book_wish(char *word, int size);

/* What is used of a GPU, and the most that its memory (not contexts) ever was. */
uint64_t book_used(int gpu);
uint64_t book_mine(int gpu, enum book_kind kind);
uint64_t book_peak(int gpu);
int book_processes(int gpu, struct book_process *list, int room);

/* Time, in microseconds: how long each launch runs (0: none takes any, and nothing is told), one more of this process on a GPU, which
 * returns when it will have run, and how long the GPU still runs what it has. book_busy tells of each process how long it has run.
 *
 * Where "devices" says "look MICROSECONDS" the clock is not the machine's: it stands still, but for so much at each book_look, which returns
 * when all of it has passed. Meanwhile who sleeps wakes in the order of time. A process takes part from its first book_sleep on, be it for
 * nothing; one thread of it, that is. A minute then takes as long as what its programs do in it, and is the same on a machine that is busy. */
uint64_t book_clock(void);
void book_sleep(uint64_t microseconds);
void book_look(void);
uint64_t book_launch_time(void);
uint64_t book_run(int gpu);
uint64_t book_running(int gpu);
int book_busy(int gpu, struct book_process *list, int room);
