/* The first instructions of gpuledger-runtime (docs/adr/0097). Most calls of a runtime judge
 * nothing: state, start, kill, exec. For the lines that engines write for them, the front executes
 * the real runtime before Go starts, which would take three times as long as all of this. For every
 * other line, and wherever it is in doubt, it returns, and Go starts as if it had not run.
 *
 * It has no libc, writes no memory but its stack, and leaves no descriptor open. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "read.c"

enum {
    MAX_CONFIG = 16 << 10,
    MAX_PATH = 1024,
    NOT_FOUND = -2, /* ENOENT */
    NO_DIR = -20,   /* ENOTDIR */
};

#if defined __x86_64__
static long call(long number, long a, long b, long c, long d, long e)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;

    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}
/* Go's own entry follows at front_end (front.ld). It finds the stack as the kernel made it. */
__asm__(".section .text.first,\"ax\"\n"
        "mov %rsp, %rdi\n"
        "push %rdx\n"
        "call front\n"
        "pop %rdx\n"
        "jmp front_end\n"
        ".text\n");
#elif defined __aarch64__
static long call(long number, long a, long b, long c, long d, long e)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;

    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
__asm__(".section .text.first,\"ax\"\n"
        "mov x0, sp\n"
        "bl front\n"
        "mov x0, 0\n"
        "mov x30, 0\n"
        "b front_end\n"
        ".text\n");
#else
#error "the front is for x86-64 and arm64"
#endif

/* status is statx(2), which has one layout on all architectures. */
static long status(int dir, const char *path, int flags, struct statx *st)
{
    return call(SYS_statx, dir, (long)path, flags, STATX_BASIC_STATS, (long)st);
}

/* environment is what of it counts. Go takes the first of several entries of one name, too. */
struct environment {
    const char *config, *path;
    bool odd;     /* this process was the wrapper before: Go finds out */
    bool listens; /* LISTEN_FDS gives the process more descriptors */
};

static const char *value_of(const char *entry, const char *name)
{
    size_t n = length(name);

    return same(entry, name, n) && entry[n] == '=' ? entry + n + 1 : NULL;
}

static void read_environment(char *const *env, struct environment *e)
{
    const char *value;

    *e = (struct environment){0};
    for (; *env; env++) {
        if (!e->config && (value = value_of(*env, "GPULEDGER_CONFIG"))) e->config = value;
        if (!e->path && (value = value_of(*env, "PATH"))) e->path = value;
        if ((value = value_of(*env, "LISTEN_FDS")) && *value) e->listens = true;
        if (same(*env, "_GPULEDGER_", 11)) e->odd = true;
    }
    if (!e->config || !*e->config) e->config = "/etc/gpuledger/config.toml";
    if (!e->path) e->path = "";
}

/* are_open reports whether the standard descriptors are. In place of one that is not, a runtime in C
 * would give the container the next file that it opens, such as that of --log. Go opens /dev/null
 * there before anything else. */
static bool are_open(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (call(SYS_fcntl, fd, F_GETFD, 0, 0, 0) < 0) return false;
    return true;
}

/* plain reports whether a descriptor leads nowhere: a pipe, a terminal, /dev/null. What else there
 * is, package host knows. */
static bool plain(int fd)
{
    struct statx st;

    if (status(fd, "", AT_EMPTY_PATH, &st)) return false;
    if (S_ISFIFO(st.stx_mode)) return true;
    return S_ISCHR(st.stx_mode) && (st.stx_rdev_major == 1 || st.stx_rdev_major == 4 || st.stx_rdev_major == 5 ||
                                    (st.stx_rdev_major >= 136 && st.stx_rdev_major <= 143));
}

/* read_file returns the size of a whole regular file, or -1 if it does not fit or is of another kind:
 * what is read from a pipe, Go could not read again. */
static long read_file(const char *path, char *to)
{
    long fd = call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0, 0), size = 0, n = -1;
    struct statx st;

    if (fd < 0) return -1;
    if (!status((int)fd, "", AT_EMPTY_PATH, &st) && S_ISREG(st.stx_mode))
        while ((n = call(SYS_read, fd, (long)(to + size), MAX_CONFIG - size, 0, 0)) > 0) size += n;
    call(SYS_close, fd, 0, 0, 0, 0);
    return n || size == MAX_CONFIG ? -1 : size;
}

struct path {
    char text[MAX_PATH];
    size_t size;
};

static bool append(struct path *p, struct span s)
{
    if (p->size + s.size >= sizeof p->text) return false;
    for (size_t i = 0; i < s.size; i++) p->text[p->size++] = s.at[i];
    p->text[p->size] = 0;
    return true;
}

