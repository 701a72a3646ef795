//go:build ignore

// Comparisons (setp) and conversions (cvt), and the modes of floats.
#include <fenv.h>
#include <math.h>
#include <string.h>

#include "machine.h"

const int type_sizes[TYPES] = {
  [PRED] = 4, [B8] = 1, [U8] = 1, [S8] = 1, [B16] = 2, [U16] = 2, [S16] = 2, [BF16] = 2, [F16] = 2,
  [B32] = 4, [U32] = 4, [S32] = 4, [F32] = 4, [BF16X2] = 4, [F16X2] = 4, [B64] = 8, [U64] = 8, [S64] = 8, [F64] = 8,
};

// Modes. The bits of the control register are set around an instruction, for results and operands
// that are too small for normal numbers become 0.
#if defined __SSE__
#include <xmmintrin.h>
enum { FLUSH_BITS = 0x8040 }; // flush to zero, denormals are zeros
static void set_flush(int on) { _mm_setcsr(on ? _mm_getcsr() | FLUSH_BITS : _mm_getcsr() & ~FLUSH_BITS); }
#elif defined __aarch64__
static void set_flush(int on) {
  const u64 flush = 1 << 24;
  u64 control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  control = on ? control | flush : control & ~flush;
  __asm__ volatile("msr fpcr, %0" : : "r"(control));
}
#else
#error "no way to flush small floats to zero on this processor"
#endif

static void saturate(const struct instruction *i, char *file, u32 mask) {
  EACH(l, mask) {
    if (i->type == F32) {
      float *f = (float *)(file + i->d[0]) + l;
      *f = *f > 0 ? *f < 1 ? *f : 1 : 0; // a NaN is 0
    } else {
      double *f = (double *)(file + i->d[0]) + l;
      *f = *f > 0 ? *f < 1 ? *f : 1 : 0;
    }
  }
}

