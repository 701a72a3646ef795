//go:build ignore

// Instructions by their names: a function for each family of them.
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "parse.h"

struct instruction *emit(struct parser *p, struct instruction i) {
  struct ptx_kernel *k = p->kernel;
  k->code = grow(k->code, k->count, &k->code_room, sizeof *k->code);
  k->code[k->count] = i;
  return &k->code[k->count++];
}

// Families of instructions. Each parses the operands too.
typedef void decode(struct parser *, struct instruction *, struct parts *);

// memory_space takes what loads, stores and atomics say of memory. How they are cached and ordered
// changes nothing here.
static void memory_space(struct instruction *i, struct parts *s) {
  static const char *const spaces[] = {"", "global", "const", "shared", "local", "param", NULL};
  static const char *const ignored[] = {
    "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt",
    "L1::evict_normal", "L1::evict_first", "L1::evict_last", "L1::no_allocate", "L2::64B", "L2::128B", "L2::256B", NULL,
  };
  int space = take_one(s, spaces + 1);
  i->space = space < 0 ? GENERIC : (enum space)(space + 1);
  take_all(s, ignored);
}

// granule notes how small the accesses of a kernel to shared memory are.
static void granule(struct parser *p, const struct instruction *i) {
  int size = type_sizes[i->type];
  if ((i->space == SHARED || i->space == GENERIC) && size < p->kernel->granule) p->kernel->granule = size;
}

static int vector(struct parts *s) { return take(s, "v2") ? 2 : take(s, "v4") ? 4 : 1; }

// resized emits the conversion between a register of 64 bits and an element of fewer.
static void resized(struct parser *p, const struct instruction *of, enum type to, enum type from, int d, int a) {
  struct instruction i = *of;
  i.type = to, i.from = from, i.which = AS_IT_IS, i.mode = 0;
  i.d[0] = d, i.a[0] = a;
  if (!convert_find(&i)) refuse(p, "a register of 64 bits is no place for this");
  emit(p, i);
}

// low parses a value of 4 bytes, which may be the lower half of a register of 8.
static int low(struct parser *p, const struct instruction *i) {
  skip_space(p);
  if (width(p) != 8) return value(p, 4);
  int wide = value(p, 8), half = slot_add(p, 4);
  resized(p, i, U32, U64, half, wide);
  return half;
}

// is_stored tells whether memory is read and written in a type.
static int is_stored(enum type t) { return t != PRED && t != BF16 && t != BF16X2 && t != F16 && t != F16X2; }

static void decode_load(struct parser *p, struct instruction *i, struct parts *s) {
  memory_space(i, s);
  i->n = vector(s);
  need(p, s, (i->type = take_type(s)) && is_stored(i->type));
  int size = slot_size(i->type), wide = 0, to = 0;
  skip_space(p);
  if (i->n == 1 && size == 4 && width(p) == 8) {
    wide = 1;
    to = result(p, 8);
    i->d[0] = slot_add(p, 4);
  } else if (elements(p, i->d, 4, size, result) != i->n) refuse(p, "%d registers are expected", i->n);
  expect(p, ',');
  address(p, i);
  granule(p, i);
  i->run = i->space == PARAM ? load_parameter : load;
  if (!wide) return;
  emit(p, *i);
  struct instruction loaded = *i;
  i->run = NULL;
  resized(p, &loaded, U64, i->type == F32 ? B32 : i->type, to, i->d[0]);
}

static void decode_store(struct parser *p, struct instruction *i, struct parts *s) {
  memory_space(i, s);
  i->n = vector(s);
  need(p, s, (i->type = take_type(s)) && is_stored(i->type) && i->space != CONST);
  address(p, i);
  need(p, s, i->space != PARAM);
  granule(p, i);
  expect(p, ',');
  int size = slot_size(i->type);
  if (i->n == 1 && size == 4) i->d[0] = low(p, i);
  else if (elements(p, i->d, 4, size, value) != i->n) refuse(p, "%d registers are expected", i->n);
  i->run = store;
}

