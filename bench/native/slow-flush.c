/* LD_PRELOAD shim: a disk whose flush takes about 1 ms (SLOW_FLUSH_US, default 1000) longer.
 * On a machine whose flush costs next to nothing, durable figures say little about a real disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

static void wait_a_little(void) {
  static long us = -1;
  if (us < 0) {
    const char *asked = getenv("SLOW_FLUSH_US");
    us = asked ? atol(asked) : 1000;
  }
  /* The kernel may else add 50 us to every sleep. */
  prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  struct timespec t = {us / 1000000, us % 1000000 * 1000};
  while (nanosleep(&t, &t)) {
  }
}

int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  int result = real(fd);
  wait_a_little();
  return result;
}

int fdatasync(int fd) {
  static int (*real)(int);
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  int result = real(fd);
  wait_a_little();
  return result;
}