void in_mode(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  static const int roundings[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  if (i->mode & ROUNDING) fesetround(roundings[i->mode & ROUNDING]);
  if (i->mode & FLUSH) set_flush(1);
  i->inner(x, i, file, mask);
  if (i->mode & FLUSH) set_flush(0);
  if (i->mode & ROUNDING) fesetround(FE_TONEAREST);
  if (i->mode & SATURATE) saturate(i, file, mask);
}

// Comparisons. A few are enough: the others have their operands swapped or their results inverted,
// which makes those of them true that are "or unordered".
typedef u32 comparison(const char *a, const char *b);

#define COMPARE(name, E, T, expression)                                                             \
  static u32 name(const char *p, const char *q) {                                                   \
    const E *a = (const E *)p, *b = (const E *)q;                                                   \
    u32 out = 0;                                                                                    \
    LANES {                                                                                         \
      T A = (T)a[l], B = (T)b[l];                                                                   \
      out |= (u32)(expression) << l;                                                                \
    }                                                                                               \
    return out;                                                                                     \
  }
#define COMPARES(name, E, T)                                                                        \
  COMPARE(less_##name, E, T, A < B) COMPARE(most_##name, E, T, A <= B) COMPARE(equal_##name, E, T, A == B)
COMPARES(s16, u32, s16)
COMPARES(u16, u32, u16)
COMPARES(s32, u32, s32)
COMPARES(u32, u32, u32)
COMPARES(s64, u64, s64)
COMPARES(u64, u64, u64)
COMPARES(f32, float, float)
COMPARES(f64, double, double)
COMPARE(ordered_f32, float, float, A == A && B == B)
COMPARE(ordered_f64, double, double, A == A && B == B)
COMPARE(differ_f32, float, float, A < B || A > B)
COMPARE(differ_f64, double, double, A < B || A > B)

enum { LESS, MOST, EQUAL, ORDERED, DIFFER, BASES };
#define OF(type) {less_##type, most_##type, equal_##type}
static comparison *const comparisons[TYPES][BASES] = {
  [S16] = OF(s16), [U16] = OF(u16), [B16] = OF(u16), [S32] = OF(s32), [U32] = OF(u32), [B32] = OF(u32), [S64] = OF(s64),
  [U64] = OF(u64), [B64] = OF(u64),
  [F32] = {less_f32, most_f32, equal_f32, ordered_f32, differ_f32}, [F64] = {less_f64, most_f64, equal_f64, ordered_f64, differ_f64},
};

// Integers have no unordered pairs: for them "not equal" is the inverse of "equal".
enum { SWAP = 8, INVERT = 16 };
static const struct { const char *name; int floats, integers; } compare_names[] = {
  {"eq", EQUAL, EQUAL}, {"ne", DIFFER, EQUAL | INVERT}, {"lt", LESS, LESS}, {"le", MOST, MOST},
  {"gt", LESS | SWAP, LESS | SWAP}, {"ge", MOST | SWAP, MOST | SWAP},
  {"lo", -1, LESS}, {"ls", -1, MOST}, {"hi", -1, LESS | SWAP}, {"hs", -1, MOST | SWAP},
  {"equ", DIFFER | INVERT, -1}, {"neu", EQUAL | INVERT, -1}, {"ltu", MOST | SWAP | INVERT, -1}, {"leu", LESS | SWAP | INVERT, -1},
  {"gtu", MOST | INVERT, -1}, {"geu", LESS | INVERT, -1}, {"num", ORDERED, -1}, {"nan", ORDERED | INVERT, -1},
};
static const char *const combinations[] = {"", "and", "or", "xor"};

static void compare(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  int swap = (i->which & SWAP) != 0;
  u32 p = comparisons[i->type][i->which & 7](file + i->a[swap], file + i->a[!swap]);
  if (i->which & INVERT) p = ~p;
  u32 q = ~p;
  if (i->n) {
    u32 c = predicate(i, file, 2);
    p = i->n == 1 ? p & c : i->n == 2 ? p | c : p ^ c;
    q = i->n == 1 ? q & c : i->n == 2 ? q | c : q ^ c;
  }
  if (i->d[0] >= 0) set_predicate(file, i->d[0], mask, p);
  if (i->d[1] >= 0) set_predicate(file, i->d[1], mask, q);
}

int compare_find(struct instruction *i, const char *how, const char *combined) {
  int is_float = i->type == F32 || i->type == F64;
  i->which = -1;
  for (size_t n = 0; n < sizeof compare_names / sizeof *compare_names; n++)
    if (!strcmp(how, compare_names[n].name)) i->which = is_float ? compare_names[n].floats : compare_names[n].integers;
  i->n = -1;
  for (int n = 0; n < 4; n++)
    if (!strcmp(combined, combinations[n])) i->n = n;
  i->run = compare;
  return i->which >= 0 && i->n >= 0 && comparisons[i->type][LESS];
}

// Conversions go by way of 64-bit integers or doubles, which hold every value of the other types.

static int is_float(enum type t) { return t == BF16 || t == F32 || t == F64; }
static int is_signed(enum type t) { return t == S8 || t == S16 || t == S32 || t == S64; }

static u64 read_integer(const char *file, int slot, u32 l, enum type t) {
  const u32 *v = (const u32 *)(file + slot);
  switch (t) {
  case S8: return (u64)(s8)v[l];
  case S16: return (u64)(s16)v[l];
  case S32: return (u64)(s32)v[l];
  case B8: case U8: return (u8)v[l];
  case B16: case U16: return (u16)v[l];
  case B32: case U32: return v[l];
  default: return ((const u64 *)(file + slot))[l];
  }
}

static double read_float(const char *file, int slot, u32 l, enum type t) {
  const float *v = (const float *)(file + slot);
  return t == F64 ? ((const double *)v)[l] : t == F32 ? v[l] : of_bf16(((const u32 *)v)[l]);
}

// write_integer keeps what fits: smaller types are extended to the register that they lie in.
static void write_integer(char *file, int slot, u32 l, enum type t, u64 value) {
  u32 *v = (u32 *)(file + slot);
  int bits = 8 * type_sizes[t];
  if (bits == 64) ((u64 *)v)[l] = value;
  else if (bits == 32) v[l] = (u32)value;
  else v[l] = is_signed(t) ? (u32)((s32)((u32)value << (32 - bits)) >> (32 - bits)) : (u32)value & ((1u << bits) - 1);
}

// limits returns the range of an integer type as doubles, of which the upper one is excluded.
static void limits(enum type t, double *least, double *beyond) {
  int bits = 8 * type_sizes[t] - is_signed(t);
  *beyond = ldexp(1, bits);
  *least = is_signed(t) ? -*beyond : 0;
}

// to_integer gives what is out of range the nearest number, and a NaN 0 unless 64 bits are
// involved.
static u64 to_integer(double value, const struct instruction *i) {
  double least, beyond;
  limits(i->type, &least, &beyond);
  int wide = i->from == F64 || type_sizes[i->type] == 8;
  u64 top = 1ull << (8 * type_sizes[i->type] - 1);
  if (value != value) return wide ? top : 0;
  if (value >= beyond) return is_signed(i->type) ? top - 1 : top - 1 + top;
  if (value < least) return is_signed(i->type) ? 0 - top : 0;
  return is_signed(i->type) ? (u64)(s64)value : (u64)value;
}

static double whole(double value, enum whole_kind how) {
  switch (how) {
  case AS_IT_IS: break;
  case WHOLE_NEAREST: return rint(value);
  case WHOLE_ZERO: return trunc(value);
  case WHOLE_DOWN: return floor(value);
  case WHOLE_UP: return ceil(value);
  }
  return value;
}

static void float_to_integer(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  EACH(l, mask) write_integer(file, i->d[0], l, i->type, to_integer(whole(read_float(file, i->a[0], l, i->from), i->which), i));
}

static void integer_to_float(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  EACH(l, mask) {
    u64 v = read_integer(file, i->a[0], l, i->from);
    if (i->type == F64) ((double *)(file + i->d[0]))[l] = is_signed(i->from) ? (double)(s64)v : (double)v;
    else ((float *)(file + i->d[0]))[l] = is_signed(i->from) ? (float)(s64)v : (float)v;
  }
}

static void float_to_float(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  EACH(l, mask) {
    double v = whole(read_float(file, i->a[0], l, i->from), i->which);
    if (i->type == F64) ((double *)(file + i->d[0]))[l] = v;
    else if (i->type == F32) ((float *)(file + i->d[0]))[l] = (float)v;
    else ((u32 *)(file + i->d[0]))[l] = bf16_of((float)v);
  }
}

static void integer_to_integer(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  EACH(l, mask) write_integer(file, i->d[0], l, i->type, read_integer(file, i->a[0], l, i->from));
}

// The conversions that kernels spend their time in.
#define FAST(name, n, R, E, T)                                                                      \
  static void name(struct machine *x, const struct instruction *i, char *file, u32 mask) {          \
    const E *a = (const E *)(file + i->a[0]);                                                       \
    R out[WARP];                                                                                    \
    LANES out[l] = (R)(T)a[l];                                                                      \
    put_##n(file, i->d[0], mask, out);                                                              \
  }
FAST(sign_extend, 64, u64, u32, s32)
FAST(zero_extend, 64, u64, u32, u32)
FAST(low_half, 32, u32, u64, u64)
FAST(float_of_s32, 32, float, u32, s32)
FAST(double_of_float, 64, double, float, float)
FAST(float_of_double, 32, float, double, double)

static void bf16x2_of_floats(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  const float *a = (const float *)(file + i->a[0]), *b = (const float *)(file + i->a[1]);
  u32 out[WARP];
  LANES out[l] = bf16_of(a[l]) << 16 | bf16_of(b[l]);
  put_32(file, i->d[0], mask, out);
}

static void f16x2_of_floats(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  const float *a = (const float *)(file + i->a[0]), *b = (const float *)(file + i->a[1]);
  u32 out[WARP];
  LANES out[l] = f16_of(a[l]) << 16 | f16_of(b[l]);
  put_32(file, i->d[0], mask, out);
}

static void bf16_of_float(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  const float *a = (const float *)(file + i->a[0]);
  u32 out[WARP];
  LANES out[l] = bf16_of(a[l]);
  put_32(file, i->d[0], mask, out);
}

static void f16_of_float(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  const float *a = (const float *)(file + i->a[0]);
  u32 out[WARP];
  LANES out[l] = f16_of(a[l]);
  put_32(file, i->d[0], mask, out);
}

static void float_of_f16(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  const u32 *a = (const u32 *)(file + i->a[0]);
  float out[WARP];
  LANES out[l] = of_f16(a[l]);
  put_32(file, i->d[0], mask, out);
}

static const struct { enum type to, from; execute *run; } fast[] = {
  {S64, S32, sign_extend}, {U64, S32, sign_extend}, {S64, U32, zero_extend}, {U64, U32, zero_extend},
  {U32, U64, low_half}, {U32, S64, low_half}, {S32, U64, low_half}, {S32, S64, low_half},
  {F32, S32, float_of_s32}, {F64, F32, double_of_float}, {F32, F64, float_of_double},
  {BF16X2, F32, bf16x2_of_floats}, {F16X2, F32, f16x2_of_floats}, {BF16, F32, bf16_of_float}, {F16, F32, f16_of_float}, {F32, F16, float_of_f16},
};

int convert_find(struct instruction *i) {
  int to = is_float(i->type), from = is_float(i->from);
  for (size_t n = 0; n < sizeof fast / sizeof *fast; n++)
    if (!i->which && fast[n].to == i->type && fast[n].from == i->from) return i->run = fast[n].run, 1;
  if (!i->type || !i->from || i->type == PRED || i->from == PRED || i->type == BF16X2 || i->from == BF16X2 ||
      i->type == F16 || i->from == F16 || i->type == F16X2 || i->from == F16X2) return 0;
  if (i->which && !from) return 0;
  if ((i->mode & SATURATE) && !(to && from)) return 0;
  i->run = to ? from ? float_to_float : integer_to_float : from ? float_to_integer : integer_to_integer;
  return i->type != BF16 || i->from == F32; // others would round twice
}
