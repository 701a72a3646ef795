// What all kernels share. A kernel is named family_operation_T, where T is how values are stored: f32,
// f64, bf16 or f16. All come from one template over the element type E. W<E> is the type of
// arithmetic, and of what the table of operations marks f32: statistics, sums, losses.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE static __device__ __forceinline__
#define FULL 0xffffffffu
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// A bfloat16 and a float16.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

template <class E> struct wide_of { typedef float type; };
template <> struct wide_of<double> { typedef double type; };
template <class E> using W = typename wide_of<E>::type;

DEVICE float wide(bf16 v) { return __uint_as_float((u32)v.bits << 16); }
DEVICE float wide(f16 v) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
  return f;
}
DEVICE float wide(float v) { return v; }
DEVICE double wide(double v) { return v; }

// two<E> is of two numbers of 16 bits in a word, lo in the lower half. narrow rounds to the nearest, to
// even in the middle. NaN stays NaN, and what is too large becomes infinite.
template <class E> struct two;
template <> struct two<bf16> {
  DEVICE u32 narrow(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
  }
  DEVICE float lo(u32 w) { return __uint_as_float(w << 16); }
  DEVICE float hi(u32 w) { return __uint_as_float(w & 0xffff0000u); }
};
template <> struct two<f16> {
  DEVICE u32 narrow(float lo, float hi) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
  }
  DEVICE float lo(u32 w) { return wide(f16{(u16)w}); }
  DEVICE float hi(u32 w) { return wide(f16{(u16)(w >> 16)}); }
};
// narrow gives v the type of what it is stored as.
DEVICE void narrow(bf16 &to, float v) { to.bits = (u16)two<bf16>::narrow(v, 0.f); }
DEVICE void narrow(f16 &to, float v) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(v)); }
DEVICE void narrow(float &to, float v) { to = v; }
DEVICE void narrow(double &to, double v) { to = v; }

// Eight numbers of 16 bits in one access of 16 bytes.
struct __align__(16) pack8 { u32 w[4]; };
template <class E> DEVICE void unpack8(float *f, pack8 p) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    f[2 * i] = two<E>::lo(p.w[i]);
    f[2 * i + 1] = two<E>::hi(p.w[i]);
  }
}
template <class E> DEVICE pack8 repack8(const float *f) {
  pack8 p;
#pragma unroll
  for (int i = 0; i < 4; i++) p.w[i] = two<E>::narrow(f[2 * i], f[2 * i + 1]);
  return p;
}

template <class T> DEVICE T warp_sum(T x) {
#pragma unroll
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(FULL, x, o);
  return x;
}
// larger returns the larger of two values, and NaN if one is.
template <class T> DEVICE T larger(T a, T b) { return a > b || a != a ? a : b; }
template <class T> DEVICE T warp_max(T x) {
#pragma unroll
  for (int o = 16; o; o >>= 1) x = larger(x, (T)__shfl_xor_sync(FULL, x, o));
  return x;
}

// A thread for each of n elements: gpu.builder.each launches such kernels.
#define INDEX(n) \
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; \
  if (i >= (n)) return

#define KERNEL extern "C" __global__ void __launch_bounds__(256)
// TYPES(F) writes F(name, type) for each way to store values.
#define TYPES(F) F(f32, float) F(f64, double) F(bf16, bf16) F(f16, f16)