static bool append_word(struct path *p, const char *word) { return append(p, (struct span){word, length(word)}); }

enum verdict { NO, YES, DOUBT };

/* program reports whether there is a program, and not this one. */
static enum verdict program(const char *path, const struct statx *self)
{
    struct statx st;
    long err = status(AT_FDCWD, path, 0, &st);

    if (err) return err == NOT_FOUND || err == NO_DIR ? NO : DOUBT;
    if (!S_ISREG(st.stx_mode) || !(st.stx_mode & 0111)) return NO;
    return st.stx_ino != self->stx_ino || st.stx_dev_major != self->stx_dev_major ||
           st.stx_dev_minor != self->stx_dev_minor;
}

/* is_clean reports whether no part of a path is empty, "." or "..". */
static bool is_clean(const char *path, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (path[i] != '/') continue;
        size_t part = i + 1;
        while (part < size && path[part] == '.') part++;
        if (part - i <= 3 && (part == size || path[part] == '/')) return false;
    }
    return true;
}

/* in_directories looks for a name in the directories of a list, as runtime.find does. */
static enum verdict in_directories(const char *list, struct span name, const struct statx *self, struct path *found)
{
    while (*list) {
        size_t n = 0;
        while (list[n] && list[n] != ':') n++;
        if (list[0] == '/') { /* a relative one would start in the bundle */
            if (!is_clean(list, n)) return DOUBT; /* Go cleans paths */
            found->size = 0;
            if (!append(found, (struct span){list, n}) || !append_word(found, "/") || !append(found, name))
                return DOUBT;
            enum verdict is_there = program(found->text, self);
            if (is_there != NO) return is_there;
        }
        list += n;
        if (*list) list++;
    }
    return NO;
}

/* find is the first runtime that is there. */
static enum verdict find(const struct runtimes *r, const char *path, struct path *found)
{
    struct statx self;

    if (status(AT_FDCWD, "/proc/self/exe", 0, &self)) return DOUBT;
    for (size_t i = 0; i < r->count; i++) {
        enum verdict is_there = NO;
        bool named = true;
        for (size_t j = 0; j < r->names[i].size; j++) named = named && r->names[i].at[j] != '/';
        if (named) {
            is_there = in_directories(path, r->names[i], &self, found);
            if (is_there == NO)
                is_there = in_directories(
                    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/libexec/crio", r->names[i],
                    &self, found);
        } else {
            found->size = 0;
            is_there = append(found, r->names[i]) ? program(found->text, &self) : DOUBT;
        }
        if (is_there != NO) return is_there;
    }
    return DOUBT;
}

/* keeps reports whether a runtime keeps the state of the line's container. */
static bool keeps(const struct path *runtime, const struct line *line)
{
    struct path file;
    struct statx st;
    const char *base = runtime->text;

    for (const char *c = runtime->text; *c; c++)
        if (*c == '/') base = c + 1;
    if (!line->root || !line->id) return false;
    if (!is_clean(line->root, length(line->root))) return false; /* Go cleans paths */
    file.size = 0;
    for (const char *c = line->id; *c; c++)
        if (*c == '/') return false;
    return append_word(&file, line->root) && append_word(&file, "/") && append_word(&file, line->id) &&
           append_word(&file, same(base, "crun", 4) ? "/status" : "/state.json") &&
           !status(AT_FDCWD, file.text, 0, &st);
}

/* pass executes the real runtime if the configuration names it plainly. */
static __attribute__((noinline)) void pass(const struct line *line, char **argv, char *const *env)
{
    char config[MAX_CONFIG];
    struct environment e;
    struct runtimes r;
    struct path runtime;
    char *self = argv[0];
    long size;

    read_environment(env, &e);
    if (e.odd || !are_open() || (line->starts && (e.listens || !plain(0) || !plain(1) || !plain(2)))) return;
    size = read_file(e.config, config);
    if (size < 0 || !read_config(config, (size_t)size, &r)) return;
    if (find(&r, e.path, &runtime) != YES) return;
    /* of several runtimes, Go looks for the one that keeps the container */
    if ((r.unjudged || (r.count > 1 && line->id)) && !keeps(&runtime, line)) return;
    argv[0] = runtime.text;
    call(SYS_execve, (long)runtime.text, (long)argv, (long)env, 0, 0);
    argv[0] = self; /* Go reports why it cannot be executed */
}

/* front gets the stack as the kernel made it: argc, argv, and the environment. */
__attribute__((used, visibility("hidden"))) void front(long *stack)
{
    char **argv = (char **)(stack + 1);
    struct line line;

    if (read_line((int)stack[0], argv, &line)) pass(&line, argv, argv + stack[0] + 1);
}
