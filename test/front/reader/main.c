/* The front's reading as a program: it answers requests from standard input, each a kind ('l' for a
 * line, 'c' for a configuration), a size of four bytes in the machine's order, and the text. The
 * words of a line end with a zero byte each. The answer is "no", or what was read with a byte 1 between, and a zero byte. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../front/read.c"

static void answer_line(char *text, size_t size)
{
    struct line line;
    char **argv = calloc(size + 1, sizeof *argv);
    int argc = 0;

    for (size_t i = 0; i < size; i += length(text + i) + 1) argv[argc++] = text + i;
    if (read_line(argc, argv, &line))
        printf("%s\1%s\1%s\1%d", line.command, line.root ? line.root : "", line.id ? line.id : "", line.starts);
    else
        printf("no");
    free(argv);
}

static void answer_config(const char *text, size_t size)
{
    struct runtimes r;

    if (!read_config(text, size, &r)) {
        printf("no");
        return;
    }
    printf("%d", r.unjudged);
    for (size_t i = 0; i < r.count; i++) printf("\1%.*s", (int)r.names[i].size, r.names[i].at);
}

int main(void)
{
    int kind;

    while ((kind = getchar()) != EOF) {
        uint32_t size;
        if (fread(&size, sizeof size, 1, stdin) != 1) return 1;
        char *text = malloc(size + (kind == 'l')); /* the exact size, for the sanitizer */
        if (size && fread(text, size, 1, stdin) != 1) return 1;
        if (kind == 'l') text[size] = 0;
        if (kind == 'l')
            answer_line(text, size);
        else
            answer_config(text, size);
        putchar(0);
        fflush(stdout);
        free(text);
    }
    return 0;
}
