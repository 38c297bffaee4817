/* What the front reads: a command line, and the configuration. It decides with values and makes no
 * system call, so that a test can drive it. */
#ifndef GPULEDGER_READ_H
#define GPULEDGER_READ_H

#include <stdbool.h>
#include <stddef.h>

enum { MAX_NAMES = 8 };

/* A command line that the real runtime may get at once. */
struct line {
    const char *command;
    const char *root; /* the value of --root, or NULL */
    const char *id;   /* the container, or NULL */
    bool starts;      /* a process in the container: its open files are judged */
};

/* A part of a text, which does not end with a zero byte. */
struct span {
    const char *at;
    size_t size;
};

/* What the configuration says about the real runtime. */
struct runtimes {
    struct span names[MAX_NAMES];
    size_t count;
    bool unjudged; /* runtime.unjudged is set, for one engine or for all */
};

static bool read_line(int argc, char *const *argv, struct line *line);
static bool read_config(const char *text, size_t size, struct runtimes *found);

#endif
