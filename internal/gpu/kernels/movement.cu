// Elements of a value at other places, and sums with slices. What only moves knows of elements no more
// than their bytes: several make a word where they stay together.
#include "device.h"

// A part [outer count run] of a whole: element (o, k, j) is element o·pitch + start + k·apart + j of that.
struct part {
  u64 count, run, pitch, start, apart;
  __device__ __forceinline__ u64 at(u64 i) const { return i / (count * run) * pitch + start + i / run % count * apart + i % run; }
};
#define PART u64 count, u64 run, u64 pitch, u64 start, u64 apart
#define PART_ARGS {count, run, pitch, start, apart}

// take writes n words of a part.
template <class T> DEVICE void take(T *to, const T *whole, u64 n, part p) {
  INDEX(n);
  to[i] = whole[p.at(i)];
}

// put writes the part of a whole, which has n words.
template <class T> DEVICE void put(T *whole, const T *from, u64 n, part p) {
  INDEX(n);
  whole[p.at(i)] = from[i];
}

// spread writes a whole of n words: a part of it, and zeros.
template <class T> DEVICE void spread(T *whole, const T *from, u64 n, part p) {
  INDEX(n);
  u64 o = i / p.pitch, left = i % p.pitch - p.start, k = left / p.apart, j = left % p.apart;  // a negative one is large
  T v = {};
  if (k < p.count && j < p.run) v = from[(o * p.count + k) * p.run + j];
  whole[i] = v;
}

#define MOVES(bits, T) \
  KERNEL movement_take_b##bits(T *to, const T *whole, u64 n, PART) { take(to, whole, n, PART_ARGS); } \
  KERNEL movement_put_b##bits(T *whole, const T *from, u64 n, PART) { put(whole, from, n, PART_ARGS); } \
  KERNEL movement_spread_b##bits(T *whole, const T *from, u64 n, PART) { spread(whole, from, n, PART_ARGS); }
MOVES(16, u16)
MOVES(32, u32)
MOVES(64, u64)
MOVES(128, pack8)

// add adds n elements to the part of a whole.
template <class E> DEVICE void add(E *whole, const E *x, u64 n, part p) {
  INDEX(n);
  E *to = whole + p.at(i);
  narrow(*to, wide(*to) + wide(x[i]));
}
#define ADD(T, E) \
  KERNEL movement_add_##T(E *whole, const E *x, u64 n, PART) { add(whole, x, n, PART_ARGS); }
TYPES(ADD)

// Axes in another order. gather is for those of which the last stays last, or does not matter: axis a of
// y has length n_a, and its elements lie from_a apart in x.
#define AXES 8
template <class T> DEVICE void gather(T *y, const T *x, u64 n, u32 axes, const u64 *lengths, const u64 *from) {
  INDEX(n);
  u64 left = i;
#pragma unroll
  for (int a = AXES - 1; a >= 0; a--) {
    if (a >= axes) continue;
    x += left % lengths[a] * from[a];
    left /= lengths[a];
  }
  y[i] = *x;
}

// transpose writes matrices [rows columns] whose rows lie down apart in y. In x it is the columns, right
// apart, whose elements lie together. A block of 32 by 8 threads moves a square of 32. The other axes of
// y are to_a apart there, and from_a in x.
template <class T>
DEVICE void transpose(T *y, const T *x, u64 rows, u64 down, u64 columns, u64 right, u32 axes, const u64 *lengths, const u64 *to, const u64 *from) {
  __shared__ T square[32][33];
  u64 wide = (columns + 31) / 32, high = (rows + 31) / 32, b = blockIdx.x;
  u64 c = b % wide * 32, r = b / wide % high * 32;
  b = b / wide / high;
#pragma unroll
  for (int a = AXES - 3; a >= 0; a--) {
    if (a >= axes) continue;
    u64 k = b % lengths[a];
    x += k * from[a], y += k * to[a];
    b /= lengths[a];
  }
  for (u32 j = threadIdx.y; j < 32; j += 8)
    if (c + j < columns && r + threadIdx.x < rows) square[j][threadIdx.x] = x[r + threadIdx.x + (c + j) * right];
  __syncthreads();
  for (u32 j = threadIdx.y; j < 32; j += 8)
    if (r + j < rows && c + threadIdx.x < columns) y[(r + j) * down + c + threadIdx.x] = square[threadIdx.x][j];
}

#define PAIR(a) u64 n##a, u64 from##a
#define TRIPLE(a) PAIR(a), u64 to##a

#define GATHER(bits, T) \
  KERNEL movement_gather_b##bits(T *y, const T *x, u64 n, u32 axes, PAIR(0), PAIR(1), PAIR(2), PAIR(3), PAIR(4), PAIR(5), PAIR(6), PAIR(7)) { \
    const u64 lengths[] = {n0, n1, n2, n3, n4, n5, n6, n7}, from[] = {from0, from1, from2, from3, from4, from5, from6, from7}; \
    gather(y, x, n, axes, lengths, from); \
  }
GATHER(16, u16)
GATHER(32, u32)
GATHER(64, u64)
GATHER(128, pack8)

#define TRANSPOSE(bits, T) \
  KERNEL movement_transpose_b##bits(T *y, const T *x, u64 rows, u64 down, u64 columns, u64 right, u32 axes, TRIPLE(0), TRIPLE(1), TRIPLE(2), \
                                    TRIPLE(3), TRIPLE(4), TRIPLE(5)) { \
    const u64 lengths[] = {n0, n1, n2, n3, n4, n5}, from[] = {from0, from1, from2, from3, from4, from5}, to[] = {to0, to1, to2, to3, to4, to5}; \
    transpose(y, x, rows, down, columns, right, axes, lengths, to, from); \
  }
TRANSPOSE(16, u16)
TRANSPOSE(32, u32)
TRANSPOSE(64, u64)
