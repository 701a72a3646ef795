// What happens to shards outside of passes. A launch works on a list of pieces, each anywhere in
// memory: all parameters of a model are one launch. The numbers are those of package vec to the bit,
// whose assembly fuses the same products and sums.
#include "device.h"

// A piece is as fsdp/internal/engine/gpu writes it. Of vectors that a kernel has no use for, the
// address is 0.
struct piece {
  u64 vec[4];  // addresses
  u64 n;       // elements of each
  u32 block;   // of the launch, the first that works on it
  u32 phase;   // of the first element in a block of 8 bits
  double c[9]; // numbers of the update
  u64 key;     // of the rounding to 16 bits
  u64 offset;  // of the first element in the parameter
};

#define SPAN 4096 // elements that a block works on, at most

// mine returns the piece that this block works on, the last that does not begin after it.
DEVICE const piece *mine(const piece *list, u32 count) {
  u32 lo = 0;
  for (u32 hi = count; hi - lo > 1;) {
    u32 mid = (lo + hi) / 2;
    if (list[mid].block <= blockIdx.x) lo = mid; else hi = mid;
  }
  return list + lo;
}

// EACH runs over the elements i of this block.
#define EACH \
  u64 first = (u64)(blockIdx.x - a->block) * SPAN, last = a->n < first + SPAN ? a->n : first + SPAN; \
  _Pragma("unroll 4") \
  for (u64 i = first + threadIdx.x; i < last; i += blockDim.x)

DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
DEVICE double times(double a, double b) { return __dmul_rn(a, b); }
DEVICE float root(float a) { return __fsqrt_rn(a); }
DEVICE double root(double a) { return __dsqrt_rn(a); }
DEVICE float over(float a, float b) { return __fdiv_rn(a, b); }
DEVICE double over(double a, double b) { return __ddiv_rn(a, b); }

template <class T> struct adam_step {
  T decay, l2, beta1, rest1, beta2, rest2, rate, inverse, eps;
  __device__ __forceinline__ adam_step(const double *c)
    : decay(c[0]), l2(c[1]), beta1(c[2]), rest1(c[3]), beta2(c[4]), rest2(c[5]), rate(c[6]), inverse(c[7]), eps(c[8]) {}
  __device__ __forceinline__ void update(T &p, T g, T &m, T &v) const {
    g = fused(p, l2, g);
    m = fused(g, rest1, times(m, beta1));
    v = fused(times(g, rest2), g, times(v, beta2));
    p = fused(p, decay, -over(times(m, rate), fused(root(v), inverse, eps)));
  }
};

// vec: p, g, m, v.
template <class T> DEVICE void adam(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  T *__restrict__ p = (T *)a->vec[0], *__restrict__ m = (T *)a->vec[2], *__restrict__ v = (T *)a->vec[3];
  const T *__restrict__ g = (const T *)a->vec[1];
  adam_step<T> c(a->c);
  EACH {
    T x = p[i], y = m[i], z = v[i];
    c.update(x, g[i], y, z);
    p[i] = x, m[i] = y, v[i] = z;
  }
}

template <class T> struct sgd_step {
  T rate, momentum, l2;
  bool nesterov, begin;
  __device__ __forceinline__ sgd_step(const double *c)
    : rate(c[0]), momentum(c[1]), l2(c[2]), nesterov(c[3] != 0), begin(c[4] != 0) {}
  __device__ __forceinline__ T gradient(T p, T g) const { return fused(p, l2, g); }
  __device__ __forceinline__ void update(T &p, T g, T &b) const {
    T grad = gradient(p, g), by = b = fused(begin ? (T)0 : b, momentum, grad);
    if (nesterov) by = fused(by, momentum, grad);
    p = fused(-by, rate, p);
  }
};

// vec: p, g, b; c: rate, momentum, l2, whether it is Nesterov's, whether it is the first step.
template <class T> DEVICE void sgd(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  T *__restrict__ p = (T *)a->vec[0], *__restrict__ b = (T *)a->vec[2];
  const T *__restrict__ g = (const T *)a->vec[1];
  sgd_step<T> c(a->c);
  EACH {
    T x = p[i];
    if (b) {
      T y = b[i];
      c.update(x, g[i], y);
      b[i] = y;
    } else {
      x = fused(-c.gradient(x, g[i]), c.rate, x);
    }
    p[i] = x;
  }
}

