//go:build ignore

// Operators, and memory that is registered.
#include <string.h>

#include "communicator.h"
#include "reduce.h"

EXPORT result ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, uintptr_t comm) {
  struct communicator *c;
  result r = ready(comm, "ncclRedOpCreatePreMulSum", &c);
  if (r) return r;
  if (residence != 1 || !type_size(type) || type > BFLOAT16) return leave(c, fail(INVALID_ARGUMENT, "ncclRedOpCreatePreMulSum: residence %d, type %d", residence, type));
  for (int i = 0; i < SCALARS; i++) {
    if (c->scalars[i].used) continue;
    c->scalars[i].used = 1;
    c->scalars[i].type = type;
    memcpy(&c->scalars[i].scalar, scalar, type_size(type));
    double_count("operator", 1);
    *op = PREMUL + i;
    return leave(c, SUCCESS);
  }
  return leave(c, fail(INTERNAL_FAILED, "ncclRedOpCreatePreMulSum: the double has no more than %d operators", SCALARS));
}

EXPORT result ncclRedOpDestroy(int op, uintptr_t comm) {
  struct communicator *c;
  result r = ready(comm, "ncclRedOpDestroy", &c);
  if (r) return r;
  int i = op - PREMUL;
  if (i < 0 || i >= SCALARS || !c->scalars[i].used) return leave(c, fail(INVALID_ARGUMENT, "ncclRedOpDestroy: operator unknown to this communicator."));
  c->scalars[i].used = 0;
  double_count("operator", -1);
  return leave(c, SUCCESS);
}

#if NCCL_DOUBLE_VERSION >= 21901
EXPORT result ncclMemAlloc(void **address, size_t n) {
  uint64_t p;
  result r = enter("ncclMemAlloc");
  if (r || (r = find_driver())) return r;
  int cuda = driver.alloc(&p, n);
  if (cuda) return fail(CUDA_FAILED, "ncclMemAlloc: CUDA error %d", cuda);
  *address = (void *)p;
  double_count("registrable memory", 1);
  return SUCCESS;
}

EXPORT result ncclMemFree(void *address) {
  result r = enter("ncclMemFree");
  if (r || (r = find_driver())) return r;
  if (driver.free((uint64_t)address)) return fail(INVALID_ARGUMENT, "ncclMemFree: %p was not allocated", address);
  double_count("registrable memory", -1);
  return SUCCESS;
}

EXPORT result ncclCommRegister(uintptr_t comm, void *address, size_t n, void **registration) {
  struct communicator *c;
  result r = ready(comm, "ncclCommRegister", &c);
  if (r) return r;
  if ((r = check_buffer(c, "ncclCommRegister", "buff", (uint64_t)address, n))) return leave(c, r);
  *registration = address;
  double_count("registration", 1);
  return leave(c, SUCCESS);
}

EXPORT result ncclCommDeregister(uintptr_t comm, void *registration) {
  struct communicator *c;
  result r = ready(comm, "ncclCommDeregister", &c);
  if (r) return r;
  double_count("registration", -1);
  return leave(c, SUCCESS);
}
#endif
