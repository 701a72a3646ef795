// raw libcuda libnccl calls: prints the nanoseconds that a collective takes in C, which
// makes a context current before it as the package does.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
  void *cuda = dlopen(argv[1], RTLD_NOW), *nccl = dlopen(argv[2], RTLD_NOW);
  long n = atol(argv[3]);
  uintptr_t context = 0;
  ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
  ((int (*)(uintptr_t *, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0);
  int (*volatile set_current)(uintptr_t) = (int (*)(uintptr_t))dlsym(cuda, "cuCtxSetCurrent");
  int (*volatile all_reduce)(const void *, void *, size_t, int, int, void *, void *);
  *(void **)&all_reduce = dlsym(nccl, "ncclAllReduce");
  struct timespec from, to;
  int failed = 0;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
  for (long i = 0; i < n; i++) failed |= set_current(context) | all_reduce(NULL, NULL, 16, 7, 0, (void *)1, NULL);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
  printf("%.1f\n", ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / (double)n);
  return failed;
}