static void decode_atomic(struct parser *p, struct instruction *i, struct parts *s) {
  static const char *const kinds[] = {"add", "max", "min", "cas", "exch", "or", "and", "xor", "inc", "dec", NULL};
  int returns = is(s->list[0], "atom");
  memory_space(i, s);
  i->which = take_one(s, kinds);
  i->type = take_type(s);
  int is_float = i->type == F32 || i->type == F64;
  need(p, s, i->which >= 0 && type_sizes[i->type] >= 4 && is_stored(i->type) && i->space <= SHARED && i->space != CONST);
  need(p, s, !is_float || i->which == ATOMIC_ADD);
  int size = slot_size(i->type);
  i->d[0] = -1;
  if (returns) {
    i->d[0] = result(p, size);
    expect(p, ',');
  }
  address(p, i);
  expect(p, ',');
  i->a[1] = value(p, size);
  if (i->which == ATOMIC_CAS) {
    expect(p, ',');
    i->a[2] = value(p, size);
  }
  i->run = atomic;
}

static void decode_copy(struct parser *p, struct instruction *i, struct parts *s) {
  need(p, s, take(s, "async"));
  if (take(s, "commit_group")) {
    i->run = copy_commit;
    return;
  }
  i->run = copy_wait;
  i->n = -1;
  if (take(s, "wait_all")) return;
  if (take(s, "wait_group")) {
    i->n = (int)number(p);
    return;
  }
  need(p, s, take_one(s, NAMES("ca", "cg")) >= 0 && take(s, "shared") && take(s, "global"));
  take_all(s, NAMES("L2::64B", "L2::128B", "L2::256B"));
  i->space = SHARED;
  address(p, i);
  i->a[1] = i->a[0], i->to_offset = i->offset, i->to_wide = i->wide_address;
  expect(p, ',');
  i->space = GLOBAL;
  address(p, i);
  expect(p, ',');
  i->n = (int)number(p);
  need(p, s, i->n == 4 || i->n == 8 || i->n == 16);
  i->a[2] = accept(p, ',') ? value(p, 4) : -1;
  i->run = copy_async;
}

static void decode_move(struct parser *p, struct instruction *i, struct parts *s) {
  need(p, s, (i->type = take_type(s)) != NO_TYPE && type_sizes[i->type] > 1);
  if (i->type == PRED) {
    i->d[0] = predicate_register(p);
    expect(p, ',');
    condition(p, i, 0);
    i->run = move_predicate;
    return;
  }
  int bytes = type_sizes[i->type], size = slot_size(i->type);
  skip_space(p);
  if (*p->p == '{') { // elements of 32 bits, or of 16
    const char *begin = p->p;
    for (i->n = 1; *p->p && *p->p != '}'; p->p++) i->n += *p->p == ',';
    p->p = begin;
    need(p, s, i->n > 1 && bytes / i->n >= 2);
    elements(p, i->d, 4, 4, result);
    expect(p, ',');
    i->a[0] = value(p, size);
    i->run = unpack;
    return;
  }
  i->d[0] = result(p, size);
  expect(p, ',');
  skip_space(p);
  if (*p->p != '{') {
    i->a[0] = value(p, size);
    i->run = size == 8 ? move_64 : move_32;
    return;
  }
  i->n = elements(p, i->a, 4, 4, value);
  need(p, s, i->n > 1 && bytes / i->n >= 2 && bytes % i->n == 0);
  i->run = pack;
}

// float_mode takes how floats are rounded. The nearest is what happens anyway.
static void float_mode(struct instruction *i, struct parts *s) {
  int rounding = take_one(s, NAMES("rn", "rz", "rm", "rp"));
  if (rounding > 0) i->mode |= (unsigned)rounding;
  if (take(s, "ftz")) i->mode |= FLUSH;
  if (take(s, "sat")) i->mode |= SATURATE;
}

static void wrap(struct instruction *i) {
  if (!i->mode) return;
  i->inner = i->run;
  i->run = in_mode;
}

static void decode_convert(struct parser *p, struct instruction *i, struct parts *s) {
  int whole = take_one(s, NAMES("rni", "rzi", "rmi", "rpi"));
  i->which = whole + 1;
  float_mode(i, s);
  i->type = take_type(s);
  i->from = take_type(s);
  need(p, s, convert_find(i) && !((i->type == BF16 || i->type == BF16X2 || i->type == F16 || i->type == F16X2) && i->mode));
  wrap(i);
  i->d[0] = result(p, slot_size(i->type));
  expect(p, ',');
  i->a[0] = slot_size(i->from) == 4 ? low(p, i) : value(p, 8);
  if (i->type != BF16X2 && i->type != F16X2) return;
  expect(p, ',');
  i->a[1] = value(p, 4);
}

