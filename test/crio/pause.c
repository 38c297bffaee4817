/* pause.c: the program of a pod and the server of a container in CRI-O's tests: it waits until a signal ends it. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
  (void)signal;
  _exit(0);
}

int main(void) {
  signal(SIGTERM, end);
  signal(SIGINT, end);
  signal(SIGCHLD, SIG_IGN); /* the kernel then reaps what a pod leaves to its first process */
  for (;;)
    pause();
}
