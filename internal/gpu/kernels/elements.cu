// Element-wise operations that the compiler itself emits.
#include "map.h"

template <class E> DEVICE void add(E *y, const E *a, const E *b, u64 n) {
  LOT_OF(E, n);
  map<1, 2>({y + i}, {a + i, b + i}, count, [](auto *r, auto *v) { r[0] = v[0] + v[1]; });
}

#define ADD(T, E) \
  KERNEL elements_add_##T(E *y, const E *a, const E *b, u64 n) { add(y, a, b, n); } \
  KERNEL elements_accumulate_##T(E *y, const E *x, u64 n) { add(y, y, x, n); }
TYPES(ADD)

#define CONVERT(T, E) \
  KERNEL elements_narrow_##T(E *y, const float *x, u64 n) { \
    INDEX(n); \
    narrow(y[i], x[i]); \
  } \
  KERNEL elements_widen_##T(float *y, const E *x, u64 n) { \
    INDEX(n); \
    y[i] = wide(x[i]); \
  }
CONVERT(bf16, bf16)
CONVERT(f16, f16)
