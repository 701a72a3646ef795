// The element-wise operations of Gorgonia. Which one is an argument, by numbers that package gpu has
// too.
#include "device.h"

enum { ABS, NEG, SQRT, SQUARE, CUBE, INV, INV_SQRT, EXP, LN, TANH, SIGMOID, SIGN, CEIL, FLOOR, SIN, COS, LOG2, LOG1P, EXPM1, SOFTPLUS };

template <class T> DEVICE T function(int f, T x) {
  switch (f) {
  case ABS: return abs(x);
  case NEG: return -x;
  case SQRT: return sqrt(x);
  case SQUARE: return x * x;
  case CUBE: return x * x * x;
  case INV: return 1 / x;
  case INV_SQRT: return 1 / sqrt(x);
  case EXP: return exp(x);
  case LN: return log(x);
  case TANH: return tanh(x);
  case SIGMOID: return 1 / (1 + exp(-x));
  case SIGN: return x > 0 ? 1 : x < 0 ? -1 : x;
  case CEIL: return ceil(x);
  case FLOOR: return floor(x);
  case SIN: return sin(x);
  case COS: return cos(x);
  case LOG2: return log2(x);
  case LOG1P: return log1p(x);
  case EXPM1: return expm1(x);
  default: return (x > 0 ? x : 0) + log1p(exp(-abs(x)));
  }
}

template <class E> DEVICE void unary(E *y, const E *x, u64 n, int f) {
  INDEX(n);
  narrow(y[i], function(f, wide(x[i])));
}

enum { ADD, SUB, MUL, DIV, POW, LESS, GREATER, LESS_EQUAL, GREATER_EQUAL, EQUAL, NOT_EQUAL, MIN, MAX };

template <class T> DEVICE T pairing(int f, T x, T y) {
  switch (f) {
  case ADD: return x + y;
  case SUB: return x - y;
  case MUL: return x * y;
  case DIV: return x / y;
  case POW: return y == 1 ? x : y == 2 ? x * x : pow(x, y);
  case LESS: return x < y;
  case GREATER: return x > y;
  case LESS_EQUAL: return x <= y;
  case GREATER_EQUAL: return x >= y;
  case EQUAL: return x == y;
  case NOT_EQUAL: return x != y;
  case MIN: return x < y || x != x ? x : y;
  default: return x > y || x != x ? x : y;
  }
}

// An argument of a binary operation may be a single number, and one of an operation on 16 bits may be
// in the type of arithmetic.
enum { SINGLE = 1, WIDE = 2 };

template <class E> DEVICE W<E> element(const void *x, u64 i, int form) {
  if (form & SINGLE) i = 0;
  return form & WIDE ? ((const W<E> *)x)[i] : wide(((const E *)x)[i]);
}

template <class E> DEVICE void binary(E *z, const void *x, const void *y, u64 n, int x_form, int y_form, int f) {
  INDEX(n);
  narrow(z[i], pairing(f, element<E>(x, i, x_form), element<E>(y, i, y_form)));
}

#define POINTWISE(T, E) \
  KERNEL pointwise_unary_##T(E *y, const E *x, u64 n, int f) { unary(y, x, n, f); } \
  KERNEL pointwise_binary_##T(E *z, const void *x, const void *y, u64 n, int x_form, int y_form, int f) { \
    binary(z, x, y, n, x_form, y_form, f); \
  }
TYPES(POINTWISE)

template <class T> DEVICE void from_int(T *y, const i64 *x, u64 n) {
  INDEX(n);
  y[i] = x[i];
}

KERNEL pointwise_fromint_f32(float *y, const i64 *x, u64 n) { from_int(y, x, n); }
KERNEL pointwise_fromint_f64(double *y, const i64 *x, u64 n) { from_int(y, x, n); }
