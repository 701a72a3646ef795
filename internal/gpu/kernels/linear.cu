// What products leave to do in linear layers and in their losses.
#include "logits.h"

// linear_fill_f64 writes a bias, plus c unless it is null, to rows that are ld elements apart: products of
// doubles cannot add a bias. c may be y.
KERNEL linear_fill_f64(double *y, const double *c, const double *bias, u64 cols, u64 ld, u64 n) {
  INDEX(n);
  u64 at = i / cols * ld + i % cols;
  y[at] = c ? c[at] + bias[i % cols] : bias[i % cols];
}

// linear_scale multiplies row i of x by scale[i], a block a row.
template <class T, class E> DEVICE void scale(E *y, const E *x, const T *scale, u64 cols) {
  u64 row = blockIdx.x * cols;
  T c = scale[blockIdx.x];
  for (u64 j = threadIdx.x; j < cols; j += 256) narrow(y[row + j], wide(x[row + j]) * c);
}

// linear_columns sums the columns of x, whose rows are ld elements apart: block (b, c) of 32 x 8
// threads takes 32 times V columns of the rows of chunk c, and writes row c of to, or adds to it.
template <int V, class T, class E> DEVICE void columns(T *to, const E *x, u64 rows, u64 cols, u64 ld, u64 chunk, int acc) {
  __shared__ T parts[8][32][V];
  u64 col = (blockIdx.x * 32ull + threadIdx.x) * V, first = blockIdx.y * chunk, end = first + chunk < rows ? first + chunk : rows;
  T sum[V] = {};
  if (col < cols)
#pragma unroll 4
    for (u64 r = first + threadIdx.y; r < end; r += 8) {
      T v[V];
      load(v, x + r * ld + col);
      EACH(k, V) sum[k] += v[k];
    }
  EACH(k, V) parts[threadIdx.y][threadIdx.x][k] = sum[k];
  __syncthreads();
  if (threadIdx.y || col >= cols) return;
  for (int i = 1; i < 8; i++) EACH(k, V) sum[k] += parts[i][threadIdx.x][k];
  T *at = to + blockIdx.y * cols + col;
  EACH(k, V) at[k] = acc ? at[k] + sum[k] : sum[k];
}

// turn turns a row of logits into the gradients of its loss, in the type of a product. They lie where the
// row does, in the first half of it if they are narrower: what is written was read in this round or before.
template <class E> DEVICE void turn(W<E> *row, u32 classes, gradient<W<E>> g) {
  E *to = (E *)row;
  for (u32 first = threadIdx.x; first - threadIdx.x < classes; first += 4 * 256) {
    W<E> x[4];
    EACH(k, 4) x[k] = first + k * 256 < classes ? row[first + k * 256] : 0;
    __syncthreads();
    EACH(k, 4) {
      u32 j = first + k * 256;
      if (j < classes) narrow(to[j], g(j, x[k]));
    }
  }
}

// linear_loss computes the losses and the lse of rows of logits, a block a row, and in training turns
// logits into gradients.
template <class E> DEVICE void loss(W<E> *logits, W<E> *losses, W<E> *lses, const i64 *targets, u64 ld, rule<W<E>> r, int train) {
  W<E> *row = logits + blockIdx.x * ld;
  i64 target = targets[blockIdx.x];
  W<E> lse = row_loss(losses + blockIdx.x, lses + blockIdx.x, row, target, r);
  __syncthreads();
  if (train) turn<E>(row, r.classes, {target, lse, 1, r});
}

// factor writes the gradient of the losses that count, to. The others have 0.
template <class T> DEVICE void factor(T *to, const T *dlosses, u64 n) {
  T up = 0, down = 0;
#pragma unroll 1
  for (u64 i = threadIdx.x; i < n; i += 256) up = larger(up, dlosses[i]), down = larger(down, -dlosses[i]);
  up = block_max(up);
  down = block_max(down);
  if (threadIdx.x == 0) *to = up - down;
}

// times writes *c times x, or adds it.
template <class T> DEVICE void times(T *y, const T *x, const T *c, u64 n, int acc) {
  INDEX(n);
  T v = *c * x[i];
  y[i] = acc ? y[i] + v : v;
}

#define FACTOR(T, E) \
  KERNEL linear_factor_##T(E *to, const E *dlosses, u64 n) { factor(to, dlosses, n); } \
  KERNEL linear_times_##T(E *y, const E *x, const E *c, u64 n, int acc) { times(y, x, c, n, acc); }
FACTOR(f32, float)
FACTOR(f64, double)

#define LINEAR(T, E) \
  KERNEL linear_scale_##T(E *y, const E *x, const W<E> *s, u64 cols) { scale(y, x, s, cols); } \
  KERNEL linear_columns_##T(W<E> *to, const E *x, u64 rows, u64 cols, u64 ld, u64 chunk, int acc) { \
    columns<1>(to, x, rows, cols, ld, chunk, acc); \
  } \
  KERNEL linear_loss_##T(W<E> *logits, W<E> *losses, W<E> *lses, const i64 *targets, u32 classes, u64 ld, W<E> smoothing, \
                         W<E> z, i64 ignore, int train) { \
    loss<E>(logits, losses, lses, targets, ld, {smoothing, z, ignore, classes}, train); \
  }
TYPES(LINEAR)

// Those of eight columns at a time: numbers of columns and ld are multiples of 8, x is aligned to 16.
#define COLUMNS8(T, E) \
  KERNEL linear_columns8_##T(float *to, const E *x, u64 rows, u64 cols, u64 ld, u64 chunk, int acc) { \
    columns<8>(to, x, rows, cols, ld, chunk, acc); \
  }
COLUMNS8(f32, float)
COLUMNS8(bf16, bf16)
COLUMNS8(f16, f16)
