/* Writes the records of the tests' grant, 256 MiB on GPU 0 and 128 MiB on GPU 1, for tests that run
 * without Go. */
#include "../place.h"
#include "../record.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int write_file(const char *path, const void *head, size_t size, off_t whole)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return fd >= 0 && write(fd, head, size) == (ssize_t)size && ftruncate(fd, whole) == 0 && close(fd) == 0;
}

int main(void)
{
    struct record_limits l = {.magic = RECORD_LIMITS_MAGIC, .version = RECORD_VERSION, .devices = 2, .id = 1, .generation = 1};
    struct record_head h = {.magic = RECORD_REGION_MAGIC, .version = RECORD_VERSION, .devices = 2, .id = 1, .slots = RECORD_SLOTS, .slot_size = sizeof(struct record_slot)};

    for (unsigned int i = 0; i < 2; i++) {
        static const uint8_t uuid[16] = {0, 0, 0, 0, 0xfa, 0x4e, 0xd4, 0x1e};
        memcpy(l.device[i].uuid, uuid, 16);
        l.device[i].uuid[15] = (uint8_t)(i + 1);
        l.device[i].bytes = UINT64_C(256) << 20 >> i;
    }
    if (write_file(PLACE_REGION, &h, sizeof h, RECORD_REGION_SIZE) && write_file(PLACE_LIMITS, &l, sizeof l, RECORD_PAGE)) return 0;
    perror("cannot write the records");
    return 1;
}
