// Attention of 16 bits by wgmma, the products of compute capability 9.0 (H100, H200, GH200): the
// algorithms of flash.h with the same arguments and results. Products read their right side from
// shared memory: it passes through no registers. The two warpgroups of a block have 64 rows each.
// Tiles arrive by cp.async. Kernels delta and dbias are in flash.h.
//
// Registers of sm_90a by ptxas 12.2 to 12.9, and by 13.5 if they differ. Nothing spills, and ptxas
// serialises no wgmma (warnings C7510 and following).
//	              forward    dq     dkv
//	64 columns    115, 127   183    204, 214
//	128 columns   225        253    246
#pragma once
#include "flash.h"

// proxy_fence makes what this thread has written to shared memory visible to products.
DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// products_wait waits for all products, except for products of the last N commits.
template <int N> DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// hold keeps the compiler from moving reads and writes of the registers of products past it.
#define C1(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define C4(n) C1(n), C1(n + 1), C1(n + 2), C1(n + 3)
#define A1(n) "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])
template <int N> DEVICE void hold(float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n += 4) asm volatile("" : C4(n)::"memory");
}
template <int N> DEVICE void hold(u32 (&a)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n += 4) asm volatile("" : A1(n), A1(n + 1), A1(n + 2), A1(n + 3)::"memory");
}

// product adds a [64, 16] times b [16, N] to c, or sets c. The left side is in shared memory, or in
// registers as for mma. With ACROSS the memory of b has a row for each row of b, else for each
// column.
#define PRODUCT_OF(N, REGISTERS, A, B, ADDS, ACROSS, ...) \
  template <int ACROSS_> DEVICE void product(float (&c)[N / 8][4], u64 a, u64 b, int adds) { \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME(HALF) "." NAME(HALF) " {" REGISTERS \
                 "}, " A ", " B ", p, 1, 1, 0, " ACROSS ";}" \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"(adds), "n"(ACROSS_)); \
  }
#define PRODUCT_WITH(N, REGISTERS, A, B, ADDS, ACROSS, ...) \
  template <int ACROSS_> DEVICE void product(float (&c)[N / 8][4], const u32 *a, u64 b, int adds) { \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME(HALF) "." NAME(HALF) " {" REGISTERS \
                 "}, " A ", " B ", p, 1, 1, " ACROSS ";}" \
                 : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(ACROSS_)); \
  }
#define LIST_32 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LIST_64 \
  LIST_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
PRODUCT_OF(64, LIST_32, "%32", "%33", "%34", "%35", C4(0), C4(4))
PRODUCT_WITH(64, LIST_32, "{%32,%33,%34,%35}", "%36", "%37", "%38", C4(0), C4(4))
PRODUCT_OF(128, LIST_64, "%64", "%65", "%66", "%67", C4(0), C4(4), C4(8), C4(12))
PRODUCT_WITH(128, LIST_64, "{%64,%65,%66,%67}", "%68", "%69", "%70", C4(0), C4(4), C4(8), C4(12))

// Panels are ROWS rows of HD halves in shared memory, 64 columns after the other: the layout of a
// descriptor with a swizzle of 128 bytes. A panel begins at a multiple of 1024 bytes.
template <int HD, int ROWS> struct panels {
  static const u32 BYTES = ROWS * HD * 2, PANEL = ROWS * 128;
  // load begins to copy rows of d columns. Those from valid on become 0.
  __device__ static void load(u32 base, const half *from, u64 stride, int valid, int d) {
    constexpr int PIECES = HD / 8, STEP = THREADS / PIECES;
    int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const half *next = from + row * stride + piece * 8;
    u32 to = base + piece / 8 * PANEL;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP, next += STEP * stride) {
      bool given = row + r < valid && piece * 8 < d;
      copy16(tile<64>::at(to, row + r, piece % 8), given ? next : from, given);
    }
  }
  // descriptor describes a panel to products: 8 rows are 1024 bytes, and panels follow each other.
  __device__ static u64 descriptor(u32 base) { return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u64)(PANEL >> 4) << 16 | base >> 4; }
  // columns is what step s along the columns adds to a descriptor, rows along the rows.
  __device__ static u64 columns(int s) { return (s / 4 * PANEL + s % 4 * 32) >> 4; }
  __device__ static u64 rows(int s) { return s * 2048 >> 4; }
};

