// Attention of any size: softmax(scale·q·kᵀ + bias)·v by a warp for each row of the result, online
// (Milakov and Gimelshein 2018, arXiv:1805.02867). A lane takes a key for the scores, and columns for
// the sums. What the backward pass needs of the scores it computes again, once for dq, once for dk and
// dv, once for dbias, so that every sum has one owner and one order.
//
// Registers of sm_80, sm_90, sm_100 by ptxas 12.9:
//	      forward      delta        dq           dkv          dbias
//	f32   54, 47, 48   32, 32, 32   55, 54, 54   64, 64, 64   47, 40, 40
//	bf16  48, 48, 48   32, 32, 32   56, 56, 56   64, 64, 64   48, 40, 40
//	f64   48, 56, 56   31, 32, 32   52, 48, 48   64, 64, 64   41, 39, 39
// Spilled: of f64, 12 bytes by forward and 24 by dkv on sm_80, 12 by dq from sm_90 on.
#include "attention.h"

// COLUMNS of a row are summed at once, WIDE by each lane.
#define WIDE 4
#define COLUMNS (32 * WIDE)

DEVICE float power(float x) { return expf(x); }
DEVICE double power(double x) { return exp(x); }
DEVICE float logarithm(float x) { return logf(x); }
DEVICE double logarithm(double x) { return log(x); }

template <class E> DEVICE W<E> dot(const E *a, const E *b, int n) {
  W<E> s = 0;
#pragma unroll(sizeof(E) == 8 ? 1 : 4)
  for (int c = 0; c < n; c++) s += wide(a[c]) * wide(b[c]);
  return s;
}

// weight returns exp(score - lse) of a query and a key that it sees: 0 if it sees none.
template <class E> DEVICE W<E> weight(const shape<E> &s, const E *q, const E *k, const W<E> *bias, u64 at, W<E> lse) {
  if (lse == -INFINITY) return 0;
  W<E> x = dot(q, k, s.d) * s.scale;
  return power((bias ? x + bias[at] : x) - lse);
}

// add adds row 0 of x, of columns from c on, times w to sums.
template <class E> DEVICE void add(W<E> *sums, const E *x, int c, int d, W<E> w) {
#pragma unroll
  for (int r = 0; r < WIDE; r++)
    if (c + 32 * r < d) sums[r] += w * wide(x[c + 32 * r]);
}

template <class E> DEVICE void write(E *y, const W<E> *sums, int c, int d, W<E> w) {
#pragma unroll
  for (int r = 0; r < WIDE; r++)
    if (c + 32 * r < d) narrow(y[c + 32 * r], sums[r] * w);
}

// A warp for each row of n: its number, and the lane.
#define ROWS(n) \
  int lane = threadIdx.x % 32; \
  u64 row = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; \
  if (row >= (n)) return

// A row for each of [B, heads, tq].
template <class E>
DEVICE void forward(E *out, W<E> *lse, const E *q, const E *k, const E *v, const i64 *mask, const W<E> *bias, u64 n, shape<E> s) {
  ROWS(n);
  int i = row % s.tq, h = row / s.tq % s.heads, b = row / s.tq / s.heads, lo = s.lo(b, i), hi = s.hi(b, i);
  q += s.q(b, h, i);
#pragma unroll 1
  for (int c0 = 0; c0 < s.d; c0 += COLUMNS) {
    W<E> sums[WIDE] = {}, top = -INFINITY, sum = 0;
#pragma unroll 1
    for (int j0 = lo; j0 < hi; j0 += 32) {
      int j = j0 + lane;
      W<E> x = -INFINITY;
      if (j < hi && (!mask || mask[(u64)b * s.tk + j])) {
        x = dot(q, k + s.k(b, h, j), s.d) * s.scale;
        if (bias) x += bias[s.bias(h, i, j)];
      }
      W<E> most = larger(top, warp_max(x)), fix = most == top ? 1 : power(top - most), p = x == -INFINITY ? 0 : power(x - most);
      top = most;
      sum = sum * fix + p;
#pragma unroll
      for (int r = 0; r < WIDE; r++) sums[r] *= fix;
#pragma unroll 1
      for (int e = 0; e < min(32, hi - j0); e++) add(sums, v + s.k(b, h, j0 + e), c0 + lane, s.d, __shfl_sync(FULL, p, e));
    }
    sum = warp_sum(sum);
    write(out + s.out(b, h, i), sums, c0 + lane, s.d, sum == 0 ? 0 : 1 / sum);
    if (!c0 && !lane) lse[row] = sum == 0 ? -INFINITY : top + logarithm(sum);
  }
}

