//go:build ignore

// Element types and reductions. Floats of up to 32 bits are added in 32 bits and rounded once, in the
// order of the ranks, or with FSDP_DOUBLE_NCCL_TREE in that of package comm.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "reduce.h"

size_t type_size(int type) {
  static const size_t sizes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type < 0 || type >= TYPES ? 0 : sizes[type];
}

static uint32_t bits_of(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

static float float_of(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static float widen16(uint16_t h) {
  int exponent = h >> 10 & 31, fraction = h & 1023;
  float f = exponent == 31 ? (fraction ? NAN : INFINITY) : ldexpf(fraction + (exponent ? 1024 : 0), (exponent ? exponent : 1) - 25);
  return h & 0x8000 ? -f : f;
}

// narrow16 rounds to nearest, ties to even: nearbyintf does so of a value whose unit is the last
// bit that stays.
static uint16_t narrow16(float f) {
  uint16_t sign = signbit(f) ? 0x8000 : 0;
  f = fabsf(f);
  if (isnan(f)) return sign | 0x7E00;
  if (f >= 65520) return sign | 0x7C00;
  if (f == 0) return sign;
  int exponent;
  frexpf(f, &exponent);  // f = m * 2^exponent, 0.5 <= m < 1
  int unit = exponent < -13 ? -24 : exponent - 11;
  float units = nearbyintf(ldexpf(f, -unit));
  return sign | (uint16_t)((unit + 24) * 1024 + (int)units);
}

static float widen_brain(uint16_t b) { return float_of((uint32_t)b << 16); }

static uint16_t narrow_brain(float f) {
  uint32_t u = bits_of(f);
  if (isnan(f)) return u >> 16 | 64;
  return (u + 0x7FFF + (u >> 16 & 1)) >> 16;
}

// A value is an element, wide enough to calculate with.
union value {
  float f;
  double d;
  uint64_t i; // of integers; those with a sign are extended
};

static union value load(const char *p, int type) {
  union value v = {.i = 0};
  uint16_t h;
  memcpy(&h, p, type_size(type) < 2 ? 1 : 2);
  switch (type) {
  case INT8: v.i = (uint64_t)(int64_t)*(const int8_t *)p; break;
  case UINT8: v.i = *(const uint8_t *)p; break;
  case INT32: v.i = (uint64_t)(int64_t)*(const int32_t *)p; break;
  case UINT32: v.i = *(const uint32_t *)p; break;
  case FLOAT16: v.f = widen16(h); break;
  case BFLOAT16: v.f = widen_brain(h); break;
  case FLOAT32: memcpy(&v.f, p, sizeof v.f); break;
  default: memcpy(&v, p, sizeof v);
  }
  return v;
}

static void store(char *p, int type, union value v) {
  uint16_t h = type == FLOAT16 ? narrow16(v.f) : type == BFLOAT16 ? narrow_brain(v.f) : 0;
  memcpy(p, type == FLOAT16 || type == BFLOAT16 ? (void *)&h : (void *)&v, type_size(type));
}

#define COMBINE(op, a, b) \
  ((op) == PROD ? (a) * (b) : (op) == MAX ? ((a) > (b) ? (a) : (b)) : (op) == MIN ? ((a) < (b) ? (a) : (b)) : (a) + (b))

static union value combine(int type, int op, union value a, union value b) {
  switch (type) {
  case FLOAT16: case BFLOAT16: case FLOAT32: a.f = COMBINE(op, a.f, b.f); break;
  case FLOAT64: a.d = COMBINE(op, a.d, b.d); break;
  case UINT8: case UINT32: case UINT64: a.i = COMBINE(op, a.i, b.i); break;
  default: a.i = op == MAX || op == MIN ? (uint64_t)COMBINE(op, (int64_t)a.i, (int64_t)b.i) : COMBINE(op, a.i, b.i);
  }
  return a;
}

// scaled is 1/n as an element of the type, which NCCL rounds it to.
static union value inverse(int type, int n) {
  union value v;
  if (type == FLOAT64) return v.d = 1.0 / n, v;
  char element[8];
  v.f = 1.0f / (float)n;
  store(element, type, v);
  return load(element, type);
}

static union value quotient(int type, union value v, int n) {
  if (type == UINT8 || type == UINT32 || type == UINT64)
    v.i /= (uint64_t)n;
  else
    v.i = (uint64_t)((int64_t)v.i / n);
  return v;
}

// truncated is an integer as it is stored: a sum that has overflowed wraps before it is divided.
static union value truncated(int type, union value v) {
  char element[8];
  store(element, type, v);
  return load(element, type);
}

// tree_sum adds what ranks lo to hi-1 have at in, as package comm does: each half by itself, the first of
// which is the largest power of two that leaves something.
static union value tree_sum(const char *in, size_t stride, int lo, int hi, int type) {
  if (hi - lo == 1) return load(in + (size_t)lo * stride, type);
  int half = 1;
  while (2 * half < hi - lo) half *= 2;
  return combine(type, SUM, tree_sum(in, stride, lo, lo + half, type), tree_sum(in, stride, lo + half, hi, type));
}

// tree_scale multiplies a sum by 1/n, of which nothing is rounded before.
static union value tree_scale(union value v, int type, int n) {
  if (type == FLOAT64)
    v.d *= 1.0 / n;
  else
    v.f *= 1.0f / (float)n;
  return v;
}

void reduce_elements(char *out, char (*in)[], size_t stride, int ranks, size_t n, int type, int op) {
  size_t size = type_size(type);
  int is_float = type >= FLOAT16 && type <= BFLOAT16;
  if (is_float && (op == SUM || op == AVG) && getenv("FSDP_DOUBLE_NCCL_TREE")) {
    for (size_t i = 0; i < n; i++) {
      union value sum = tree_sum((char *)in + i * size, stride, 0, ranks, type);
      store(out + i * size, type, op == AVG ? tree_scale(sum, type, ranks) : sum);
    }
    return;
  }
  int scale = op == AVG && is_float;
  union value factor = scale ? inverse(type, ranks) : (union value){.i = 0};
  for (size_t i = 0; i < n; i++) {
    union value sum = {.i = 0};
    for (int r = 0; r < ranks; r++) {
      union value v = load((char *)in + r * stride + i * size, type);
      if (scale) v = combine(type, PROD, v, factor);
      sum = r ? combine(type, op, sum, v) : v;
    }
    if (op == AVG && !is_float) sum = quotient(type, truncated(type, sum), ranks);
    store(out + i * size, type, sum);
  }
}
