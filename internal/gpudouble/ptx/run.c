//go:build ignore

// Running a launch: its blocks one after the other, of a block the warps in turns, each up to the
// next barrier. Lanes of a warp that went different ways are groups. The group that is furthest
// behind runs first, and groups that meet join.
#define _GNU_SOURCE
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

// MOST_STEPS is how many instructions the warps of a block may execute: one that waits for others
// in a loop would wait forever.
static const u64 MOST_STEPS = 1ull << 25;

void fail(struct machine *x, int lane, int result, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  unsigned thread = (x->now ? (unsigned)x->now->id * WARP : 0) + (unsigned)lane;
  const unsigned *block = x->launch->block;
  snprintf(x->error, x->error_size, "%.*s: block (%u,%u,%u) thread (%u,%u,%u): %s%s%.*s", x->kernel->name_length, x->kernel->name,
           x->block[0], x->block[1], x->block[2], thread % block[0], thread / block[0] % block[1], thread / block[0] / block[1], text,
           x->at ? "\n    " : "", x->at ? x->at->length : 0, x->at ? x->at->text : "");
  longjmp(x->failed, result);
}

static void drop(struct warp *w, int g) { w->groups[g] = w->groups[--w->group_count]; }

// end lets lanes of a group end, and others of the warp look again whether they have to wait for
// them.
static void end(struct machine *x, struct warp *w, int g, u32 mask) {
  w->alive &= ~mask;
  x->live -= __builtin_popcount(mask);
  w->groups[g].mask &= ~mask;
  w->groups[g].pc++;
  for (int n = 0; n < w->group_count; n++) w->groups[n].waits = 0;
  if (!w->groups[g].mask) drop(w, g);
}

// furthest returns the group to run next, with all those at the same place, or -1. limit is where
// another group is, which has to be joined there.
static int furthest(struct machine *x, struct warp *w, int *limit) {
  int best = -1;
  for (int g = 0; g < w->group_count; g++)
    if (!w->groups[g].waits && (best < 0 || w->groups[g].pc < w->groups[best].pc)) best = g;
  *limit = x->kernel->count;
  if (best < 0) return -1;
  struct group me = w->groups[best];
  int kept = 0;
  for (int g = 0; g < w->group_count; g++) {
    struct group other = w->groups[g];
    if (other.pc == me.pc) {
      me.mask |= other.mask;
      continue;
    }
    if (other.pc > me.pc && other.pc < *limit) *limit = other.pc;
    w->groups[kept++] = other;
  }
  w->groups[kept] = me;
  w->group_count = kept + 1;
  return kept;
}

// branch moves lanes of a group to another place. It returns whether the group goes on as it was.
static int branch(struct machine *x, struct warp *w, int g, const struct instruction *i, u32 mask) {
  struct group *me = &w->groups[g];
  if (!mask) {
    me->pc++;
    return 1;
  }
  if (i->target <= me->pc && x->steps > MOST_STEPS) fail(x, __builtin_ctz(mask), PTX_FAILED, "the kernel does not end");
  if (mask == me->mask) {
    int forward = i->target > me->pc;
    me->pc = i->target;
    return forward;
  }
  me->mask &= ~mask;
  me->pc++;
  w->groups[w->group_count++] = (struct group){mask, i->target, 0};
  return 0;
}

// everybody tells whether the lanes that a warp-wide instruction needs have come: those of its mask
// that are alive, or all of these.
static int everybody(struct warp *w, const struct instruction *i, u32 mask) {
  u32 members = i->members >= 0 ? *(u32 *)(w->file + i->members + 4 * __builtin_ctz(mask)) : everyone;
  return !(members & w->alive & ~mask);
}

// run_group runs a group until it ends, has to wait or meets another.
static void run_group(struct machine *x, struct warp *w, int g, int limit) {
  struct group *me = &w->groups[g];
  while (me->pc < limit) {
    const struct instruction *i = x->at = &x->kernel->code[me->pc];
    u32 mask = me->mask;
    if (i->guard >= 0) {
      u32 p = *(u32 *)(w->file + i->guard);
      mask &= i->guard_negated ? ~p : p;
    }
    x->steps++;
    x->executed += (u64)__builtin_popcount(mask);
    switch (i->kind) {
    case LANEWISE:
      if (mask) i->run(x, i, w->file, mask);
      me->pc++;
      continue;
    case BRANCH:
      if (!branch(x, w, g, i, mask)) return;
      continue;
    case END:
      end(x, w, g, mask);
      return;
    case WARPWIDE: case BARRIER:
      if (!mask) {
        me->pc++;
        continue;
      }
      if (!everybody(w, i, mask)) {
        me->waits = 1;
        return;
      }
      i->run(x, i, w->file, mask);
      me->pc++;
      if (i->kind == BARRIER) {
        w->barrier = i;
        return;
      }
    }
  }
  if (me->pc >= x->kernel->count) end(x, w, g, me->mask);
}

