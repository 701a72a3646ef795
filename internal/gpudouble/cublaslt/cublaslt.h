//go:build ignore

// A double of libcublasLt.so.13: library.c has its objects and what it looks up, matmul.c computes.
#ifndef CUBLASLT_DOUBLE_H
#define CUBLASLT_DOUBLE_H

#include <stddef.h>
#include <stdint.h>

#include "../double.h"

typedef int status;
enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
enum { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_FAST_TF32 = 77 };
enum { EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4, EPILOGUE_DGELU = 192, EPILOGUE_BGRADB = 512 };

// Handles are numbers, so that nobody can look behind them.
typedef uintptr_t handle;
enum kind { HANDLE = 1, DESC, LAYOUT, PREFERENCE };

// An object is what a handle names. What makes a product another one lies before its kind.
struct object {
  uint64_t rows, cols;                           // LAYOUT: column-major
  int64_t ld, stride;
  int type, batch;
  int compute, scale, transa, transb, epilogue;  // DESC
  int32_t multiprocessors;                       // DESC
  int64_t aux_ld;
  enum kind kind;
  uint64_t vector, aux;                          // DESC: its bias or gradient of one, and GELU's argument
  uintptr_t context;                             // HANDLE
  uint64_t workspace;                            // PREFERENCE
  uint32_t align[4], reductions;
};

// An algorithm is for one problem: mark, its hash, what its matrices are aligned to, its workspace.
typedef struct { uint64_t mark, problem, align, workspace, rest[4]; } algorithm;
typedef struct { algorithm algorithm; size_t workspace; status state; float waves; int reserved[4]; } found;

// A problem is a product as its objects describe it.
struct problem { struct object desc, a, b, d; };

// What the double needs of libcuda, in the one that the process has loaded.
extern struct driver {
  int (*current)(uintptr_t *context), (*of_stream)(uintptr_t stream, uintptr_t *context);
  int (*host)(uintptr_t stream, void (*function)(void *), void *data);
  char *(*pin)(uint64_t address, size_t size, int *device);
  void (*unpin)(uint64_t address);
} driver;

// object_get copies the object that a handle names, or reports that there is none of this kind.
int object_get(const char *function, enum kind kind, handle h, struct object *to);
// problem_get collects what a product is of. It returns what the library would answer.
status problem_get(const char *function, handle h, handle desc, handle a, handle b, handle c, handle d, struct problem *p, uintptr_t *context);
uint64_t problem_hash(const struct problem *p);

static const uint64_t MARK = 0x17a190;

static inline size_t type_size(int type) { return type == R_64F ? 8 : type == R_32F ? 4 : 2; }
// depth returns how many terms the sums have.
static inline uint64_t depth(const struct problem *p) { return p->desc.transa ? p->a.rows : p->a.cols; }

#endif