// vec: x; c: what it is multiplied by.
template <class T> DEVICE void scale(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  T *x = (T *)a->vec[0], c = (T)a->c[0];
  EACH x[i] = times(c, x[i]);
}

// vec: x; c: what it becomes.
template <class T> DEVICE void fill(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  T *x = (T *)a->vec[0], c = (T)a->c[0];
  EACH x[i] = c;
}

// magnitude returns the bits of |x|, which order like the numbers, and NaN above all.
DEVICE u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
DEVICE u64 magnitude(double x) { return (u64)__double_as_longlong(x) & 0x7fffffffffffffffull; }
DEVICE u64 as_double(u32 bits) { return magnitude((double)__uint_as_float(bits)); }
DEVICE u64 as_double(u64 bits) { return bits; }

template <class T> DEVICE T warp_largest(T x) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    T y = __shfl_xor_sync(FULL, x, o);
    x = x > y ? x : y;
  }
  return x;
}

#define WARPS 8 // of a block. It changes a word of a result once: each atomic operation on it waits for the others.

// largest gives the first word of a piece's result the bits of its largest magnitude, as a double.
// Results are of four words, zero before.
template <class T> DEVICE void largest(const piece *list, u32 count, u64 *results) {
  const piece *a = mine(list, count);
  const T *x = (const T *)a->vec[0];
  decltype(magnitude(T())) most = 0;
  EACH {
    auto m = magnitude(x[i]);
    most = most > m ? most : m;
  }
  __shared__ decltype(most) warps[WARPS];
  most = warp_largest(most);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x) return;
#pragma unroll
  for (int w = 1; w < WARPS; w++) most = most > warps[w] ? most : warps[w];
  atomicMax(results + 4 * (a - list), as_double(most));
}

// squares adds the words of package vec's Squares: c is the scale. They are not carried.
template <class T> DEVICE void squares(const piece *list, u32 count, u64 *results) {
  const piece *a = mine(list, count);
  const T *x = (const T *)a->vec[0];
  const double on_hi = 32, on_lo = 1.5 * 0x1p-42;
  double c = a->c[0];
  i64 hi = 0, lo = 0;
  EACH {
    double s = __dmul_rn((double)x[i], c), t = __fma_rn(s, s, on_hi);
    hi += __double_as_longlong(t) - __double_as_longlong(on_hi);
    lo += __double_as_longlong(__fma_rn(s, s, (on_hi + on_lo) - t)) - __double_as_longlong(on_lo);
  }
  __shared__ u64 warps[WARPS][4];
  hi = warp_sum(hi), lo = warp_sum(lo);
  if (threadIdx.x % 32 == 0) {
    u64 *words = warps[threadIdx.x / 32], digit = (1ull << 36) - 1;
    words[0] = (u64)(hi >> 36), words[1] = hi & digit;
    words[2] = (u64)(lo >> 36), words[3] = lo & digit;
  }
  __syncthreads();
  if (threadIdx.x >= 4) return;
  u64 sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += warps[w][threadIdx.x];
  atomicAdd(results + 4 * (a - list) + threadIdx.x, sum);
}

#define OPTIM(T, E) \
  KERNEL optim_adam_##T(const piece *list, u32 count) { adam<E>(list, count); } \
  KERNEL optim_sgd_##T(const piece *list, u32 count) { sgd<E>(list, count); } \
  KERNEL optim_scale_##T(const piece *list, u32 count) { scale<E>(list, count); } \
  KERNEL optim_fill_##T(const piece *list, u32 count) { fill<E>(list, count); } \
  KERNEL optim_largest_##T(const piece *list, u32 count, u64 *results) { largest<E>(list, count, results); } \
  KERNEL optim_squares_##T(const piece *list, u32 count, u64 *results) { squares<E>(list, count, results); }
OPTIM(f32, float)
OPTIM(f64, double)

// Numbers in 8 bits are those of package vec. Its lists of 256 are here: the values by code, ascending,
// and the smallest number that each code is the nearest to.
struct codes { float values[256], from[256]; };

// load returns the number of a code in a block of a magnitude.
DEVICE float load(const codes *list, u8 code, float most) { return most == 0 ? 0.f : times(list->values[code], most); }

// nearest returns the code of x in a block of a magnitude, which is finite.
DEVICE u8 nearest(const codes *list, float x, float most) {
  float up = most < 0x1p-60f ? 0x1p60f : 1.f, r = times(times(x, up), over(1.f, times(most, up)));
  u32 code = 0;
#pragma unroll
  for (u32 step = 128; step; step >>= 1)
    if (r >= list->from[code + step]) code += step;
  return code;
}

