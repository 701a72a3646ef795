// Kernels that compute element i of their results from elements i of their arguments.
#pragma once
#include "vector.h"

// A thread has a lot of elements: eight of 16 bits, or one of another type.
template <class E> struct lot { enum { size = sizeof(E) == 2 ? 8 : 1 }; };

// eight reads n <= 8 elements from p on, and puts 0 behind them.
template <class E> DEVICE pack8 eight(const E *p, int n) {
  if (n == 8 && (u64)p % 16 == 0) return *(const pack8 *)p;
  pack8 v = {};
  EACH(k, 8) if (k < n) v.w[k / 2] |= (u32)p[k].bits << k % 2 * 16;
  return v;
}

// keep writes the first n elements of v from p on.
template <class E> DEVICE void keep(E *p, pack8 v, int n) {
  if (n == 8 && (u64)p % 16 == 0) *(pack8 *)p = v;
  else EACH(k, 8) if (k < n) p[k].bits = v.w[k / 2] >> k % 2 * 16;
}

// eights is map for elements of 16 bits. Two are computed at a time, so that there is f twice in the
// text, and not eight times.
template <int OUT, int IN, class E, class F> DEVICE void eights(E *const (&y)[OUT], const E *const (&x)[IN], int n, F f) {
  pack8 a[IN], r[OUT];
  EACH(j, IN) a[j] = eight(x[j], n);
#pragma unroll 1
  for (int k = 0; k < 4; k++) {
    float even[IN], odd[IN], r0[OUT], r1[OUT];
    EACH(j, IN) {
      even[j] = two<E>::lo(a[j].w[0]), odd[j] = two<E>::hi(a[j].w[0]);
      a[j] = pack8{a[j].w[1], a[j].w[2], a[j].w[3], 0};
    }
    f(r0, even), f(r1, odd);
    EACH(j, OUT) r[j] = pack8{r[j].w[1], r[j].w[2], r[j].w[3], two<E>::narrow(r0[j], r1[j])};
  }
  EACH(j, OUT) keep(y[j], r[j], n);
}

// map computes the elements of a lot, of which there are n, by f(results, arguments). y and x are
// where it lies in the results and the arguments, which may be the same memory.
template <int OUT, int IN, class E, class F> DEVICE void map(E *const (&y)[OUT], const E *const (&x)[IN], int n, F f) {
  if constexpr (lot<E>::size == 1) {
    E a[IN], r[OUT];
    EACH(j, IN) a[j] = *x[j];
    f(r, a);
    EACH(j, OUT) *y[j] = r[j];
  } else {
    eights(y, x, n, f);
  }
}

// LOT_OF(E, n) declares i, the first element of the thread's lot, and count, how many there are of n.
#define LOT_OF(E, n) \
  u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * lot<E>::size; \
  if (i >= (n)) return; \
  int count = (int)min((u64)lot<E>::size, (n) - i)
