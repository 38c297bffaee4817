#include "read.h"

static size_t length(const char *word)
{
    size_t n = 0;

    while (word[n]) n++;
    return n;
}

static bool same(const char *a, const char *b, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (a[i] != b[i]) return false;
    return true;
}

/* The subcommands that the real runtime gets at once, each with the operands and the options that
 * engines give it. An option with "=" takes a value. runc, crun and youki have all of them, by
 * these names and of this kind. There are no pointers in the tables, so that the front needs no
 * relocations. */
#ifndef GLOBAL_OPTIONS /* a test plants mistakes */
#define GLOBAL_OPTIONS "--root= --log= --log-format= --systemd-cgroup --debug"
#endif
#ifndef EXEC_OPTIONS
#define EXEC_OPTIONS "--process= --console-socket= --pid-file= --detach --tty"
#endif
static const char global_options[] = GLOBAL_OPTIONS;
static const struct {
    char name[12], least, most;
    char options[72];
} commands[] = {
    {"state", 1, 1, ""},
    {"start", 1, 1, ""},
    {"kill", 1, 2, "--all"},
    {"exec", 1, 1, EXEC_OPTIONS},
    {"pause", 1, 1, ""},
    {"resume", 1, 1, ""},
    {"ps", 1, 1, "--format="},
    {"list", 0, 0, "--format= --quiet"},
    {"events", 1, 1, "--stats"},
    {"features", 0, 0, ""},
    {"--version", 0, 0, ""},
};

/* The subcommands that are judged. A line in which one of them is a word goes to Go, wherever it
 * stands: then not even a runtime with options of other kinds can take it for the subcommand. */
static const char judged[][8] = {"create", "run", "restore", "update", "delete"};

static bool is(const char *word, const char *name)
{
    size_t n = length(name);

    return same(word, name, n) && !word[n];
}

static bool is_plain(const char *word)
{
    if (!word[0] || word[0] == '-') return false;
    for (size_t i = 0; i < sizeof judged / sizeof judged[0]; i++)
        if (is(word, judged[i])) return false;
    return true;
}

/* option reads the option at argv[*at], and its value. given has a bit for each option of the table
 * that came before: none may come twice. It returns its number, or -1. */
static int option(const char *table, char *const *argv, int *at, unsigned *given, const char **value)
{
    const char *word = argv[*at];

    for (int i = 0; *table; i++) {
        size_t n = 0;
        while (table[n] && table[n] != ' ' && table[n] != '=') n++;
        bool valued = table[n] == '=';
        if (same(word, table, n) && (!word[n] || (valued && word[n] == '='))) {
            if (*given & 1u << i) return -1;
            *given |= 1u << i;
            *value = NULL;
            if (!valued) return i;
            *value = word[n] ? word + n + 1 : argv[++*at];
            return *value && is_plain(*value) ? i : -1;
        }
        table += n + valued;
        if (*table) table++;
    }
    return -1;
}

/* operands reads the words after the subcommand: options first, then what they are for. */
static bool operands(size_t command, char *const *argv, int at, struct line *line)
{
    unsigned given = 0;
    const char *value;
    int count = 0;

    for (; argv[at] && argv[at][0] == '-'; at++)
        if (option(commands[command].options, argv, &at, &given, &value) < 0) return false;
    line->starts = is(commands[command].name, "exec");
    if (line->starts && !(given & 1)) return false; /* without --process, words of the container follow */
    for (; argv[at]; at++, count++) {
        if (!is_plain(argv[at])) return false;
        if (!count) line->id = argv[at];
    }
    return count >= commands[command].least && count <= commands[command].most;
}

static bool read_line(int argc, char *const *argv, struct line *line)
{
    unsigned given = 0;
    const char *value;
    int at = 1;

    *line = (struct line){0};
    if (argc < 2) return false;
    for (; argv[at] && argv[at][0] == '-' && !is(argv[at], "--version"); at++) {
        int option_number = option(global_options, argv, &at, &given, &value);
        if (option_number < 0) return false;
        if (option_number == 0) line->root = value;
    }
    if (!argv[at]) return false;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (!is(argv[at], commands[i].name)) continue;
        line->command = argv[at];
        return operands(i, argv, at + 1, line);
    }
    return false;
}

/* The configuration. Of TOML only what is usual is read; anything else is left to Go. */

struct text {
    const char *at, *end;
};

/* peek returns the next character, and at the end that of an empty line. */
static int peek(const struct text *t) { return t->at < t->end ? *t->at : '\n'; }

static bool take(struct text *t, char c)
{
    if (t->at >= t->end || *t->at != c) return false;
    t->at++;
    return true;
}

static void blanks(struct text *t)
{
    while (take(t, ' ') || take(t, '\t')) {}
}

/* line_end reads what may follow on a line: blanks, a comment, the end. */
static bool line_end(struct text *t)
{
    blanks(t);
    if (peek(t) == '#')
        while (peek(t) == '\t' || (peek(t) >= ' ' && peek(t) <= '~')) t->at++;
    return t->at >= t->end || take(t, '\n');
}

