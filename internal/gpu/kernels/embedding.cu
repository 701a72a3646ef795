// Rows of tables, and sums of rows by where they come from.
#include "device.h"

// Kernels of rows have a block for each row, in x, and for each part of it, in y.
#define COLUMN u64 j = (u64)blockIdx.y * blockDim.x + threadIdx.x

// rows copies row index[i] of each [rows d] of table to row i of each [n d] of y.
template <class T> DEVICE void rows(T *y, const T *table, const i64 *index, u32 n, u64 rows, u64 d) {
  COLUMN;
  if (j >= d) return;
  u64 part = blockIdx.x / n;
  y[blockIdx.x * d + j] = table[(part * rows + index[blockIdx.x % n]) * d + j];
}

#define ROWS(bits, T) \
  KERNEL embedding_rows_b##bits(T *y, const T *table, const i64 *index, u32 n, u64 count, u64 d) { rows(y, table, index, n, count, d); }
ROWS(16, u16)
ROWS(32, u32)
ROWS(64, u64)
ROWS(128, pack8)

// Sorting: order becomes the tokens by their row, and by their position where that is one. It is a
// stable sort by digits of 8 bits, the lowest first: each digit takes a count, a scan and a move. A
// block of one warp works on a tile of tokens, 32 at a time.
#define DIGITS 256
#define TILE 512

// A turn is the share of a lane in 32 tokens.
struct turn {
  u32 token, digit, peers; // the lanes that have this digit
  bool valid;
  __device__ __forceinline__ bool first(u32 lane) const { return valid && !(peers & ((1u << lane) - 1)); }
};

DEVICE turn turn_of(const u32 *order, const i64 *index, u32 i, u32 n, u32 shift) {
  turn t;
  t.valid = i < n;
  t.token = t.valid && order ? order[i] : i;
  t.digit = t.valid ? (u32)(index[t.token] >> shift) % DIGITS : 0;
  t.peers = __ballot_sync(FULL, t.valid);
#pragma unroll
  for (int bit = 0; bit < 8; bit++) {
    u32 set = __ballot_sync(FULL, t.digit >> bit & 1);
    t.peers &= t.digit >> bit & 1 ? set : ~set;
  }
  return t;
}

// counts [tiles DIGITS]: how many tokens of a tile have a digit. order may be null: tokens as they are.
KERNEL embedding_count(u32 *counts, const u32 *order, const i64 *index, u32 n, u32 shift) {
  __shared__ u32 count[DIGITS];
  u32 lane = threadIdx.x;
  for (u32 d = lane; d < DIGITS; d += 32) count[d] = 0;
  __syncwarp();
#pragma unroll 1
  for (u32 i = 0; i < TILE; i += 32) {
    turn t = turn_of(order, index, blockIdx.x * TILE + i + lane, n, shift);
    if (t.first(lane)) count[t.digit] += __popc(t.peers);
    __syncwarp();
  }
  for (u32 d = lane; d < DIGITS; d += 32) counts[blockIdx.x * DIGITS + d] = count[d];
}

// scan turns counts into where the tokens of a tile with a digit begin. A thread has a digit.
KERNEL embedding_scan(u32 *counts, u32 tiles) {
  __shared__ u32 total[DIGITS];
  u32 d = threadIdx.x, sum = 0;
  for (u32 t = 0; t < tiles; t++) sum += counts[t * DIGITS + d];
  total[d] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll 1
  for (u32 i = 0; i < d; i++) sum += total[i];
#pragma unroll 1
  for (u32 t = 0; t < tiles; t++) {
    u32 c = counts[t * DIGITS + d];
    counts[t * DIGITS + d] = sum;
    sum += c;
  }
}

KERNEL embedding_move(u32 *to, const u32 *order, const i64 *index, const u32 *starts, u32 n, u32 shift) {
  __shared__ u32 next[DIGITS];
  u32 lane = threadIdx.x;
  for (u32 d = lane; d < DIGITS; d += 32) next[d] = starts[blockIdx.x * DIGITS + d];
  __syncwarp();
#pragma unroll 1
  for (u32 i = 0; i < TILE; i += 32) {
    turn t = turn_of(order, index, blockIdx.x * TILE + i + lane, n, shift);
    if (t.valid) to[next[t.digit] + __popc(t.peers & ((1u << lane) - 1))] = t.token;
    __syncwarp();
    if (t.first(lane)) next[t.digit] += __popc(t.peers);
    __syncwarp();
  }
}

// sums writes to the row of each distinct index the sum of the rows of dy that have it, in their
// order, or adds it. The block of the first of them does so. Tables are as in rows.
template <class E>
DEVICE void sums(W<E> *table, const E *dy, const u32 *order, const i64 *index, u32 n, u64 rows, u64 d, int acc) {
  u32 at = blockIdx.x % n, lane = threadIdx.x % 32;
  u64 part = blockIdx.x / n, row = index[order[at]];
  if (at > 0 && index[order[at - 1]] == row) return;
  COLUMN;
  bool valid = j < d;
  W<E> *to = table + (part * rows + row) * d + j, sum = acc && valid ? *to : 0;
  dy += part * n * d + (valid ? j : 0);
  u32 run;
  do {
    u32 token = at + lane < n ? order[at + lane] : 0;
    run = __popc(__ballot_sync(FULL, at + lane < n && index[token] == row));
#pragma unroll 4
    for (u32 i = 0; i < run; i++) sum += wide(dy[__shfl_sync(FULL, token, i) * d]);
    at += 32;
  } while (run == 32);
  if (valid) *to = sum;
}

// positions adds row i % t of table [t d] to row i of x.
template <class E> DEVICE void positions(E *y, const E *x, const E *table, u32 t, u64 d) {
  COLUMN;
  if (j >= d) return;
  u64 i = blockIdx.x * d + j;
  narrow(y[i], wide(x[i]) + wide(table[blockIdx.x % t * d + j]));
}

#define EMBEDDING(T, E) \
  KERNEL embedding_sums_##T(W<E> *table, const E *dy, const u32 *order, const i64 *index, u32 n, u64 rows, u64 d, int acc) { \
    sums(table, dy, order, index, n, rows, d, acc); \
  } \
  KERNEL embedding_positions_##T(E *y, const E *x, const E *table, u32 t, u64 d) { positions(y, x, table, t, d); }
TYPES(EMBEDDING)
