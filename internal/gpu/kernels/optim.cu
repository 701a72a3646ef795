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
  double scale; // of the gradient of an update
  u64 copied;   // address of the copy of updated parameters in bfloat16, or 0
  u64 value;    // key of the rounding of values in 16 bits
};

#define SPAN 16384 // elements that a block works on, at most

// mine returns the piece that this block works on, the last that does not begin after it.
DEVICE const piece *mine(const piece *list, u32 count) {
  u32 lo = 0;
  for (u32 hi = count; hi - lo > 1;) {
    u32 mid = (lo + hi) / 2;
    if (list[mid].block <= blockIdx.x) lo = mid; else hi = mid;
  }
  return list + lo;
}

// A pack is N elements in one access, of 16 bytes if N is PACK.
template <class T, int N> struct alignas(N * sizeof(T)) pack { T v[N]; };
template <int N> struct width { static constexpr int of = N; };
template <class T> constexpr int PACK = sizeof(T) < 8 ? 16 / sizeof(T) : 1;
template <int N, class T> DEVICE pack<T, N> take(const T *p) { return *(const pack<T, N> *)p; }
template <int N, class T> DEVICE void give(T *p, const pack<T, N> &v) { *(pack<T, N> *)p = v; }

// over calls f(width<N>(), i) for the elements [i, i + N) of this block: for packs where the piece's vectors
// are aligned to 16 bytes, and its offset is a multiple of a pack, and then for the elements that are left.
// UNROLL keeps the registers of each kernel without spills.
template <class T, int UNROLL = 2, int V = PACK<T>, class F> DEVICE void over(const piece *a, F f) {
  u64 first = (u64)(blockIdx.x - a->block) * SPAN, last = a->n < first + SPAN ? a->n : first + SPAN;
  if (V > 1 && (a->vec[0] | a->vec[1] | a->vec[2] | a->vec[3]) % 16 == 0 && a->offset % V == 0) {
    u64 whole = last - (last - first) % V;
#pragma unroll UNROLL
    for (u64 i = first + threadIdx.x * V; i < whole; i += blockDim.x * V) f(width<V>(), i);
    first = whole;
  }
#pragma unroll 1
  for (u64 i = first + threadIdx.x; i < last; i += blockDim.x) f(width<1>(), i);
}

// EACH runs over the elements i of this block. UNROLL keeps the registers of each kernel without spills.
#define EACH(UNROLL) \
  u64 first = (u64)(blockIdx.x - a->block) * SPAN, last = a->n < first + SPAN ? a->n : first + SPAN; \
  _Pragma(UNROLL) \
  for (u64 i = first + threadIdx.x; i < last; i += blockDim.x)

// A copied is the copy of updated parameters in bfloat16, which only float32 has.
template <class T> struct copied {
  __device__ __forceinline__ copied(const piece *) {}
  template <int N> __device__ __forceinline__ void give(u64, const pack<T, N> &) const {}
};
template <> struct copied<float> {
  bf16 *to;
  __device__ __forceinline__ copied(const piece *a) : to((bf16 *)a->copied) {}
  template <int N> __device__ __forceinline__ void give(u64 i, const pack<float, N> &x) const {
    if (!to) return;
    pack<bf16, N> y;
#pragma unroll
    for (int k = 0; k < N; k++) narrow(y.v[k], x.v[k]);
    ::give<N>(to + i, y);
  }
};

DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
DEVICE double times(double a, double b) { return __dmul_rn(a, b); }
DEVICE float root(float a) { return __fsqrt_rn(a); }
DEVICE double root(double a) { return __dsqrt_rn(a); }
DEVICE float over(float a, float b) { return __fdiv_rn(a, b); }
DEVICE double over(double a, double b) { return __ddiv_rn(a, b); }

