// Activations and gated linear units, with their gradients.
#include "map.h"

// The activations, by numbers that package gpu has too.
enum { GELU, GELU_TANH, SILU, TANH, SIGMOID, RELU };

template <class T> DEVICE T sigmoid(T x) { return 1 / (1 + exp(-x)); }

// The argument of tanh in GELU_TANH is x·(ROOT + CUBE·x²): √(2/π)·(x + 0.044715·x³).
#define ROOT (T)0.79788456080286535588
#define CUBE (T)(0.79788456080286535588 * 0.044715)

template <class T> DEVICE T activation(int f, T x) {
  switch (f) {
  case GELU: return x / 2 * (1 + erf(x * (T)0.70710678118654752440));
  case GELU_TANH: return x / 2 * (1 + tanh(x * (ROOT + CUBE * x * x)));
  case SILU: return x / (1 + exp(-x));
  case TANH: return tanh(x);
  case SIGMOID: return sigmoid(x);
  default: return x > 0 || x != x ? x : 0;
  }
}

// slope returns the derivative of an activation at x. It is 0 or 1 beyond 1000 and at ±Inf. That of
// RELU is 1 at NaN.
template <class T> DEVICE T slope(int f, T x) {
  x = x > 1000 ? 1000 : x < -1000 ? -1000 : x;
  T e, t;
  switch (f) {
  case GELU: return (1 + erf(x * (T)0.70710678118654752440)) / 2 + x * exp(-x * x / 2) * (T)0.39894228040143267794;
  case GELU_TANH:
    t = tanh(x * (ROOT + CUBE * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * (ROOT + 3 * CUBE * x * x);
  case SILU:
    t = sigmoid(x);
    return t + x * t * (1 - t);
  case TANH:
    e = exp(-2 * abs(x));
    return 4 * e / ((1 + e) * (1 + e));
  case SIGMOID:
    e = exp(-abs(x));
    return e / ((1 + e) * (1 + e));
  default: return x > 0 || x != x ? 1 : 0;
  }
}

template <class E> DEVICE void forward(E *y, const E *x, u64 n, int f) {
  LOT_OF(E, n);
  map<1, 1>({y + i}, {x + i}, count, [=](auto *r, auto *a) { r[0] = activation(f, a[0]); });
}

template <class E> DEVICE void backward(E *dx, const E *x, const E *dy, u64 n, int f) {
  LOT_OF(E, n);
  map<1, 2>({dx + i}, {x + i, dy + i}, count, [=](auto *r, auto *a) { r[0] = slope(f, a[0]) * a[1]; });
}

// A gated linear unit has rows of d elements, stride apart in gate and up, and their gradients. A
// row's lots are counted for themselves.
#define ROWS_OF(E, rows, d) \
  u64 lots = ((d) + lot<E>::size - 1) / lot<E>::size, at = (u64)blockIdx.x * blockDim.x + threadIdx.x, row = at / lots; \
  u64 i = at % lots * lot<E>::size; \
  if (row >= (rows)) return; \
  int count = (int)min((u64)lot<E>::size, (d) - i)

template <class E> DEVICE void glu(E *y, const E *gate, const E *up, u64 rows, u64 d, u64 stride, int f) {
  ROWS_OF(E, rows, d);
  u64 in = row * stride + i;
  map<1, 2>({y + row * d + i}, {gate + in, up + in}, count, [=](auto *r, auto *a) { r[0] = activation(f, a[0]) * a[1]; });
}

template <class E> DEVICE void glu_grad(E *dgate, E *dup, const E *gate, const E *up, const E *dy, u64 rows, u64 d, u64 stride, int f) {
  ROWS_OF(E, rows, d);
  u64 in = row * stride + i;
  map<2, 3>({dgate + in, dup + in}, {gate + in, up + in, dy + row * d + i}, count, [=](auto *r, auto *a) {
    r[0] = slope(f, a[0]) * a[2] * a[1];
    r[1] = activation(f, a[0]) * a[2];
  });
}

template <class E> DEVICE void scale(E *y, const E *x, u64 n, W<E> c) {
  LOT_OF(E, n);
  map<1, 1>({y + i}, {x + i}, count, [=](auto *r, auto *a) { r[0] = c * a[0]; });
}

#define ACTIVATION(T, E) \
  KERNEL activation_forward_##T(E *y, const E *x, u64 n, int f) { forward(y, x, n, f); } \
  KERNEL activation_backward_##T(E *dx, const E *x, const E *dy, u64 n, int f) { backward(dx, x, dy, n, f); } \
  KERNEL activation_glu_##T(E *y, const E *gate, const E *up, u64 rows, u64 d, u64 stride, int f) { glu(y, gate, up, rows, d, stride, f); } \
  KERNEL activation_glugrad_##T(E *dgate, E *dup, const E *gate, const E *up, const E *dy, u64 rows, u64 d, u64 stride, int f) { \
    glu_grad(dgate, dup, gate, up, dy, rows, d, stride, f); \
  } \
  KERNEL activation_scale_##T(E *y, const E *x, u64 n, W<E> c) { scale(y, x, n, c); }
TYPES(ACTIVATION)
