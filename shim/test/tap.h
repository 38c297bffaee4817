/* Tests in C: each is a function that runs in a process of its own, by its name, and prints its
 * checks as TAP. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Weak: a program of several files has one of each. */
__attribute__((weak)) int tap_count, tap_failed;

#define OK(condition, ...)                                                                              \
    do {                                                                                                \
        int tap_good = !!(condition);                                                                   \
        tap_failed += !tap_good;                                                                        \
        printf("%sok %d - ", tap_good ? "" : "not ", ++tap_count);                                      \
        printf(__VA_ARGS__);                                                                            \
        printf(tap_good ? "\n" : "\n# %s:%d: %s\n", __FILE__, __LINE__, #condition);                    \
        fflush(stdout);                                                                                 \
    } while (0)

/* IS compares numbers and shows both. */
#define IS(got, want, what)                                                                             \
    do {                                                                                                \
        unsigned long long tap_got = (unsigned long long)(got), tap_want = (unsigned long long)(want);  \
        OK(tap_got == tap_want, "%s", what);                                                            \
        if (tap_got != tap_want) printf("# got %llu, want %llu\n", tap_got, tap_want), fflush(stdout);  \
    } while (0)

struct tap_test { const char *name; void (*run)(void); };

/* tap_lists reports whether the arguments ask for the names of the tests. */
static inline int tap_lists(int argc, char **argv) { return argc == 2 && strcmp(argv[1], "--list") == 0; }

/* tap_main runs the test that the argument names, or lists all. It returns 2 if there is no such
 * test. */
static inline int tap_main(int argc, char **argv, const struct tap_test *tests)
{
    for (; tests->name; tests++) {
        if (tap_lists(argc, argv)) {
            puts(tests->name);
            continue;
        }
        if (argc != 2 || strcmp(argv[1], tests->name) != 0) continue;
        tests->run();
        printf("1..%d\n", tap_count);
        return tap_failed > 0;
    }
    return tap_lists(argc, argv) ? 0 : 2;
}