// run_warp runs a warp until all of it has ended or is at a barrier.
static void run_warp(struct machine *x, struct warp *w) {
  x->now = w;
  while (w->group_count && !w->barrier) {
    int limit, g = furthest(x, w, &limit);
    if (g >= 0) {
      run_group(x, w, g, limit);
      continue;
    }
    struct group *stuck = &w->groups[0];
    x->at = &x->kernel->code[stuck->pc];
    fail(x, __builtin_ctz(stuck->mask), PTX_FAILED, "lanes %#x of warp %d wait for lanes %#x, which are elsewhere", stuck->mask, w->id,
         w->alive & ~stuck->mask);
  }
}

// Barriers.

void barrier_arrive(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  u32 lane = (u32)__builtin_ctz(mask);
  if (((u32 *)(file + i->a[0]))[lane] != 0) fail(x, (int)lane, PTX_FAILED, "barriers other than 0 are not known here");
  if (i->a[2] >= 0 && ((u32 *)(file + i->a[2]))[lane] != (u32)x->threads)
    fail(x, (int)lane, PTX_FAILED, "a barrier of some threads is not known here");
  x->arrived += __builtin_popcount(mask);
  if (i->which == BARRIER_ONLY) return;
  u32 p = predicate(i, file, 1) & mask;
  x->sum += (u32)__builtin_popcount(p);
  x->some |= p != 0;
  x->all &= p == mask;
}

// barrier_pass lets all warps go on.
static void barrier_pass(struct machine *x) {
  const struct instruction *first = NULL;
  for (int n = 0; n < x->warp_count; n++) {
    struct warp *w = &x->warps[n];
    const struct instruction *i = w->barrier;
    if (!i) continue;
    if (!first) first = i;
    x->now = w, x->at = i;
    if ((i->which || first->which) && i != first) fail(x, 0, PTX_FAILED, "warps reduce at different barriers");
    u32 out[WARP], p = i->which == BARRIER_ALL ? x->all : x->some;
    LANES out[l] = x->sum;
    if (i->which == BARRIER_SUM) put_32(w->file, i->d[0], w->alive, out);
    else if (i->which) set_predicate(w->file, i->d[0], w->alive, p ? everyone : 0);
    w->barrier = NULL;
  }
  x->arrived = 0, x->sum = 0, x->some = 0, x->all = 1;
  x->epoch++;
  if (x->kernel->list_count) products_agree(x, 0);
}

static void fill(struct machine *x, struct warp *w, enum special s, u32 value) {
  int slot = x->kernel->specials[s];
  if (slot) LANES ((u32 *)(w->file + slot))[l] = value;
}

static void begin_block(struct machine *x) {
  memset(x->shared, 0xff, x->shared_bytes); // NaN
  x->epoch++;
  x->first_epoch = x->epoch;
  x->steps = 0;
  x->live = x->threads;
  x->arrived = 0, x->sum = 0, x->some = 0, x->all = 1;
  for (int n = 0; n < x->warp_count; n++) {
    struct warp *w = &x->warps[n];
    int count = x->threads - n * WARP;
    w->alive = count >= WARP ? everyone : (1u << count) - 1;
    w->group_count = 1;
    w->groups[0] = (struct group){w->alive, 0, 0};
    w->copy_count = 0;
    memset(w->committed, 0, sizeof w->committed);
    products_forget(w);
    for (int c = 0; c < 3; c++) fill(x, w, CTAID_X + c, x->block[c]);
  }
}

static void run_block(struct machine *x) {
  begin_block(x);
  while (x->live) {
    for (int n = 0; n < x->warp_count; n++)
      run_warp(x, &x->warps[x->launch->checks & PTX_REVERSE ? x->warp_count - 1 - n : n]);
    if (x->arrived == x->live) {
      if (x->live) barrier_pass(x);
      continue;
    }
    for (int n = 0; n < x->warp_count; n++)
      if (x->warps[n].barrier) x->now = &x->warps[n], x->at = x->warps[n].barrier;
    fail(x, 0, PTX_FAILED, "%d of %d threads wait at a barrier that the others do not come to", x->arrived, x->live);
  }
  if (x->kernel->list_count) products_agree(x, 1);
}

