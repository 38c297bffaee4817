/* What the tests of the libcuda proxy share. The grant is 256 MiB on GPU 0 and 128 MiB on GPU 1.
 * The stand-in driver's GPUs have 16 GiB, and its contexts take 256 MiB each. The proxy does not
 * count contexts: the node measures them. */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "driver.h"
#include "tap.h"

#include "../place.h"
#include "../record.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRANT = 256, GRANT1 = 128 };

#define TEST(name) {#name, name}

/* begin starts CUDA with a context on a device. */
CUcontext begin(int ordinal);

/* free_mib is what is free on the current device. get allocates and returns 0 if it is refused. */
size_t free_mib(void);
CUdeviceptr get(size_t mib);

/* limits and region map the account's files for writing, as the node does. */
struct record_limits *limits(void);
struct record_head *region(void);
struct record_slot *slot(struct record_head *h, int i);

/* in_child runs f in another process and returns its exit status, 128 + signal if it was killed. */
int in_child(int (*f)(void));

/* held starts a process that allocates and then waits to be killed, which finish does. */
pid_t held(int device, int mib);
void finish(pid_t pid);
