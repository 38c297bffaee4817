/* The book: a text file "devices" that says what GPUs there are, and "usage", which all processes map. Both lie in
 * $FAKEDRIVER_DIR, else in /run/fakedriver (a container), else in run/fakedriver of the driver root that the library
 * was loaded from. */
#define _GNU_SOURCE
#include "book.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 1024, PATHS = 192, LIMITS = 64, DESK = 0, FIRST_SEAT = 1 }; /* DESK and FIRST_SEAT + i are bytes of the file to lock */
enum { FIRST_MOMENT = 1000000000 }; /* of our own clock: a machine that has been up for a while */

struct seat {
    uint32_t pid;    /* as its process knows it, in this namespace: */
    uint64_t pid_ns; /* 0 where there is no /proc to tell */
    char cgroup[PATHS];
    uint64_t used[BOOK_KINDS][BOOK_GPUS];
    uint64_t busy[BOOK_GPUS]; /* microseconds that its launches took */
    uint64_t wake;            /* until when it sleeps, by a clock of ours; 0: it takes no part in it */
};

struct limit {
    char cgroup[PATHS]; /* empty: a free place */
    uint64_t soft[BOOK_GPUS], hard[BOOK_GPUS];
};

struct usage {
    struct limit limits[LIMITS];
    uint64_t peak[BOOK_GPUS];
    uint64_t until[BOOK_GPUS]; /* microseconds of the clock: when a GPU has run what it has */
    uint64_t clock, horizon;   /* of our own: now, and how far it may go */
    uint32_t ticks;            /* how often it went on: who sleeps waits for the next */
    struct seat seats[SLOTS];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct book_gpu gpus[BOOK_GPUS];
static int count;
static uint64_t context_bytes, launch_time, look_time;
static struct usage *usage;
static int fd = -1, mine = -1;
static char directory_name[4000];

static uint64_t pid_namespace(const char *process)
{
    char path[300];
    struct stat st;

    snprintf(path, sizeof path, "/proc/%s/ns/pid", process);
    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static bool directory(char *path, size_t size)
{
    const char *env = getenv("FAKEDRIVER_DIR");
    Dl_info self;

    if (env) return snprintf(path, size, "%s", env) > 0;
    if (snprintf(path, size, "/run/fakedriver") > 0 && access(path, X_OK) == 0) return true;
    if (!dladdr((void *)book_open, &self)) return false;
    for (const char *usr = self.dli_fname; (usr = strstr(usr, "/usr/")); usr++) {
        snprintf(path, size, "%.*s/run/fakedriver", (int)(usr - self.dli_fname), self.dli_fname);
        if (access(path, X_OK) == 0) return true;
    }
    return false;
}

static bool parse_uuid(struct book_gpu *g)
{
    const char *p = g->uuid + 4;

    for (int i = 0; i < 16; i++, p += 2) {
        unsigned int byte;
        if (*p == '-') p++;
        if (sscanf(p, "%2x", &byte) != 1) return false;
        g->bytes[i] = (unsigned char)byte;
    }
    return true;
}

/* read_devices: lines of "UUID MiB NAME", one of "context MiB" for what a context takes, and perhaps one of "launch MICROSECONDS" for how long
 * each launch runs; without it they take no time, and nothing is told of it. With "look MICROSECONDS" the clock is ours (book.h). */
static bool read_devices(const char *dir)
{
    char path[4096], line[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/devices", dir);
    f = fopen(path, "re");
    if (!f) return false;
    while (count < BOOK_GPUS && fgets(line, sizeof line, f)) {
        unsigned long long mib;
        struct book_gpu *g = &gpus[count];
        if (sscanf(line, "context %llu", &mib) == 1)
            context_bytes = mib << 20;
        else if (sscanf(line, "launch %llu", &mib) == 1)
            launch_time = mib;
        else if (sscanf(line, "look %llu", &mib) == 1)
            look_time = mib;
        else if (sscanf(line, "%63s %llu %63[^\n]", g->uuid, &mib, g->name) == 3 && parse_uuid(g)) {
            g->memory = mib << 20;
            count++;
        }
    }
    fclose(f);
    return count > 0;
}

static bool map_usage(const char *dir)
{
    char path[4096];
    struct stat st;

    snprintf(path, sizeof path, "%s/usage", dir);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &st) < 0) return false;
    fchmod(fd, 0666); /* the umask is not to keep other users out */
    if ((size_t)st.st_size < sizeof *usage && ftruncate(fd, sizeof *usage) < 0) return false;
    usage = mmap(NULL, sizeof *usage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (usage == MAP_FAILED) usage = NULL;
    return usage != NULL;
}

static bool lock_byte(int command, int type, off_t byte)
{
    struct flock l = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, command, &l) == 0;
}

static void enter(void) { lock_byte(F_OFD_SETLKW, F_WRLCK, DESK); }
static void leave(void) { lock_byte(F_OFD_SETLK, F_UNLCK, DESK); }

/* own_cgroup is the caller's in v2, from the root of its cgroup namespace. */
static void own_cgroup(char *path)
{
    char line[4096];
    FILE *f = fopen("/proc/self/cgroup", "re");

    *path = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "0::%191[^\n]", path) == 1) break;
    if (f) fclose(f);
}

