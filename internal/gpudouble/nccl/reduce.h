//go:build ignore

// Element types and reductions.
#ifndef NCCL_REDUCE_H
#define NCCL_REDUCE_H

#include <stddef.h>
#include <stdint.h>

enum type { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8E4M3, FLOAT8E5M2, TYPES };
enum reduction { SUM, PROD, MAX, MIN, AVG };

// type_size returns the bytes of an element, 0 for what is no type.
size_t type_size(int type);
// reduce_elements writes the reduction of n elements of each of some ranks to out.
void reduce_elements(char *out, char (*in)[], size_t stride, int ranks, size_t n, int type, int op);

#endif
