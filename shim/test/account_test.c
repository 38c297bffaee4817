/* Tests of account.c and track.c without a driver. They also run under the thread and address
 * sanitizers. */
#define _GNU_SOURCE
#include "tap.h"

#include "../account.h"
#include "../record.h"
#include "../track.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char limits_file[] = "/tmp/account-limits-XXXXXX", region_file[] = "/tmp/account-region-XXXXXX";
static struct record_limits *limits;
static struct record_head *head;

static void *make(char *name, size_t size)
{
    int fd = mkstemp(name);
    void *p = fd < 0 || ftruncate(fd, (off_t)size) < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) abort();
    close(fd);
    return p;
}

static void remove_files(void)
{
    unlink(limits_file);
    unlink(region_file);
}

static void begin(uint64_t bytes)
{
    limits = make(limits_file, RECORD_PAGE);
    head = make(region_file, RECORD_REGION_SIZE);
    atexit(remove_files);
    *limits = (struct record_limits){.magic = RECORD_LIMITS_MAGIC, .version = RECORD_VERSION, .devices = 1, .id = 7, .device[0] = {.uuid = {1}, .bytes = bytes}};
    *head = (struct record_head){.magic = RECORD_REGION_MAGIC, .version = RECORD_VERSION, .devices = 1, .id = 7, .slots = RECORD_SLOTS | RECORD_COUNTED, .slot_size = sizeof(struct record_slot)};
    OK(account_open(limits_file, region_file), "the account opens");
}

/* crowd takes slots for processes that use nothing, and returns the open file whose locks they are.
 * Those that begin now get the slots after them. */
static int crowd(int slots)
{
    int fd = open(region_file, O_RDWR);
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = slots};

    IS(fcntl(fd, F_OFD_SETLK, &l), 0, "other processes have the first slots");
    return fd;
}

static struct record_slot *slot(int i) { return (struct record_slot *)((char *)head + RECORD_SLOT(i)); }

static void to_the_byte(void)
{
    begin(1000);
    IS(account_device((uint8_t[16]){1}), 0, "a device of the grant");
    IS(account_device((uint8_t[16]){2}), -1, "one that is not");
    OK(account_take(0, 999) && account_take(0, 1) && !account_take(0, 1), "the grant to the byte");
    OK(account_take(0, 0), "nothing more always fits");
    account_give(0, 1);
    OK(!account_take(0, 2) && account_take(0, 1), "freed bytes can be taken again");
    OK(!account_take(-1, 1) && !account_take(RECORD_DEVICES, 1), "no other device");
    account_give(0, 5000);
    IS(account_usage(0).used, 0, "giving more than was taken ends at 0");
    OK(!account_take(0, UINT64_MAX), "the largest number does not wrap");
    slot(3)->used[0] = UINT64_MAX;
    head->high = UINT32_MAX;
    OK(account_take(0, 1), "an invalid word in a dead slot is cleared");
    IS(slot(3)->used[0], 0, "when memory is short");
}

static void a_slot_is_kept(void)
{
    struct account_process list[2];
    int fd;

    begin(1000);
    OK(account_join() && account_take(0, 10), "joined");
    fd = open(region_file, O_RDWR);
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1};
    IS(fcntl(fd, F_OFD_SETLK, &l), 0, "another process has the next slot");
    slot(1)->used[0] = 20;
    slot(1)->pid = 4711;
    slot(2)->used[0] = 30; /* dead */
    head->high = 3;
    IS(account_usage(0).used, 30, "only live processes count");
    IS(account_processes(0, list, 2), 2, "two processes");
    OK(list[0].pid == (uint32_t)getpid() && list[0].used == 10 && list[1].pid == 4711 && list[1].used == 20, "these");
    IS(account_processes(0, list, 0), 2, "counted without room");
    IS(account_reap(), 0, "no other process is dead");
}

/* cancelled uses the account with a cancellation pending, which must not take effect in it. */
static void *cancelled(void *done)
{
    pthread_cancel(pthread_self());
    account_usage(0);
    account_take(0, 990);
    *(bool *)done = true;
    pthread_testcancel();
    return NULL;
}

