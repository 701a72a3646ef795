// A kernel for each function of the math library, for float and double: y = f(x, z).
#define KERNEL(name, T, f)                                                             \
  extern "C" __global__ void name(T *y, const T *x_, const T *z_, int n) {             \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                     \
    if (i >= n) return;                                                                \
    T x = x_[i];                                                                       \
    [[maybe_unused]] T z = z_[i];                                                      \
    y[i] = f;                                                                          \
  }
#define BOTH(name, f32, f64) KERNEL(name##_f32, float, f32) KERNEL(name##_f64, double, f64)
#define UNARY(name) BOTH(name, name##f(x), name(x))
#define BINARY(name) BOTH(name, name##f(x, z), name(x, z))

UNARY(exp) UNARY(exp2) UNARY(expm1) UNARY(log) UNARY(log2) UNARY(log1p) UNARY(erf) UNARY(tanh) UNARY(sin) UNARY(cos)
UNARY(sqrt) UNARY(rsqrt) UNARY(floor) UNARY(ceil) UNARY(rint) UNARY(trunc) UNARY(round)
BINARY(pow) BINARY(fmin) BINARY(fmax) BINARY(copysign) BINARY(fmod) BINARY(atan2)
BOTH(div, x / z, x / z)
BOTH(sigmoid, 1 / (1 + expf(-x)), 1 / (1 + exp(-x)))
BOTH(finite, isfinite(x), isfinite(x))
KERNEL(fast_exp_f32, float, __expf(x))
KERNEL(fast_log_f32, float, __logf(x))
KERNEL(fast_sin_f32, float, __sinf(x))
KERNEL(fast_cos_f32, float, __cosf(x))
KERNEL(fast_pow_f32, float, __powf(x, z))
KERNEL(fast_div_f32, float, __fdividef(x, z))
KERNEL(saturate_f32, float, __saturatef(x))