static enum space which_space(struct parts *s) {
  return take(s, "global") ? GLOBAL : take(s, "const") ? CONST : take(s, "shared") ? SHARED : take(s, "local") ? LOCAL : GENERIC;
}

static void decode_cvta(struct parser *p, struct instruction *i, struct parts *s) {
  i->run = take(s, "to") ? from_window : to_window;
  i->space = which_space(s);
  need(p, s, i->space && take(s, "u64"));
  i->d[0] = result(p, 8);
  expect(p, ',');
  i->a[0] = value(p, 8);
}

static void decode_isspacep(struct parser *p, struct instruction *i, struct parts *s) {
  i->space = which_space(s);
  need(p, s, i->space && i->space != CONST);
  i->d[0] = predicate_register(p);
  expect(p, ',');
  i->a[0] = value(p, 8);
  i->run = in_space;
}

// results parses p|q.
static void two_predicates(struct parser *p, struct instruction *i) {
  i->d[0] = predicate_register(p);
  i->d[1] = accept(p, '|') ? predicate_register(p) : -1;
}

static void decode_setp(struct parser *p, struct instruction *i, struct parts *s) {
  if (take(s, "ftz")) i->mode |= FLUSH;
  i->type = take_type(s);
  char name[2][8] = {"", ""};
  for (int n = 1, k = 0; n < s->count && k < 2; n++) {
    if (s->taken >> n & 1) continue;
    s->taken |= 1u << n;
    snprintf(name[k++], sizeof *name, "%.*s", s->list[n].length, s->list[n].at);
  }
  need(p, s, compare_find(i, name[0], name[1]));
  two_predicates(p, i);
  for (int n = 0; n < 2; n++) {
    expect(p, ',');
    i->a[n] = value(p, slot_size(i->type));
  }
  if (i->n) {
    expect(p, ',');
    condition(p, i, 2);
  }
  wrap(i);
}

static void decode_branch(struct parser *p, struct instruction *i, struct parts *s) {
  take(s, "uni");
  i->kind = BRANCH;
  i->run = nothing;
  jump_to(p, next_word(p));
  if (!p->jumps[p->jump_count - 1].label.length) refuse(p, "a branch to no label");
}

// A function that is inlined returns by a branch to its end.
static void decode_return(struct parser *p, struct instruction *i, struct parts *s) {
  take(s, "uni");
  i->run = nothing;
  i->kind = p->depth && is(s->list[0], "ret") ? BRANCH : END;
  if (i->kind == BRANCH) jump_to(p, (struct word){0});
}

static void decode_trap(struct parser *p, struct instruction *i, struct parts *s) { i->run = trap; }

static void decode_fence(struct parser *p, struct instruction *i, struct parts *s) {
  if (take(s, "proxy")) {
    need(p, s, take(s, "async"));
    take_all(s, NAMES("shared::cta", "global"));
    i->run = proxy_fence;
    return;
  }
  take_all(s, NAMES("cta", "gl", "sys", "gpu", "sc", "acq_rel"));
  i->run = nothing;
}

static void decode_barrier(struct parser *p, struct instruction *i, struct parts *s) {
  static const char *const reductions[] = {"", "popc", "and", "or", NULL};
  take(s, "cta");
  if (take(s, "warp")) {
    need(p, s, take(s, "sync"));
    i->kind = WARPWIDE;
    i->members = value(p, 4);
    i->run = nothing;
    return;
  }
  i->kind = BARRIER;
  i->run = barrier_arrive;
  i->a[2] = -1;
  take(s, "aligned");
  if (take(s, "red")) {
    i->which = take_one(s, reductions + 1) + 1;
    need(p, s, i->which && (i->which == BARRIER_SUM ? take(s, "u32") : take(s, "pred")));
    i->d[0] = i->which == BARRIER_SUM ? result(p, 4) : predicate_register(p);
    expect(p, ',');
  } else need(p, s, take(s, "sync"));
  i->a[0] = value(p, 4);
  if (!accept(p, ',')) return;
  if (!i->which) {
    i->a[2] = value(p, 4);
    return;
  }
  skip_space(p);
  if (isdigit((unsigned char)*p->p)) {
    i->a[2] = value(p, 4);
    expect(p, ',');
  }
  condition(p, i, 1);
}