// warpgroup returns the index of this warpgroup. The shuffle shows the compiler that lanes agree.
DEVICE int warpgroup() { return __shfl_sync(FULL, threadIdx.x / 128, 0); }

// A left_side is the 64 rows of panels that a warpgroup multiplies with tiles. With REGISTERS a
// thread keeps them in HD/4 registers. Otherwise each product reads its rows again, and products of
// 64 columns then need all bandwidth of shared memory.
template <int HD, int ROWS, bool REGISTERS> struct left_side {
  u64 descriptor;
  __device__ void read(u32 base) { descriptor = panels<HD, ROWS>::descriptor(base + warpgroup() * 64 * 128); }
  __device__ void hold() {}
  template <int N> __device__ void times(float (&c)[N][4], u64 b, int s, int adds) const {
    product<0>(c, descriptor + panels<HD, ROWS>::columns(s), b, adds);
  }
};
template <int HD, int ROWS> struct left_side<HD, ROWS, true> {
  u32 a[HD / 16][4];
  __device__ void read(u32 base) {
#pragma unroll
    for (int s = 0; s < HD / 16; s++) tile<64>::rows(a[s], base + s / 4 * ROWS * 128, threadIdx.x / 32 * 16, s % 4);
  }
  __device__ void hold() { ::hold(a); }
  template <int N> __device__ void times(float (&c)[N][4], u64 b, int s, int adds) const { product<0>(c, a[s], b, adds); }
};

