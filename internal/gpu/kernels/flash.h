// Attention of 16 bits by tensor cores: FlashAttention-2 (Dao 2023, arXiv:2307.08691) with mma.sync, which
// every GPU since Ampere has. Heads have up to 64 or 128 columns, a multiple of 8; those that are missing
// count as zeros. Weights and the gradients of scores are rounded to 16 bits for their products, and all
// sums are float32. q, k, v and dout are aligned to 16 bytes; scale is positive.
//
// Registers of sm_80, sm_90, sm_100 by ptxas 12.9:
//	              forward         delta        dq              dkv             dbias
//	64 columns    128, 128, 128   26, 27, 27   217, 217, 225   250, 250, 250   231, 229, 238
//	128 columns   200, 204, 212   26, 27, 27   249, 244, 244   255, 255, 255   233, 223, 234
#pragma once
#include "attention.h"

// half is the type of q, k, v and their gradients. A file that includes this may choose it.
#ifndef HALF
#define HALF bf16
#endif
typedef HALF half;
#define TEXT(x) #x
#define NAME(x) TEXT(x)

#define LOG2E 1.44269504f
#define THREADS 256  // of a block: 8 warps
#define M 128        // rows of a block, 16 a warp

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
// copy16 copies 16 bytes, or sets them to 0.
DEVICE void copy16(u32 to, const void *from, bool given) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(given ? 16 : 0) : "memory");
}
DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// arrived waits for the copies of this thread but those of the last N commits.
template <int N> DEVICE void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
DEVICE void ldmatrix4(u32 *r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEVICE void ldmatrix4_transposed(u32 *r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// mma adds a [16, 16] times b [16, 8] to c [16, 8].
DEVICE void mma(float *c, const u32 *a, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME(HALF) "." NAME(HALF) ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE float exp2_(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// A tile is rows of HD halves in shared memory. The 16-byte pieces of a row are swapped about, so that
// the 8 rows of a matrix lie in different banks.
template <int HD> struct tile {
  __device__ static u32 at(u32 base, int row, int piece) { return base + row * HD * 2 + ((piece ^ (row & 7)) << 4); }
  // load begins to copy ROWS rows of d columns. Those from valid on become 0.
  template <int ROWS> __device__ static void load(u32 base, const half *from, u64 stride, int valid, int d) {
    constexpr int PIECES = HD / 8, STEP = THREADS / PIECES;
    int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const half *next = from + row * stride + piece * 8;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP, next += STEP * stride) {
      bool given = row + r < valid && piece * 8 < d;
      copy16(at(base, row + r, piece), given ? next : from, given);
    }
  }
  // rows returns 16 rows, of the 16 columns from 16*s on, as the left side of a product.
  __device__ static void rows(u32 *a, u32 base, int row, int s) {
    int lane = threadIdx.x % 32;
    ldmatrix4(a, at(base, row + lane % 16, s * 2 + lane / 16));
  }
  // columns returns them as the right side of a product that has a column for each row.
  __device__ static void columns(u32 *b, u32 base, int row, int s) {
    int lane = threadIdx.x % 32;
    ldmatrix4(b, at(base, row + lane % 8 + lane / 16 * 8, s * 2 + lane / 8 % 2));
  }
  // across returns them as the right side of a product that sums over the rows.
  __device__ static void across(u32 *b, u32 base, int row, int s) {
    int lane = threadIdx.x % 32;
    ldmatrix4_transposed(b, at(base, row + lane % 16, s * 2 + lane / 16));
  }
};

// left returns 16 columns of a result, those from 16*s on, as the left side of a product.
DEVICE void left(u32 *a, float (*c)[4], int s) {
#pragma unroll
  for (int i = 0; i < 4; i++) a[i] = two<half>::narrow(c[2 * s + i / 2][i % 2 * 2], c[2 * s + i / 2][i % 2 * 2 + 1]);
}

// A thread has elements e of parts n of a result: row lane/4 + e/2*8, column n*8 + lane%4*2 + e%2.
#define ELEMENTS(N) \
  _Pragma("unroll") for (int n = 0; n < (N) / 8; n++) \
  _Pragma("unroll") for (int e = 0; e < 4; e++)

typedef shape<half> size;

// partly tells whether of the queries [i, i+ni) some do not see one of the keys [j, j+nj).
DEVICE bool partly(const size &s, int i, int ni, int j, int nj) {
  int at = i + s.tk - s.tq;
  return j + nj > s.tk || s.causal && j + nj - 1 > at || j <= at + ni - 1 - s.window;
}
DEVICE bool sees(const size &s, int i, int j) {
  int at = i + s.tk - s.tq;
  return j < s.tk && (!s.causal || j <= at) && j > at - s.window;
}

// bound makes what a warp has of q·kᵀ, 16 rows from one on and N columns, scores divided by scale: it adds
// the bias and hides what is not seen. With KEYS the rows are keys, else queries.
template <int N, bool KEYS>
DEVICE void bound(float (*c)[4], const size &s, int batch, int head, const i64 *mask, const float *bias, float inverse, int rows, int columns) {
  int lane = threadIdx.x % 32, row = rows + lane / 4, column = columns + lane % 4 * 2;
  int query = KEYS ? column : row, key = KEYS ? row : column;
  if (bias) {
    bias += s.bias(head, query, key);
    ELEMENTS(N) {
      int i = KEYS ? n * 8 + e % 2 : e / 2 * 8, j = KEYS ? e / 2 * 8 : n * 8 + e % 2;
      if (query + i < s.tq && key + j < s.tk) c[n][e] += bias[i * s.tk + j] * inverse;
    }
  }
  if (KEYS ? partly(s, columns, N, rows, 16) : partly(s, rows, 16, columns, N))
    ELEMENTS(N) {
      int i = KEYS ? n * 8 + e % 2 : e / 2 * 8, j = KEYS ? e / 2 * 8 : n * 8 + e % 2;
      if (!sees(s, query + i, key + j)) c[n][e] = -INFINITY;
    }
  if (s.documents)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = row + h * 8, begin = r < s.tk ? s.begin(batch, r) : 0, end = r < s.tk ? s.end(batch, r) : 0;
#pragma unroll
      for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++)
          if (column + n * 8 + e % 2 < begin || column + n * 8 + e % 2 >= end) c[n][e] = -INFINITY;
    }
  if (!KEYS && mask) {  // a key that is a row has its gradients zeroed
    mask += (u64)batch * s.tk + key;
    ELEMENTS(N) if (key + n * 8 + e % 2 < s.tk && !mask[n * 8 + e % 2]) c[n][e] = -INFINITY;
  }
}

// A block for each M queries of a head, which goes over the keys in tiles of N.
template <int HD>
DEVICE void forward(half *out, float *lse, const half *q, const half *k, const half *v, const i64 *mask, const float *bias, float inverse,
                    const size &s) {
  constexpr int N = 64, TILE = N * HD * 2;
  extern __shared__ __align__(128) unsigned char memory[];
  u32 sq = shared_address(memory), sk = sq + M * HD * 2, sv = sk + 2 * TILE;
  int head = blockIdx.y, batch = blockIdx.z, first = (gridDim.x - 1 - blockIdx.x) * M;  // the longest rows first
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top_row = first + warp * 16, row = top_row + lane / 4;
  int begin = s.lo(batch, first) / N, end = (s.hi(batch, min(first + M, s.tq) - 1) + N - 1) / N;
  k += s.k(batch, head, 0), v += s.k(batch, head, 0);
  tile<HD>::template load<M>(sq, q + s.q(batch, head, first), s.qs, s.tq - first, s.d);
  auto fetch = [&](u32 to, const half *from, int j) {
    if (j < end) tile<HD>::template load<N>(to + (j & 1) * TILE, from + (u64)j * N * s.ks, s.ks, s.tk - j * N, s.d);
    commit();
  };
  fetch(sk, k, begin);
  fetch(sv, v, begin);
  arrived<1>();
  __syncthreads();
  u32 a[HD / 16][4];
#pragma unroll
  for (int i = 0; i < HD / 16; i++) tile<HD>::rows(a[i], sq, warp * 16, i);
  float o[HD / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f}, scale = s.scale * LOG2E;
#pragma unroll 1
  for (int j = begin; j < end; j++) {
    u32 nk = sk + (j & 1) * TILE, nv = sv + (j & 1) * TILE;
    fetch(sk, k, j + 1);
    float c[N / 8][4] = {};
#pragma unroll
    for (int i = 0; i < HD / 16; i++)
#pragma unroll
      for (int n = 0; n < N / 16; n++) {
        u32 b[4];
        tile<HD>::columns(b, nk, n * 16, i);
        mma(c[2 * n], a[i], b[0], b[1]);
        mma(c[2 * n + 1], a[i], b[2], b[3]);
      }
    bound<N, false>(c, s, batch, head, mask, bias, inverse, top_row, j * N);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float m = top[h];
#pragma unroll
      for (int n = 0; n < N / 8; n++) m = fmaxf(m, fmaxf(c[n][2 * h], c[n][2 * h + 1]));
      m = fmaxf(m, __shfl_xor_sync(FULL, m, 1));
      m = fmaxf(m, __shfl_xor_sync(FULL, m, 2));
      float base = m == -INFINITY ? 0.f : m * scale, fix = exp2_(fmaf(top[h], scale, -base)), more = 0.f;
      top[h] = m;
#pragma unroll
      for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++) more += c[n][e] = exp2_(fmaf(c[n][e], scale, -base));
      sum[h] = sum[h] * fix + more;
#pragma unroll
      for (int n = 0; n < HD / 8; n++) o[n][2 * h] *= fix, o[n][2 * h + 1] *= fix;
    }
    arrived<1>();  // the values of this tile
    __syncthreads();
    fetch(sv, v, j + 1);
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
      u32 p[4];
      left(p, c, i);
#pragma unroll
      for (int n = 0; n < HD / 16; n++) {
        u32 b[4];
        tile<HD>::across(b, nv, i * 16, n);
        mma(o[2 * n], p, b[0], b[1]);
        mma(o[2 * n + 1], p, b[2], b[3]);
      }
    }
    arrived<1>();  // the keys of the next tile
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float all = sum[h];
    all += __shfl_xor_sync(FULL, all, 1);
    all += __shfl_xor_sync(FULL, all, 2);
    int r = row + h * 8;
    if (r >= s.tq) continue;
    float inv = all == 0.f ? 0.f : 1.f / all;
    u32 *to = (u32 *)(out + s.out(batch, head, r));
