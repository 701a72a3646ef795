// The limit of the machine: memcpy <socket> <largest tensor in bytes> <rank>. Every rank writes a full tensor, which is
// the least that an all-gather has to do; the ranks share nothing but the memory bus.
#include "peer.h"

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s socket bytes rank\n", argv[0]);
    return 2;
  }
  size_t bytes = strtoul(argv[2], NULL, 10);
  float *dst = peer_buffer(bytes), *src = peer_buffer(bytes);
  peer_connect(argv[1], atoi(argv[3]));
  struct command c;
  while (peer_next(&c)) {
    if (c.check) {
      peer_fill(src, 0, c.count, 1);
      memcpy(dst, src, c.count * sizeof(float));
      if (peer_verify(dst, 0, c.count, 1)) peer_ok(0);
      continue;
    }
    double start = peer_now();
    for (long i = 0; i < c.iterations; i++) {
      memcpy(dst, src, c.count * sizeof(float));
      __asm__ volatile("" : : "r"(dst) : "memory");  // every copy counts
    }
    peer_ok(peer_now() - start);
  }
  return 0;
}