// store writes the magnitude of a block and the code of x, the number of this thread.
DEVICE void store(const codes *list, float *to, u8 *code, float x, bool valid, u32 most) {
  bool finite = most < 0x7f800000u;
  if (valid) *code = most && finite ? nearest(list, x, __uint_as_float(most)) : 0;
  if (threadIdx.x == 0) *to = __uint_as_float(finite ? most : 0x7fc00000u);
}

// vec: p, g, m, v; a block of threads works on a block of 8 bits. m has the first codes, v the second.
KERNEL optim_adam8_f32(const piece *list, u32 count, const codes *lists) {
  const piece *a = mine(list, count);
  __shared__ u32 most[2][8];
  u32 at = blockIdx.x - a->block, blocks = (a->phase + a->n + 255) / 256;
  u64 i = (u64)at * 256 + threadIdx.x - a->phase;  // beyond n if this thread is before the first element
  bool valid = i < a->n;
  float *p = (float *)a->vec[0], *m = (float *)a->vec[2], *v = (float *)a->vec[3];
  const float *g = (const float *)a->vec[1];
  u8 *mc = (u8 *)(m + blocks) + i, *vc = (u8 *)(v + blocks) + i;
  float y = 0, z = 0;
  if (valid) {
    float x = p[i];
    y = load(lists, *mc, m[at]), z = load(lists + 1, *vc, v[at]);
    adam_step<float>(a->c).update(x, g[i], y, z);
    p[i] = x;
  }
  u32 ym = warp_largest(magnitude(y)), zm = warp_largest(magnitude(z));
  if (threadIdx.x % 32 == 0) most[0][threadIdx.x / 32] = ym, most[1][threadIdx.x / 32] = zm;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < 8; w++) {
    ym = max(ym, most[0][w]);
    zm = max(zm, most[1][w]);
  }
  store(lists, m + at, mc, y, valid, ym);
  store(lists + 1, v + at, vc, z, valid, zm);
}

// Rounding to bfloat16 at random is that of package vec: see Rounding of package optim/vec.
DEVICE u64 mix64(u64 x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

// The keys of a rounding are the same for 2^32 elements.
struct rounding {
  u64 seed, high, keys;
  __device__ __forceinline__ rounding(u64 seed, u64 at) : seed(seed), high(at >> 32) { keys = mix64(seed ^ mix64(high)); }
  __device__ __forceinline__ bf16 round(float x, u64 at) {
    if (at >> 32 != high) *this = rounding(seed, at);
    u32 h = (u32)at + (u32)keys, b = __float_as_uint(x);
    h = ((h ^ h >> 16) * 0x7FEB352Du) ^ (u32)(keys >> 32);
    h = (h ^ h >> 15) * 0x846CA68Bu;
    h ^= h >> 16;
    return {(u16)(magnitude(x) > 0x7f800000u ? b >> 16 | 0x40 : (b + (h >> 16)) >> 16)};
  }
};

// vec: p, g, m, v, of which m and v have 16 bits.
KERNEL optim_adam16_f32(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  float *__restrict__ p = (float *)a->vec[0];
  const float *__restrict__ g = (const float *)a->vec[1];
  bf16 *__restrict__ m = (bf16 *)a->vec[2], *__restrict__ v = (bf16 *)a->vec[3];
  adam_step<float> c(a->c);
  rounding first_moment(a->key, a->offset), second_moment(a->key + 1, a->offset);
  EACH {
    float x = p[i], y = wide(m[i]), z = wide(v[i]);
    c.update(x, g[i], y, z);
    p[i] = x, m[i] = first_moment.round(y, a->offset + i), v[i] = second_moment.round(z, a->offset + i);
  }
}

// vec: p, g, b, of which b has 16 bits; c: as of sgd.
KERNEL optim_sgd16_f32(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  float *__restrict__ p = (float *)a->vec[0];
  const float *__restrict__ g = (const float *)a->vec[1];
  bf16 *__restrict__ b = (bf16 *)a->vec[2];
  sgd_step<float> c(a->c);
  rounding momentum(a->key, a->offset);
  EACH {
    float x = p[i], y = wide(b[i]);
    c.update(x, g[i], y);
    p[i] = x, b[i] = momentum.round(y, a->offset + i);
  }
}