static void a_cancelled_thread_holds_no_lock(void)
{
    bool done = false;
    pthread_t t;
    void *result;
    pid_t pid;
    int fd;

    begin(1000);
    OK(account_take(0, 1), "joined");
    fd = open(region_file, O_RDWR);
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1};
    IS(fcntl(fd, F_OFD_SETLK, &l), 0, "another process has the next slot");
    slot(1)->used[0] = 20;
    head->high = 2;
    pthread_create(&t, NULL, cancelled, &done);
    pthread_join(t, &result);
    OK(result == PTHREAD_CANCELED && done, "a thread is cancelled after its calls, not in them");
    alarm(20);
    if ((pid = fork()) == 0) _exit(0);
    OK(waitpid(pid, NULL, 0) == pid, "the process can fork");
    IS(account_usage(0).used, 21, "and read its account");
}

/* A thread has a lock that a fork handler of the program takes. The handler is registered before the
 * account's, so it runs after it. */
static pthread_mutex_t of_program = PTHREAD_MUTEX_INITIALIZER;
static bool fork_waits;

static void take_of_program(void)
{
    __atomic_store_n(&fork_waits, true, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&of_program);
}
static void leave_of_program(void) { pthread_mutex_unlock(&of_program); }

static void *forks(void *unused)
{
    pid_t pid = fork();

    if (pid == 0) _exit(account_take(0, 901) || !account_take(0, 900));
    return waitpid(pid, (int *)unused, 0) == pid ? unused : NULL;
}

static void a_fork_that_takes_long_stops_no_thread(void)
{
    int status = 1;
    pthread_t t;
    void *result;

    OK(pthread_atfork(take_of_program, leave_of_program, leave_of_program) == 0, "the program has a handler");
    begin(1000);
    pthread_mutex_lock(&of_program);
    pthread_create(&t, NULL, forks, &status);
    while (!__atomic_load_n(&fork_waits, __ATOMIC_SEQ_CST)) usleep(1000);
    alarm(20);
    OK(account_take(0, 100), "a thread for which the fork waits takes a slot");
    for (int i = 0; i < 1000; i++) account_usage(0);
    IS(account_usage(0).used, 100, "and reads the account a thousand times");
    pthread_mutex_unlock(&of_program);
    pthread_join(t, &result);
    OK(result && status == 0, "the fork goes on, and its child has a slot of its own");
}

static int overruns;
static void *race(void *unused)
{
    (void)unused;
    for (int i = 0; i < 20000; i++) {
        if (account_take(0, 100)) account_give(0, 100);
    }
    return NULL;
}

/* core #273: two processes pass the check together. This counts how many hold bytes at the same
 * time. */
static int holders;
static void *hold(void *unused)
{
    (void)unused;
    for (int i = 0; i < 5000; i++) {
        if (!account_take(0, 400)) continue;
        if (__atomic_add_fetch(&holders, 1, __ATOMIC_SEQ_CST) > 2) overruns++;
        sched_yield(); /* the others try meanwhile, even on one processor */
        __atomic_sub_fetch(&holders, 1, __ATOMIC_SEQ_CST);
        account_give(0, 400);
    }
    return NULL;
}

static void threads_behind(int others)
{
    pthread_t t[6];

    begin(1000);
    if (others) crowd(others);
    for (int i = 0; i < 6; i++) pthread_create(&t[i], NULL, i % 2 ? hold : race, NULL);
    for (int i = 0; i < 6; i++) pthread_join(t[i], NULL);
    IS(overruns, 0, "at most two hold 400 of 1000");
    IS(account_usage(0).used, 0, "and nothing is left");
}
static void never_more_than_fit(void) { threads_behind(0); }
static void never_more_than_fit_in_a_block(void) { threads_behind(RECORD_SINGLE + 5); }

static void race_behind(int others)
{
    int *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), status;
    pid_t pids[8];
    int fine = 0;

    begin(1000);
    if (others) crowd(others);
    for (int i = 0; i < 8; i++) {
        if ((pids[i] = fork()) > 0) continue;
        if (!account_open(limits_file, region_file)) _exit(1);
        for (int n = 0; n < 5000; n++) {
            if (!account_take(0, 400)) continue;
            if (__atomic_add_fetch(&shared[0], 1, __ATOMIC_SEQ_CST) > 2) _exit(2);
            __atomic_add_fetch(&shared[1], 1, __ATOMIC_SEQ_CST);
            sched_yield();
            __atomic_sub_fetch(&shared[0], 1, __ATOMIC_SEQ_CST);
            account_give(0, 400);
        }
        _exit(0);
    }
    for (int i = 0; i < 8; i++) waitpid(pids[i], &status, 0), fine += status == 0;
    IS(fine, 8, "eight processes, never three with 400 of 1000");
    OK(shared[1] > 1000, "and not because none succeeded: %d", shared[1]);
    IS(account_usage(0).used, 0, "nothing is left");
}