// members parses the last operand of a warp-wide instruction: the lanes that take part.
static void members(struct parser *p, struct instruction *i) {
  i->kind = WARPWIDE;
  expect(p, ',');
  i->members = value(p, 4);
}

static void decode_shuffle(struct parser *p, struct instruction *i, struct parts *s) {
  i->which = take_one(s, NAMES("bfly", "down", "up", "idx"));
  need(p, s, take(s, "sync") && take(s, "b32") && i->which >= 0);
  i->d[0] = result(p, 4);
  i->d[1] = accept(p, '|') ? predicate_register(p) : -1;
  for (int n = 0; n < 3; n++) {
    expect(p, ',');
    i->a[n] = value(p, 4);
  }
  members(p, i);
  i->run = shuffle;
}

static void decode_vote(struct parser *p, struct instruction *i, struct parts *s) {
  i->which = take_one(s, NAMES("all", "any", "uni", "ballot"));
  need(p, s, take(s, "sync") && i->which >= 0 && (i->which == VOTE_BALLOT ? take(s, "b32") : take(s, "pred")));
  i->d[0] = i->which == VOTE_BALLOT ? result(p, 4) : predicate_register(p);
  expect(p, ',');
  condition(p, i, 0);
  members(p, i);
  i->run = vote;
}

static void decode_match(struct parser *p, struct instruction *i, struct parts *s) {
  i->which = take_one(s, NAMES("all", "any"));
  need(p, s, take(s, "sync") && i->which >= 0);
  i->type = take(s, "b64") ? B64 : B32;
  if (i->type == B32) need(p, s, take(s, "b32"));
  i->d[0] = result(p, 4);
  i->d[1] = accept(p, '|') ? predicate_register(p) : -1;
  expect(p, ',');
  i->a[0] = value(p, slot_size(i->type));
  members(p, i);
  i->run = match;
}

static void decode_redux(struct parser *p, struct instruction *i, struct parts *s) {
  i->which = take_one(s, NAMES("add", "max", "min", "", "", "or", "and", "xor"));
  i->type = take_type(s);
  need(p, s, take(s, "sync") && i->which >= 0 && (i->type == S32 || i->type == U32 || i->type == B32));
  i->d[0] = result(p, 4);
  expect(p, ',');
  i->a[0] = value(p, 4);
  members(p, i);
  i->run = reduce_warp;
}

static void decode_active(struct parser *p, struct instruction *i, struct parts *s) {
  need(p, s, take(s, "b32"));
  i->d[0] = result(p, 4);
  i->run = active;
}

static void decode_matrix_load(struct parser *p, struct instruction *i, struct parts *s) {
  int count = take_one(s, NAMES("x1", "x2", "", "x4")) + 1;
  i->which = take(s, "trans");
  need(p, s, count && take(s, "sync") && take(s, "aligned") && take(s, "m8n8") && take(s, "shared") && take(s, "b16"));
  i->n = elements(p, i->d, 4, 4, result);
  for (int n = 0; n < i->n; n++) need(p, s, i->d[n] >= 0 && i->n == count);
  expect(p, ',');
  i->space = SHARED;
  address(p, i);
  i->kind = WARPWIDE;
  i->run = matrix_load;
}