// fill_warp fills what differs from lane to lane and stays.
static void fill_warp(struct machine *x, struct warp *w) {
  const unsigned *block = x->launch->block, *grid = x->launch->grid;
  u32 *lanes[SPECIALS] = {0}, unused[WARP];
  for (int s = 0; s < SPECIALS; s++) lanes[s] = x->kernel->specials[s] ? (u32 *)(w->file + x->kernel->specials[s]) : unused;
  LANES {
    unsigned thread = (unsigned)(w->id * WARP + l);
    u32 below = (1u << l) - 1, me = 1u << l;
    lanes[TID_X][l] = thread % block[0], lanes[TID_Y][l] = thread / block[0] % block[1], lanes[TID_Z][l] = thread / block[0] / block[1];
    for (int c = 0; c < 3; c++) lanes[NTID_X + c][l] = block[c], lanes[NCTAID_X + c][l] = grid[c];
    lanes[LANEID][l] = (u32)l, lanes[WARPID][l] = (u32)w->id, lanes[NWARPID][l] = (u32)x->warp_count;
    lanes[MASK_EQ][l] = me, lanes[MASK_LT][l] = below, lanes[MASK_LE][l] = below | me;
    lanes[MASK_GT][l] = ~(below | me), lanes[MASK_GE][l] = ~below;
    lanes[DYNAMIC_SHARED][l] = x->launch->shared;
  }
}

// keep_memory lets what one launch has freed stay for the next, which would else cost page faults.
__attribute__((constructor)) static void keep_memory(void) {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
}

static void prepare(struct machine *x) {
  struct ptx_kernel *k = x->kernel;
  x->shared = aligned_alloc(64, (x->shared_bytes + 127) & ~63u);
  x->files = aligned_alloc(64, (size_t)x->warp_count * (size_t)k->file_bytes);
  if (k->local_bytes) x->local = malloc((size_t)x->warp_count * WARP * k->local_bytes);
  if (x->launch->checks & (PTX_RACES | PTX_UNSET)) x->shadow = calloc(x->shared_bytes / (u32)k->granule + 1, sizeof *x->shadow);
  if (!x->shared || !x->files || (k->local_bytes && !x->local)) fail(x, 0, PTX_FAILED, "no memory for the machine");
  if (x->local) memset(x->local, 0xff, (size_t)x->warp_count * WARP * k->local_bytes);
  for (int n = 0; n < x->warp_count; n++) {
    struct warp *w = &x->warps[n];
    w->id = n;
    w->file = x->files + (size_t)n * (size_t)k->file_bytes;
    memcpy(w->file, k->image, (size_t)k->file_bytes);
    fill_warp(x, w);
    if (!k->list_count) continue;
    w->accumulators = calloc(MOST_ACCUMULATORS, sizeof *w->accumulators);
    if (!w->accumulators) fail(x, 0, PTX_FAILED, "no memory for the machine");
  }
}

static void run_blocks(struct machine *x) {
  const unsigned *grid = x->launch->grid;
  u64 blocks = (u64)grid[0] * grid[1] * grid[2];
  const unsigned *exact = x->kernel->threads_exact, *block = x->launch->block;
  if (x->kernel->threads_most && (unsigned)x->threads > x->kernel->threads_most)
    fail(x, 0, PTX_FAILED, "%d threads a block, it is made for at most %u", x->threads, x->kernel->threads_most);
  if (exact[0] && memcmp(exact, block, 3 * sizeof *block))
    fail(x, 0, PTX_FAILED, "blocks of (%u,%u,%u), it is made for (%u,%u,%u)", block[0], block[1], block[2], exact[0], exact[1], exact[2]);
  prepare(x);
  for (u64 n = 0; n < blocks; n++) {
    u64 at = x->launch->checks & PTX_REVERSE ? blocks - 1 - n : n;
    x->block[0] = (u32)(at % grid[0]), x->block[1] = (u32)(at / grid[0] % grid[1]), x->block[2] = (u32)(at / grid[0] / grid[1]);
    run_block(x);
  }
}

int ptx_run(const struct ptx_launch *launch, const struct ptx_host *host, char *error, size_t size, uint64_t *executed) {
  struct machine *x = calloc(1, sizeof *x);
  if (!x) return snprintf(error, size, "no memory for the machine"), PTX_FAILED;
  x->launch = launch, x->host = host, x->kernel = launch->kernel;
  x->error = error, x->error_size = size;
  x->threads = (int)(launch->block[0] * launch->block[1] * launch->block[2]);
  x->warp_count = (x->threads + WARP - 1) / WARP;
  x->shared_bytes = ((launch->kernel->static_shared + 15) & ~15u) + launch->shared;
  int result = setjmp(x->failed);
  if (!result) run_blocks(x);
  *executed = x->executed;
  for (int n = 0; n < x->warp_count; n++) {
    struct warp *w = &x->warps[n];
    free(w->copies), free(w->products), free(w->accumulators), free(w->fenced);
  }
  free(x->files), free(x->shared), free(x->shadow), free(x->local);
  free(x);
  return result;
}