#pragma unroll
    for (int n = 0; n < HD / 8; n++)
      if (n * 8 < s.d) to[n * 4 + lane % 4] = two<half>::narrow(o[n][2 * h] * inv, o[n][2 * h + 1] * inv);
    if (lane % 4 == 0) lse[s.stat(batch, head, r)] = all == 0.f ? -INFINITY : top[h] * s.scale + __logf(all);
  }
}

// delta is the sum of out∘dout, which the gradient of softmax subtracts. A warp for each of n rows, which
// are [B, heads, tq].
DEVICE void rows_delta(float *y, const u32 *out, const u32 *dout, int heads, int d, int tq, u64 n) {
  int lane = threadIdx.x % 32;
  u64 row = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  if (row >= n) return;
  u64 at = ((row / tq / heads * tq + row % tq) * heads + row / tq % heads) * (d / 2);
  float sum = 0.f;
  for (int c = lane; c < d / 2; c += 32) {
    u32 a = out[at + c], b = dout[at + c];
    sum += two<half>::lo(a) * two<half>::lo(b) + two<half>::hi(a) * two<half>::hi(b);
  }
  sum = warp_sum(sum);
  if (!lane) y[row] = sum;
}

// What a row of scores has of lse and delta, for exp2: weights are 0 in one that is not there or sees no key.
DEVICE float2 statistics(const float *lse, const float *delta, int i, int tq) {
  float l = i < tq ? lse[i] : -INFINITY;
  return make_float2(l == -INFINITY ? INFINITY : l * LOG2E, i < tq ? delta[i] : 0.f);
}

