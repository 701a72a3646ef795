//go:build ignore

// Arithmetic, one function for each operation and type. A function computes all lanes, so that the
// compiler makes vector instructions of it, and keeps those of the mask.
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "machine.h"

// DEFINE makes an operation. E is the element of a slot of each kind, T what it is taken for. The
// result goes to slots of 4 or 8 bytes.
#define DEFINE(name, bytes, R, EA, TA, EB, TB, EC, TC, expression)                                  \
  static void name(struct machine *x, const struct instruction *i, char *file, u32 mask) {          \
    const EA *a = (EA *)(file + i->a[0]);                                                           \
    const EB *b = (EB *)(file + i->a[1]);                                                           \
    const EC *c = (EC *)(file + i->a[2]);                                                           \
    R out[WARP];                                                                                    \
    LANES {                                                                                         \
      TA A = (TA)a[l];                                                                              \
      TB B = (TB)b[l];                                                                              \
      TC C = (TC)c[l];                                                                              \
      out[l] = (R)(expression);                                                                     \
    }                                                                                               \
    put_##bytes(file, i->d[0], mask, out);                                                          \
  }

#define ON_16(name, T, expression) DEFINE(name, 32, u32, u32, T, u32, T, u32, T, (u16)(expression))
#define ON_32(name, T, expression) DEFINE(name, 32, u32, u32, T, u32, T, u32, T, expression)
#define ON_64(name, T, expression) DEFINE(name, 64, u64, u64, T, u64, T, u64, T, expression)
#define ON_FLOAT(name, expression) DEFINE(name, 32, float, float, float, float, float, float, float, expression)
#define ON_DOUBLE(name, expression) DEFINE(name, 64, double, double, double, double, double, double, double, expression)

// Integers whose sign does not matter.
#define BITS(n, U)                                                                                  \
  ON_##n(add_##n, U, A + B) ON_##n(sub_##n, U, A - B) ON_##n(mul_##n, U, (u64)A * B)                \
  ON_##n(mad_##n, U, (u64)A * B + C) ON_##n(and_##n, U, A & B) ON_##n(or_##n, U, A | B)             \
  ON_##n(xor_##n, U, A ^ B) ON_##n(not_##n, U, ~A) ON_##n(cnot_##n, U, !A) ON_##n(neg_##n, U, 0 - A)
BITS(16, u16)
BITS(32, u32)
BITS(64, u64)

// Integers whose sign does. Division by 0 gives all ones, as GPUs do, and the least by -1 itself.
#define NUMBERS(n, name, T, W)                                                                      \
  ON_##n(mulhi_##name, T, (W)A * B >> n) ON_##n(madhi_##name, T, ((W)A * B >> n) + C)               \
  ON_##n(div_##name, T, B == 0 ? (T)-1 : (T)-1 < 0 && B == (T)-1 ? (T)(0 - (u64)A) : A / B)         \
  ON_##n(rem_##name, T, B == 0 ? A : (T)-1 < 0 && B == (T)-1 ? 0 : A % B)                           \
  ON_##n(min_##name, T, A < B ? A : B) ON_##n(max_##name, T, A > B ? A : B)                         \
  ON_##n(abs_##name, T, A < 0 ? 0 - (u64)A : (u64)A)                                                \
  ON_##n(sad_##name, T, (u64)C + (A < B ? (u64)B - (u64)A : (u64)A - (u64)B))
NUMBERS(16, s16, s16, s32)
NUMBERS(16, u16, u16, u32)
NUMBERS(32, s32, s32, s64)
NUMBERS(32, u32, u32, u64)
NUMBERS(64, s64, s64, __int128)
NUMBERS(64, u64, u64, unsigned __int128)

