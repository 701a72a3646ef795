// What compilers make of the language rather than of arithmetic: calls, tables, local arrays,
// small parameters, switches, generic addresses, vectors, conversions.
using u16 = unsigned short;
using u32 = unsigned;
using i64 = long long;
using u64 = unsigned long long;

__device__ __constant__ float table[4] = {1, 2, 4, 8};
__device__ int counts[4] = {10, 20, 30, 40};
struct pair { double a, b; };

__device__ __noinline__ float series(float x, int n) {
  float s = 0;
  for (int i = 0; i < n; i++) s = s * x + 1;
  return s;
}
__device__ __noinline__ pair both(double x, int n) { return {x * n, x - n}; }
__device__ __noinline__ double nested(double x, int n) {
  if (n & 1) return -x;
  pair p = both(x, n);
  return p.a - p.b;
}

// y has n rows of 4.
extern "C" __global__ void functions(double *y, const double *x, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  y[i] = table[i & 3] * counts[i & 3];
  y[n + i] = series((float)x[i], i);
  y[2 * n + i] = nested(x[i], i);
  y[3 * n + i] = i % 3 ? both(x[i], i).a : 0;
}

extern "C" __global__ void local(float *y, const float *x, const int *at, int n) {
  int i = threadIdx.x;
  float t[16], s = 0;
  for (int k = 0; k < 16; k++) t[k] = x[(i + k) % n];
  for (int k = 0; k < 16; k++) t[at[k] & 15] += k;
  for (int k = 0; k < 16; k++) s += (k + 1) * t[k];
  y[i] = s;
}

extern "C" __global__ void parameters(double *y, char c, short s, bool b, float f, double d) {
  int i = threadIdx.x;
  y[i] = c + s + (b ? 100 : 0) + f + d * i;
}

extern "C" __global__ void switches(int *y, const int *x) {
  int i = threadIdx.x, v = -1;
  switch (x[i]) {
  case 0: v = 5; break;
  case 1: v = 9; break;
  case 2: v = x[i ^ 1]; break;
  case 3: v = 100 / (i + 1); break;
  case 4: for (v = 0; v * v < i; v++) {} break;
  case 5: y[32 + i] = 3; return;
  }
  y[i] = v;
  y[32 + i] = x[i] << 2;
}

// Half of the lanes write to shared memory and half to global memory, by one instruction.
extern "C" __global__ void generic(float *y, const float *x) {
  __shared__ float s[64];
  __shared__ u16 h[64];
  extern __shared__ double dynamic[];
  int i = threadIdx.x;
  s[i] = x[i], h[i] = i, dynamic[i] = 2 * x[i];
  __syncthreads();
  y[i] = s[63 - i] + h[(i + 1) & 63] + (float)dynamic[(i + 5) & 63];
  __syncthreads();
  float *to = i & 1 ? s : y;
  to[i] += 1;
  __syncthreads();
  y[64 + i] = s[i];
}

extern "C" __global__ void vectors(float4 *y, const float4 *__restrict__ x, uchar4 *c, short4 *h, longlong2 *l) {
  int i = threadIdx.x;
  float4 a = __ldg(x + i);
  y[i] = {a.w, a.z, a.y, a.x};
  c[i] = {(unsigned char)(c[i].x + c[i].y), c[i].z, c[i].w, 7};
  h[i] = {(short)(h[i].y * h[i].z), h[i].x, (short)-h[i].w, 7};
  l[i] = {l[i].y + 1, l[i].x - 1};
}

// One row of y for each conversion.
extern "C" __global__ void converts(double *y, const double *from, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  double x = from[i];
  float f = (float)x;
  double v[] = {
    (double)(int)x, (double)(i64)x, (double)(u32)x, (double)(u64)x, (double)(int)f, (double)(i64)f, (double)(u32)f, (double)(u64)f,
    (double)(float)(i64)x, (double)(float)(int)x, (double)(short)(int)x, (double)(signed char)(int)x, (double)(u16)(int)x,
    (double)__float2int_rn(f), (double)__double2float_rz(x), (double)__double2int_rd(x), (double)__float2ll_ru(f),
    (double)__ll2float_rz((i64)x), __hiloint2double(__double2hiint(x), 0), (double)__float2uint_ru(f), (double)(float)(u64)x,
    (double)__fadd_rz(f, 1), (double)__fmul_ru(f, f), __dadd_rd(x, 0.1), (double)(unsigned char)(int)x,
  };
  for (int k = 0; k < 25; k++) y[k * n + i] = v[k];
}

extern "C" __global__ void warps(u32 *y, const u32 *x) {
  int i = threadIdx.x;
  u32 v = x[i], all = ~0u;
  int same;
  u32 r[] = {
    __shfl_sync(all, v, 3), __shfl_up_sync(all, v, 2), __shfl_down_sync(all, v, 5), __shfl_xor_sync(all, v, 7), __shfl_sync(all, v, i & 3, 8),
    __ballot_sync(all, v & 1), (u32)__any_sync(all, v == 5), (u32)__all_sync(all, v < 1000), __match_any_sync(all, v & 3),
    __match_all_sync(all, v, &same), __reduce_add_sync(all, v), __reduce_max_sync(all, v), (u32)__syncthreads_count(v & 1),
    (u32)__syncthreads_or(v == 5), (u32)__syncthreads_and(v < 1000), __activemask(),
  };
  for (int k = 0; k < 16; k++) y[k * 64 + i] = r[k];
  if (i & 2) y[16 * 64 + i] = __reduce_add_sync(0xcccccccc, v);
}

extern "C" __global__ void atomics(int *s, u64 *w, float *f, const int *x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
  atomicAdd(s, v), atomicMax(s + 1, v), atomicMin(s + 2, v), atomicAnd(s + 3, v), atomicOr(s + 4, v), atomicXor(s + 5, v);
  atomicInc((u32 *)s + 6, 4), atomicDec((u32 *)s + 7, 4);
  atomicAdd(w, (u64)v << 32), atomicMax(w + 1, (u64)v);
  atomicAdd(f, 1.0f);
  int old = atomicCAS(s + 8, 0, i + 1);
  if (old == 0) atomicExch(s + 9, v);
}