// Backward. A block has M rows in registers, 16 a warp, and goes over the other side in tiles of N. With
// KEYS the rows are keys and the tiles queries, of all heads that read them; without, the rows are queries.
// Every sum has one order; the price is that scores are computed for both.
//
//	c = a1·t1ᵀ   g = a2·t2ᵀ   p = exp(scale·c + bias - lse)   ds = p∘(g - delta)
//
//	                               rows a1, a2   tiles t1, t2
//	dq = scale·ds·t1               q, dout       k, v
//	dk = scale·ds·t1   dv = p·t2   k, v          q, dout
template <int HD, int N, bool KEYS>
DEVICE void backward(half *d1, half *d2, const half *q, const half *k, const half *v, const half *dout, const float *lse,
                     const float *delta, const i64 *mask, const float *bias, float inverse, const size &s) {
  constexpr int TILE = N * HD * 2;
  static_assert(M * HD * 2 <= 4 * TILE, "rows and tiles share memory");
  extern __shared__ __align__(128) unsigned char memory[];
  u32 shared = shared_address(memory);
  int head = KEYS ? blockIdx.y * s.group : blockIdx.y, batch = blockIdx.z, first = (KEYS ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * M;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top_row = first + warp * 16, row = top_row + lane / 4;
  int rows = KEYS ? s.tk : s.tq, last = min(first + M, rows) - 1, wide_row = s.heads * s.d;
  u32 a1[HD / 16][4], a2[HD / 16][4];
#pragma unroll
  for (int side = 0; side < 2; side++) {
    const half *from = KEYS ? (side ? v : k) + s.k(batch, head, first) : side ? dout + s.out(batch, head, first) : q + s.q(batch, head, first);
    tile<HD>::template load<M>(shared, from, KEYS ? s.ks : side ? wide_row : s.qs, rows - first, s.d);
    commit();
    arrived<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < HD / 16; i++) tile<HD>::rows(side ? a2[i] : a1[i], shared, warp * 16, i);
    __syncthreads();
  }
  int begin = (KEYS ? s.first(batch, first) : s.lo(batch, first)) / N, end = ((KEYS ? s.last(batch, last) : s.hi(batch, last)) + N - 1) / N;
  int count = max(0, end - begin), all = KEYS ? count * s.group : count;
  float x1[HD / 8][4] = {}, x2[KEYS ? HD / 8 : 1][4] = {}, scale = s.scale * LOG2E;
  float2 of_row[2];
  if (!KEYS)
#pragma unroll
    for (int h = 0; h < 2; h++) of_row[h] = statistics(lse + s.stat(batch, head, 0), delta + s.stat(batch, head, 0), row + h * 8, s.tq);
  int next_head = head, next = begin, buffer = 0;  // what fetch takes, and where to
  auto fetch = [&] {
    u32 to = shared + buffer * 2 * TILE;
    int from = next * N;
    if (KEYS) {
      tile<HD>::template load<N>(to, q + s.q(batch, next_head, from), s.qs, s.tq - from, s.d);
      tile<HD>::template load<N>(to + TILE, dout + s.out(batch, next_head, from), wide_row, s.tq - from, s.d);
    } else {
      tile<HD>::template load<N>(to, k + s.k(batch, head, from), s.ks, s.tk - from, s.d);
      tile<HD>::template load<N>(to + TILE, v + s.k(batch, head, from), s.ks, s.tk - from, s.d);
    }
    buffer ^= 1;
    if (++next == end) next = begin, next_head++;
  };
  if (all) fetch();
  commit();
  int h = head, j = begin;
#pragma unroll 1
  for (int i = 0; i < all; i++) {
    u32 m1 = shared + (buffer ^ 1) * 2 * TILE, m2 = m1 + TILE;
    if (i + 1 < all) fetch();
    commit();
    arrived<1>();
    __syncthreads();
    float c[N / 8][4] = {}, g[N / 8][4] = {};
#pragma unroll
    for (int t = 0; t < HD / 16; t++)
#pragma unroll
      for (int n = 0; n < N / 16; n++) {
        u32 b[4];
        tile<HD>::columns(b, m1, n * 16, t);
        mma(c[2 * n], a1[t], b[0], b[1]);
        mma(c[2 * n + 1], a1[t], b[2], b[3]);
        tile<HD>::columns(b, m2, n * 16, t);
        mma(g[2 * n], a2[t], b[0], b[1]);
        mma(g[2 * n + 1], a2[t], b[2], b[3]);
      }
    bound<N, KEYS>(c, s, batch, h, mask, bias, inverse, top_row, j * N);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
      float2 of_column[2];
      if (KEYS)
#pragma unroll
        for (int e = 0; e < 2; e++) of_column[e] = statistics(lse + s.stat(batch, h, 0), delta + s.stat(batch, h, 0), j * N + n * 8 + lane % 4 * 2 + e, s.tq);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float2 of = KEYS ? of_column[e % 2] : of_row[e / 2];
        c[n][e] = exp2_(fmaf(c[n][e], scale, -of.x));
        g[n][e] = c[n][e] * (g[n][e] - of.y);
      }
    }
