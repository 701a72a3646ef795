// The bias of T5 for the distance of a query and a key. buckets [tq+tk-1] has the row of the table for
// each distance: that of the last query and the first key first. At most 34 registers by ptxas for sm_80,
// sm_90 and sm_100, none spilled.
#include "device.h"

// A thread for each element of bias [heads, tq, tk].
template <class T> DEVICE void bias(T *y, const T *table, const i64 *buckets, int heads, int tq, int tk, u64 n) {
  INDEX(n);
  int k = i % tk, q = i / tk % tq;
  y[i] = table[buckets[k + tq - 1 - q] * heads + i / tk / tq];
}

// diagonals [heads, tq+tk-1] are the sums of dbias over what has one distance, by the queries. A thread
// for each.
template <class T> DEVICE void diagonals(T *y, const T *dbias, int tq, int tk, u64 n) {
  INDEX(n);
  int all = tq + tk - 1, at = i % all;
  dbias += i / all * tq * tk;
  T sum = 0;
  for (int q = max(0, tq - 1 - at); q < min(tq, tq + tk - 1 - at); q++) sum += dbias[(u64)q * tk + at - (tq - 1 - q)];
  y[i] = sum;
}

// grad sums the diagonals of each bucket and head. A thread for each of dtable [buckets, heads].
template <class T> DEVICE void grad(T *y, const T *sums, const i64 *buckets, int heads, int all, int acc, u64 n) {
  INDEX(n);
  T sum = acc ? y[i] : 0;
  for (int at = 0; at < all; at++)
    if (buckets[at] == i / heads) sum += sums[i % heads * all + at];
  y[i] = sum;
}

#define RELATIVE(T, E) \
  KERNEL relative_bias_##T(E *y, const E *table, const i64 *buckets, int heads, int tq, int tk, u64 n) { bias(y, table, buckets, heads, tq, tk, n); } \
  KERNEL relative_diagonals_##T(E *y, const E *dbias, int tq, int tk, u64 n) { diagonals(y, dbias, tq, tk, n); } \
  KERNEL relative_grad_##T(E *y, const E *sums, const i64 *buckets, int heads, int all, int acc, u64 n) { grad(y, sums, buckets, heads, all, acc, n); }
RELATIVE(f32, float)
RELATIVE(f64, double)
