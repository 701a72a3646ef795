//go:build ignore

// Runs operations on the thread of a stream.
#ifndef NCCL_WORK_H
#define NCCL_WORK_H

#include "meeting.h"
#include "reduce.h"

enum kind { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, REDUCE, SEND, RECV };

// A work is an operation as it was enqueued.
struct work {
  uintptr_t stream;
  struct post post;
  uint64_t send, recv; // device memory
};

// run_works runs the operations of one group.
result run_works(struct seat *s, const struct work *works, int n);
// spans returns how many bytes of its buffers an operation of a rank reads and writes.
void spans(const struct post *p, int rank, int ranks, uint64_t *send, uint64_t *recv);

#endif
