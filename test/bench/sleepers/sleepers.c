/* sleepers N: N processes that sleep until standard input ends, each with eight descriptors. They
   are the other processes of a node in bench -only scale. Prints "ready" when all are there. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
  if (argc < 2) {
    for (;;)
      pause();
  }
  int n = atoi(argv[1]), made = 0;
  pid_t *pids = calloc(n > 0 ? n : 1, sizeof *pids);
  if (!pids)
    return 1;
  for (int fd = 3; fd < 8; fd++)
    dup2(2, fd);
  for (; made < n; made++) {
    pids[made] = vfork();
    if (pids[made] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      execl("/proc/self/exe", "sleeper", (char *)NULL);
      _exit(1);
    }
    if (pids[made] < 0) {
      perror("sleepers: cannot fork");
      break;
    }
  }
  char byte;
  if (made == n) {
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
      ;
  }
  for (int i = 0; i < made; i++)
    kill(pids[i], SIGKILL);
  while (wait(NULL) > 0)
    ;
  return made != n;
}
