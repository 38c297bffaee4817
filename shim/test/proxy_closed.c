/* Without a valid account nothing starts. */
#include "proxy.h"

static void without_limits_nothing_starts(void)
{
    CUdeviceptr p;
    unlink(PLACE_LIMITS);
    IS(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM, "cuInit fails");
    OK(cuMemAlloc_v2(&p, 1) != CUDA_SUCCESS, "and so does what comes after");
}
static void without_a_region_nothing_starts(void)
{
    unlink(PLACE_REGION);
    IS(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM, "cuInit fails");
}
static void a_region_of_another_grant(void)
{
    region()->id++;
    IS(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM, "cuInit fails");
}
static void a_record_of_another_version(void)
{
    limits()->version = 2;
    IS(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM, "cuInit fails");
}
static void half_a_region(void)
{
    OK(truncate(PLACE_REGION, RECORD_REGION_SIZE - 1) == 0, "a region that is a byte too short");
    IS(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM, "cuInit fails");
}
static int starts(void) { return cuInit(0) != CUDA_SUCCESS; }

/* If the region disappears later, a process keeps its slot, and a new process gets none. */
static void a_region_that_goes_away(void)
{
    begin(0);
    OK(get(100), "allocated");
    unlink(PLACE_REGION);
    OK(get(56) && !get(101), "the account goes on without the name");
    IS(in_child(starts), 1, "but no new process joins");
}
/* A region has 1024 slots, one for each process. Here all are taken. */
static void no_slot_is_out_of_memory(void)
{
    int fd = open(PLACE_REGION, O_RDWR);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = RECORD_SLOTS};

    IS(fcntl(fd, F_OFD_SETLK, &all), 0, "every slot is taken");
    begin(0);
    OK(!get(1), "no allocation succeeds");
    all.l_type = F_UNLCK;
    fcntl(fd, F_OFD_SETLK, &all);
    OK(get(1), "until a slot is free");
}

const struct tap_test closed_tests[] = {
    TEST(without_limits_nothing_starts), TEST(without_a_region_nothing_starts), TEST(a_region_of_another_grant),
    TEST(a_record_of_another_version), TEST(half_a_region), TEST(a_region_that_goes_away), TEST(no_slot_is_out_of_memory), {NULL, NULL},
};