template <class T> struct adam_step {
  T decay, l2, beta1, rest1, beta2, rest2, rate, inverse, eps, scale;
  __device__ __forceinline__ adam_step(const piece *a)
    : decay(a->c[0]), l2(a->c[1]), beta1(a->c[2]), rest1(a->c[3]), beta2(a->c[4]), rest2(a->c[5]), rate(a->c[6]), inverse(a->c[7]),
      eps(a->c[8]), scale(a->scale) {}
  __device__ __forceinline__ void update(T &p, T g, T &m, T &v) const {
    g = fused(p, l2, times(scale, g));
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
  adam_step<T> c(a);
  copied<T> copy(a);
  over<T>(a, [&](auto n, u64 i) {
    constexpr int N = decltype(n)::of;
    auto x = take<N>(p + i), d = take<N>(g + i), y = take<N>(m + i), z = take<N>(v + i);
#pragma unroll
    for (int k = 0; k < N; k++) c.update(x.v[k], d.v[k], y.v[k], z.v[k]);
    give<N>(p + i, x), give<N>(m + i, y), give<N>(v + i, z);
    copy.template give<N>(i, x);
  });
}

template <class T> struct sgd_step {
  T rate, momentum, l2, scale;
  bool nesterov, begin;
  __device__ __forceinline__ sgd_step(const piece *a)
    : rate(a->c[0]), momentum(a->c[1]), l2(a->c[2]), scale(a->scale), nesterov(a->c[3] != 0), begin(a->c[4] != 0) {}
  __device__ __forceinline__ T gradient(T p, T g) const { return fused(p, l2, times(scale, g)); }
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
  sgd_step<T> c(a);
  copied<T> copy(a);
  over<T>(a, [&](auto n, u64 i) {
    constexpr int N = decltype(n)::of;
    auto x = take<N>(p + i), d = take<N>(g + i);
    if (b) {
      auto y = take<N>(b + i);
#pragma unroll
      for (int k = 0; k < N; k++) c.update(x.v[k], d.v[k], y.v[k]);
      give<N>(b + i, y);
    } else {
#pragma unroll
      for (int k = 0; k < N; k++) x.v[k] = fused(-c.gradient(x.v[k], d.v[k]), c.rate, x.v[k]);
    }
    give<N>(p + i, x);
    copy.template give<N>(i, x);
  });
}

// vec: x; c: what it is multiplied by.
template <class T> DEVICE void scale(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  T *x = (T *)a->vec[0];
  W<T> c = (W<T>)a->c[0];
  over<T>(a, [&](auto n, u64 i) {
    constexpr int N = decltype(n)::of;
    auto v = take<N>(x + i);
#pragma unroll
    for (int k = 0; k < N; k++) narrow(v.v[k], times(c, wide(v.v[k])));
    give<N>(x + i, v);
  });
}

// vec: x; c: what it becomes.
template <class T> DEVICE void fill(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  T *x = (T *)a->vec[0];
  W<T> c = (W<T>)a->c[0];
  EACH("unroll 4") narrow(x[i], c);
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
  decltype(magnitude(W<T>())) most = 0;
  over<T>(a, [&](auto n, u64 i) {
    constexpr int N = decltype(n)::of;
    auto v = take<N>(x + i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      auto m = magnitude(wide(v.v[k]));
      most = most > m ? most : m;
    }
  });
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
  over<T, 1>(a, [&](auto n, u64 i) {
    constexpr int N = decltype(n)::of;
    auto v = take<N>(x + i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      double s = __dmul_rn((double)wide(v.v[k]), c), t = __fma_rn(s, s, on_hi);
      hi += __double_as_longlong(t) - __double_as_longlong(on_hi);
      lo += __double_as_longlong(__fma_rn(s, s, (on_hi + on_lo) - t)) - __double_as_longlong(on_lo);
    }
  });
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

#define UPDATES(T, E) \
  KERNEL optim_adam_##T(const piece *list, u32 count) { adam<E>(list, count); } \
  KERNEL optim_sgd_##T(const piece *list, u32 count) { sgd<E>(list, count); }
#define OPTIM(T, E) \
  KERNEL optim_scale_##T(const piece *list, u32 count) { scale<E>(list, count); } \
  KERNEL optim_fill_##T(const piece *list, u32 count) { fill<E>(list, count); } \
  KERNEL optim_largest_##T(const piece *list, u32 count, u64 *results) { largest<E>(list, count, results); } \
  KERNEL optim_squares_##T(const piece *list, u32 count, u64 *results) { squares<E>(list, count, results); }
UPDATES(f32, float)
UPDATES(f64, double)
OPTIM(f32, float)
OPTIM(f64, double)
OPTIM(bf16, bf16)

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
    adam_step<float>(a).update(x, g[i], y, z);
    p[i] = x;
    copied<float>(a).give<1>(i, {x});
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
    seek(at);
    return rounded(x, (u32)at);
  }
  // seek makes the keys fit element at. rounded uses them for elements with the same upper half.
  __device__ __forceinline__ void seek(u64 at) {
    if (at >> 32 != high) *this = rounding(seed, at);
  }
  __device__ __forceinline__ bf16 rounded(float x, u32 at) const {
    u32 h = at + (u32)keys, b = __float_as_uint(x);
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
  adam_step<float> c(a);
  copied<float> copy(a);
  rounding first_moment(a->key, a->offset), second_moment(a->key + 1, a->offset);
  EACH("unroll 4") {
    float x = p[i], y = wide(m[i]), z = wide(v[i]);
    c.update(x, g[i], y, z);
    p[i] = x, m[i] = first_moment.round(y, a->offset + i), v[i] = second_moment.round(z, a->offset + i);
    copy.give<1>(i, {x});
  }
}

// vec: p, g, b, of which b has 16 bits; c: as of sgd.
KERNEL optim_sgd16_f32(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  float *__restrict__ p = (float *)a->vec[0];
  const float *__restrict__ g = (const float *)a->vec[1];
  bf16 *__restrict__ b = (bf16 *)a->vec[2];
  sgd_step<float> c(a);
  copied<float> copy(a);
  rounding momentum(a->key, a->offset);
  EACH("unroll 2") {
    float x = p[i], y = wide(b[i]);
    c.update(x, g[i], y);
    p[i] = x, b[i] = momentum.round(y, a->offset + i);
    copy.give<1>(i, {x});
  }
}

// State of an update with values in 16 bits is float, or bf16 that is rounded at random.
struct exact {
  __device__ __forceinline__ exact(u64, u64) {}
  __device__ __forceinline__ void seek(u64) {}
  __device__ __forceinline__ float rounded(float x, u32) const { return x; }
};
template <class E> struct rounding_of { typedef exact type; };
template <> struct rounding_of<bf16> { typedef rounding type; };
template <class E> using rounds = typename rounding_of<E>::type;

// scaled_gradient returns c·g, rounded to the nearest as if it had been stored.
DEVICE float scaled_gradient(bf16 g, float c) {
  bf16 r;
  narrow(r, times(c, wide(g)));
  return wide(r);
}

// WIDTH is the number of elements in a pack of state E and of values in 16 bits.
template <class E> constexpr int WIDTH = 16 / sizeof(E);

// vec: p, g, m, v, of which p and g have 16 bits.
template <class E> DEVICE void adam_of_16(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  bf16 *__restrict__ p = (bf16 *)a->vec[0];
  const bf16 *__restrict__ g = (const bf16 *)a->vec[1];
  E *__restrict__ m = (E *)a->vec[2], *__restrict__ v = (E *)a->vec[3];
  adam_step<float> c(a);
  float scale = c.scale;
  c.scale = 1;
  rounding value(a->value, a->offset);
  rounds<E> first_moment(a->key, a->offset), second_moment(a->key + 1, a->offset);
  over<bf16, 1, WIDTH<E>>(a, [&](auto n, u64 i) {
    constexpr int N = decltype(n)::of;
    auto x = take<N>(p + i), d = take<N>(g + i);
    auto y = take<N>(m + i), z = take<N>(v + i);
    u64 at = a->offset + i;
    value.seek(at), first_moment.seek(at), second_moment.seek(at);
#pragma unroll
    for (int k = 0; k < N; k++) {
      float xw = wide(x.v[k]), yw = wide(y.v[k]), zw = wide(z.v[k]);
      c.update(xw, scaled_gradient(d.v[k], scale), yw, zw);
      u32 low = (u32)at + k;
      x.v[k] = value.rounded(xw, low), y.v[k] = first_moment.rounded(yw, low), z.v[k] = second_moment.rounded(zw, low);
    }
    give<N>(p + i, x), give<N>(m + i, y), give<N>(v + i, z);
  });
}

// vec: p, g, b, of which p and g have 16 bits; c: as of sgd.
template <class E> DEVICE void sgd_of_16(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  bf16 *__restrict__ p = (bf16 *)a->vec[0];
  const bf16 *__restrict__ g = (const bf16 *)a->vec[1];
  E *__restrict__ b = (E *)a->vec[2];
  const bool with_momentum = sizeof(E) == 2 || b;
  sgd_step<float> c(a);
  float scale = c.scale;
  c.scale = 1;
  rounding value(a->value, a->offset);
  rounds<E> momentum(a->key, a->offset);
  over<bf16, 1, WIDTH<E>>(a, [&](auto n, u64 i) {
    constexpr int N = decltype(n)::of;
    auto x = take<N>(p + i), d = take<N>(g + i);
    pack<E, N> y;
    if (with_momentum) y = take<N>(b + i);
    u64 at = a->offset + i;
    value.seek(at), momentum.seek(at);
#pragma unroll
    for (int k = 0; k < N; k++) {
      float xw = wide(x.v[k]), grad = scaled_gradient(d.v[k], scale);
      u32 low = (u32)at + k;
      if (with_momentum) {
        float yw = wide(y.v[k]);
        c.update(xw, grad, yw);
        y.v[k] = momentum.rounded(yw, low);
      } else {
        xw = fused(-c.gradient(xw, grad), c.rate, xw);
      }
      x.v[k] = value.rounded(xw, low);
    }
    give<N>(p + i, x);
    if (with_momentum) give<N>(b + i, y);
  });
}

KERNEL optim_adam_bf16(const piece *list, u32 count) { adam_of_16<float>(list, count); }
KERNEL optim_adam16_bf16(const piece *list, u32 count) { adam_of_16<bf16>(list, count); }
KERNEL optim_sgd_bf16(const piece *list, u32 count) { sgd_of_16<float>(list, count); }
KERNEL optim_sgd16_bf16(const piece *list, u32 count) { sgd_of_16<bf16>(list, count); }

// The update of averages, which are float, by values in 16 bits. vec: p, g; c: as of sgd.
KERNEL optim_average_f32(const piece *list, u32 count) {
  const piece *a = mine(list, count);
  float *__restrict__ p = (float *)a->vec[0];
  const bf16 *__restrict__ g = (const bf16 *)a->vec[1];
  sgd_step<float> c(a);
  EACH("unroll 4") p[i] = fused(-c.gradient(p[i], wide(g[i])), c.rate, p[i]);
}