// delta is the sum of out∘dout, which the gradient of softmax subtracts. A row for each of [B, heads,
// tq].
template <class E> DEVICE void delta(W<E> *y, const E *out, const E *dout, int heads, int d, int tq, u64 n) {
  ROWS(n);
  u64 at = ((row / tq / heads * tq + row % tq) * heads + row / tq % heads) * d;
  W<E> s = 0;
  for (int c = lane; c < d; c += 32) s += wide(out[at + c]) * wide(dout[at + c]);
  s = warp_sum(s);
  if (!lane) y[row] = s;
}

// A row for each of [B, heads, tq].
template <class E>
DEVICE void query_grad(E *dq, const E *q, const E *k, const E *v, const E *dout, const W<E> *lse, const W<E> *delta, const i64 *mask,
                       const W<E> *bias, u64 n, shape<E> s) {
  ROWS(n);
  int i = row % s.tq, h = row / s.tq % s.heads, b = row / s.tq / s.heads, lo = s.lo(b, i), hi = s.hi(b, i);
  q += s.q(b, h, i), dq += s.q(b, h, i), dout += s.out(b, h, i);
#pragma unroll 1
  for (int c0 = 0; c0 < s.d; c0 += COLUMNS) {
    W<E> sums[WIDE] = {};
#pragma unroll 1
    for (int j0 = lo; j0 < hi; j0 += 32) {
      int j = j0 + lane;
      W<E> ds = 0;
      if (j < hi && (!mask || mask[(u64)b * s.tk + j])) {
        u64 at = s.k(b, h, j);
        ds = weight(s, q, k + at, bias, s.bias(h, i, j), lse[row]) * (dot(dout, v + at, s.d) - delta[row]);
      }
#pragma unroll 1
      for (int e = 0; e < min(32, hi - j0); e++) add(sums, k + s.k(b, h, j0 + e), c0 + lane, s.d, __shfl_sync(FULL, ds, e));
    }
    write(dq, sums, c0 + lane, s.d, s.scale);
  }
}

// A row for each of [B, heads/group, tk].
template <class E>
DEVICE void key_grad(E *dk, E *dv, const E *q, const E *k, const E *v, const E *dout, const W<E> *lse, const W<E> *delta,
                     const i64 *mask, const W<E> *bias, u64 n, shape<E> s) {
  ROWS(n);
  int kv = s.heads / s.group, j = row % s.tk, first = row / s.tk % kv * s.group, b = row / s.tk / kv;
  u64 at = s.k(b, first, j);
  int lo = s.first(b, j), hi = !mask || mask[(u64)b * s.tk + j] ? s.last(b, j) : 0;
  k += at, v += at;
#pragma unroll 1
  for (int c0 = 0; c0 < s.d; c0 += COLUMNS) {
    W<E> keys[WIDE] = {}, values[WIDE] = {};
#pragma unroll 1
    for (int h = first; h < first + s.group; h++)
#pragma unroll 1
      for (int i0 = lo; i0 < hi; i0 += 32) {
        int i = i0 + lane;
        W<E> p = 0, ds = 0;
        if (i < hi) {
          u64 stat = s.stat(b, h, i);
          p = weight(s, q + s.q(b, h, i), k, bias, s.bias(h, i, j), lse[stat]);
          ds = p * (dot(dout + s.out(b, h, i), v, s.d) - delta[stat]);
        }
#pragma unroll 1
        for (int e = 0; e < min(32, hi - i0); e++) {
          add(keys, q + s.q(b, h, i0 + e), c0 + lane, s.d, __shfl_sync(FULL, ds, e));
          add(values, dout + s.out(b, h, i0 + e), c0 + lane, s.d, __shfl_sync(FULL, p, e));
        }
      }
    write(dk + at, keys, c0 + lane, s.d, s.scale);
    write(dv + at, values, c0 + lane, s.d, 1);
  }
}

