// The update of Muon by matrices: see package optim. Products are cuBLASLt's.
#include "device.h"

DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
DEVICE double times(double a, double b) { return __dmul_rn(a, b); }
DEVICE float plus(float a, float b) { return __fadd_rn(a, b); }
DEVICE double plus(double a, double b) { return __dadd_rn(a, b); }

// b is momentum, which gradient g updates, and u the direction that follows: rounded as on the host.
template <class T> DEVICE void momentum(T *u, const T *g, T *b, u64 n, T mu, T rest, int nesterov) {
  INDEX(n);
  T x = g[i], m = plus(b[i], times(rest, plus(x, -b[i])));
  b[i] = m;
  u[i] = nesterov ? plus(x, times(mu, plus(m, -x))) : m;
}

#define BLOCKS 256 // that sum squares: as many as a block has threads

// total returns the sum of x over the threads of a block of 256, in one order.
DEVICE double total(double x) {
  __shared__ double warps[8];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
#pragma unroll
  for (int w = 0; w < 8; w++) sum += warps[w];
  return sum;
}

// sums has the sum of the squares of each block's elements.
template <class T> DEVICE void squares(double *sums, const T *x, u64 n) {
  double sum = 0;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)BLOCKS * blockDim.x) sum += (double)x[i] * (double)x[i];
  sum = total(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// x is divided by its norm, or by eps if that is larger.
template <class T> DEVICE void normalize(T *x, const double *sums, u64 n, double eps) {
  double norm = __dsqrt_rn(total(sums[threadIdx.x]));
  T c = (T)(1 / larger(norm, eps));
  INDEX(n);
  x[i] = times(x[i], c);
}

// y = a·x + b·y.
template <class T> DEVICE void mix(T *y, const T *x, u64 n, T a, T b) {
  INDEX(n);
  y[i] = plus(times(a, x[i]), times(b, y[i]));
}

#define MUON(T, E) \
  KERNEL muon_momentum_##T(E *u, const E *g, E *b, u64 n, E mu, E rest, int nesterov) { momentum(u, g, b, n, mu, rest, nesterov); } \
  KERNEL muon_squares_##T(double *sums, const E *x, u64 n) { squares(sums, x, n); } \
  KERNEL muon_normalize_##T(E *x, const double *sums, u64 n, double eps) { normalize(x, sums, n, eps); } \
  KERNEL muon_mix_##T(E *y, const E *x, u64 n, E a, E b) { mix(y, x, n, a, b); }
MUON(f32, float)
MUON(f64, double)
