//go:build ignore

// Products of warpgroups: wgmma. Four warps multiply 64 rows, and each executes its own 16. A
// product runs beside the warp from wgmma.mma_async to the wgmma.wait_group of its group. In this
// time its accumulators hold a NaN, and nothing may write the registers or the shared memory that
// it uses: operands are read when it begins and again when it ends.
#include <stdlib.h>
#include <string.h>

#include "machine.h"

enum { ROWS = 16, K = 16 };
static const u32 in_flight = 0x7fffdead; // in accumulators

// watched returns where a lane-wise operand of a product is in the register file.
static u32 *watched(struct machine *x, char *file, int n) { return (u32 *)(file + x->kernel->watched[n]); }

// fenced returns the value of a watched register at the last wgmma.fence.
static u32 *fenced(struct warp *w, int n) { return w->fenced + n * WARP; }

// indices returns the watched registers of a product: accumulators, then the left side if it has
// registers.
static const int *indices(struct machine *x, const struct instruction *i) { return x->kernel->lists + i->list; }

static void needs_warp(struct machine *x, u32 mask) {
  if (mask != everyone) fail(x, 0, PTX_FAILED, "a warp without some of its lanes");
  if (((x->now->id | 3) + 1) * WARP > x->threads) fail(x, 0, PTX_FAILED, "a warpgroup without some of its warps");
}

void product_fence(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  struct warp *w = x->now;
  needs_warp(x, mask);
  int count = x->kernel->watched_count;
  if (!w->fenced) w->fenced = malloc((size_t)(count + 1) * WARP * sizeof *w->fenced);
  for (int n = 0; n < count; n++) memcpy(fenced(w, n), watched(x, file, n), WARP * sizeof(u32));
  w->is_fenced = 1;
}

// uniform returns a number that all lanes have to give.
static u64 uniform(struct machine *x, const char *file, int slot) {
  const u64 *values = (const u64 *)(file + slot);
  LANES if (values[l] != values[0]) fail(x, l, PTX_FAILED, "lanes give different descriptors");
  return values[0];
}

// A descriptor says where 8 × 8 blocks of a matrix lie. One row of such a block has 16 bytes.
struct descriptor { u32 start, leading, stride; };

static struct descriptor descriptor(struct machine *x, u64 bits) {
  struct descriptor d = {(u32)(bits & 0x3fff) << 4, (u32)(bits >> 16 & 0x3fff) << 4, (u32)(bits >> 32 & 0x3fff) << 4};
  if (bits >> 62 != 1) fail(x, 0, PTX_FAILED, "descriptor %#lx: only the swizzle of 128 bytes is known here", (unsigned long)bits);
  if (bits & 0x3fffc000c000c000) fail(x, 0, PTX_FAILED, "descriptor %#lx: bits that have no meaning here", (unsigned long)bits);
  if (d.start & 0x380) fail(x, 0, PTX_FAILED, "descriptor %#lx: shared+%u is in no first row of a swizzle", (unsigned long)bits, d.start);
  return d;
}

// piece returns 16 bytes of a swizzled matrix.
static const u16 *piece(struct machine *x, u32 at) { return (const u16 *)shared_async(x, at ^ (at >> 7 & 7) << 4); }

// gather reads rows [first, first+count) of a matrix with 16 columns. Transposed the columns are
// rows of the memory.
static void gather(struct machine *x, struct descriptor d, int transposed, u32 first, u32 count, u16 (*to)[K]) {
  for (u32 r = 0; !transposed && r < count; r++)
    for (u32 p = 0; p < 2; p++) {
      u32 row = first + r;
      memcpy(to[r] + p * 8, piece(x, d.start + row / 8 * d.stride + row % 8 * 128 + p * 16), 16);
    }
  for (u32 k = 0; transposed && k < K; k++)
    for (u32 r = 0; r < count; r += 8) {
      u32 row = first + r;
      const u16 *from = piece(x, d.start + row / 64 * d.leading + k / 8 * d.stride + k % 8 * 128 + row % 64 / 8 * 16);
      for (int e = 0; e < 8; e++) to[r + (u32)e][k] = from[e];
    }
}

