/* Several processes with one grant: what each holds, and what a dead one leaves. */
#include "proxy.h"

static void a_second_process_sees_the_first(void) /* core #191 */
{
    pid_t first = held(0, 200);

    begin(0);
    IS(free_mib(), 56, "what the first holds is not free");
    OK(!get(57), "nor can it be allocated");
    OK(get(56), "the rest is");
    finish(first);
    IS(free_mib(), 200, "killed, it holds nothing");
    OK(get(200), "and all of it can be allocated at once"); /* core #248: 327 s */
}

static void out_of_memory_reaps_dead_processes_first(void) /* hami #2500, core #260 */
{
    pid_t others[4];

    begin(0);
    for (int i = 0; i < 4; i++) others[i] = held(0, 60);
    OK(!get(100), "four others hold nearly all");
    for (int i = 0; i < 4; i++) finish(others[i]);
    OK(get(256), "and what they leave is free without a separate call");
}

static void a_dying_process_counts_until_the_driver_frees(void)
{
    int got = 0;

    begin(0);
    for (int round = 0; round < 50; round++) {
        CUcontext c;
        CUdeviceptr p = 0;
        int ready[2];
        char byte;
        pid_t pid;

        if (pipe(ready) < 0 || (pid = fork()) < 0) break;
        if (pid == 0) {
            if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || !get(GRANT) || write(ready[1], "y", 1) != 1) _exit(1);
            for (;;) pause();
        }
        if (read(ready[0], &byte, 1) != 1) break;
        kill(pid, SIGKILL);
        for (int i = 0; i < 100000 && !p; i++) p = get(GRANT); /* while it dies */
        got += p != 0;
        cuMemFree_v2(p);
        waitpid(pid, NULL, 0);
        close(ready[0]);
        close(ready[1]);
    }
    IS(got, 50, "what a killed process had is granted again, 50 times");
    IS(fakedriverPeak(0), GRANT * MIB, "and never before the GPU had it free");
}

static void slots_never_move(void) /* core #241 #242 */
{
    struct record_head *h = region();
    pid_t a = held(0, 10), b = held(0, 20), c = held(0, 30);

    IS(slot(h, 0)->used[0] + slot(h, 1)->used[0] + slot(h, 2)->used[0], 60 * MIB, "three processes in three slots");
    IS(slot(h, 2)->used[0], 30 * MIB, "the last in the third");
    IS(slot(h, 2)->pid, c, "with its pid");
    finish(b);
    begin(0);
    get(5);
    IS(slot(h, 1)->used[0], 6 * MIB, "a new one gets the dead one's slot");
    IS(slot(h, 2)->used[0], 30 * MIB, "the others stay where they are");
    IS(slot(h, 0)->pid, a, "all of them");
    finish(a);
    finish(c);
}

static void sixty_four_processes(void)
{
    pid_t pids[64];
    int status, fine = 0;

    for (int i = 0; i < 64; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            unsigned int s = (unsigned int)i;
            CUcontext c;
            if (cuInit(0) || cuCtxCreate_v2(&c, 0, i % 2)) _exit(1);
            for (int round = 0; round < 30; round++) {
                CUdeviceptr p = get(1 + rand_r(&s) % 40);
                if (free_mib() > GRANT) _exit(2);
                if (p) cuMemFree_v2(p);
            }
            _exit(0);
        }
    }
    for (int i = 0; i < 64; i++) {
        waitpid(pids[i], &status, 0);
        fine += status == 0;
    }
    IS(fine, 64, "64 processes on two devices ran to their end");
    begin(0);
    OK(fakedriverPeak(0) <= GRANT * MIB && fakedriverPeak(1) <= GRANT1 * MIB, "within their grants");
    IS(free_mib(), GRANT, "and left nothing");
}

/* rank is a process of a job on two GPUs, such as a model that is split over them. It has contexts
 * on both, VMM memory on one and plain memory on the other, and continues when all ranks have
 * theirs. */
enum { RANKS = 4, ROUNDS = 25 };

