//go:build ignore

// Modifiers and operands of an instruction.
#define _GNU_SOURCE
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"

struct parts split(struct parser *p, struct word w) {
  struct parts s = {.whole = w, .taken = 1};
  const char *at = w.at, *end = w.at + w.length;
  for (const char *c = at;; c++) {
    if (c < end && *c != '.') continue;
    if (s.count == MOST_PARTS) refuse(p, "%.*s has too many modifiers", w.length, w.at);
    s.list[s.count++] = (struct word){at, (int)(c - at)};
    if (c == end) return s;
    at = c + 1;
  }
}

int take(struct parts *s, const char *name) {
  for (int n = 1; n < s->count; n++)
    if (!(s->taken >> n & 1) && is(s->list[n], name)) return s->taken |= 1u << n, 1;
  return 0;
}

int take_one(struct parts *s, const char *const names[]) {
  for (int n = 0; names[n]; n++)
    if (take(s, names[n])) return n;
  return -1;
}

void take_all(struct parts *s, const char *const names[]) {
  for (int n = 0; names[n]; n++) take(s, names[n]);
}

enum type take_type(struct parts *s) {
  for (int n = 1; n < s->count; n++) {
    enum type t = s->taken >> n & 1 ? NO_TYPE : type_of(s->list[n]);
    if (t) return s->taken |= 1u << n, t;
  }
  return NO_TYPE;
}

void need(struct parser *p, const struct parts *s, int condition) {
  if (!condition) refuse(p, "the machine has no instruction %.*s", s->whole.length, s->whole.at);
}

// Operands.

const char *const special_names[SPECIALS] = {
  "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z",
  "%laneid", "%warpid", "%nwarpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%dynamic_smem_size",
};

static int special(struct parser *p, struct word w) {
  for (int s = 0; s < SPECIALS; s++) {
    if (!is(w, special_names[s])) continue;
    int *slot = &p->kernel->specials[s];
    return *slot ? *slot : (*slot = slot_add(p, 4));
  }
  return 0;
}

// literal parses 12, -3, 0x7f, 0f3F800000 or 0d3FF0000000000000.
static int literal(struct parser *p, int size) {
  int digits = p->p[0] != '0' ? 0 : strchr("fF", p->p[1]) ? 8 : strchr("dD", p->p[1]) ? 16 : 0;
  if (!digits || !p->p[1]) {
    u64 value = (u64)number(p);
    return slot_constant(p, size == 8 ? value : (u32)value, size);
  }
  char *end;
  u64 value = strtoull(p->p + 2, &end, 16);
  if (end - p->p != digits + 2 || 2 * size != digits) refuse(p, "a number of %d bytes is expected before \"%.30s\"", size, p->p);
  p->p = end;
  return slot_constant(p, value, size);
}

// place returns the address that the name of a variable means, in a slot.
static int place(struct parser *p, struct name *n, int size) {
  s64 at = n->at;
  if (n->kind == CALL_PARAMETER) refuse(p, "the address of %.*s is taken", n->word.length, n->word.at);
  if (n->kind == SHARED_VARIABLE) at = shared_place(p, n);
  if (n->kind == SHARED_VARIABLE && at == DYNAMIC) {
    int *slot = &p->dynamic[size == 8];
    return *slot ? *slot : (*slot = slot_add(p, size));
  }
  if (accept(p, '+')) at += number(p);
  return slot_constant(p, size == 8 ? (u64)at : (u32)at, size);
}

// value parses an operand of 4 or 8 bytes, and returns its slot.
int value(struct parser *p, int size) {
  skip_space(p);
  if (isdigit((unsigned char)*p->p) || *p->p == '-') return literal(p, size);
  struct word w = next_word(p);
  struct name *n = name_find(p, w);
  if (!n) {
    int slot = size == 4 ? special(p, w) : 0;
    if (!slot) refuse(p, "unknown operand %.*s of %d bytes", w.length ? w.length : 20, w.at, size);
    return slot;
  }
  if (n->kind != REGISTER) return place(p, n, size);
  if (n->type == PRED || (type_sizes[n->type] == 8) != (size == 8)) refuse(p, "%.*s is no register of %d bytes", w.length, w.at, size);
  return (int)n->at;
}

// result parses a register to write to, or _ for none.
int result(struct parser *p, int size) {
  skip_space(p);
  const char *begin = p->p;
  struct word w = next_word(p);
  if (is(w, "_")) return -1;
  struct name *n = name_find(p, w);
  if (!n || n->kind != REGISTER) refuse(p, "%.*s is no register", w.length ? w.length : 20, w.at);
  p->p = begin;
  return value(p, size);
}

int predicate_register(struct parser *p) {
  struct word w = next_word(p);
  if (is(w, "_")) return -1;
  struct name *n = name_find(p, w);
  if (!n || n->kind != REGISTER || n->type != PRED) refuse(p, "%.*s is no predicate", w.length ? w.length : 20, w.at);
  return (int)n->at;
}

// condition parses argument n: a predicate, which may be negated, or a number that is one or none.
void condition(struct parser *p, struct instruction *i, int n) {
  skip_space(p);
  if (isdigit((unsigned char)*p->p) || *p->p == '-') {
    i->a[n] = slot_constant(p, number(p) ? everyone : 0, 4);
    return;
  }
  if (accept(p, '!')) i->negated |= 1u << n;
  i->a[n] = predicate_register(p);
  if (i->a[n] < 0) refuse(p, "a predicate is missing");
}

// width returns how many bytes the register at p has, 0 if there is none.
int width(struct parser *p) {
  const char *begin = p->p;
  struct word w = next_word(p);
  struct name *n = name_find(p, w);
  p->p = begin;
  return !n || n->kind != REGISTER ? 0 : type_sizes[n->type] == 8 ? 8 : 4;
}

int slot_size(enum type t) { return type_sizes[t] == 8 ? 8 : 4; }

// address parses [base+offset].
void address(struct parser *p, struct instruction *i) {
  expect(p, '[');
  skip_space(p);
  const char *begin = p->p;
  struct word w = next_word(p);
  struct name *n = name_find(p, w);
  i->wide_address = 1;
  i->offset = 0;
  if (n && n->kind == CALL_PARAMETER && i->space == PARAM) {
    i->space = LOCAL;
    i->a[0] = slot_constant(p, (u64)n->at, 8);
  } else {
    i->wide_address = !n || n->kind != REGISTER || type_sizes[n->type] == 8;
    p->p = begin;
    i->a[0] = value(p, i->wide_address ? 8 : 4);
  }
  if (accept(p, '+')) i->offset = number(p);
  else if (*p->p == '-') i->offset = number(p);
  expect(p, ']');
}

// elements parses {a, b, …} or a. take is value or result.
int elements(struct parser *p, int *to, int most, int size, int (*one)(struct parser *, int)) {
  int n = 0;
  if (!accept(p, '{')) {
    to[0] = one(p, size);
    return 1;
  }
  do {
    if (n == most) refuse(p, "more than %d elements", most);
    to[n++] = one(p, size);
  } while (accept(p, ','));
  expect(p, '}');
  return n;
}