// A thread for each of [heads, tq, tk], which goes over the batch.
template <class E>
DEVICE void bias_grad(W<E> *dbias, const E *q, const E *k, const E *v, const E *dout, const W<E> *lse, const W<E> *delta,
                      const i64 *mask, const W<E> *bias, int batch, u64 n, shape<E> s) {
  INDEX(n);
  int key = i % s.tk, query = i / s.tk % s.tq, h = i / s.tk / s.tq;
  W<E> sum = 0;
  if (s.lo(query) <= key && key < s.hi(query))
#pragma unroll 1
    for (int b = 0; b < batch; b++) {
      u64 at = s.k(b, h, key), stat = s.stat(b, h, query);
      if (mask && !mask[(u64)b * s.tk + key] || key < s.begin(b, query) || key >= s.end(b, query)) continue;
      W<E> p = weight(s, q + s.q(b, h, query), k + at, bias, i, lse[stat]);
      sum += p * (dot(dout + s.out(b, h, query), v + at, s.d) - delta[stat]);
    }
  dbias[i] = sum;
}

// documents writes the first token and the end of the document of each of n tokens, in rows of t, whose
// positions count up and begin at 0 in each document. So positions minus tokens never rise along a row, and
// those of a document are equal.
KERNEL attention_documents(int *y, const i64 *positions, int t, u64 n) {
  INDEX(n);
  int token = i % t, lo = token + 1, hi = t;
  i64 position = positions[i];
  positions += i - token;
  while (lo < hi) {  // the end is in [lo, hi]
    int middle = (lo + hi) / 2;
    if (positions[middle] - middle == position - token)
      lo = middle + 1;
    else
      hi = middle;
  }
  y[2 * i] = position < token ? token - (int)position : 0;
  y[2 * i + 1] = lo;
}

#define ATTENTION(T, E) \
  KERNEL attention_forward_##T(E *out, W<E> *lse, const E *q, const E *k, const E *v, const i64 *mask, const W<E> *bias, u64 n, SHAPE(E)) { \
    forward<E>(out, lse, q, k, v, mask, bias, n, GIVEN); \
  } \
  KERNEL attention_delta_##T(W<E> *y, const E *out, const E *dout, int heads, int d, int tq, u64 n) { delta<E>(y, out, dout, heads, d, tq, n); } \
  KERNEL attention_dq_##T(E *dq, const E *q, const E *k, const E *v, const E *dout, const W<E> *lse, const W<E> *delta, const i64 *mask, \
                          const W<E> *bias, u64 n, SHAPE(E)) { \
    query_grad<E>(dq, q, k, v, dout, lse, delta, mask, bias, n, GIVEN); \
  } \
  KERNEL attention_dkv_##T(E *dk, E *dv, const E *q, const E *k, const E *v, const E *dout, const W<E> *lse, const W<E> *delta, \
                           const i64 *mask, const W<E> *bias, u64 n, SHAPE(E)) { \
    key_grad<E>(dk, dv, q, k, v, dout, lse, delta, mask, bias, n, GIVEN); \
  } \
  KERNEL attention_dbias_##T(W<E> *dbias, const E *q, const E *k, const E *v, const E *dout, const W<E> *lse, const W<E> *delta, \
                             const i64 *mask, const W<E> *bias, int batch, u64 n, SHAPE(E)) { \
    bias_grad<E>(dbias, q, k, v, dout, lse, delta, mask, bias, batch, n, GIVEN); \
  }
TYPES(ATTENTION)