#pragma unroll
    for (int t = 0; t < N / 16; t++) {
      u32 ds[4], p[4];
      left(ds, g, t);
      if (KEYS) left(p, c, t);
#pragma unroll
      for (int n = 0; n < HD / 16; n++) {
        u32 b[4];
        tile<HD>::across(b, m1, t * 16, n);
        mma(x1[2 * n], ds, b[0], b[1]);
        mma(x1[2 * n + 1], ds, b[2], b[3]);
        if (KEYS) {
          tile<HD>::across(b, m2, t * 16, n);
          mma(x2[KEYS ? 2 * n : 0], p, b[0], b[1]);
          mma(x2[KEYS ? 2 * n + 1 : 0], p, b[2], b[3]);
        }
      }
    }
    __syncthreads();
    if (++j == end) j = begin, h++;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int r = row + i * 8;
    if (r >= rows) continue;
    u64 at = KEYS ? s.k(batch, head, r) : s.q(batch, head, r);
    bool hidden = KEYS && mask && !mask[(u64)batch * s.tk + r];
    u32 *to1 = (u32 *)(d1 + at), *to2 = (u32 *)(d2 + at);
#pragma unroll
    for (int n = 0; n < HD / 8; n++) {
      if (n * 8 >= s.d) break;
      to1[n * 4 + lane % 4] = hidden ? 0 : two<half>::narrow(x1[n][2 * i] * s.scale, x1[n][2 * i + 1] * s.scale);
      if (KEYS) to2[n * 4 + lane % 4] = hidden ? 0 : two<half>::narrow(x2[KEYS ? n : 0][2 * i], x2[KEYS ? n : 0][2 * i + 1]);
    }
  }
}