static void decode_matrix_multiply(struct parser *p, struct instruction *i, struct parts *s) {
  static const int counts[] = {4, 2, 4};
  i->which = is(s->whole, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
  need(p, s, i->which || is(s->whole, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"));
  s->taken = ~0u;
  int n = elements(p, i->d, 4, 4, result), at = 0;
  for (int k = 0; k < 4; k++) need(p, s, n == 4 && i->d[k] >= 0);
  for (int k = 0; k < 3; k++, at += n) {
    expect(p, ',');
    n = elements(p, i->a + at, 4, 4, value);
    need(p, s, n == counts[k]);
  }
  i->kind = WARPWIDE;
  i->run = matrix_multiply;
}

static void decode_prefetch(struct parser *p, struct instruction *i, struct parts *s) {
  take_all(s, NAMES("global", "L1", "L2"));
  address(p, i);
  i->run = nothing;
}

// Everything else is arithmetic, whose names have a table.
static void decode_arithmetic(struct parser *p, struct instruction *i, struct parts *s) {
  char name[64];
  enum type last = type_of(s->list[s->count - 1]);
  int is_float = last == F32 || last == F64, carries = 0;
  i->type = last;
  if (is_float && !is(s->list[0], "slct") && !is(s->list[0], "selp")) float_mode(i, s);
  if (i->mode & FLUSH && last == F64) { // a row of its own
    for (int n = 1; n < s->count; n++)
      if (is(s->list[n], "ftz")) s->taken &= ~(1u << n);
  }
  int length = snprintf(name, sizeof name, "%.*s", s->list[0].length, s->list[0].at);
  for (int n = 1; n < s->count; n++) {
    if (s->taken >> n & 1) continue;
    carries |= is(s->list[n], "cc");
    if (length >= (int)sizeof name) break;
    length += snprintf(name + length, sizeof name - (size_t)length, ".%.*s", s->list[n].length, s->list[n].at);
  }
  s->taken = ~0u;
  const struct operation *o = arithmetic_find(name);
  need(p, s, o != NULL);
  i->run = o->run;
  i->d[0] = *o->operands == 'p' ? predicate_register(p) : result(p, *o->operands - '0');
  need(p, s, i->d[0] >= 0);
  for (int n = 0; o->operands[n + 1]; n++) {
    expect(p, ',');
    if (o->operands[n + 1] == 'p') condition(p, i, n);
    else i->a[n] = value(p, o->operands[n + 1] - '0');
  }
  int takes = is(s->list[0], "addc") || is(s->list[0], "subc") || is(s->list[0], "madc");
  if ((carries || takes) && !p->carry) p->carry = slot_add(p, 4);
  i->d[1] = carries ? p->carry : -1;
  if (takes) i->a[3] = p->carry;
  wrap(i);
}

static const struct { const char *name; decode *decode; } families[] = {
  {"ld", decode_load}, {"st", decode_store}, {"atom", decode_atomic}, {"red", decode_atomic}, {"cp", decode_copy}, {"mov", decode_move},
  {"cvt", decode_convert}, {"cvta", decode_cvta}, {"isspacep", decode_isspacep}, {"setp", decode_setp}, {"bra", decode_branch},
  {"ret", decode_return}, {"exit", decode_return}, {"trap", decode_trap}, {"membar", decode_fence}, {"fence", decode_fence},
  {"bar", decode_barrier}, {"barrier", decode_barrier}, {"shfl", decode_shuffle}, {"vote", decode_vote}, {"match", decode_match},
  {"redux", decode_redux}, {"activemask", decode_active}, {"ldmatrix", decode_matrix_load}, {"mma", decode_matrix_multiply},
  {"wgmma", decode_warpgroup}, {"prefetch", decode_prefetch},
};

static decode *family(struct word name) {
  for (size_t n = 0; n < sizeof families / sizeof *families; n++)
    if (is(name, families[n].name)) return families[n].decode;
  return decode_arithmetic;
}

void statement(struct parser *p) {
  struct instruction i = {.guard = -1, .members = -1, .text = p->p};
  if (accept(p, '@')) {
    i.guard_negated = accept(p, '!');
    i.guard = predicate_register(p);
    if (i.guard < 0) refuse(p, "a predicate is missing");
  }
  struct parts s = split(p, next_word(p));
  if (!s.whole.length) refuse(p, "there is no instruction before \"%.30s\"", i.text);
  if (is(s.list[0], "call")) {
    take(&s, "uni");
    need(p, &s, i.guard < 0 && s.taken == (1u << s.count) - 1);
    call(p, s.whole);
    return;
  }
  i.length = (int)strcspn(i.text, ";\n");
  family(s.list[0])(p, &i, &s);
  u32 all = (1u << s.count) - 1;
  need(p, &s, (s.taken & all) == all);
  expect(p, ';');
  if (i.run) emit(p, i);
}
