/* The shared state: a text file "devices" that lists the GPUs, and "usage", which all processes map. Both lie in
 * $FAKEDRIVER_DIR, else in /run/fakedriver (a container), else in run/fakedriver of the driver root that the library
 * was loaded from. */
#define _GNU_SOURCE
#include "shared.h"

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

enum { SLOTS = 1024, PATHS = 192, LIMITS = 64, LOCK_BYTE = 0, FIRST_SLOT_BYTE = 1 }; /* LOCK_BYTE and FIRST_SLOT_BYTE + i are bytes of the file to lock */
enum { FIRST_MOMENT = 1000000000 }; /* of the simulated clock: a machine that has been up for a while */

struct slot {
    uint32_t pid;    /* as in its own namespace, which is: */
    uint64_t pid_ns; /* 0 without a /proc */
    char cgroup[PATHS];
    uint64_t used[SHARED_KINDS][SHARED_GPUS];
    uint64_t busy[SHARED_GPUS]; /* microseconds that its launches took */
    uint64_t wake;            /* until when it sleeps, by the simulated clock; 0: it takes no part */
};

struct limit {
    char cgroup[PATHS]; /* empty: a free entry */
    uint64_t soft[SHARED_GPUS], hard[SHARED_GPUS];
};

struct usage {
    struct limit limits[LIMITS];
    uint64_t peak[SHARED_GPUS];
    uint64_t until[SHARED_GPUS]; /* microseconds of the clock: when a GPU has run what it has */
    uint64_t clock, horizon;   /* simulated: now, and how far it may go */
    uint32_t ticks;            /* how often it advanced: a sleeping process waits for the next */
    struct slot slots[SLOTS];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct shared_gpu gpus[SHARED_GPUS];
static int count;
static uint64_t context_bytes, unlisted_bytes, launch_time, look_time;
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
    if (!dladdr((void *)shared_open, &self)) return false;
    for (const char *usr = self.dli_fname; (usr = strstr(usr, "/usr/")); usr++) {
        snprintf(path, size, "%.*s/run/fakedriver", (int)(usr - self.dli_fname), self.dli_fname);
        if (access(path, X_OK) == 0) return true;
    }
    return false;
}

static bool parse_uuid(struct shared_gpu *g)
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

/* read_devices reads lines of "UUID MiB NAME", one of "context MiB" for the memory of a context, and one of
 * "unlisted KiB" for what a context takes beside it, which NVML lists for no process. A line of
 * "launch MICROSECONDS" is how long each launch runs; without it launches take no time, and none is reported. With
 * "look MICROSECONDS" the clock is simulated (shared.h). */
