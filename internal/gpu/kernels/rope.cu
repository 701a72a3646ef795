// Rotary embeddings (Su et al. 2021, arXiv:2104.09864). At most 32 registers by ptxas for sm_80, sm_90 and
// sm_100, none spilled.
#include "device.h"

// rotate turns a pair by an angle.
template <class T> DEVICE void rotate(T &u, T &v, T cos, T sin) {
  T x = u * cos - v * sin;
  v = u * sin + v * cos, u = x;
}

// turn turns pairs (u, v) of columns of x [n/d, d] by an angle: to (u·cos - v·sin, u·sin + v·cos). Of each
// of the first heads heads of width columns, dims columns are turned: pairs are neighbours, or dims/2
// apart. Row p of table [rows, dims] has the cosines of position p, and then the sines. The position of a
// row is that of positions, or its number modulo t. sign -1 turns back. y may be x: the thread of a pair's
// first column takes both.
template <class E>
DEVICE void turn(E *y, const E *x, const W<E> *table, const i64 *positions, int d, int t, int heads, int width, int dims,
                 int neighbours, W<E> sign, u64 n) {
  INDEX(n);
  u64 row = i / d;
  int c = i % d, head = c / width, at = c % width, half = dims / 2;
  if (head >= heads || at >= dims) {
    y[i] = x[i];
    return;
  }
  if (neighbours ? at % 2 : at >= half) return;
  u64 other = i + (neighbours ? 1 : half), angle = (positions ? positions[row] : row % t) * dims + (neighbours ? at / 2 : at);
  W<E> cos = table[angle], sin = sign * table[angle + half], u = wide(x[i]), v = wide(x[other]);
  rotate(u, v, cos, sin);
  narrow(y[i], u);
  narrow(y[other], v);
}

#define ROPE(T, E) \
  KERNEL rope_turn_##T(E *y, const E *x, const W<E> *table, const i64 *positions, int d, int t, int heads, int width, int dims, \
                       int neighbours, W<E> sign, u64 n) { \
    turn<E>(y, x, table, positions, d, t, heads, width, dims, neighbours, sign, n); \
  }
TYPES(ROPE)

DEVICE void unpack4(float *to, float4 v, float by) { to[0] = v.x * by, to[1] = v.y * by, to[2] = v.z * by, to[3] = v.w * by; }

// turn8 is turn with a thread for each 8 columns of n, and for those that they turn with. No 8 columns are
// of two heads, or turned in part.
template <class E>
DEVICE void turn8(pack8 *y, const pack8 *x, const float4 *table, const i64 *positions, int d, int t, int heads, int width, int dims, int neighbours,
                  float sign, u32 n) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u32 row = i / (d / 8), other = i + dims / 16;
  int c = i % (d / 8) * 8, at = c % width, half = dims / 2;
  if (c / width >= heads || at >= dims) {
    y[i] = x[i];
    return;
  }
  if (!neighbours && at >= half) return;
  table += ((positions ? positions[row] : row % t) * dims + (neighbours ? at / 2 : at)) / 4;
  float u[8], v[8], cos[8], sin[8];
  unpack8<E>(u, x[i]);
  unpack4(cos, table[0], 1), unpack4(sin, table[half / 4], sign);
  if (neighbours) {
#pragma unroll
    for (int k = 0; k < 4; k++) rotate(u[2 * k], u[2 * k + 1], cos[k], sin[k]);
  } else {
    unpack8<E>(v, x[other]);
    unpack4(cos + 4, table[1], 1), unpack4(sin + 4, table[half / 4 + 1], sign);
#pragma unroll
    for (int k = 0; k < 8; k++) rotate(u[k], v[k], cos[k], sin[k]);
    y[other] = repack8<E>(v);
  }
  y[i] = repack8<E>(u);
}

#define TURN8(T, E) \
  KERNEL rope_turn8_##T(pack8 *y, const pack8 *x, const float4 *table, const i64 *positions, int d, int t, int heads, int width, int dims, \
                        int neighbours, float sign, u32 n) { \
    turn8<E>(y, x, table, positions, d, t, heads, width, dims, neighbours, sign, n); \
  }
TURN8(bf16, bf16)
TURN8(f16, f16)
