// y = x a b, for a block of one warp: x is one number, a has 16 rows of 16 numbers in bf16 or f16, b 16 rows
// of 8, and y 16 rows of 8 in float. The instructions are those of tensor cores.
using u16 = unsigned short;
using u32 = unsigned;

__device__ u32 address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ void copy(u16 *to, const u16 *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(address(to)), "l"(from));
}

struct bf16 {
  static __device__ void multiply(float *c, const u32 *a, const u32 *b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};
struct f16 {
  static __device__ void multiply(float *c, const u32 *a, const u32 *b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

template <class E> __device__ void multiply(float *y, const u16 *a, const u16 *b, float x, int repeat) {
  __shared__ __align__(16) u16 as[16 * 16], bs[16 * 8];
  int lane = threadIdx.x;
  copy(as + 8 * lane, a + 8 * lane);
  asm volatile("cp.async.commit_group;");
  if (lane < 16) copy(bs + 8 * lane, b + 8 * lane);
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group 0;");
  __syncthreads();
  u32 ra[4], rb[2];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(address(as + lane % 16 * 16 + lane / 16 * 8)));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(rb[0]), "=r"(rb[1]) : "r"(address(bs + lane % 16 * 8)));
  float c[4] = {0, 0, 0, 0};
  for (int n = 0; n < repeat; n++) E::multiply(c, ra, rb);
  float *to = y + lane / 4 * 8 + lane % 4 * 2;
  to[0] = x * c[0], to[1] = x * c[1], to[64] = x * c[2], to[65] = x * c[3];
}

extern "C" __global__ void product(float *y, const u16 *a, const u16 *b, float x, int repeat) { multiply<bf16>(y, a, b, x, repeat); }
extern "C" __global__ void product_f16(float *y, const u16 *a, const u16 *b, float x, int repeat) { multiply<f16>(y, a, b, x, repeat); }

// For measuring: y is the sum of the squares of n numbers, for each block.
extern "C" __global__ void squares(float *y, const float *x, int n) {
  __shared__ float s[256];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i] * x[i];
  s[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = s[0];
}