static void processes_race(void) { race_behind(0); }

/* Some of them have slots that are summed one by one, and the others are in two blocks. */
static void processes_race_in_blocks(void) { race_behind(RECORD_SINGLE - 2); }
static void processes_race_in_two_blocks(void) { race_behind(RECORD_SINGLE + RECORD_BLOCK - 4); }

/* core #86: no process waits for another. */
static void a_stopped_process_blocks_no_other(void)
{
    pid_t others[8];
    int failed = 0;

    begin(1000);
    for (int i = 0; i < 8; i++)
        if ((others[i] = fork()) == 0) {
            if (!account_open(limits_file, region_file)) _exit(1);
            for (;;) {
                if (account_take(0, 50)) account_give(0, 50);
                account_usage(0);
            }
        }
    for (int round = 0; round < 50; round++) {
        usleep(1000);
        for (int i = 0; i < 8; i++) kill(others[i], SIGSTOP);
        for (int i = 0; i < 8; i++) waitpid(others[i], NULL, WUNTRACED);
        for (int i = 0; i < 100; i++) {
            if (account_take(0, 600)) account_give(0, 600);
            else failed++;
        }
        for (int i = 0; i < 8; i++) kill(others[i], SIGCONT);
    }
    IS(failed, 0, "5000 allocations succeed while eight other processes are stopped");
    for (int i = 0; i < 8; i++) kill(others[i], SIGKILL), waitpid(others[i], NULL, 0);
    IS(account_usage(0).used, 0, "and nothing is left when they are killed");
}

/* core #248 #260, hami #2500: killed at any moment, in the first call or the last. */
static void killed_behind(int others)
{
    unsigned int seed = 1;

    begin(1000);
    if (others) crowd(others);
    for (int round = 0; round < 300; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (!account_open(limits_file, region_file)) _exit(1);
            for (;;)
                if (account_take(0, 1000)) account_give(0, 1000);
        }
        usleep(rand_r(&seed) % 1000);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        if (account_take(0, 1000)) account_give(0, 1000);
        else overruns++;
    }
    IS(overruns, 0, "what a killed process held is free at once, 300 times");
}
static void killed_at_any_moment(void) { killed_behind(0); }
static void killed_at_any_moment_in_a_block(void) { killed_behind(RECORD_SINGLE + 5); }

/* killed_at runs the start and the first allocation in a child and kills it after the given number
 * of entries to and exits from system calls. False if it ended before. */
static bool killed_at(int stops)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(3);
        raise(SIGSTOP);
        _exit(account_open(limits_file, region_file) && account_join() && account_take(0, 600) ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    for (int i = 0; i <= stops && WIFSTOPPED(status); i++) {
        ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
        waitpid(pid, &status, 0);
    }
    if (!WIFSTOPPED(status)) return false;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return true;
}

/* core #248: a process that was killed at its start makes no other wait. */
static void a_process_killed_at_its_start_blocks_no_other(void)
{
    int stops = 0, failed = 0;

    begin(1000);
    for (; stops < 1000 && killed_at(stops); stops++) {
        if (account_take(0, 1000)) account_give(0, 1000);
        else failed++;
    }
    OK(stops > 10 && stops < 1000, "killed at each of the %d entries and exits of system calls in a start", stops);
    IS(failed, 0, "the killed process holds nothing");
    IS(account_usage(0).used, 0, "nor does any other");
}

/* own_slot is the slot of the calling process. */
static struct record_slot *own_slot(void)
{
    for (int i = 0; i < RECORD_SLOTS; i++)
        if (slot(i)->pid == (uint32_t)getpid()) return slot(i);
    return NULL;
}

/* core #282 #227: only its owner writes a word, whatever other processes take, give, read and
 * reap. */