#define WIDE(name, to, R, T)                                                                        \
  DEFINE(mulwide_##name, to, R, u32, T, u32, T, R, R, (R)A * (R)B)                                  \
  DEFINE(madwide_##name, to, R, u32, T, u32, T, R, R, (R)((R)A * (R)B + C))
WIDE(s16, 32, u32, s16)
WIDE(u16, 32, u32, u16)
WIDE(s32, 64, u64, s32)
WIDE(u32, 64, u64, u32)

// Shifts by more than there are bits.
#define SHIFTS(n, E, U, S)                                                                          \
  DEFINE(shl_##n, E, u##E, u##E, U, u32, u32, u32, u32, (U)(B < n ? (u##E)A << B : 0))              \
  DEFINE(shr_u##n, E, u##E, u##E, U, u32, u32, u32, u32, B < n ? A >> B : 0)                        \
  DEFINE(shr_s##n, E, u##E, u##E, S, u32, u32, u32, u32, (U)(A >> (B < n ? B : n - 1)))
SHIFTS(16, 32, u16, s16)
SHIFTS(32, 32, u32, s32)
SHIFTS(64, 64, u64, s64)

// Fields of bits: B is the position, C the length.
static u64 ones(u32 n) { return n >= 64 ? ~0ull : (1ull << n) - 1; }

static u64 field(u64 value, u32 position, u32 length, int bits, int is_signed) {
  position &= 255;
  length &= 255;
  u64 sign_at = position + length - 1 < (u32)bits - 1 ? position + length - 1 : (u32)bits - 1;
  u64 sign = is_signed && length ? value >> sign_at & 1 : 0;
  u64 got = position < (u32)bits ? value >> position : 0;
  u32 have = position < (u32)bits ? (u32)bits - position : 0;
  u64 keep = ones(length < have ? length : have);
  return (got & keep) | (sign ? ~keep : 0);
}

DEFINE(bfe_u32, 32, u32, u32, u32, u32, u32, u32, u32, field(A, B, C, 32, 0))
DEFINE(bfe_s32, 32, u32, u32, u32, u32, u32, u32, u32, field(A, B, C, 32, 1))
DEFINE(bfe_u64, 64, u64, u64, u64, u32, u32, u32, u32, field(A, B, C, 64, 0))
DEFINE(bfe_s64, 64, u64, u64, u64, u32, u32, u32, u32, field(A, B, C, 64, 1))

static u64 insert(u64 value, u64 into, u32 position, u32 length) {
  position &= 255;
  u64 mask = position < 64 ? ones(length & 255) << position : 0;
  return (into & ~mask) | (position < 64 ? value << position & mask : 0);
}

static void bfi_32(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  u32 *a = (u32 *)(file + i->a[0]), *b = (u32 *)(file + i->a[1]), *c = (u32 *)(file + i->a[2]), *d = (u32 *)(file + i->a[3]), out[WARP];
  LANES out[l] = (u32)insert(a[l], b[l], c[l], d[l]);
  put_32(file, i->d[0], mask, out);
}

static void bfi_64(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  u64 *a = (u64 *)(file + i->a[0]), *b = (u64 *)(file + i->a[1]), out[WARP];
  u32 *c = (u32 *)(file + i->a[2]), *d = (u32 *)(file + i->a[3]);
  LANES out[l] = insert(a[l], b[l], c[l], d[l]);
  put_64(file, i->d[0], mask, out);
}

static u64 reversed(u64 value) {
  u64 out = 0;
  for (int n = 0; n < 64; n++) out |= (value >> n & 1) << (63 - n);
  return out;
}

static u32 highest(u64 value) { return value ? 63 - (u32)__builtin_clzll(value) : everyone; }

ON_32(brev_32, u32, reversed(A) >> 32)
ON_64(brev_64, u64, reversed(A))
ON_32(popc_32, u32, __builtin_popcount(A))
ON_32(clz_32, u32, A ? __builtin_clz(A) : 32)
DEFINE(popc_64, 32, u32, u64, u64, u32, u32, u32, u32, __builtin_popcountll(A))
DEFINE(clz_64, 32, u32, u64, u64, u32, u32, u32, u32, A ? __builtin_clzll(A) : 64)
ON_32(bfind_u32, u32, highest(A))
ON_32(bfind_s32, u32, highest((s32)A < 0 ? (u32)~A : A))
ON_32(bfindshift_u32, u32, A ? 31 - highest(A) : everyone)
DEFINE(bfind_u64, 32, u32, u64, u64, u32, u32, u32, u32, highest(A))
DEFINE(bfind_s64, 32, u32, u64, u64, u32, u32, u32, u32, highest((s64)A < 0 ? ~A : A))

ON_32(shfl_wrap, u32, ((u64)B << 32 | A) << (C & 31) >> 32)
ON_32(shfr_wrap, u32, ((u64)B << 32 | A) >> (C & 31))
ON_32(shfl_clamp, u32, ((u64)B << 32 | A) << (C < 32 ? C : 32) >> 32)
ON_32(shfr_clamp, u32, ((u64)B << 32 | A) >> (C < 32 ? C : 32))

static u32 permuted(u32 a, u32 b, u32 selector) {
  u64 from = (u64)b << 32 | a;
  u32 out = 0;
  for (int n = 0; n < 4; n++) {
    u32 byte = (u32)(from >> (selector >> 4 * n & 7) * 8) & 255;
    if (selector >> 4 * n & 8) byte = byte & 128 ? 255 : 0; // the sign of the byte
    out |= byte << 8 * n;
  }
  return out;
}

ON_32(prmt_32, u32, permuted(A, B, C))

static void lop3_32(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  u32 *a = (u32 *)(file + i->a[0]), *b = (u32 *)(file + i->a[1]), *c = (u32 *)(file + i->a[2]), *table = (u32 *)(file + i->a[3]);
  u32 out[WARP] = {0};
  for (int n = 0; n < 8; n++)
    LANES if (table[l] >> n & 1) out[l] |= (n & 4 ? a[l] : ~a[l]) & (n & 2 ? b[l] : ~b[l]) & (n & 1 ? c[l] : ~c[l]);
  put_32(file, i->d[0], mask, out);
}

// Sums with a carry, which is the predicate d[1], and one that comes in, the predicate a[3].
#define CARRY(name, expression)                                                                     \
  static void name(struct machine *x, const struct instruction *i, char *file, u32 mask) {          \
    u32 *a = (u32 *)(file + i->a[0]), *b = (u32 *)(file + i->a[1]), *c = (u32 *)(file + i->a[2]);    \
    u32 in = *(u32 *)(file + i->a[3]), carry = 0, out[WARP];                                        \
    LANES {                                                                                         \
      u64 A = a[l], B = b[l], C = c[l], K = in >> l & 1, sum = (expression);                        \
      out[l] = (u32)sum;                                                                            \
      carry |= (u32)(sum >> 32 & 1) << l;                                                           \
    }                                                                                               \
    put_32(file, i->d[0], mask, out);                                                               \
    if (i->d[1] >= 0) set_predicate(file, i->d[1], mask, carry);                                    \
  }
CARRY(addc_32, A + B + K)
CARRY(subc_32, A - B - K)
CARRY(madlo_32, (u32)(A * B) + C + K)
CARRY(madhi_32, (A * B >> 32) + C + K)

// Floats. A NaN as one operand of min and max gives the other; -0 is less than 0.
#define FLOATS(ON, name, f)                                                                         \
  ON(add_##name, A + B) ON(sub_##name, A - B) ON(mul_##name, A * B) ON(fma_##name, fma##f(A, B, C)) \
  ON(div_##name, A / B) ON(neg_##name, -A) ON(abs_##name, fabs##f(A)) ON(sqrt_##name, sqrt##f(A))   \
  ON(rcp_##name, 1 / A) ON(rsqrt_##name, 1 / sqrt##f(A)) ON(copysign_##name, copysign##f(B, A))     \
  ON(min_##name, A != A ? B : B != B ? A : A < B || (A == B && signbit(A)) ? A : B)                 \
  ON(max_##name, A != A ? B : B != B ? A : A > B || (A == B && signbit(B)) ? A : B)                 \
  ON(minnan_##name, A != A ? A : B != B ? B : A < B || (A == B && signbit(A)) ? A : B)              \
  ON(maxnan_##name, A != A ? A : B != B ? B : A > B || (A == B && signbit(B)) ? A : B)
FLOATS(ON_FLOAT, f32, f)
FLOATS(ON_DOUBLE, f64, )

// power returns 2 to the x to 7e-9, which rounding to float32 hides. The polynomial is that of the
// exponential function of Taylor, and a vector instruction each step.
static inline float power(float x) {
  double limited = x > -160 ? x < 160 ? x : 160 : -160, whole = rint(limited), t = (limited - whole) * 0x1.62e42fefa39efp-1;
  double p = 1 + t * (1 + t * (1 / 2. + t * (1 / 6. + t * (1 / 24. + t * (1 / 120. + t * (1 / 720. + t / 5040))))));
  u64 bits = (u64)(whole + 1023) << 52;
  double scale;
  memcpy(&scale, &bits, 8);
  return x != x ? x : (float)(p * scale);
}

ON_FLOAT(ex2_f32, power(A))
ON_FLOAT(lg2_f32, log2f(A))
ON_FLOAT(sin_f32, sinf(A))
ON_FLOAT(cos_f32, cosf(A))
ON_FLOAT(tanh_f32, tanhf(A))

// high returns the upper half of a number: all that the approximate instructions give.
static inline double high(double value) {
  u64 bits;
  memcpy(&bits, &value, 8);
  bits &= ~(u64)everyone;
  memcpy(&value, &bits, 8);
  return value;
}

ON_DOUBLE(rcp_high_f64, high(1 / A))
ON_DOUBLE(rsqrt_high_f64, high(1 / sqrt(A)))

// Choices.
#define CHOOSE(n, E)                                                                                \
  static void selp_##n(struct machine *x, const struct instruction *i, char *file, u32 mask) {      \
    const E *a = (E *)(file + i->a[0]), *b = (E *)(file + i->a[1]);                                 \
    u32 p = predicate(i, file, 2);                                                                  \
    E out[WARP];                                                                                    \
    LANES out[l] = p >> l & 1 ? a[l] : b[l];                                                        \
    put_##n(file, i->d[0], mask, out);                                                              \
  }                                                                                                 \
  DEFINE(slct_s32_##n, n, E, E, E, E, E, u32, s32, C >= 0 ? A : B)                                  \
  DEFINE(slct_f32_##n, n, E, E, E, E, E, float, float, C >= 0 ? A : B)
CHOOSE(32, u32)
CHOOSE(64, u64)

#define PREDICATES(name, expression)                                                                \
  static void name##_pred(struct machine *x, const struct instruction *i, char *file, u32 mask) {   \
    u32 A = predicate(i, file, 0), B = predicate(i, file, 1);                                       \
    set_predicate(file, i->d[0], mask, expression);                                                 \
  }
PREDICATES(and, A & B)
PREDICATES(or, A | B)
PREDICATES(xor, A ^ B)
PREDICATES(not, ~A)

void move_32(struct machine *x, const struct instruction *i, char *file, u32 mask) { put_32(file, i->d[0], mask, file + i->a[0]); }
void move_64(struct machine *x, const struct instruction *i, char *file, u32 mask) { put_64(file, i->d[0], mask, file + i->a[0]); }
void move_predicate(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  set_predicate(file, i->d[0], mask, predicate(i, file, 0));
}

// element returns a lane's value in a slot of values of some size.
static u64 element(const char *file, int slot, u32 lane, int size) {
  return size == 8 ? ((const u64 *)(file + slot))[lane] : ((const u32 *)(file + slot))[lane];
}

static void put_element(char *file, int slot, u32 lane, int size, u64 value) {
  if (size == 8) ((u64 *)(file + slot))[lane] = value;
  else ((u32 *)(file + slot))[lane] = (u32)value;
}

void pack(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  int size = type_sizes[i->type], part = size / i->n;
  EACH(l, mask) {
    u64 value = 0;
    for (int n = 0; n < i->n; n++) value |= (element(file, i->a[n], l, part) & ones(8 * part)) << 8 * part * n;
    put_element(file, i->d[0], l, size, value);
  }
}

void unpack(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  int size = type_sizes[i->type], part = size / i->n;
  EACH(l, mask) {
    u64 value = element(file, i->a[0], l, size);
    for (int n = 0; n < i->n; n++)
      if (i->d[n] >= 0) put_element(file, i->d[n], l, part, value >> 8 * part * n & ones(8 * part));
  }
}

// The tables of names.
#define ROW(name, run, operands) {name, run, operands},
#define PER_BITS(n, size)                                                                           \
  ROW("add.s" #n, add_##n, size size size) ROW("add.u" #n, add_##n, size size size)                 \
  ROW("sub.s" #n, sub_##n, size size size) ROW("sub.u" #n, sub_##n, size size size)                 \
  ROW("mul.lo.s" #n, mul_##n, size size size) ROW("mul.lo.u" #n, mul_##n, size size size)           \
  ROW("mad.lo.s" #n, mad_##n, size size size size) ROW("mad.lo.u" #n, mad_##n, size size size size) \
  ROW("and.b" #n, and_##n, size size size) ROW("or.b" #n, or_##n, size size size)                   \
  ROW("xor.b" #n, xor_##n, size size size) ROW("not.b" #n, not_##n, size size)                      \
  ROW("cnot.b" #n, cnot_##n, size size) ROW("neg.s" #n, neg_##n, size size)                         \
  ROW("abs.s" #n, abs_s##n, size size) ROW("shl.b" #n, shl_##n, size size "4")                      \
  ROW("shr.b" #n, shr_u##n, size size "4") ROW("shr.u" #n, shr_u##n, size size "4")                 \
  ROW("shr.s" #n, shr_s##n, size size "4")
#define PER_NUMBER(type, size)                                                                      \
  ROW("mul.hi." #type, mulhi_##type, size size size) ROW("mad.hi." #type, madhi_##type, size size size size) \
  ROW("div." #type, div_##type, size size size) ROW("rem." #type, rem_##type, size size size)       \
  ROW("min." #type, min_##type, size size size) ROW("max." #type, max_##type, size size size)       \
  ROW("sad." #type, sad_##type, size size size size)
#define PER_WIDE(type, size) ROW("mul.wide." #type, mulwide_##type, size "44") ROW("mad.wide." #type, madwide_##type, size "44" size)
#define PER_FLOAT(type, size)                                                                       \
  ROW("add." #type, add_##type, size size size) ROW("sub." #type, sub_##type, size size size)       \
  ROW("mul." #type, mul_##type, size size size) ROW("fma." #type, fma_##type, size size size size)  \
  ROW("mad." #type, fma_##type, size size size size) ROW("div." #type, div_##type, size size size)  \
  ROW("neg." #type, neg_##type, size size) ROW("abs." #type, abs_##type, size size)                 \
  ROW("sqrt." #type, sqrt_##type, size size) ROW("rcp." #type, rcp_##type, size size)               \
  ROW("copysign." #type, copysign_##type, size size size)                                           \
  ROW("min." #type, min_##type, size size size) ROW("max." #type, max_##type, size size size)
#define PER_CHOICE(type, n, size)                                                                   \
  ROW("selp." #type, selp_##n, size size size "p") ROW("slct." #type ".s32", slct_s32_##n, size size size "4") \
  ROW("slct." #type ".f32", slct_f32_##n, size size size "4")
#define PER_CARRY(type)                                                                             \
  ROW("add.cc." #type, addc_32, "444") ROW("addc." #type, addc_32, "444") ROW("addc.cc." #type, addc_32, "444") \
  ROW("sub.cc." #type, subc_32, "444") ROW("subc." #type, subc_32, "444") ROW("subc.cc." #type, subc_32, "444") \
  ROW("mad.lo.cc." #type, madlo_32, "4444") ROW("madc.lo." #type, madlo_32, "4444")                 \
  ROW("madc.lo.cc." #type, madlo_32, "4444") ROW("mad.hi.cc." #type, madhi_32, "4444")              \
  ROW("madc.hi." #type, madhi_32, "4444") ROW("madc.hi.cc." #type, madhi_32, "4444")

static const struct operation operations[] = {
  PER_BITS(16, "4") PER_BITS(32, "4") PER_BITS(64, "8")
  PER_NUMBER(s16, "4") PER_NUMBER(u16, "4") PER_NUMBER(s32, "4") PER_NUMBER(u32, "4") PER_NUMBER(s64, "8") PER_NUMBER(u64, "8")
  PER_WIDE(s16, "4") PER_WIDE(u16, "4") PER_WIDE(s32, "8") PER_WIDE(u32, "8")
  PER_FLOAT(f32, "4") PER_FLOAT(f64, "8")
  PER_CHOICE(b16, 32, "4") PER_CHOICE(u16, 32, "4") PER_CHOICE(s16, 32, "4") PER_CHOICE(b32, 32, "4") PER_CHOICE(u32, 32, "4")
  PER_CHOICE(s32, 32, "4") PER_CHOICE(f32, 32, "4") PER_CHOICE(b64, 64, "8") PER_CHOICE(u64, 64, "8") PER_CHOICE(s64, 64, "8")
  PER_CHOICE(f64, 64, "8")
  ROW("and.pred", and_pred, "ppp") ROW("or.pred", or_pred, "ppp") ROW("xor.pred", xor_pred, "ppp") ROW("not.pred", not_pred, "pp")
  ROW("bfe.u32", bfe_u32, "4444") ROW("bfe.s32", bfe_s32, "4444") ROW("bfe.u64", bfe_u64, "8844") ROW("bfe.s64", bfe_s64, "8844")
  ROW("bfi.b32", bfi_32, "44444") ROW("bfi.b64", bfi_64, "88844")
  ROW("brev.b32", brev_32, "44") ROW("brev.b64", brev_64, "88") ROW("popc.b32", popc_32, "44") ROW("popc.b64", popc_64, "48")
  ROW("clz.b32", clz_32, "44") ROW("clz.b64", clz_64, "48")
  ROW("bfind.u32", bfind_u32, "44") ROW("bfind.s32", bfind_s32, "44") ROW("bfind.u64", bfind_u64, "48") ROW("bfind.s64", bfind_s64, "48")
  ROW("bfind.shiftamt.u32", bfindshift_u32, "44")
  ROW("shf.l.wrap.b32", shfl_wrap, "4444") ROW("shf.r.wrap.b32", shfr_wrap, "4444")
  ROW("shf.l.clamp.b32", shfl_clamp, "4444") ROW("shf.r.clamp.b32", shfr_clamp, "4444")
  ROW("prmt.b32", prmt_32, "4444") ROW("lop3.b32", lop3_32, "44444")
  ROW("div.approx.f32", div_f32, "444") ROW("div.full.f32", div_f32, "444") ROW("sqrt.approx.f32", sqrt_f32, "44")
  ROW("rcp.approx.f32", rcp_f32, "44") ROW("rsqrt.approx.f32", rsqrt_f32, "44") ROW("rsqrt.approx.f64", rsqrt_f64, "88")
  ROW("ex2.approx.f32", ex2_f32, "44") ROW("lg2.approx.f32", lg2_f32, "44") ROW("sin.approx.f32", sin_f32, "44")
  ROW("cos.approx.f32", cos_f32, "44") ROW("tanh.approx.f32", tanh_f32, "44")
  ROW("rcp.approx.ftz.f64", rcp_high_f64, "88") ROW("rsqrt.approx.ftz.f64", rsqrt_high_f64, "88")
  ROW("min.NaN.f32", minnan_f32, "444") ROW("max.NaN.f32", maxnan_f32, "444")
  PER_CARRY(u32) PER_CARRY(s32)
};

const struct operation *arithmetic_find(const char *name) {
  for (size_t n = 0; n < sizeof operations / sizeof *operations; n++)
    if (!strcmp(operations[n].name, name)) return &operations[n];
  return NULL;
}