// A block for each M queries of a head, which goes over the keys in tiles of N.
template <int HD, int N, bool REGISTERS>
DEVICE void hopper_forward(half *out, float *lse, const half *q, const half *k, const half *v, const i64 *mask, const float *bias,
                           float inverse, const size &s) {
  typedef panels<HD, M> queries;
  typedef panels<HD, N> keys;
  extern __shared__ __align__(1024) unsigned char memory_of_panels[];
  u32 sq = shared_address(memory_of_panels), sk = sq + queries::BYTES, sv = sk + 2 * keys::BYTES;
  int head = blockIdx.y, batch = blockIdx.z, first = (gridDim.x - 1 - blockIdx.x) * M;  // the longest rows first
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top_row = first + warp * 16, row = top_row + lane / 4;
  int begin = s.lo(batch, first) / N, end = (s.hi(batch, min(first + M, s.tq) - 1) + N - 1) / N;
  k += s.k(batch, head, 0), v += s.k(batch, head, 0);
  auto fetch = [&](int j) {
    u32 to = (j & 1) * keys::BYTES;
    keys::load(sk + to, k + (u64)j * N * s.ks, s.ks, s.tk - j * N, s.d);
    keys::load(sv + to, v + (u64)j * N * s.ks, s.ks, s.tk - j * N, s.d);
  };
  queries::load(sq, q + s.q(batch, head, first), s.qs, s.tq - first, s.d);
  commit();
  if (begin < end) fetch(begin);
  commit();
  arrived<1>();
  __syncthreads();
  left_side<HD, M, REGISTERS> rows;
  rows.read(sq);
  float o[HD / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f}, scale = s.scale * LOG2E;
#pragma unroll 1
  for (int j = begin; j < end; j++) {
    u64 dk = keys::descriptor(sk + (j & 1) * keys::BYTES), dv = keys::descriptor(sv + (j & 1) * keys::BYTES);
    arrived<0>();
    proxy_fence();
    __syncthreads();  // and nobody reads the other tile any more
    if (j + 1 < end) fetch(j + 1);
    commit();
    float c[N / 8][4];
    hold(c);
    rows.hold();
    products_begin();
#pragma unroll
    for (int i = 0; i < HD / 16; i++) rows.times(c, dk + keys::columns(i), i, i > 0);
    products_commit();
    products_wait<0>();
    hold(c);
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
    u32 p[N / 16][4];
#pragma unroll
    for (int i = 0; i < N / 16; i++) left(p[i], c, i);
    hold(p);
    hold(o);
    products_begin();
#pragma unroll
    for (int i = 0; i < N / 16; i++) product<1>(o, p[i], dv + keys::rows(i), 1);
    products_commit();
    products_wait<0>();
    hold(o);
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

// Dynamic shared memory: M + 4*N rows of HD halves. BLOCKS is the number of blocks that fit into
// a multiprocessor.
#define HOPPER_FORWARD(FAMILY, HD, N, REGISTERS, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) FAMILY##_forward( \
      half *out, float *lse, const half *q, const half *k, const half *v, const i64 *mask, const float *bias, float inverse, SHAPE(half)) { \
    hopper_forward<HD, N, REGISTERS>(out, lse, q, k, v, mask, bias, inverse, GIVEN); \
  }

// Backward, as in flash.h: a block has M rows of one side and goes over the other side in tiles of
// N. Scores and their gradients stay in registers, as the left side of the second products.
// Statistics of tiles of queries are in shared memory.
template <int HD, int N, bool KEYS, bool REGISTERS>
DEVICE void hopper_backward(half *d1, half *d2, const half *q, const half *k, const half *v, const half *dout, const float *lse,
                            const float *delta, const i64 *mask, const float *bias, float inverse, const size &s) {
  typedef panels<HD, M> rows_of;
  typedef panels<HD, N> tiles;
  extern __shared__ __align__(1024) unsigned char memory_of_panels[];
  u32 at1 = shared_address(memory_of_panels), at2 = at1 + rows_of::BYTES, at_tiles = at2 + rows_of::BYTES;
  float4(*seen)[N / 2] = (float4(*)[N / 2])(memory_of_panels + 2 * rows_of::BYTES + 4 * tiles::BYTES);  // statistics of two queries
  int head = KEYS ? blockIdx.y * s.group : blockIdx.y, batch = blockIdx.z, first = (KEYS ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * M;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top_row = first + warp * 16, row = top_row + lane / 4;
  int rows = KEYS ? s.tk : s.tq, last = min(first + M, rows) - 1, wide_row = s.heads * s.d;
  if (KEYS) {
    rows_of::load(at1, k + s.k(batch, head, first), s.ks, rows - first, s.d);
    rows_of::load(at2, v + s.k(batch, head, first), s.ks, rows - first, s.d);
  } else {
    rows_of::load(at1, q + s.q(batch, head, first), s.qs, rows - first, s.d);
    rows_of::load(at2, dout + s.out(batch, head, first), wide_row, rows - first, s.d);
  }
  commit();
  int begin = (KEYS ? s.first(batch, first) : s.lo(batch, first)) / N, end = ((KEYS ? s.last(batch, last) : s.hi(batch, last)) + N - 1) / N;
  int count = max(0, end - begin), all = KEYS ? count * s.group : count;
  float x1[HD / 8][4] = {}, x2[KEYS ? HD / 8 : 1][4] = {}, scale = s.scale * LOG2E;
  float2 of_row[2];
  if (!KEYS)
#pragma unroll
    for (int h = 0; h < 2; h++) of_row[h] = statistics(lse + s.stat(batch, head, 0), delta + s.stat(batch, head, 0), row + h * 8, s.tq);
  // A tile i is j of head h.
  auto fetch = [&](int i, int h, int j) {
    u32 to = at_tiles + (i & 1) * 2 * tiles::BYTES;
    if (KEYS) {
      tiles::load(to, q + s.q(batch, h, j * N), s.qs, s.tq - j * N, s.d);
      tiles::load(to + tiles::BYTES, dout + s.out(batch, h, j * N), wide_row, s.tq - j * N, s.d);
    } else {
      tiles::load(to, k + s.k(batch, h, j * N), s.ks, s.tk - j * N, s.d);
      tiles::load(to + tiles::BYTES, v + s.k(batch, h, j * N), s.ks, s.tk - j * N, s.d);
    }
  };
  auto see = [&](int i, int h, int j) {
    if (KEYS && threadIdx.x < N)
      ((float2 *)seen[i & 1])[threadIdx.x] = statistics(lse + s.stat(batch, h, 0), delta + s.stat(batch, h, 0), j * N + threadIdx.x, s.tq);
  };
  if (all) fetch(0, head, begin), see(0, head, begin);
  commit();
  arrived<1>();
  __syncthreads();
  left_side<HD, M, REGISTERS> a1, a2;
  a1.read(at1), a2.read(at2);
  int h = head, j = begin;
#pragma unroll 1
  for (int i = 0; i < all; i++) {
    u32 m1 = at_tiles + (i & 1) * 2 * tiles::BYTES, m2 = m1 + tiles::BYTES;
    u64 t1 = tiles::descriptor(m1), t2 = tiles::descriptor(m2);
    int next_h = j + 1 == end ? h + 1 : h, next_j = j + 1 == end ? begin : j + 1;
    arrived<0>();
    proxy_fence();
    __syncthreads();  // and nobody reads the other tiles any more
    if (i + 1 < all) fetch(i + 1, next_h, next_j);
    commit();
    float c[N / 8][4], g[N / 8][4];
    hold(c);
    hold(g);
    a1.hold(), a2.hold();
    products_begin();
#pragma unroll
    for (int t = 0; t < HD / 16; t++) a1.times(c, t1 + tiles::columns(t), t, t > 0);
    products_commit();
#pragma unroll
    for (int t = 0; t < HD / 16; t++) a2.times(g, t2 + tiles::columns(t), t, t > 0);
    products_commit();
    if (i + 1 < all) see(i + 1, next_h, next_j);
    products_wait<1>();
    hold(c);
    bound<N, KEYS>(c, s, batch, h, mask, bias, inverse, top_row, j * N);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
      float4 of = KEYS ? seen[i & 1][n * 4 + lane % 4] : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int e = 0; e < 4; e++) c[n][e] = exp2_(fmaf(c[n][e], scale, KEYS ? e % 2 ? -of.z : -of.x : -of_row[e / 2].x));
    }
    if constexpr (KEYS) {
      u32 p[N / 16][4];
#pragma unroll
      for (int t = 0; t < N / 16; t++) left(p[t], c, t);
      hold(p);
      hold(x2);
      products_begin();
#pragma unroll
      for (int t = 0; t < N / 16; t++) product<1>(x2, p[t], t2 + tiles::rows(t), 1);
      products_commit();
    }
    products_wait<KEYS ? 1 : 0>();
    hold(g);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
      float4 of = KEYS ? seen[i & 1][n * 4 + lane % 4] : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int e = 0; e < 4; e++) g[n][e] = c[n][e] * (g[n][e] - (KEYS ? e % 2 ? of.w : of.y : of_row[e / 2].y));
    }
    u32 ds[N / 16][4];