/* take_seat: the first that nobody holds. A dead process's lock is gone. */
static bool take_seat(void)
{
    enter();
    for (int i = 0; i < SLOTS && mine < 0; i++)
        if (lock_byte(F_OFD_SETLK, F_WRLCK, FIRST_SEAT + i)) mine = i;
    if (mine >= 0) {
        memset(&usage->seats[mine], 0, sizeof usage->seats[mine]);
        usage->seats[mine].pid = (uint32_t)getpid();
        usage->seats[mine].pid_ns = pid_namespace("self");
        own_cgroup(usage->seats[mine].cgroup);
        if (usage->clock == 0) usage->clock = usage->horizon = FIRST_MOMENT;
    }
    leave();
    return mine >= 0;
}

static void close_in_child(void)
{
    if (fd >= 0) close(fd);
    if (usage) munmap(usage, sizeof *usage);
    fd = mine = -1;
    usage = NULL;
    count = 0;
    pthread_mutex_init(&mutex, NULL);
}

bool book_open(void)
{
    static bool registered;
    char dir[4000];
    bool ok;

    pthread_mutex_lock(&mutex);
    ok = mine >= 0;
    if (!ok && directory(dir, sizeof dir)) {
        count = 0;
        snprintf(directory_name, sizeof directory_name, "%s", dir);
        ok = read_devices(dir) && map_usage(dir) && take_seat();
        if (!registered) registered = pthread_atfork(NULL, NULL, close_in_child) == 0;
    }
    pthread_mutex_unlock(&mutex);
    return ok;
}

int book_gpus(void) { return count; }
uint64_t book_context_bytes(void) { return context_bytes; }
const struct book_gpu *book_gpu(int index) { return index >= 0 && index < count ? &gpus[index] : NULL; }

/* bury empties the seat of a process that is no more. Under the desk's lock. */
static void bury(int i)
{
    struct seat *s = &usage->seats[i];

    if (i == mine || s->pid == 0 || !lock_byte(F_OFD_SETLK, F_WRLCK, FIRST_SEAT + i)) return;
    memset(s, 0, sizeof *s);
    lock_byte(F_OFD_SETLK, F_UNLCK, FIRST_SEAT + i);
}

static uint64_t sum(int gpu, unsigned int kinds)
{
    uint64_t total = 0;

    for (int i = 0; i < SLOTS; i++) {
        bury(i);
        for (int k = 0; k < BOOK_KINDS; k++)
            if (kinds & 1u << k) total += usage->seats[i].used[k][gpu];
    }
    return total;
}

static const unsigned int every_kind = (1u << BOOK_KINDS) - 1;

static bool within(const char *cgroup, const char *above)
{
    size_t n = strlen(above);
    return strncmp(cgroup, above, n) == 0 && (cgroup[n] == 0 || cgroup[n] == '/');
}

static uint64_t held_in(const char *cgroup, int gpu)
{
    uint64_t total = 0;

    for (int i = 0; i < SLOTS; i++) {
        bury(i);
        if (within(usage->seats[i].cgroup, cgroup))
            for (int k = 0; k < BOOK_KINDS; k++) total += usage->seats[i].used[k][gpu];
    }
    return total;
}

/* allowed: no limit of a cgroup that this process is in, or below, is in the way. */
static bool allowed(int gpu, uint64_t bytes)
{
    for (int i = 0; i < LIMITS; i++) {
        const struct limit *l = &usage->limits[i];
        uint64_t used;
        if (!*l->cgroup || l->hard[gpu] == BOOK_NO_LIMIT || !within(usage->seats[mine].cgroup, l->cgroup)) continue;
        used = held_in(l->cgroup, gpu);
        if (used > l->hard[gpu] || bytes > l->hard[gpu] - used) return false;
    }
    return true;
}

bool book_add(int gpu, enum book_kind kind, uint64_t bytes)
{
    bool fits = false;

    pthread_mutex_lock(&mutex);
    enter();
    if (bytes <= gpus[gpu].memory && sum(gpu, every_kind) <= gpus[gpu].memory - bytes && allowed(gpu, bytes)) {
        uint64_t memory;
        fits = true;
        usage->seats[mine].used[kind][gpu] += bytes;
        memory = sum(gpu, 1u << BOOK_MEMORY);
        if (memory > usage->peak[gpu]) usage->peak[gpu] = memory;
    }
    leave();
    pthread_mutex_unlock(&mutex);
    return fits;
}