// bias_grad sums the gradients of scores over the batch. A block has M queries and N keys of a head.
template <int HD>
DEVICE void bias_grad(float *dbias, const half *q, const half *k, const half *v, const half *dout, const float *lse, const float *delta,
                      const i64 *mask, const float *bias, float inverse, int batch, const size &s) {
  constexpr int N = 64;
  extern __shared__ __align__(128) unsigned char memory[];
  u32 sq = shared_address(memory), sg = sq + M * HD * 2, sk = sg + M * HD * 2, sv = sk + N * HD * 2;
  int tiles = (s.tk + N - 1) / N, head = blockIdx.y, first = blockIdx.x / tiles * M, column = blockIdx.x % tiles * N;
  int lane = threadIdx.x % 32, top_row = first + threadIdx.x / 32 * 16, row = top_row + lane / 4, key = column + lane % 4 * 2;
  if (column >= s.hi(min(first + M, s.tq) - 1) || column + N <= s.lo(first)) batch = 0;  // nothing is seen
  float sum[N / 8][4] = {};
#pragma unroll 1
  for (int b = 0; b < batch; b++) {
    tile<HD>::template load<M>(sq, q + s.q(b, head, first), s.qs, s.tq - first, s.d);
    tile<HD>::template load<M>(sg, dout + s.out(b, head, first), s.heads * s.d, s.tq - first, s.d);
    tile<HD>::template load<N>(sk, k + s.k(b, head, column), s.ks, s.tk - column, s.d);
    tile<HD>::template load<N>(sv, v + s.k(b, head, column), s.ks, s.tk - column, s.d);
    commit();
    arrived<0>();
    __syncthreads();
    float c[N / 8][4] = {}, g[N / 8][4] = {};
#pragma unroll
    for (int t = 0; t < HD / 16; t++) {
      u32 a1[4], a2[4], b1[4], b2[4];
      tile<HD>::rows(a1, sq, top_row - first, t);
      tile<HD>::rows(a2, sg, top_row - first, t);
#pragma unroll
      for (int n = 0; n < N / 16; n++) {
        tile<HD>::columns(b1, sk, n * 16, t);
        mma(c[2 * n], a1, b1[0], b1[1]);
        mma(c[2 * n + 1], a1, b1[2], b1[3]);
        tile<HD>::columns(b2, sv, n * 16, t);
        mma(g[2 * n], a2, b2[0], b2[1]);
        mma(g[2 * n + 1], a2, b2[2], b2[3]);
      }
    }
    bound<N, false>(c, s, b, head, mask, bias, inverse, top_row, column);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float2 of = statistics(lse + s.stat(b, head, 0), delta + s.stat(b, head, 0), row + h * 8, s.tq);
#pragma unroll
      for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++) sum[n][e] += exp2_(fmaf(c[n][e], s.scale * LOG2E, -of.x)) * (g[n][e] - of.y);
    }
    __syncthreads();
  }
  dbias += s.bias(head, row, key);
  ELEMENTS(N)
    if (row + e / 2 * 8 < s.tq && key + n * 8 + e % 2 < s.tk) dbias[e / 2 * 8 * s.tk + n * 8 + e % 2] = sum[n][e];
}

