/* Everything that the proxies use of the kernel and of the C library beyond plain C. Nothing here
 * prints, exits, starts a thread or changes a signal handler, and nothing is a point where a thread is
 * cancelled. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* os_map_limits maps the first `size` bytes of a file for reading; NULL if it has fewer or cannot
 * be read. */
const void *os_map_limits(const char *path, size_t size);

/* os_open_region opens for reading, writing and locking, -1 on failure or if the file has fewer
 * bytes than `size`. os_map_region maps all `size` bytes, NULL on failure. A forked child does not
 * inherit the mapping. */
int os_open_region(const char *path, size_t size);
void *os_map_region(int fd, size_t size);
void os_close(int fd);

/* os_lock takes the OFD lock on some bytes without waiting, on all of them or none. The lock belongs
 * to the open file: the kernel releases it with the last of the file's descriptors and mappings. */
bool os_lock(int fd, uint64_t byte, uint64_t bytes);

/* os_locked returns the end of a lock of another open file on some bytes, `byte` if there is none,
 * and the end of the bytes if it cannot be told. */
uint64_t os_locked(int fd, uint64_t byte, uint64_t bytes);

/* os_pages maps zeroed memory, NULL if there is none. Not malloc: a program can bring its own,
 * which may call back into the proxy. */
void *os_pages(size_t bytes);
void os_pages_free(void *pages, size_t bytes);

uint32_t os_pid(void);
void os_pause(unsigned int microseconds); /* less than a second */
uint64_t os_clock(void);                  /* microseconds of CLOCK_MONOTONIC */

/* os_ticks reads the processor's counter. Its rate is not known. On some machines it changes, or
 * differs between processors. It costs half as much as os_clock, and touches no memory. For a test
 * whose clock is not the machine's it can be built to follow os_clock. */
#ifdef OS_TICKS_OF_TEST
uint64_t os_ticks(void);
#elif defined OS_TICKS_BY_CLOCK
static inline uint64_t os_ticks(void) { return os_clock() * 1000; }
#elif defined __x86_64__
static inline uint64_t os_ticks(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}
#elif defined __aarch64__
static inline uint64_t os_ticks(void)
{
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
}
#endif

bool os_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

/* os_library opens a library that is loaded already. os_symbol finds a function in it or in the
 * libraries that it needs. Both return NULL on failure. */
void *os_library(const char *path);
void *os_symbol(void *library, const char *name);

/* A lock between the threads of this process, held for a few instructions at a time. */
struct os_spin { int held; };
void os_spin_lock(struct os_spin *s);
bool os_spin_try(struct os_spin *s); /* false if it is held */
void os_spin_unlock(struct os_spin *s);