void book_sub(int gpu, enum book_kind kind, uint64_t bytes)
{
    pthread_mutex_lock(&mutex);
    enter();
    usage->seats[mine].used[kind][gpu] -= bytes;
    leave();
    pthread_mutex_unlock(&mutex);
}

static uint64_t ask(int gpu, unsigned int kinds)
{
    uint64_t total;

    pthread_mutex_lock(&mutex);
    enter();
    total = sum(gpu, kinds);
    leave();
    pthread_mutex_unlock(&mutex);
    return total;
}

uint64_t book_used(int gpu) { return ask(gpu, every_kind); }
uint64_t book_mine(int gpu, enum book_kind kind) { return usage->seats[mine].used[kind][gpu]; }
uint64_t book_peak(int gpu) { return usage->peak[gpu]; }

/* pid_here is a seat's pid in the namespace of the one who asks, as the kernel's own driver tells it. What is not below that
 * namespace keeps its own. */
static unsigned int pid_here(const struct seat *s)
{
    unsigned int pid = s->pid;
    struct dirent *entry;
    DIR *proc;

    if (s->pid_ns == 0 || s->pid_ns == pid_namespace("self") || !(proc = opendir("/proc"))) return pid;
    while ((entry = readdir(proc))) {
        char path[300], line[256];
        unsigned int innermost = 0;
        FILE *f;
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || pid_namespace(entry->d_name) != s->pid_ns) continue;
        snprintf(path, sizeof path, "/proc/%s/status", entry->d_name);
        if (!(f = fopen(path, "re"))) continue;
        while (fgets(line, sizeof line, f)) {
            char *last = strrchr(line, '\t');
            if (strncmp(line, "NSpid:", 6) == 0 && last) innermost = (unsigned int)strtoul(last, NULL, 10);
        }
        fclose(f);
        if (innermost == s->pid) {
            pid = (unsigned int)strtoul(entry->d_name, NULL, 10);
            break;
        }
    }
    closedir(proc);
    return pid;
}

int book_processes(int gpu, struct book_process *list, int room)
{
    int n = 0;

    ask(gpu, every_kind);
    for (int i = 0; i < SLOTS; i++) {
        const struct seat *s = &usage->seats[i];
        uint64_t used = s->used[BOOK_MEMORY][gpu] + s->used[BOOK_CONTEXTS][gpu];
        if (used == 0) continue;
        if (n < room) list[n] = (struct book_process){.pid = pid_here(s), .used = used};
        n++;
    }
    return n;
}

/* ---- time ---- */