// Blocks: (rows/M rounded up, heads of the rows, B); of dbias (tq/M rounded up times tk/64 rounded up,
// heads). Dynamic shared memory: that of M + 4*64 rows of HD halves for forward, of 2*M + 2*64 for dbias,
// of 4*N for the others. inverse is 1/scale.
#define FLASH(FAMILY, HD, N) \
  KERNEL FAMILY##_forward(half *out, float *lse, const half *q, const half *k, const half *v, const i64 *mask, const float *bias, \
                            float inverse, SHAPE(half)) { \
    forward<HD>(out, lse, q, k, v, mask, bias, inverse, GIVEN); \
  } \
  KERNEL FAMILY##_delta(float *y, const u32 *out, const u32 *dout, int heads, int d, int tq, u64 n) { \
    rows_delta(y, out, dout, heads, d, tq, n); \
  } \
  KERNEL FAMILY##_dq(half *dq, const half *q, const half *k, const half *v, const half *dout, const float *lse, const float *delta, \
                       const i64 *mask, const float *bias, float inverse, SHAPE(half)) { \
    backward<HD, N, false>(dq, dq, q, k, v, dout, lse, delta, mask, bias, inverse, GIVEN); \
  } \
  KERNEL FAMILY##_dkv(half *dk, half *dv, const half *q, const half *k, const half *v, const half *dout, const float *lse, \
                        const float *delta, const i64 *mask, const float *bias, float inverse, SHAPE(half)) { \
    backward<HD, N, true>(dk, dv, q, k, v, dout, lse, delta, mask, bias, inverse, GIVEN); \
  } \
  KERNEL FAMILY##_dbias(float *dbias, const half *q, const half *k, const half *v, const half *dout, const float *lse, \
                          const float *delta, const i64 *mask, const float *bias, int batch, float inverse, SHAPE(half)) { \
    bias_grad<HD>(dbias, q, k, v, dout, lse, delta, mask, bias, inverse, batch, GIVEN); \
  }
