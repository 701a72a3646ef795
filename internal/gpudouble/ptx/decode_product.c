//go:build ignore

// wgmma: the instructions of product.c by their names.
#include <stdio.h>

#include "parse.h"

// watch adds a register to the list of a product.
static void watch(struct parser *p, int slot) {
  struct ptx_kernel *k = p->kernel;
  int n = 0;
  while (n < k->watched_count && k->watched[n] != slot) n++;
  if (n == k->watched_count) {
    k->watched = grow(k->watched, k->watched_count, &k->watched_room, sizeof *k->watched);
    k->watched[k->watched_count++] = slot;
  }
  k->lists = grow(k->lists, k->list_count, &k->list_room, sizeof *k->lists);
  k->lists[k->list_count++] = n;
}

// take_columns takes the shape m64nNk16 and returns N, or 0.
static int take_columns(struct parts *s) {
  for (int n = 8; n <= MOST_COLUMNS; n += 8) {
    char shape[16];
    snprintf(shape, sizeof shape, "m64n%dk16", n);
    if (take(s, shape)) return n;
  }
  return 0;
}

static void decode_product(struct parser *p, struct instruction *i, struct parts *s) {
  int registers[MOST_COLUMNS / 2], count = 0;
  need(p, s, take(s, "mma_async") && (i->n = take_columns(s)) && take(s, "f32"));
  if (take(s, "f16")) need(p, s, take(s, "f16")), i->which = FLOAT16;
  else need(p, s, take(s, "bf16") && take(s, "bf16"));
  i->list = p->kernel->list_count;
  count = elements(p, registers, MOST_COLUMNS / 2, 4, result);
  for (int n = 0; n < count; n++) {
    need(p, s, count == i->n / 2 && registers[n] >= 0);
    watch(p, registers[n]);
  }
  expect(p, ',');
  skip_space(p);
  if (*p->p == '{') {
    i->which |= LEFT_REGISTERS;
    count = elements(p, registers, 4, 4, value);
    need(p, s, count == 4);
    for (int n = 0; n < count; n++) watch(p, registers[n]);
  } else i->a[0] = value(p, 8);
  expect(p, ',');
  i->a[1] = value(p, 8);
  expect(p, ',');
  condition(p, i, 2);
  for (int side = 0; side < 2; side++) { // the signs of the sides
    expect(p, ',');
    need(p, s, number(p) == 1);
  }
  for (int side = (i->which & LEFT_REGISTERS) != 0; side < 2; side++) {
    expect(p, ',');
    if (number(p)) i->which |= side ? RIGHT_TRANSPOSED : LEFT_TRANSPOSED;
  }
  i->run = product_begin;
}

void decode_warpgroup(struct parser *p, struct instruction *i, struct parts *s) {
  need(p, s, take(s, "sync") && take(s, "aligned"));
  i->kind = WARPWIDE;
  if (take(s, "fence")) i->run = product_fence;
  else if (take(s, "commit_group")) i->run = product_commit;
  else if (take(s, "wait_group")) {
    i->n = (int)number(p);
    need(p, s, i->n >= 0 && i->n < 8);
    i->run = product_wait;
  } else decode_product(p, i, s);
}