static void a_word_has_one_writer(void)
{
    pid_t pids[8];
    int status, fine = 0;

    begin(1000000);
    for (uint64_t i = 0; i < 8; i++) {
        struct record_slot *own;
        if ((pids[i] = fork()) > 0) continue;
        if (!account_open(limits_file, region_file) || !account_take(0, 1000 + i) || !(own = own_slot())) _exit(1);
        for (uint64_t n = 1; n < 3000; n++) {
            if (own->used[0] != 1000 + i) _exit(2);
            if (!account_take(0, n)) _exit(3);
            if (own->used[0] != 1000 + i + n) _exit(4);
            if (n % 8 == i) account_reap(), account_usage(0);
            account_give(0, n);
        }
        _exit(0);
    }
    for (int i = 0; i < 8; i++) waitpid(pids[i], &status, 0), fine += status == 0;
    IS(fine, 8, "eight processes find in their words what they wrote there");
}

/* hami #1662, core #252 #259: among hundreds of processes an allocation makes no system call, so it
 * waits for none of them. Strict seccomp kills a process that makes one. */
static void among_hundreds_an_allocation_makes_no_system_call(void)
{
    enum { OTHERS = 500 };
    int fd, status;
    pid_t pid;

    begin(1000000);
    fd = open(region_file, O_RDWR);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = OTHERS};
    IS(fcntl(fd, F_OFD_SETLK, &all), 0, "hundreds of processes have slots");
    for (int i = 0; i < OTHERS; i++) slot(i)->used[0] = 100;
    head->high = OTHERS;
    if ((pid = fork()) == 0) {
        if (!account_open(limits_file, region_file) || !account_join()) _exit(1);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        for (int i = 0; i < 10000; i++) {
            if (!account_take(0, 100)) syscall(SYS_exit, 2);
            account_give(0, 100);
        }
        syscall(SYS_exit, 0);
    }
    waitpid(pid, &status, 0);
    IS(status, 0, "one more starts, and allocates ten thousand times without a system call");
    IS(slot(OTHERS)->claims, 1, "in the slot after theirs");
    IS(account_usage(0).used, OTHERS * 100, "and has touched none of them");
}

/* After hundreds of processes have ended, sums are short again. A slot that a process has stays in
 * them, and what a dead process left in the slots above is gone. */
