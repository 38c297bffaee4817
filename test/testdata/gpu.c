/* gpu WORD...: what a program finds of its GPUs, by dlopen and dlsym as CUDA programs do. Words are done in their order:
 *   total   the memory of each GPU, as its driver says it
 *   free    what is free of GPU 0
 *   N       N MiB on GPU 0; what is had is kept
 *   past:LIBRARY  takes what follows from that library, as a program that looks for the driver behind a proxy of it
 *   launch  launches, and says whose function that was
 *   launches  launches for ever, each time as soon as it may, and keeps the number in /tmp/launched
 *   lease   has the kernel hold up who opens the grant's limits for writing
 *   hold    says so, and waits for ever
 *   serve   allocates, for each file /tmp/ask.1, /tmp/ask.2, ..., the MiB that it names, and answers in /tmp/answer.1, ... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*init)(unsigned);
static int (*count)(int *);
static int (*create)(void **, unsigned, int);
static int (*total)(size_t *, int);
static int (*info)(size_t *, size_t *);
static int (*alloc)(unsigned long long *, size_t);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static int load(const char *name)
{
    struct { const char *name; void *to; } all[] = {{"cuInit", &init}, {"cuDeviceGetCount", &count}, {"cuCtxCreate_v2", &create},
        {"cuDeviceTotalMem_v2", &total}, {"cuMemGetInfo_v2", &info}, {"cuMemAlloc_v2", &alloc},
        {"cuLaunchKernel", &launch}};
    void *lib = dlopen(name, RTLD_NOW);

    for (size_t i = 0; lib && i < sizeof all / sizeof *all; i++)
        if (!(*(void **)all[i].to = dlsym(lib, all[i].name))) return 0;
    return lib != NULL;
}

static void say_total(void)
{
    int n = 0;
    size_t bytes = 0;

    count(&n);
    for (int i = 0; i < n; i++) {
        int r = total(&bytes, i);
        printf("GPU %d total %zu MiB (%d)\n", i, bytes >> 20, r);
    }
}

static void say_free(void)
{
    size_t free = 0, all = 0;
    int r = info(&free, &all);
    printf("free %zu of %zu MiB (%d)\n", free >> 20, all >> 20, r);
}

static void say_launch(void)
{
    Dl_info of = {.dli_fname = "nobody"};
    int r = launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    dladdr((void *)launch, &of);
    printf("launched by %s (%d)\n", of.dli_fname, r);
}

static void go_on_launching(void)
{
    puts("launches");
    for (unsigned long n = 1; launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == 0; n++) {
        FILE *f = fopen("/tmp/draft", "w");
        if (!f) exit(3);
        fprintf(f, "%lu", n);
        fclose(f);
        rename("/tmp/draft", "/tmp/launched");
    }
    exit(4);
}

static void lease(void)
{
    int fd = open("/run/gpuledger/limits", O_RDONLY);

    signal(SIGIO, SIG_IGN); /* by which the kernel asks for it back */
    printf("lease: %d\n", fcntl(fd, F_SETLEASE, F_RDLCK));
}

static int take(size_t mib)
{
    unsigned long long p;
    return alloc(&p, mib << 20);
}

static void serve(void)
{
    for (int i = 1;; i++) {
        char ask[64], answer[64];
        FILE *f;
        unsigned long mib;

        snprintf(ask, sizeof ask, "/tmp/ask.%d", i);
        snprintf(answer, sizeof answer, "/tmp/answer.%d", i);
        while (!(f = fopen(ask, "r"))) usleep(10000);
        if (fscanf(f, "%lu", &mib) != 1) exit(3);
        fclose(f);
        if (!(f = fopen("/tmp/draft", "w"))) exit(3);
        fprintf(f, "%d", take(mib));
        fclose(f);
        rename("/tmp/draft", answer);
    }
}

static void begin(const char *name)
{
    void *context;
    int r;

    if (!load(name)) {
        printf("no driver: %s\n", dlerror());
        exit(1);
    }
    if ((r = init(0)) || (r = create(&context, 0, 0))) {
        printf("no GPU: %d\n", r);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    begin("libcuda.so.1");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "total") == 0) say_total();
        else if (strcmp(argv[i], "free") == 0) say_free();
        else if (strcmp(argv[i], "launch") == 0) say_launch();
        else if (strcmp(argv[i], "launches") == 0) go_on_launching();
        else if (strcmp(argv[i], "lease") == 0) lease();
        else if (strcmp(argv[i], "serve") == 0) serve();
        else if (strncmp(argv[i], "past:", 5) == 0) begin(argv[i] + 5);
        else if (strcmp(argv[i], "hold") == 0) for (puts("holds");; pause()) {}
        else printf("%s MiB: %d\n", argv[i], take(strtoul(argv[i], NULL, 10)));
    }
    return 0;
}
