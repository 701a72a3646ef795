//go:build ignore

// Instructions of whole warps: shuffles, votes, products of matrices.
#include <string.h>

#include "machine.h"

void nothing(struct machine *x, const struct instruction *i, char *file, u32 mask) {}

void trap(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  fail(x, __builtin_ctz(mask), PTX_FAILED, "the kernel gives up");
}

// shuffle: c holds the last lane that may be read, and the bits of a lane that its segment has.
void shuffle(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  const u32 *values = (u32 *)(file + i->a[0]), *b = (u32 *)(file + i->a[1]), *c = (u32 *)(file + i->a[2]);
  u32 out[WARP], valid = 0;
  LANES {
    int segment = c[l] >> 8 & 31, lane = b[l] & 31, clamp = c[l] & 31;
    int last = (l & segment) | (clamp & ~segment), from = l;
    switch (i->which) {
    case SHUFFLE_XOR: from = l ^ lane; break;
    case SHUFFLE_DOWN: from = l + lane; break;
    case SHUFFLE_UP: from = l - lane; break;
    case SHUFFLE_INDEX: from = (lane & ~segment) | (l & segment); break;
    }
    int inside = i->which == SHUFFLE_UP ? from >= last : from <= last;
    valid |= (u32)inside << l;
    out[l] = values[inside ? from & 31 : l];
    if (inside && mask >> l & 1 && !(mask >> from & 1))
      fail(x, l, PTX_FAILED, "the value of lane %d is taken, which does not take part", from);
  }
  put_32(file, i->d[0], mask, out);
  if (i->d[1] >= 0) set_predicate(file, i->d[1], mask, valid);
}

void vote(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  u32 p = predicate(i, file, 0) & mask, out[WARP];
  LANES out[l] = p;
  switch (i->which) {
  case VOTE_ALL: set_predicate(file, i->d[0], mask, p == mask ? everyone : 0); break;
  case VOTE_ANY: set_predicate(file, i->d[0], mask, p ? everyone : 0); break;
  case VOTE_UNIFORM: set_predicate(file, i->d[0], mask, p == mask || !p ? everyone : 0); break;
  case VOTE_BALLOT: put_32(file, i->d[0], mask, out); break;
  }
}

void active(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  u32 out[WARP];
  LANES out[l] = mask;
  put_32(file, i->d[0], mask, out);
}

// match finds the lanes with the same value: for each lane, or of all.
void match(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  int wide = type_sizes[i->type] == 8, same = 1;
  u64 values[WARP], first = 0;
  u32 out[WARP] = {0};
  EACH(l, mask) values[l] = wide ? ((u64 *)(file + i->a[0]))[l] : ((u32 *)(file + i->a[0]))[l];
  first = values[__builtin_ctz(mask)];
  EACH(l, mask) {
    same &= values[l] == first;
    for (u32 k = 0; k < WARP; k++)
      if (mask >> k & 1 && values[k] == values[l]) out[l] |= 1u << k;
  }
  if (i->which == VOTE_ALL) LANES out[l] = same ? mask : 0;
  put_32(file, i->d[0], mask, out);
  if (i->d[1] >= 0) set_predicate(file, i->d[1], mask, same ? everyone : 0);
}

void reduce_warp(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  const u32 *values = (u32 *)(file + i->a[0]);
  int first = 1;
  u32 v = 0, out[WARP];
  EACH(l, mask) {
    u32 next = values[l];
    int less = i->type == S32 ? (s32)next < (s32)v : next < v;
    switch (i->which) {
    case ATOMIC_ADD: v += next; break;
    case ATOMIC_AND: v = first ? next : v & next; break;
    case ATOMIC_OR: v |= next; break;
    case ATOMIC_XOR: v ^= next; break;
    case ATOMIC_MIN: v = first || less ? next : v; break;
    case ATOMIC_MAX: v = first || !less ? next : v; break;
    }
    first = 0;
  }
  LANES out[l] = v;
  put_32(file, i->d[0], mask, out);
}

// matrix_multiply adds the product of 16x16 and 16x8 numbers in bf16 or f16 to 16x8 in f32: lane 4g+t has
// rows g and g+8, and columns 2t, 2t+1, 2t+8 and 2t+9, as the manual of PTX draws it.
void matrix_multiply(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  typedef double row __attribute__((vector_size(8 * sizeof(double))));
  double a[16][16];
  row b[16], c[16];
  float (*number)(u32) = i->which ? of_f16 : of_bf16;
  if (mask != everyone) fail(x, 0, PTX_FAILED, "a warp without some of its lanes");
  LANES {
    int g = l >> 2, t = l & 3;
    for (int r = 0; r < 4; r++) {
      u32 pair = ((u32 *)(file + i->a[r]))[l];
      int n = g + (r & 1) * 8, column = t * 2 + (r >> 1) * 8;
      a[n][column] = number(pair & 0xffff);
      a[n][column + 1] = number(pair >> 16);
    }
    for (int r = 0; r < 2; r++) {
      u32 pair = ((u32 *)(file + i->a[4 + r]))[l];
      b[t * 2 + r * 8][g] = number(pair & 0xffff);
      b[t * 2 + r * 8 + 1][g] = number(pair >> 16);
    }
    for (int r = 0; r < 4; r++) c[g + (r >> 1) * 8][t * 2 + (r & 1)] = ((float *)(file + i->a[6 + r]))[l];
  }
  for (int n = 0; n < 16; n++)
    for (int k = 0; k < 16; k++) c[n] += a[n][k] * b[k];
  LANES for (int r = 0; r < 4; r++) ((float *)(file + i->d[r]))[l] = (float)c[(l >> 2) + (r >> 1) * 8][(l & 3) * 2 + (r & 1)];
}