#pragma unroll
    for (int t = 0; t < N / 16; t++) left(ds[t], g, t);
    hold(ds);
    hold(x1);
    products_begin();
#pragma unroll
    for (int t = 0; t < N / 16; t++) product<1>(x1, ds[t], t1 + tiles::rows(t), 1);
    products_commit();
    products_wait<0>();
    hold(x1);
    if constexpr (KEYS) hold(x2);
    h = next_h, j = next_j;
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
      if constexpr (KEYS) to2[n * 4 + lane % 4] = hidden ? 0 : two<half>::narrow(x2[n][2 * i], x2[n][2 * i + 1]);
    }
  }
}

// Dynamic shared memory: 2*M + 4*N rows of HD halves, and 2*N float2 for dkv.
#define HOPPER_BACKWARD(FAMILY, HD, N, DQ_REGISTERS, DKV_REGISTERS) \
  KERNEL FAMILY##_dq(half *dq, const half *q, const half *k, const half *v, const half *dout, const float *lse, const float *delta, \
                        const i64 *mask, const float *bias, float inverse, SHAPE(half)) { \
    hopper_backward<HD, N, false, DQ_REGISTERS>(dq, dq, q, k, v, dout, lse, delta, mask, bias, inverse, GIVEN); \
  } \
  KERNEL FAMILY##_dkv(half *dk, half *dv, const half *q, const half *k, const half *v, const half *dout, const float *lse, \
                         const float *delta, const i64 *mask, const float *bias, float inverse, SHAPE(half)) { \
    hopper_backward<HD, N, true, DKV_REGISTERS>(dk, dv, q, k, v, dout, lse, delta, mask, bias, inverse, GIVEN); \
  }