uint64_t book_clock(void)
{
    struct timespec t;

    if (look_time > 0) return __atomic_load_n(&usage->clock, __ATOMIC_SEQ_CST);
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* rest is the system call itself, by clock_nanosleep: a test may have a nanosleep of its own. */
static void rest(uint64_t microseconds)
{
    struct timespec t = {.tv_sec = (time_t)(microseconds / 1000000), .tv_nsec = (long)(microseconds % 1000000) * 1000};
    if (microseconds > 0) clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

/* pass lets our clock go on to the next moment at which somebody wakes, and reports whether all sleep beyond the horizon. While one of them
 * is awake it stands still. Under the desk's lock. */
static bool pass(void)
{
    uint64_t next = usage->horizon;

    for (int i = 0; i < SLOTS; i++) {
        uint64_t wake = (bury(i), usage->seats[i].wake);
        if (wake == 0) continue;
        if (wake <= usage->clock) return false;
        if (wake < next) next = wake;
    }
    if (next <= usage->clock) return true;
    __atomic_store_n(&usage->clock, next, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&usage->ticks, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &usage->ticks, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return false;
}

void book_sleep(uint64_t microseconds)
{
    uint64_t until;

    if (look_time == 0) {
        rest(microseconds);
        return;
    }
    pthread_mutex_lock(&mutex);
    enter();
    until = usage->clock + microseconds;
    usage->seats[mine].wake = until;
    pass();
    leave();
    pthread_mutex_unlock(&mutex);
    for (;;) {
        uint32_t ticks = __atomic_load_n(&usage->ticks, __ATOMIC_SEQ_CST);
        if (book_clock() >= until) return;
        syscall(SYS_futex, &usage->ticks, FUTEX_WAIT, ticks, NULL, NULL, 0);
    }
}

/* book_look looks again and again, because one that is killed tells nobody. */
void book_look(void)
{
    bool over = look_time == 0, first = true;

    while (!over) {
        pthread_mutex_lock(&mutex);
        enter();
        if (first) usage->horizon = usage->clock + look_time;
        over = pass();
        leave();
        pthread_mutex_unlock(&mutex);
        first = false;
        if (!over) rest(50);
    }
}

uint64_t book_launch_time(void) { return launch_time; }

uint64_t book_run(int gpu)
{
    uint64_t now, left;

    if (launch_time == 0) return 0;
    pthread_mutex_lock(&mutex);
    enter();
    now = book_clock();
    if (usage->until[gpu] < now) usage->until[gpu] = now;
    usage->until[gpu] += launch_time;
    usage->seats[mine].busy[gpu] += launch_time;
    left = usage->until[gpu] - now;
    leave();
    pthread_mutex_unlock(&mutex);
    return left;
}

uint64_t book_running(int gpu)
{
    uint64_t now = book_clock(), until = usage->until[gpu];
    return until > now ? until - now : 0;
}

int book_busy(int gpu, struct book_process *list, int room)
{
    int n = 0;

    ask(gpu, every_kind);
    for (int i = 0; i < SLOTS; i++)
        if (usage->seats[i].busy[gpu] > 0 && n++ < room) list[n - 1] = (struct book_process){.pid = pid_here(&usage->seats[i]), .used = usage->seats[i].busy[gpu]};
    return n;
}

static const char mount_point[] = "/sys/fs/cgroup";

/* place finds a cgroup's limit, or with make a free place for one. What is said of cgroups that are gone is forgotten. */
static struct limit *place(const char *directory, bool make)
{
    struct limit *vacant = NULL;
    struct stat st;

    if (strncmp(directory, mount_point, sizeof mount_point - 1) != 0) return NULL;
    for (int i = 0; i < LIMITS; i++) {
        struct limit *l = &usage->limits[i];
        char path[PATHS + sizeof mount_point];
        snprintf(path, sizeof path, "%s%s", mount_point, l->cgroup);
        if (*l->cgroup && stat(path, &st) < 0) memset(l, 0, sizeof *l);
        if (*l->cgroup && strcmp(path, directory) == 0) return l;
        if (!*l->cgroup && !vacant) vacant = l;
    }
    if (!make || !vacant) return NULL;
    snprintf(vacant->cgroup, sizeof vacant->cgroup, "%s", directory + sizeof mount_point - 1);
    for (int i = 0; i < BOOK_GPUS; i++) vacant->hard[i] = BOOK_NO_LIMIT;
    return vacant;
}

bool book_set_limit(int gpu, const char *directory, uint64_t soft, uint64_t hard)
{
    struct limit *l;

    pthread_mutex_lock(&mutex);
    enter();
    l = place(directory, true);
    if (l) {
        l->soft[gpu] = soft;
        l->hard[gpu] = hard;
    }
    leave();
    pthread_mutex_unlock(&mutex);
    return l != NULL;
}

bool book_limit(int gpu, const char *directory, uint64_t *soft, uint64_t *hard, uint64_t *used)
{
    const struct limit *l;

    pthread_mutex_lock(&mutex);
    enter();
    l = place(directory, false);
    if (l) {
        *soft = l->soft[gpu];
        *hard = l->hard[gpu];
        *used = held_in(l->cgroup, gpu);
    }
    leave();
    pthread_mutex_unlock(&mutex);
    return l != NULL;
}

/* own_limit is that of the cgroup which this process is in, and of no other above it. */
static const struct limit *own_limit(int gpu)
{
    for (int i = 0; i < LIMITS; i++) {
        const struct limit *l = &usage->limits[i];
        if (*l->cgroup && strcmp(l->cgroup, usage->seats[mine].cgroup) == 0 && l->hard[gpu] < gpus[gpu].memory) return l;
    }
    return NULL;
}

uint64_t book_memory(int gpu)
{
    const struct limit *l = own_limit(gpu);
    return l ? l->hard[gpu] : gpus[gpu].memory;
}

uint64_t book_free(int gpu)
{
    const struct limit *l = own_limit(gpu);
    uint64_t all = gpus[gpu].memory - book_used(gpu), used;

    if (!l) return all;
    pthread_mutex_lock(&mutex);
    enter();
    used = held_in(l->cgroup, gpu);
    leave();
    pthread_mutex_unlock(&mutex);
    used = used < l->hard[gpu] ? l->hard[gpu] - used : 0;
    return used < all ? used : all;
}

void book_wish(char *word, int size)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/limits", directory_name);
    f = fopen(path, "re");
    if (!f || !fgets(word, size, f)) *word = 0;
    if (f) fclose(f);
    word[strcspn(word, "\n")] = 0;
}