static void the_mark_falls(void)
{
    enum { OTHERS = 999, LIVE = 300 };
    int fd, status;
    pid_t pid;

    begin(1000000);
    fd = open(region_file, O_RDWR);
    struct flock live = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LIVE, .l_len = 1};
    IS(fcntl(fd, F_OFD_SETLK, &live), 0, "a process has a slot in the middle");
    slot(LIVE)->used[0] = 100;
    slot(OTHERS - 1)->used[0] = 50;
    head->high = OTHERS;
    OK(account_join(), "another one joins");
    IS(head->high, LIVE + 1, "the mark falls to the slot that is in use");
    IS(slot(OTHERS - 1)->used[0], 0, "what a dead process left is gone");
    IS(account_usage(0).used, 100, "and what the live one has is counted");
    live.l_type = F_UNLCK;
    IS(fcntl(fd, F_OFD_SETLK, &live), 0, "it ends");
    IS(account_usage(0).used, 0, "its memory is free");
    IS(head->high, 1, "the mark falls to this process's slot");
    if ((pid = fork()) == 0) {
        if (!account_open(limits_file, region_file) || !account_take(0, 10)) _exit(2);
        _exit(head->high == 2 && slot(1)->used[0] == 10 ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    IS(status, 0, "a child takes the next slot, and raises the mark again");
}

/* a_short_life: the mark is above the process's slot as long as it lives. */
static void a_short_life(void)
{
    uint32_t high = __atomic_load_n(&head->high, __ATOMIC_SEQ_CST), own;

    if (!account_open(limits_file, region_file)) _exit(2);
    /* as if hundreds had been there */
    while (high < 200 && !__atomic_compare_exchange_n(&head->high, &high, 200, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    if (!account_join()) _exit(3);
    own = (uint32_t)(own_slot() - slot(0));
    for (int n = 0; n < 20; n++) {
        account_reap();
        if (__atomic_load_n(&head->high, __ATOMIC_SEQ_CST) <= own) _exit(4);
    }
    _exit(0);
}

static void the_mark_falls_while_processes_come(void)
{
    enum { WORKERS = 6, LIVES = 300 };
    pid_t pids[WORKERS], child;
    int fine = 0, status;

    begin(1000);
    for (int w = 0; w < WORKERS; w++) {
        if ((pids[w] = fork())) continue;
        for (int i = 0; i < LIVES; i++) {
            if ((child = fork()) == 0) a_short_life();
            waitpid(child, &status, 0);
            if (status) _exit(1);
        }
        _exit(0);
    }
    for (int w = 0; w < WORKERS; w++) waitpid(pids[w], &status, 0), fine += status == 0;
    IS(fine, WORKERS, "each process is below the mark as long as it lives");
}

/* ---- sums of blocks ---- */

static uint64_t *count_of(int i)
{
    return (uint64_t *)((char *)head + RECORD_CHANGES((i - RECORD_SINGLE) / RECORD_BLOCK));
}

/* What changed is summed anew, and a block that did not is not read again: that is what makes a sum
 * of a thousand slots short. */
static void unchanged_blocks_are_remembered(void)
{
    enum { OTHERS = 900, OTHER = 200 };

    begin(1000000);
    crowd(OTHERS);
    for (int i = 0; i < OTHERS; i++) slot(i)->used[0] = 100;
    head->high = OTHERS;
    OK(account_take(0, 1000000 - OTHERS * 100) && !account_take(0, 1), "all slots are summed, to the byte");
    account_give(0, 1000);
    slot(OTHER)->used[0] += 1000;
    OK(account_take(0, 1000), "a change that is not counted is not seen");
    account_give(0, 1000);
    ++*count_of(OTHER);
    OK(!account_take(0, 1), "one that is counted is");
    slot(OTHER)->used[0] -= 500;
    OK(account_take(0, 500), "nothing is refused by what is remembered");
    IS(account_usage(0).used, 1000000, "and a report reads each slot");
    slot(OTHER)->used[0] = UINT64_MAX;
    ++*count_of(OTHER);
    account_give(0, 5000);
    OK(!account_take(0, 1), "with an invalid word in a block, nothing fits");
}

/* A region of an older gpuledger has processes that do not count their changes. */
static void an_older_region_is_read_slot_by_slot(void)
{
    enum { OTHERS = 900 };

    begin(1000000);
    head->slots = RECORD_SLOTS;
    crowd(OTHERS);
    for (int i = 0; i < OTHERS; i++) slot(i)->used[0] = 100;
    head->high = OTHERS;
    OK(account_take(0, 1000), "an allocation");
    slot(200)->used[0] += 1000000 - OTHERS * 100 - 1500;
    OK(!account_take(0, 501) && account_take(0, 500), "a change that no count shows is seen at once");
}

/* An older gpuledger writes a head as it knows it, and zeroes the counts behind it, while processes
 * run. From then on older shims may begin in the region. */
static void an_older_gpuledger_takes_the_mark_away(void)
{
    begin(1000);
    crowd(500);
    OK(account_take(0, 100), "a process allocates, with remembered sums");
    memset((char *)head + sizeof *head, 0, RECORD_PAGE - sizeof *head);
    head->slots = RECORD_SLOTS;
    head->high = RECORD_SLOTS;
    slot(400)->used[0] = 600; /* by an older shim */
    OK(!account_take(0, 301) && account_take(0, 300), "it sees what an older shim takes");
    slot(400)->used[0] = 0;
    OK(account_take(0, 600), "and gives back");
}

/* A child in slot 70 and this process in slot 100 are in two blocks, and each remembers the sum of
 * the other's. The child stops after a number of instructions of what it does. */
enum { CHILD = 70, PARENT = 100 };
struct stepped {
    uint64_t before, take, give, then; /* bytes: held at the start; of the call that stops; taken afterwards */
};

static void look(void)
{
    if (account_take(0, 1)) account_give(0, 1);
}

static pid_t step_into(const struct stepped *s)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        bool took = true, then = false;
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0 || !account_open(limits_file, region_file)) _exit(8);
        if (!account_take(0, s->before) || own_slot() != slot(CHILD)) _exit(9);
        look();
        raise(SIGSTOP);
        if (s->take) took = account_take(0, s->take);
        if (s->give) account_give(0, s->give);
        raise(SIGSTOP);
        if (s->then) then = account_take(0, s->then);
        _exit(took | then << 1);
    }
    waitpid(pid, &status, 0);
    if (!WIFSTOPPED(status)) abort();
    look();
    return pid;
}

