#define _GNU_SOURCE
#include "os.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The libraries must load with glibc 2.17. fstat and dlopen got new symbol versions in 2.33 and
 * 2.34. So fstat is not used, and dlopen and dlsym are linked by their first version, which on
 * arm64 is 2.17. */
#if defined __x86_64__
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined __aarch64__
#define FIRST_GLIBC "GLIBC_2.17"
#else
#error "the proxies are for x86-64 and arm64"
#endif
void *first_dlopen(const char *, int);
void *first_dlsym(void *, const char *);
__asm__(".symver first_dlopen, dlopen@" FIRST_GLIBC);
__asm__(".symver first_dlsym, dlsym@" FIRST_GLIBC);

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

/* A cancelled thread would end inside open, close or nanosleep, and never release the locks that it
 * holds. So these calls are made with cancellation disabled: it takes effect at the program's next
 * call. */
static void cancel_again(const int *state) { pthread_setcancelstate(*state, NULL); }
static int cancel_later(void)
{
    int state;
    return pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0 ? state : PTHREAD_CANCEL_ENABLE;
}
#define UNCANCELLED __attribute__((cleanup(cancel_again), unused)) int state = cancel_later()

static bool has_bytes(int fd, size_t size)
{
    off_t end = lseek(fd, 0, SEEK_END);
    return end >= 0 && (uint64_t)end >= size;
}

const void *os_map_limits(const char *path, size_t size)
{
    UNCANCELLED;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    void *p = MAP_FAILED;

    if (fd < 0) return NULL;
    if (has_bytes(fd, size)) p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

int os_open_region(const char *path, size_t size)
{
    UNCANCELLED;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);

    if (fd >= 0 && !has_bytes(fd, size)) {
        close(fd);
        return -1;
    }
    return fd;
}

void *os_map_region(int fd, size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED) return NULL;
    if (madvise(p, size, MADV_DONTFORK) == 0) return p;
    munmap(p, size); /* else a child would keep the parent's lock */
    return NULL;
}

void os_close(int fd)
{
    UNCANCELLED;
    close(fd);
}

bool os_lock(int fd, uint64_t byte, uint64_t bytes)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = (off_t)bytes};
    int r;

    do r = fcntl(fd, F_OFD_SETLK, &l);
    while (r < 0 && errno == EINTR);
    return r == 0;
}

uint64_t os_locked(int fd, uint64_t byte, uint64_t bytes)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = (off_t)bytes};

    if (fcntl(fd, F_OFD_GETLK, &l) == 0) {
        if (l.l_type == F_UNLCK) return byte;
        if (l.l_len > 0) return (uint64_t)l.l_start + (uint64_t)l.l_len;
    }
    return byte + bytes;
}

void *os_pages(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void os_pages_free(void *pages, size_t bytes) { munmap(pages, bytes); }
uint32_t os_pid(void) { return (uint32_t)getpid(); }

void os_pause(unsigned int microseconds)
{
    UNCANCELLED;
    struct timespec t = {.tv_nsec = (long)microseconds * 1000};
    nanosleep(&t, NULL);
}

uint64_t os_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

bool os_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
    return pthread_atfork(before, in_parent, in_child) == 0;
}

/* The library is loaded already, because the proxy needs it. */
void *os_library(const char *path) { return first_dlopen(path, RTLD_LAZY | RTLD_NOLOAD); }
void *os_symbol(void *library, const char *name) { return first_dlsym(library, name); }

/* Spinning helps if the holder runs on another CPU, yielding if it waits for this CPU. Sleeping
 * helps if the holder has a lower priority, so that yielding never lets it run. */
void os_spin_lock(struct os_spin *s)
{
    for (unsigned int i = 0; __atomic_exchange_n(&s->held, 1, __ATOMIC_ACQUIRE); i++)
        if (i >= 1000)
            os_pause(50);
        else if (i >= 100)
            sched_yield();
}

bool os_spin_try(struct os_spin *s) { return !__atomic_exchange_n(&s->held, 1, __ATOMIC_ACQUIRE); }
void os_spin_unlock(struct os_spin *s) { __atomic_store_n(&s->held, 0, __ATOMIC_RELEASE); }