// operands reads both sides of a product: 16 rows of the left one, and all of the right one.
static void operands(struct machine *x, const struct instruction *i, const u64 *descriptors, char *file, u16 (*a)[K], u16 (*b)[K]) {
  if (i->which & LEFT_REGISTERS) {
    for (int r = 0; r < 4; r++) LANES {
      u32 pair = watched(x, file, indices(x, i)[i->n / 2 + r])[l];
      u16 *to = a[(l >> 2) + (r & 1) * 8] + (l & 3) * 2 + (r >> 1) * 8;
      to[0] = (u16)pair, to[1] = (u16)(pair >> 16);
    }
  } else gather(x, descriptor(x, descriptors[0]), i->which & LEFT_TRANSPOSED, (u32)x->now->id % 4 * ROWS, ROWS, a);
  gather(x, descriptor(x, descriptors[1]), i->which & RIGHT_TRANSPOSED, 0, (u32)i->n, b);
}

// element returns the element of a matrix of 16 rows that register r of a lane has.
static float *element(struct accumulator *c, int r, int l) {
  return &c->values[(l >> 2) + (r >> 1 & 1) * 8][(r >> 2) * 8 + (l & 3) * 2 + (r & 1)];
}

// accumulator returns the index of the accumulator of a product that begins: one in flight has the
// same registers or none of them.
static int accumulator(struct machine *x, const struct instruction *i) {
  struct warp *w = x->now;
  int free = -1, count = i->n / 2;
  const int *mine = indices(x, i);
  for (int n = 0; n < MOST_ACCUMULATORS; n++) {
    struct accumulator *c = &w->accumulators[n];
    if (!c->pending) {
      if (free < 0) free = n;
      continue;
    }
    const int *other = indices(x, c->of);
    if (c->of->n == i->n && !memcmp(mine, other, (size_t)count * sizeof *mine)) return n;
    for (int a = 0; a < count; a++)
      for (int b = 0; b < c->of->n / 2; b++)
        if (mine[a] == other[b]) fail(x, 0, PTX_FAILED, "an accumulator belongs to another product, which nobody has waited for");
  }
  if (free < 0) fail(x, 0, PTX_FAILED, "more than %d accumulators are in flight", MOST_ACCUMULATORS);
  w->accumulators[free].of = i;
  return free;
}

// begin_product takes the registers of a product, which must be as they were at the fence.
static void begin_product(struct machine *x, const struct instruction *i, char *file, struct accumulator *c) {
  struct warp *w = x->now;
  const int *list = indices(x, i);
  int count = i->n / 2, first = c->pending ? count : 0;
  if (!w->is_fenced) fail(x, 0, PTX_FAILED, "no wgmma.fence is before the first product");
  for (int r = first; r < count + (i->which & LEFT_REGISTERS ? 4 : 0); r++)
    LANES if (watched(x, file, list[r])[l] != fenced(w, list[r])[l])
      fail(x, l, PTX_FAILED, "register %d of a product was written since the last wgmma.fence", r);
  for (int r = first; r < count; r++) LANES {
    memcpy(element(c, r, l), &watched(x, file, list[r])[l], 4);
    watched(x, file, list[r])[l] = fenced(w, list[r])[l] = in_flight;
  }
}

// say adds to the hash of a warp's products. All warps of a warpgroup have the same hash.
static void say(struct warp *w, u64 value) { w->products_said = (w->products_said ^ value) * 0x9e3779b97f4a7c15 + 1; }

