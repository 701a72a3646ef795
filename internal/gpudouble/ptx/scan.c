//go:build ignore

// Words, numbers and names of a text, and the slots of a register file.
#define _GNU_SOURCE
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"

void refuse(struct parser *p, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  int line = 1;
  for (const char *c = p->module->text; c < p->p; c++) line += *c == '\n';
  struct ptx_kernel *k = p->kernel;
  snprintf(p->error, p->error_size, "line %d%s%.*s: %s", line, k ? ", kernel " : "", k ? k->name_length : 0, k ? k->name : "", text);
  longjmp(p->failed, 1);
}

void *grow(void *list, int count, int *room, size_t size) {
  if (count < *room) return list;
  *room = *room ? 2 * *room : 64;
  list = realloc(list, (size_t)*room * size);
  if (!list) abort();
  return list;
}

// The scanner.

void skip_space(struct parser *p) {
  while (isspace((unsigned char)*p->p)) p->p++;
}

struct word next_word(struct parser *p) {
  skip_space(p);
  struct word w = {p->p, 0};
  for (;; p->p += *p->p == ':' ? 2 : 1) // "::" is in modifiers
    if (!isalnum((unsigned char)*p->p) && !(*p->p && strchr("_$%.", *p->p)) && strncmp(p->p, "::", 2)) break;
  w.length = (int)(p->p - w.at);
  return w;
}

int accept(struct parser *p, char c) {
  skip_space(p);
  if (*p->p != c) return 0;
  p->p++;
  return 1;
}

void expect(struct parser *p, char c) {
  if (!accept(p, c)) refuse(p, "there is no '%c' before \"%.30s\"", c, p->p);
}

s64 number(struct parser *p) {
  skip_space(p);
  int negative = accept(p, '-');
  char *end;
  u64 value = strtoull(p->p, &end, 0);
  if (end == p->p || !isdigit((unsigned char)*p->p)) refuse(p, "there is no number before \"%.30s\"", p->p);
  p->p = *end == 'U' ? end + 1 : end;
  return (s64)(negative ? 0 - value : value);
}

int is(struct word w, const char *text) { return strlen(text) == (size_t)w.length && !memcmp(w.at, text, (size_t)w.length); }
int same(struct word a, struct word b) { return a.length == b.length && !memcmp(a.at, b.at, (size_t)a.length); }

static const char *const type_names[TYPES] = {
  [PRED] = "pred", [B8] = "b8", [U8] = "u8", [S8] = "s8", [B16] = "b16", [U16] = "u16", [S16] = "s16", [BF16] = "bf16", [F16] = "f16",
  [B32] = "b32", [U32] = "u32", [S32] = "s32", [F32] = "f32", [BF16X2] = "bf16x2", [F16X2] = "f16x2",
  [B64] = "b64", [U64] = "u64", [S64] = "s64", [F64] = "f64",
};

enum type type_of(struct word w) {
  for (enum type t = PRED; t < TYPES; t++)
    if (is(w, type_names[t])) return t;
  return NO_TYPE;
}

// Names.

struct name *name_add(struct parser *p, struct names *names, struct name name) {
  if (!name.word.length) refuse(p, "there is no name before \"%.30s\"", p->p);
  names->list = grow(names->list, names->count, &names->room, sizeof *names->list);
  names->list[names->count] = name;
  return &names->list[names->count++];
}

// numbered tells whether a word is one of the registers of a name, and which.
static int numbered(const struct name *n, struct word w, int *index) {
  int digits = w.length - n->word.length;
  if (digits < 1 || digits > 6 || memcmp(w.at, n->word.at, (size_t)n->word.length)) return 0;
  *index = 0;
  for (const char *c = w.at + n->word.length; c < w.at + w.length; c++) {
    if (!isdigit((unsigned char)*c)) return 0;
    *index = *index * 10 + *c - '0';
  }
  return *index < n->count;
}

struct name *name_find(struct parser *p, struct word w) {
  static _Thread_local struct name one; // of many registers
  for (int n = p->names.count - 1; n >= 0; n--) {
    struct name *name = &p->names.list[n];
    int index;
    if (!name->count && same(name->word, w)) return name;
    if (!name->count || !numbered(name, w, &index)) continue;
    one = *name;
    one.at += index * (type_sizes[name->type] == 8 ? 256 : 128);
    return &one;
  }
  return NULL;
}

// Slots.

enum { MOST_FILE = 1 << 23 };

int slot_add(struct parser *p, int size) {
  struct ptx_kernel *k = p->kernel;
  int at = k->file_bytes, bytes = size == 8 ? 256 : 128;
  if (at + bytes > MOST_FILE) refuse(p, "too many registers");
  k->file_bytes += bytes;
  if (k->file_bytes > k->file_room) {
    k->file_room = 2 * k->file_bytes;
    k->image = realloc(k->image, (size_t)k->file_room);
    if (!k->image) abort();
  }
  memset(k->image + at, 0xff, (size_t)bytes);
  return at;
}

void slot_fill(struct ptx_kernel *k, int at, u64 value, int size) {
  LANES if (size == 8) ((u64 *)(k->image + at))[l] = value;
  else ((u32 *)(k->image + at))[l] = (u32)value;
}

int slot_constant(struct parser *p, u64 value, int size) {
  struct ptx_kernel *k = p->kernel;
  for (int n = 0; n < k->constant_count; n++)
    if (k->constants[n].value == value && k->constants[n].size == size) return k->constants[n].at;
  int at = slot_add(p, size);
  slot_fill(k, at, value, size);
  k->constants = grow(k->constants, k->constant_count, &k->constant_room, sizeof *k->constants);
  k->constants[k->constant_count++] = (struct constant){value, size, at};
  return at;
}
