// Kernels with one mistake each, which the machine has to find, and some that look like it and have
// none.
using u16 = unsigned short;
using u32 = unsigned;

#define KERNEL(name) extern "C" __global__ void name(float *y, int n)

KERNEL(no_barrier) {
  __shared__ float s[64];
  s[threadIdx.x] = y[threadIdx.x];
  y[threadIdx.x] = s[63 - threadIdx.x];
}

KERNEL(write_after_read) {
  __shared__ float s[64];
  s[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  float v = threadIdx.x < 32 ? s[threadIdx.x + 32] : 1;
  if (threadIdx.x >= 32) s[threadIdx.x] = v;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}

KERNEL(read_unset) {
  __shared__ float s[64];
  if (threadIdx.x != 5) s[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}

KERNEL(beyond_global) { y[blockIdx.x * 64 + threadIdx.x + n] = 1; }

KERNEL(beyond_shared) {
  extern __shared__ float s[];
  s[threadIdx.x + n] = 1;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x + n];
}

KERNEL(misaligned) { *(float2 *)(y + threadIdx.x) = {1, 2}; }

__device__ void copy(float *to, const float *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}

KERNEL(no_wait) {
  __shared__ float s[64];
  copy(s + threadIdx.x, y + threadIdx.x);
  asm volatile("cp.async.commit_group;");
  if (n) asm volatile("cp.async.wait_group 0;");
  __syncthreads();
  y[threadIdx.x] = s[63 - threadIdx.x] + 1;
}

KERNEL(wait_without_barrier) {
  __shared__ float s[64];
  copy(s + threadIdx.x, y + threadIdx.x);
  asm volatile("cp.async.wait_all;");
  y[threadIdx.x] = s[63 - threadIdx.x] + 1;
}

KERNEL(half_a_barrier) {
  if (threadIdx.x < 16) __syncthreads();
  else asm volatile("bar.sync 0;");
  y[threadIdx.x] = 1;
}

KERNEL(warp_at_barrier) {
  if (threadIdx.x < 32) __syncthreads();
  else asm volatile("bar.sync 1;");
  y[threadIdx.x] = 1;
}

KERNEL(half_a_shuffle) {
  float v = threadIdx.x;
  if (threadIdx.x & 1) v = __shfl_xor_sync(~0u, v, 2);
  else asm volatile("bar.sync 0;");
  y[threadIdx.x] = v;
}

KERNEL(shuffle_of_nobody) {
  float v = threadIdx.x;
  if (threadIdx.x & 1) v = __shfl_xor_sync(0xaaaaaaaa, v, 1);
  y[threadIdx.x] = v;
}

KERNEL(endless) {
  volatile float *flag = y;
  while (flag[0] < 1) {}
}

extern "C" __global__ void __launch_bounds__(32) too_many_threads(float *y, int n) { y[threadIdx.x] = 1; }

KERNEL(traps) {
  if (threadIdx.x == 40) __trap();
  y[threadIdx.x] = 1;
}

// Two warps write the halves of words: no race.
KERNEL(halves) {
  __shared__ u16 s[128];
  s[threadIdx.x % 32 * 2 + threadIdx.x / 32] = (u16)threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}

// Atomics of many warps, read behind a barrier: no race.
KERNEL(counted) {
  __shared__ int s[2];
  if (threadIdx.x < 2) s[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(s + (threadIdx.x & 1), 1);
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x & 1];
}

KERNEL(read_while_counted) {
  __shared__ int s[2];
  if (threadIdx.x < 2) s[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(s + (threadIdx.x & 1), 1);
  y[threadIdx.x] = s[threadIdx.x & 1];
}

// Threads that have ended are not waited for: no mistake.
KERNEL(early_end) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  y[threadIdx.x] = 1;
}

// Where lanes of a warp or blocks write the same, the order shows.
KERNEL(last_lane_wins) { y[0] = threadIdx.x; }
KERNEL(last_block_wins) { y[0] = blockIdx.x; }
