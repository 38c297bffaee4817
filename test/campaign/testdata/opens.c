/* opens: prints the minor numbers of NVIDIA's nodes that this process may open, in a line. Without a driver a node that the
 * device cgroup allows gives ENXIO, and one that it denies EPERM. The nodes are in /tmp/nodes, where the campaign made them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

int main(void)
{
    char path[64];

    for (int minor = 0; minor < 256; minor++) {
        snprintf(path, sizeof path, "/tmp/nodes/%d", minor);
        if (open(path, O_RDWR | O_NONBLOCK) >= 0 || (errno != EPERM && errno != ENOENT)) printf("%d ", minor);
    }
    puts("");
    return 0;
}