void product_begin(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  struct warp *w = x->now;
  needs_warp(x, mask);
  if (w->product_count == w->product_room) {
    w->product_room = w->product_room ? 2 * w->product_room : 16;
    w->products = realloc(w->products, (size_t)w->product_room * sizeof *w->products);
    if (!w->products) abort();
  }
  struct product *p = &w->products[w->product_count];
  p->of = i, p->group = w->products_committed, p->accumulator = accumulator(x, i);
  p->descriptors[0] = i->which & LEFT_REGISTERS ? 0 : uniform(x, file, i->a[0]);
  p->descriptors[1] = uniform(x, file, i->a[1]);
  u32 adds = predicate(i, file, 2);
  if (adds && adds != everyone) fail(x, 0, PTX_FAILED, "some lanes add to their accumulators and others do not");
  p->adds = adds != 0;
  say(w, (u64)(i - x->kernel->code)), say(w, p->descriptors[0]), say(w, p->descriptors[1]), say(w, adds);
  struct accumulator *c = &w->accumulators[p->accumulator];
  begin_product(x, i, file, c);
  c->pending++;
  operands(x, i, p->descriptors, file, p->a, p->b);
  w->product_count++;
}

void product_commit(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  needs_warp(x, mask);
  x->now->products_committed++;
}

// multiply adds a product to its accumulator, summed in float64.
static void multiply(const struct product *p, struct accumulator *c) {
  int n = p->of->n;
  double b[K][MOST_COLUMNS], sum[MOST_COLUMNS];
  float (*number)(u32) = p->of->which & FLOAT16 ? of_f16 : of_bf16;
  for (int k = 0; k < K; k++)
    for (int j = 0; j < n; j++) b[k][j] = number(p->b[j][k]);
  for (int r = 0; r < ROWS; r++) {
    for (int j = 0; j < n; j++) sum[j] = p->adds ? c->values[r][j] : 0;
    for (int k = 0; k < K; k++) {
      double a = number(p->a[r][k]);
      for (int j = 0; j < n; j++) sum[j] += a * b[k][j];
    }
    for (int j = 0; j < n; j++) c->values[r][j] = (float)sum[j];
  }
}

// end_product executes a product. Its operands must be as they were when it began.
static void end_product(struct machine *x, const struct product *p, char *file) {
  struct warp *w = x->now;
  u16 a[ROWS][K], b[MOST_COLUMNS][K];
  operands(x, p->of, p->descriptors, file, a, b);
  if (memcmp(a, p->a, sizeof a)) fail(x, 0, PTX_FAILED, "the left side of a product changed before the product was waited for");
  if (memcmp(b, p->b, (size_t)p->of->n * sizeof *b)) fail(x, 0, PTX_FAILED, "the right side of a product changed before the product was waited for");
  struct accumulator *c = &w->accumulators[p->accumulator];
  multiply(p, c);
  if (--c->pending) return;
  const int *list = indices(x, c->of);
  for (int r = 0; r < c->of->n / 2; r++) LANES {
    u32 *to = &watched(x, file, list[r])[l];
    if (*to != in_flight) fail(x, l, PTX_FAILED, "accumulator %d was written before its product was waited for", r);
    memcpy(to, element(c, r, l), 4);
    fenced(w, list[r])[l] = *to;
  }
}

// product_wait ends the products of all but the last n groups, in their order.
void product_wait(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  struct warp *w = x->now;
  needs_warp(x, mask);
  int done = 0;
  while (done < w->product_count && w->products[done].group + (u32)i->n < w->products_committed) end_product(x, &w->products[done++], file);
  w->product_count -= done;
  memmove(w->products, w->products + done, (size_t)w->product_count * sizeof *w->products);
}

// products_agree checks that the warps of each warpgroup have executed the same products. At the end
// of a block no product may be in flight.
void products_agree(struct machine *x, int at_end) {
  for (int n = 0; n < x->warp_count; n++) {
    struct warp *w = &x->warps[n];
    x->now = w;
    if (w->products_said != x->warps[n & ~3].products_said) fail(x, 0, PTX_FAILED, "the warps of a warpgroup execute different products");
    if (at_end && w->product_count) fail(x, 0, PTX_FAILED, "the block ends and nobody has waited for a product");
  }
}

void products_forget(struct warp *w) {
  w->product_count = 0, w->products_committed = 0, w->products_said = 0, w->is_fenced = 0;
  for (int n = 0; n < MOST_ACCUMULATORS && w->accumulators; n++) w->accumulators[n].pending = 0;
}