/* step lets the child execute so many instructions. False: it was done before. */
static bool step(pid_t pid, int instructions)
{
    int status = 0;

    for (int i = 0; i < instructions; i++) {
        ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
        waitpid(pid, &status, 0);
        if (!WIFSTOPPED(status)) abort();
        if (WSTOPSIG(status) != SIGTRAP) return false;
    }
    return true;
}

/* run lets the child run to its next stop, or to its end, whose status it returns. */
static int run(pid_t pid)
{
    int status;

    ptrace(PTRACE_CONT, pid, NULL, NULL);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void begin_blocks(void)
{
    int fd;
    struct flock l = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = CHILD, .l_len = 1};

    begin(1000);
    fd = crowd(PARENT);
    OK(account_join() && own_slot() == slot(PARENT), "this process has its slot");
    IS(fcntl(fd, F_OFD_SETLK, &l), 0, "and a child can have one in another block");
}

/* each_instruction stops a child after each of its instructions, calls `meanwhile`, and lets it end.
 * `ended` is called while the child still has what it took. Their results and the child's are judged
 * by `good`. */
static void each_instruction(struct stepped s, bool (*meanwhile)(void), bool (*ended)(void),
                             bool (*good)(bool, bool, int))
{
    int stops = 0, bad = 0;

    begin_blocks();
    for (bool more = true; more; stops++) {
        pid_t pid = step_into(&s);
        bool while_stopped, after;
        int result;
        more = step(pid, stops);
        while_stopped = meanwhile();
        if (more) run(pid);
        after = ended();
        result = run(pid);
        bad += !good(while_stopped, after, result);
        account_give(0, 5000);
    }
    OK(stops > 100, "stopped after each of %d instructions", stops);
    IS(bad, 0, "and never was more taken than there is, or less than fits");
}

static bool take_600(void) { return account_take(0, 600); }
static bool take_1000(void) { return account_take(0, 1000); }
static bool only_look(void) { return look(), false; }
static bool nothing(void) { return false; }

static bool one_of_both(bool meanwhile, bool ended, int child) { return (void)ended, meanwhile != (child & 1); }
static void two_take_what_one_can_have(void)
{
    each_instruction((struct stepped){.take = 600}, take_600, nothing, one_of_both);
}

static bool the_child_alone(bool meanwhile, bool ended, int child) { return (void)meanwhile, !ended && child == 1; }
static void a_sum_in_the_middle_of_a_change_is_not_kept(void)
{
    each_instruction((struct stepped){.take = 600}, only_look, take_600, the_child_alone);
}

static bool the_parent_alone(bool meanwhile, bool ended, int child) { return (void)ended, meanwhile && child == 1; }
static void a_change_in_the_middle_of_a_sum_is_seen(void)
{
    each_instruction((struct stepped){.take = 1, .then = 600}, take_600, nothing, the_parent_alone);
}

/* What a killed process leaves is what it had written to the region. So it is killed after each
 * instruction that changed something there, and before the first. What it had is free at once. */
static void killed_after_each_change(struct stepped s)
{
    int stops[16] = {0}, changes = 0, bad = 0;
    pid_t pid;

    begin_blocks();
    pid = step_into(&s);
    for (uint64_t n = 1, used = slot(CHILD)->used[0], count = *count_of(CHILD); changes < 15 && step(pid, 1); n++) {
        if (slot(CHILD)->used[0] != used || *count_of(CHILD) != count) stops[++changes] = (int)n;
        used = slot(CHILD)->used[0];
        count = *count_of(CHILD);
    }
    run(pid);
    IS(changes, 2, "the call changes the process's word and counts that");
    for (int i = 0; i <= changes; i++) {
        pid = step_into(&s);
        if (!step(pid, stops[i])) bad++;
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        bad += !take_1000();
        account_give(0, 1000);
        bad += account_usage(0).used != 0;
    }
    IS(bad, 0, "and all of the grant is free when it was killed after either");
}
static void killed_while_it_takes(void) { killed_after_each_change((struct stepped){.take = 600}); }
static void killed_while_it_gives(void) { killed_after_each_change((struct stepped){.before = 600, .give = 600}); }

/* ---- tracking ---- */

static bool put(uint64_t key, uint64_t bytes)
{
    struct track old;
    return track_put(&(struct track){.kind = TRACK_POINTER, .key = key, .bytes = bytes, .context = key % 3, .count = 1}, &old);
}