static bool read_devices(const char *dir)
{
    char path[4096], line[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/devices", dir);
    f = fopen(path, "re");
    if (!f) return false;
    while (count < SHARED_GPUS && fgets(line, sizeof line, f)) {
        unsigned long long mib;
        struct shared_gpu *g = &gpus[count];
        if (sscanf(line, "context %llu", &mib) == 1)
            context_bytes = mib << 20;
        else if (sscanf(line, "unlisted %llu", &mib) == 1)
            unlisted_bytes = mib << 10;
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
    fchmod(fd, 0666); /* the umask must not keep other users out */
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

static void enter(void) { lock_byte(F_OFD_SETLKW, F_WRLCK, LOCK_BYTE); }
static void leave(void) { lock_byte(F_OFD_SETLK, F_UNLCK, LOCK_BYTE); }

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

/* take_slot takes the first slot that no process has locked. The kernel frees the lock of a process that ends. */
static bool take_slot(void)
{
    enter();
    for (int i = 0; i < SLOTS && mine < 0; i++)
        if (lock_byte(F_OFD_SETLK, F_WRLCK, FIRST_SLOT_BYTE + i)) mine = i;
    if (mine >= 0) {
        memset(&usage->slots[mine], 0, sizeof usage->slots[mine]);
        usage->slots[mine].pid = (uint32_t)getpid();
        usage->slots[mine].pid_ns = pid_namespace("self");
        own_cgroup(usage->slots[mine].cgroup);
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

bool shared_open(void)
{
    static bool registered;
    char dir[4000];
    bool ok;

    pthread_mutex_lock(&mutex);
    ok = mine >= 0;
    if (!ok && directory(dir, sizeof dir)) {
        count = 0;
        snprintf(directory_name, sizeof directory_name, "%s", dir);
        ok = read_devices(dir) && map_usage(dir) && take_slot();
        if (!registered) registered = pthread_atfork(NULL, NULL, close_in_child) == 0;
    }
    pthread_mutex_unlock(&mutex);
    return ok;
}

int shared_gpus(void) { return count; }
uint64_t shared_context_bytes(void) { return context_bytes; }
uint64_t shared_unlisted_bytes(void) { return unlisted_bytes; }
const struct shared_gpu *shared_gpu(int index) { return index >= 0 && index < count ? &gpus[index] : NULL; }

/* clear_slot empties the slot of a process that has ended. The caller holds the lock of LOCK_BYTE. */
static void clear_slot(int i)
{
    struct slot *s = &usage->slots[i];

    if (i == mine || s->pid == 0 || !lock_byte(F_OFD_SETLK, F_WRLCK, FIRST_SLOT_BYTE + i)) return;
    memset(s, 0, sizeof *s);
    lock_byte(F_OFD_SETLK, F_UNLCK, FIRST_SLOT_BYTE + i);
}

static uint64_t sum(int gpu, unsigned int kinds)
{
    uint64_t total = 0;

    for (int i = 0; i < SLOTS; i++) {
        clear_slot(i);
        for (int k = 0; k < SHARED_KINDS; k++)
            if (kinds & 1u << k) total += usage->slots[i].used[k][gpu];
    }
    return total;
}

static const unsigned int every_kind = (1u << SHARED_KINDS) - 1;

static bool within(const char *cgroup, const char *above)
{
    size_t n = strlen(above);
    return strncmp(cgroup, above, n) == 0 && (cgroup[n] == 0 || cgroup[n] == '/');
}

static uint64_t held_in(const char *cgroup, int gpu)
{
    uint64_t total = 0;

    for (int i = 0; i < SLOTS; i++) {
        clear_slot(i);
        if (within(usage->slots[i].cgroup, cgroup))
            for (int k = 0; k < SHARED_KINDS; k++) total += usage->slots[i].used[k][gpu];
    }
    return total;
}

/* allowed: no limit of this process's cgroup, or of one above it, forbids it. */
static bool allowed(int gpu, uint64_t bytes)
{
    for (int i = 0; i < LIMITS; i++) {
        const struct limit *l = &usage->limits[i];
        uint64_t used;
        if (!*l->cgroup || l->hard[gpu] == SHARED_NO_LIMIT || !within(usage->slots[mine].cgroup, l->cgroup)) continue;
        used = held_in(l->cgroup, gpu);
        if (used > l->hard[gpu] || bytes > l->hard[gpu] - used) return false;
    }
    return true;
}

bool shared_add(int gpu, enum shared_kind kind, uint64_t bytes)
{
    bool fits = false;

    pthread_mutex_lock(&mutex);
    enter();
    if (bytes <= gpus[gpu].memory && sum(gpu, every_kind) <= gpus[gpu].memory - bytes && allowed(gpu, bytes)) {
        uint64_t memory;
        fits = true;
        usage->slots[mine].used[kind][gpu] += bytes;
        memory = sum(gpu, 1u << SHARED_MEMORY);
        if (memory > usage->peak[gpu]) usage->peak[gpu] = memory;
    }
    leave();
    pthread_mutex_unlock(&mutex);
    return fits;
}

void shared_sub(int gpu, enum shared_kind kind, uint64_t bytes)
{
    pthread_mutex_lock(&mutex);
    enter();
    usage->slots[mine].used[kind][gpu] -= bytes;
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

uint64_t shared_used(int gpu) { return ask(gpu, every_kind); }
uint64_t shared_mine(int gpu, enum shared_kind kind) { return usage->slots[mine].used[kind][gpu]; }
uint64_t shared_peak(int gpu) { return usage->peak[gpu]; }

/* pid_here is a slot's pid in the caller's namespace, as the real driver reports it. A process outside of that
 * namespace keeps its own pid. */
static unsigned int pid_here(const struct slot *s)
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

int shared_processes(int gpu, struct shared_process *list, int room)
{
    int n = 0;

    ask(gpu, every_kind);
    for (int i = 0; i < SLOTS; i++) {
        const struct slot *s = &usage->slots[i];
        uint64_t used = s->used[SHARED_MEMORY][gpu] + s->used[SHARED_CONTEXTS][gpu];
        if (used == 0) continue;
        if (n < room) list[n] = (struct shared_process){.pid = pid_here(s), .used = used};
        n++;
    }
    return n;
}

/* ---- time ---- */

uint64_t shared_clock(void)
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

/* advance moves the simulated clock to the next moment at which a process wakes. It reports whether all sleep beyond
 * the horizon. While a process is awake the clock stands still. The caller holds the lock of LOCK_BYTE. */
static bool advance(void)
{
    uint64_t next = usage->horizon;

    for (int i = 0; i < SLOTS; i++) {
        uint64_t wake = (clear_slot(i), usage->slots[i].wake);
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

void shared_sleep(uint64_t microseconds)
{
    uint64_t until;

    if (look_time == 0) {
        rest(microseconds);
        return;
    }
    pthread_mutex_lock(&mutex);
    enter();
    until = usage->clock + microseconds;
    usage->slots[mine].wake = until;
    advance();
    leave();
    pthread_mutex_unlock(&mutex);
    for (;;) {
        uint32_t ticks = __atomic_load_n(&usage->ticks, __ATOMIC_SEQ_CST);
        if (shared_clock() >= until) return;
        syscall(SYS_futex, &usage->ticks, FUTEX_WAIT, ticks, NULL, NULL, 0);
    }
}

/* shared_look polls, because a killed process wakes no other. */
void shared_look(void)
{
    bool over = look_time == 0, first = true;

    while (!over) {
        pthread_mutex_lock(&mutex);
        enter();
        if (first) usage->horizon = usage->clock + look_time;
        over = advance();
        leave();
        pthread_mutex_unlock(&mutex);
        first = false;
        if (!over) rest(50);
    }
}

uint64_t shared_launch_time(void) { return launch_time; }

uint64_t shared_run(int gpu)
{
    uint64_t now, left;

    if (launch_time == 0) return 0;
    pthread_mutex_lock(&mutex);
    enter();
    now = shared_clock();
    if (usage->until[gpu] < now) usage->until[gpu] = now;
    usage->until[gpu] += launch_time;
    usage->slots[mine].busy[gpu] += launch_time;
    left = usage->until[gpu] - now;
    leave();
    pthread_mutex_unlock(&mutex);
    return left;
}

uint64_t shared_running(int gpu)
{
    uint64_t now = shared_clock(), until = usage->until[gpu];
    return until > now ? until - now : 0;
}

int shared_busy(int gpu, struct shared_process *list, int room)
{
    int n = 0;

    ask(gpu, every_kind);
    for (int i = 0; i < SLOTS; i++)
        if (usage->slots[i].busy[gpu] > 0 && n++ < room) list[n - 1] = (struct shared_process){.pid = pid_here(&usage->slots[i]), .used = usage->slots[i].busy[gpu]};
    return n;
}

static const char mount_point[] = "/sys/fs/cgroup";

/* limit_of finds a cgroup's limit, or with make a free entry for one. It drops the limits of removed cgroups. */
static struct limit *limit_of(const char *directory, bool make)
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
    for (int i = 0; i < SHARED_GPUS; i++) vacant->hard[i] = SHARED_NO_LIMIT;
    return vacant;
}

bool shared_set_limit(int gpu, const char *directory, uint64_t soft, uint64_t hard)
{
    struct limit *l;

    pthread_mutex_lock(&mutex);
    enter();
    l = limit_of(directory, true);
    if (l) {
        l->soft[gpu] = soft;
        l->hard[gpu] = hard;
    }
    leave();
    pthread_mutex_unlock(&mutex);
    return l != NULL;
}

bool shared_limit(int gpu, const char *directory, uint64_t *soft, uint64_t *hard, uint64_t *used)
{
    const struct limit *l;

    pthread_mutex_lock(&mutex);
    enter();
    l = limit_of(directory, false);
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
        if (*l->cgroup && strcmp(l->cgroup, usage->slots[mine].cgroup) == 0 && l->hard[gpu] < gpus[gpu].memory) return l;
    }
    return NULL;
}

uint64_t shared_memory(int gpu)
{
    const struct limit *l = own_limit(gpu);
    return l ? l->hard[gpu] : gpus[gpu].memory;
}

uint64_t shared_free(int gpu)
{
    const struct limit *l = own_limit(gpu);
    uint64_t all = gpus[gpu].memory - shared_used(gpu), used;

    if (!l) return all;
    pthread_mutex_lock(&mutex);
    enter();
    used = held_in(l->cgroup, gpu);
    leave();
    pthread_mutex_unlock(&mutex);
    used = used < l->hard[gpu] ? l->hard[gpu] - used : 0;
    return used < all ? used : all;
}

void shared_wish(char *word, int size)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/limits", directory_name);
    f = fopen(path, "re");
    if (!f || !fgets(word, size, f)) *word = 0;
    if (f) fclose(f);
    word[strcspn(word, "\n")] = 0;
}