static int meet(int *met, int round)
{
    __atomic_add_fetch(met, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; __atomic_load_n(met, __ATOMIC_SEQ_CST) < RANKS * (round + 1); i++) {
        if (i == 60000) return 1;
        usleep(1000);
    }
    return 0;
}

static int rank(int me, int *met)
{
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, me % 2}};
    CUcontext mine, other;

    if (cuInit(0) || cuCtxCreate_v2(&mine, 0, me % 2) || cuCtxCreate_v2(&other, 0, 1 - me % 2)) return 1;
    for (int round = 0; round < ROUNDS; round++) {
        CUmemGenericAllocationHandle h;
        CUdeviceptr p, q;
        if (cuMemCreate(&h, 40 * MIB, &prop, 0) || cuMemAddressReserve(&p, 40 * MIB, 0, 0, 0) || cuMemMap(p, 40 * MIB, 0, h, 0)) return 2;
        if (cuCtxSetCurrent(other) || cuMemAlloc_v2(&q, 20 * MIB) || meet(&met[0], round)) return 3;
        if (cuMemUnmap(p, 40 * MIB) || cuMemRelease(h) || cuMemFree_v2(q) || cuCtxSetCurrent(mine) || meet(&met[1], round)) return 4;
    }
    return 0;
}

static void a_job_on_several_gpus_goes_on(void) /* hami #1461 #1479 #1219 #1438 */
{
    int *met = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), status;
    pid_t pids[RANKS];

    for (int i = 0; i < RANKS; i++)
        if ((pids[i] = fork()) == 0) _exit(rank(i, met));
    for (int i = 0; i < RANKS; i++) {
        waitpid(pids[i], &status, 0);
        IS(status, 0, "a rank ends without an error");
    }
    IS(fakedriverPeak(0), 120 * MIB, "on one GPU two ranks' VMM memory, and two ranks' plain memory");
    OK(fakedriverPeak(1) == 120 * MIB, "on the other as well: nearly all of its 128");
}

/* A lock of the program's that its fork handlers take. One thread has it while another forks. The
 * shim's own handler runs before the program's, because it was registered later. */
static pthread_mutex_t of_program = PTHREAD_MUTEX_INITIALIZER;
static int held_by_thread, fork_waits;
static CUcontext context_of_program;

static void take_of_program(void)
{
    __atomic_store_n(&fork_waits, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&of_program);
}
static void leave_of_program(void) { pthread_mutex_unlock(&of_program); }

static void *calls_with_the_lock(void *failed)
{
    size_t total;

    pthread_mutex_lock(&of_program);
    __atomic_store_n(&held_by_thread, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&fork_waits, __ATOMIC_SEQ_CST)) usleep(1000);
    cuCtxSetCurrent(context_of_program);
    *(int *)failed = free_mib() != GRANT - 100 || cuDeviceTotalMem_v2(&total, 0) || total != GRANT * MIB;
    pthread_mutex_unlock(&of_program);
    return NULL;
}

static void a_fork_that_waits_for_a_thread_in_cuda(void)
{
    int failed = 1, status = 1;
    pthread_t thread;
    pid_t pid;

    OK(pthread_atfork(take_of_program, leave_of_program, leave_of_program) == 0, "a program with a fork handler");
    context_of_program = begin(0);
    OK(get(100), "a process with memory");
    alarm(30);
    pthread_create(&thread, NULL, calls_with_the_lock, &failed);
    while (!__atomic_load_n(&held_by_thread, __ATOMIC_SEQ_CST)) usleep(1000);
    if ((pid = fork()) == 0) _exit(0);
    OK(waitpid(pid, &status, 0) == pid && status == 0, "forks while another thread has the handler's lock");
    pthread_join(thread, NULL);
    IS(failed, 0, "which asks the driver meanwhile");
}

const struct tap_test process_tests[] = {
    TEST(a_second_process_sees_the_first), TEST(out_of_memory_reaps_dead_processes_first),
    TEST(a_dying_process_counts_until_the_driver_frees), TEST(slots_never_move), TEST(sixty_four_processes), TEST(a_job_on_several_gpus_goes_on),
    TEST(a_fork_that_waits_for_a_thread_in_cuda), {NULL, NULL},
};