static bool is_key(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static bool key(struct text *t, struct span *found)
{
    found->at = t->at;
    while (is_key(peek(t))) t->at++;
    found->size = (size_t)(t->at - found->at);
    return found->size > 0;
}

static bool span_is(struct span s, const char *name)
{
    return s.size == length(name) && same(s.at, name, s.size);
}

/* span_equals_fold compares without regard to the letters' case, as Go finds a key. name is in lower
 * case. */
static bool span_equals_fold(struct span s, const char *name)
{
    if (s.size != length(name)) return false;
    for (size_t i = 0; i < s.size; i++)
        if ((s.at[i] | ' ') != name[i]) return false;
    return true;
}

/* string reads "text" without escapes, or 'text'. */
static bool string(struct text *t, struct span *found)
{
    char quote = (char)peek(t);

    if ((quote != '"' && quote != '\'') || !take(t, quote)) return false;
    found->at = t->at;
    while (peek(t) >= ' ' && peek(t) <= '~' && peek(t) != quote && (quote == '\'' || peek(t) != '\\')) t->at++;
    found->size = (size_t)(t->at - found->at);
    return take(t, quote);
}

static bool digit(int c) { return c >= '0' && c <= '9'; }

/* scalar reads a string, a number without a sign, or a truth. */
static bool scalar(struct text *t)
{
    struct span ignored;
    const char *begin = t->at;

    if (peek(t) == '"' || peek(t) == '\'') return string(t, &ignored);
    if (!digit(peek(t))) return key(t, &ignored) && (span_is(ignored, "true") || span_is(ignored, "false"));
    while (digit(peek(t))) t->at++;
    return *begin != '0' || t->at == begin + 1;
}

/* lines reads blanks, comments and line ends within an array. */
static bool lines(struct text *t)
{
    for (;;) {
        blanks(t);
        if (t->at >= t->end || (*t->at != '\n' && *t->at != '#')) return t->at < t->end;
        if (!line_end(t)) return false;
    }
}

/* array reads scalars, or strings alone into found. */
static bool array(struct text *t, struct runtimes *found)
{
    if (!take(t, '[')) return false;
    for (bool more = true; lines(t);) {
        if (take(t, ']')) return true;
        if (!more) return false;
        if (!found) {
            if (!scalar(t)) return false;
        } else if (found->count == MAX_NAMES || !string(t, &found->names[found->count++])) {
            return false;
        }
        if (!lines(t)) return false;
        more = take(t, ',');
    }
    return false;
}

/* by_engine reads { engine = "runtime", ... }. */
static bool by_engine(struct text *t)
{
    struct span name;

    if (!take(t, '{')) return false;
    do {
        blanks(t);
        if (!key(t, &name)) return false;
        blanks(t);
        if (!take(t, '=')) return false;
        blanks(t);
        if (!string(t, &name)) return false;
        blanks(t);
    } while (take(t, ','));
    return take(t, '}');
}

/* header reads [table], [table.below] or [[table]]. *in tells whether it is [runtime]. */
static bool header(struct text *t, struct runtimes *found, bool *in, bool *seen)
{
    bool many = take(t, '[') && take(t, '['), below = false;
    struct span first, name;

    if (!key(t, &first) || (span_equals_fold(first, "runtime") && !span_is(first, "runtime"))) return false;
    while (take(t, '.')) {
        if (!key(t, &name)) return false;
        if (span_is(first, "runtime") && (below || !span_is(name, "unjudged"))) return false;
        below = true;
    }
    if (!take(t, ']') || (many && !take(t, ']')) || !line_end(t)) return false;
    *in = false;
    if (!span_is(first, "runtime")) return true;
    if (many) return false;
    if (below) {
        found->unjudged = true; /* by engine */
    } else {
        if (*seen) return false;
        *in = *seen = true;
    }
    return true;
}

/* key_value reads one entry. */
static bool key_value(struct text *t, struct runtimes *found, bool in, bool top)
{
    struct span name, value;

    if (!key(t, &name)) return false;
    blanks(t);
    if (!take(t, '=') || (top && span_is(name, "runtime"))) return false;
    blanks(t);
    if (in && span_is(name, "path")) {
        if (found->count || !array(t, found) || !found->count) return false;
    } else if (in) {
        bool table = peek(t) == '{';
        if (!span_is(name, "unjudged") || !(table ? by_engine(t) : string(t, &value))) return false;
        found->unjudged = found->unjudged || table || value.size;
    } else if (peek(t) == '[' ? !array(t, NULL) : !scalar(t)) {
        return false;
    }
    return line_end(t);
}

static const char usual[2][5] = {"runc", "crun"};

static bool read_config(const char *text, size_t size, struct runtimes *found)
{
    struct text t = {text, text + size};
    bool in = false, seen = false, top = true;

    found->count = 0;
    found->unjudged = false;
    while (t.at < t.end) {
        blanks(&t);
        if (peek(&t) == '\n' || peek(&t) == '#') {
            if (!line_end(&t)) return false;
        } else if (peek(&t) == '[') {
            top = false;
            if (!header(&t, found, &in, &seen)) return false;
        } else if (!key_value(&t, found, in, top)) {
            return false;
        }
    }
    for (size_t i = 0; i < found->count; i++)
        if (!found->names[i].size) return false;
    if (!found->count)
        for (; found->count < 2; found->count++) found->names[found->count] = (struct span){usual[found->count], 4};
    return true;
}