static uint64_t removed_bytes;
static void add_removed(const struct track *t) { removed_bytes += t->bytes; }
static bool of_context(const struct track *t, uint64_t context) { return t->context == context; }

static void a_million_entries(void)
{
    enum { N = 1000000 };
    struct track t, old;
    int bad = 0;
    uint64_t left = 0;

    for (uint64_t i = 1; i <= N; i++) bad += !put(i * 512, i);
    IS(bad, 0, "a million entries");
    for (uint64_t i = 1; i <= N; i += 2) bad += !track_remove(TRACK_POINTER, i * 512, &t) || t.bytes != i;
    IS(bad, 0, "every other removed");
    for (uint64_t i = 1; i <= N; i++) bad += track_find(TRACK_POINTER, i * 512, &t) != (i % 2 == 0);
    IS(bad, 0, "the others are there");
    OK(!track_find(TRACK_ARRAY, 1024, &t), "under their own kind only");
    OK(track_put(&(struct track){.kind = TRACK_POINTER, .key = 1024, .bytes = 99}, &old) && old.bytes == 2, "a key that is entered again returns the old entry");
    track_put(&old, &t);
    track_remove_if(of_context, 0, add_removed);
    for (uint64_t i = 2; i <= N; i += 2) {
        if (i * 512 % 3 == 0) left += i;
        else bad += !track_find(TRACK_POINTER, i * 512, &t);
    }
    IS(removed_bytes, left, "those of one context removed, each once");
    IS(bad, 0, "and no other");
    track_forget();
    OK(!track_find(TRACK_POINTER, 1024, &t), "forgotten");
    OK(put(1024, 1), "and entered again");
}

static void counted_entries(void)
{
    struct track t;
    put(5, 50);
    OK(track_count(TRACK_POINTER, 5, 1, &t) && t.count == 2, "one more");
    OK(track_count(TRACK_POINTER, 5, -1, &t) && t.count == 1, "one less");
    OK(track_count(TRACK_POINTER, 5, -1, &t) && t.count == 0 && t.bytes == 50, "none");
    OK(!track_count(TRACK_POINTER, 5, -1, &t), "then it is gone");
}

static void *churn(void *n)
{
    struct track t;
    uint64_t base = (uint64_t)(uintptr_t)n << 32;
    for (int round = 0; round < 20; round++) {
        for (uint64_t i = 1; i < 300; i++) put(base + i, i);
        for (uint64_t i = 1; i < 300; i++)
            if (!track_remove(TRACK_POINTER, base + i, &t) || t.bytes != i) overruns++;
    }
    return NULL;
}

static void tracking_threads(void)
{
    pthread_t t[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&t[i], NULL, churn, (void *)(i + 1));
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    IS(overruns, 0, "four threads find what they put");
}

static const struct tap_test tests[] = {
#define TEST(name) {#name, name}
    TEST(to_the_byte), TEST(a_slot_is_kept), TEST(a_cancelled_thread_holds_no_lock),
    TEST(a_fork_that_takes_long_stops_no_thread), TEST(never_more_than_fit), TEST(never_more_than_fit_in_a_block), TEST(processes_race), TEST(processes_race_in_blocks),
    TEST(processes_race_in_two_blocks), TEST(a_stopped_process_blocks_no_other),
    TEST(killed_at_any_moment), TEST(killed_at_any_moment_in_a_block), TEST(a_process_killed_at_its_start_blocks_no_other), TEST(a_word_has_one_writer),
    TEST(among_hundreds_an_allocation_makes_no_system_call), TEST(the_mark_falls), TEST(the_mark_falls_while_processes_come),
    TEST(unchanged_blocks_are_remembered), TEST(an_older_region_is_read_slot_by_slot), TEST(an_older_gpuledger_takes_the_mark_away),
#ifdef __x86_64__ /* elsewhere an atomic addition may be a loop that no single step gets through */
    TEST(two_take_what_one_can_have), TEST(a_sum_in_the_middle_of_a_change_is_not_kept), TEST(a_change_in_the_middle_of_a_sum_is_seen),
    TEST(killed_while_it_takes), TEST(killed_while_it_gives),
#endif
    TEST(a_million_entries), TEST(counted_entries), TEST(tracking_threads), {NULL, NULL},
};

int main(int argc, char **argv) { return tap_main(argc, argv, tests); }
