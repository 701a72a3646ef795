//go:build ignore

// Modules: what they declare, and the bodies of kernels. Functions that are no kernels are parsed
// anew wherever they are called, as if their text stood there.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "parse.h"

enum { MOST_DEPTH = 16, MOST_BYTES = 1 << 24, MOST_REGISTERS = 1 << 14 };

// Declarations.

// variable parses ".align 4 .b8 name[12]". Without a number of elements it has 0 bytes.
static struct name variable(struct parser *p, u64 *align) {
  struct name n = {.at = UNPLACED};
  u64 asked = 1;
  for (n.word = next_word(p); n.word.length && *n.word.at == '.'; n.word = next_word(p)) {
    struct word type = {n.word.at + 1, n.word.length - 1};
    if (is(type, "align")) asked = (u64)number(p);
    else if (is(type, "ptr") || is(type, "global") || is(type, "shared") || is(type, "const") || is(type, "local")) continue;
    else if (!(n.type = type_of(type))) refuse(p, "unknown type %.*s", n.word.length, n.word.at);
  }
  if (!n.type || !n.word.length) refuse(p, "there is no variable before \"%.30s\"", p->p);
  n.bytes = (u64)type_sizes[n.type];
  *align = asked > n.bytes ? asked : n.bytes;
  if (*align & (*align - 1) || *align > 1024) refuse(p, "an alignment of %lu", (unsigned long)*align);
  if (!accept(p, '[')) return n;
  if (accept(p, ']')) {
    n.bytes = 0;
    return n;
  }
  s64 count = number(p);
  if (count < 0 || count > MOST_BYTES) refuse(p, "a variable of %ld elements", (long)count);
  n.bytes *= (u64)count;
  expect(p, ']');
  return n;
}

static u64 aligned(u64 at, u64 align) { return (at + align - 1) / align * align; }

static void declare_registers(struct parser *p) {
  struct word w = next_word(p);
  struct word type = {w.at + 1, w.length - 1};
  struct name n = {.kind = REGISTER};
  if (!w.length || !(n.type = type_of(type))) refuse(p, "unknown type %.*s", w.length, w.at);
  int size = type_sizes[n.type] == 8 ? 8 : 4;
  do {
    n.word = next_word(p);
    n.count = 0;
    if (accept(p, '<')) {
      s64 count = number(p);
      if (count < 1 || count > MOST_REGISTERS) refuse(p, "%ld registers", (long)count);
      n.count = (int)count;
      expect(p, '>');
    }
    n.at = slot_add(p, size);
    for (int k = 1; k < n.count; k++) slot_add(p, size);
    name_add(p, &p->names, n);
  } while (accept(p, ','));
}

static void declare_local(struct parser *p, enum name_kind kind) {
  u64 align;
  struct name n = variable(p, &align);
  struct ptx_kernel *k = p->kernel;
  n.kind = kind;
  n.at = (s64)aligned(k->local_bytes, align < 16 ? 16 : align);
  k->local_bytes = (size_t)n.at + n.bytes;
  if (k->local_bytes > MOST_BYTES) refuse(p, "too much local memory");
  name_add(p, &p->names, n);
}

s64 shared_place(struct parser *p, struct name *n) {
  struct ptx_kernel *k = p->kernel;
  if (n->at != UNPLACED) return n->at;
  n->at = (s64)aligned(k->static_shared, 16);
  u64 end = (u64)n->at + n->bytes;
  if (end > 48 << 10) refuse(p, "%lu bytes of shared variables, 48 KiB can be", (unsigned long)end);
  k->static_shared = (unsigned)end;
  return n->at;
}

static void declare_shared(struct parser *p) {
  u64 align;
  struct name n = variable(p, &align);
  n.kind = SHARED_VARIABLE;
  if (!n.bytes) n.at = DYNAMIC;
  name_add(p, &p->names, n);
}

static u64 initial(struct parser *p, int size) {
  skip_space(p);
  int is_float = p->p[0] == '0' && p->p[1] && strchr("fFdD", p->p[1]);
  if (!is_float) return (u64)number(p);
  char *end;
  u64 value = strtoull(p->p + 2, &end, 16);
  if ((end - p->p) - 2 != 2 * size) refuse(p, "a number of %d bytes is expected before \"%.30s\"", size, p->p);
  p->p = end;
  return value;
}

// declare_module declares a variable of the module, with what is in it.
static void declare_module(struct parser *p) {
  struct ptx_module *m = p->module;
  u64 align;
  struct name n = variable(p, &align);
  u64 at = aligned(m->memory_bytes, align), end = at + n.bytes;
  if (end > MOST_BYTES) refuse(p, "too many variables");
  if (end > m->memory_room) {
    m->memory = realloc(m->memory, 2 * end);
    if (!m->memory) abort();
    m->memory_room = 2 * end;
  }
  memset(m->memory + m->memory_bytes, 0, end - m->memory_bytes);
  m->memory_bytes = end;
  n.kind = MODULE_VARIABLE;
  n.at = (s64)(module_window + at);
  name_add(p, &p->names, n);
  if (!accept(p, '=')) return;
  int size = type_sizes[n.type], braces = accept(p, '{');
  do {
    u64 value = initial(p, size);
    if (at + (u64)size > end) refuse(p, "more values than elements");
    memcpy(m->memory + at, &value, (size_t)size);
    at += (u64)size;
  } while (braces && accept(p, ','));
  if (braces) expect(p, '}');
}

// Bodies.

void jump_to(struct parser *p, struct word label) {
  p->jumps = grow(p->jumps, p->jump_count, &p->jump_room, sizeof *p->jumps);
  p->jumps[p->jump_count++] = (struct jump){p->kernel->count, label};
}

// land gives the jumps of a body their targets, among the labels from first on.
static void land(struct parser *p, int first_jump, int first_label) {
  for (int j = first_jump; j < p->jump_count; j++) {
    struct jump *jump = &p->jumps[j];
    int target = jump->label.length ? -1 : p->kernel->count;
    for (int l = first_label; l < p->labels.count; l++)
      if (same(p->labels.list[l].word, jump->label)) target = (int)p->labels.list[l].at;
    if (target < 0) refuse(p, "there is no label %.*s", jump->label.length, jump->label.at);
    p->kernel->code[jump->instruction].target = target;
  }
  p->jump_count = first_jump;
  p->labels.count = first_label;
}

static void skip_statement(struct parser *p) {
  while (*p->p && *p->p != ';' && *p->p != '\n') p->p++;
  accept(p, ';');
}

static void directive(struct parser *p, struct word w) {
  if (is(w, ".pragma") || is(w, ".loc")) {
    skip_statement(p);
    return;
  }
  if (is(w, ".reg")) declare_registers(p);
  else if (is(w, ".shared")) declare_shared(p);
  else if (is(w, ".local")) declare_local(p, LOCAL_VARIABLE);
  else if (is(w, ".param")) declare_local(p, CALL_PARAMETER);
  else refuse(p, "%.*s is not known here", w.length, w.at);
  expect(p, ';');
}

// body parses { … }. What a block declares is forgotten at its end, but for labels.
static void body(struct parser *p) {
  enum { MOST_BLOCKS = 64 };
  int first_jump = p->jump_count, first_label = p->labels.count, blocks[MOST_BLOCKS], depth = 0;
  do {
    skip_space(p);
    const char *begin = p->p;
    if (accept(p, '{')) {
      if (depth == MOST_BLOCKS) refuse(p, "too many blocks");
      blocks[depth++] = p->names.count;
      continue;
    }
    if (!depth || !*p->p) refuse(p, "a body without an end");
    if (accept(p, '}')) {
      p->names.count = blocks[--depth];
      continue;
    }
    struct word w = next_word(p);
    if (w.length && accept(p, ':')) name_add(p, &p->labels, (struct name){.word = w, .kind = LABEL, .at = p->kernel->count});
    else if (w.length && *w.at == '.') directive(p, w);
    else {
      p->p = begin;
      statement(p);
    }
  } while (depth);
  land(p, first_jump, first_label);
}

// Calls.

static struct function *function_find(struct parser *p, struct word name) {
  for (int n = 0; n < p->function_count; n++)
    if (same(p->functions[n].name, name)) return &p->functions[n];
  return NULL;
}

// pass names what a call gives as the function names it. Both are lists (a, b, …) of parameters.
static void pass(struct parser *p, const char *actual, const char *formal, struct word function) {
  const char *after = p->p;
  if (!actual != !formal) refuse(p, "other parameters than those of %.*s", function.length, function.at);
  for (int more = actual != NULL; more;) {
    p->p = actual;
    struct word w = next_word(p);
    if (!w.length) break;
    struct name *found = name_find(p, w), given = found ? *found : (struct name){0};
    if (!found || given.kind != CALL_PARAMETER) refuse(p, "%.*s is no parameter", w.length, w.at);
    more = accept(p, ',');
    actual = p->p;
    p->p = formal;
    u64 align;
    struct word param = next_word(p);
    if (!is(param, ".param")) refuse(p, "%.*s has parameters that are registers", function.length, function.at);
    struct name n = variable(p, &align);
    if (n.bytes != given.bytes || more != accept(p, ',')) refuse(p, "other parameters than those of %.*s", function.length, function.at);
    formal = p->p;
    n.kind = CALL_PARAMETER;
    n.at = given.at;
    name_add(p, &p->names, n);
  }
  p->p = after;
}

// list returns where the list in parentheses at p begins, which it skips, or NULL.
static const char *list(struct parser *p) {
  if (!accept(p, '(')) return NULL;
  skip_space(p);
  const char *begin = p->p;
  while (*p->p && *p->p != ')') p->p++;
  int empty = *p->p == ')' && p->p == begin;
  expect(p, ')');
  return empty ? NULL : begin;
}

void call(struct parser *p, struct word opcode) {
  const char *results = list(p);
  if (results) expect(p, ',');
  struct word name = next_word(p);
  const char *arguments = accept(p, ',') ? list(p) : NULL;
  expect(p, ';');
  struct function *f = function_find(p, name);
  if (!f || !f->body) refuse(p, "there is no function %.*s", name.length, name.at);
  struct function callee = *f;
  if (++p->depth > MOST_DEPTH) refuse(p, "calls of %.*s are too deep: recursion is not known here", name.length, name.at);
  int known = p->names.count;
  const char *after = p->p;
  pass(p, results, callee.result, name);
  pass(p, arguments, callee.parameters, name);
  p->p = callee.body;
  body(p);
  p->p = after;
  p->names.count = known;
  p->depth--;
}

// Modules.

static void skip_body(struct parser *p) {
  int depth = 0;
  do {
    if (!*p->p) refuse(p, "a body without an end");
    depth += (*p->p == '{') - (*p->p == '}');
    p->p++;
  } while (depth);
}

// function_declare remembers a function: its body may come later.
static void function_declare(struct parser *p) {
  struct function f = {0};
  f.result = list(p);
  f.name = next_word(p);
  f.parameters = list(p);
  while (*p->p && *p->p != '{' && *p->p != ';') p->p++;
  if (*p->p == '{') {
    f.body = p->p;
    skip_body(p);
  } else expect(p, ';');
  struct function *known = function_find(p, f.name);
  if (known) {
    if (f.body) *known = f;
    return;
  }
  p->functions = grow(p->functions, p->function_count, &p->function_room, sizeof *p->functions);
  p->functions[p->function_count++] = f;
}

static void parameters(struct parser *p) {
  struct ptx_kernel *k = p->kernel;
  int room = 0;
  if (!accept(p, '(') || accept(p, ')')) return;
  do {
    struct word w = next_word(p);
    if (!is(w, ".param")) refuse(p, "%.*s is no parameter", w.length, w.at);
    u64 align;
    struct name n = variable(p, &align);
    n.kind = PARAMETER;
    n.at = (s64)aligned(k->parameter_bytes, align);
    if ((u64)n.at + n.bytes > 4096) refuse(p, "more than 4096 bytes of parameters");
    k->parameter_bytes = (size_t)n.at + n.bytes;
    k->parameters = grow(k->parameters, k->parameter_count, &room, sizeof *k->parameters);
    k->parameters[k->parameter_count++] = (struct parameter){(size_t)n.at, n.bytes};
    name_add(p, &p->names, n);
  } while (accept(p, ','));
  expect(p, ')');
}

// bounds parses what a kernel says of its blocks.
static void bounds(struct parser *p) {
  struct ptx_kernel *k = p->kernel;
  for (skip_space(p); *p->p == '.'; skip_space(p)) {
    struct word w = next_word(p);
    s64 n[3] = {number(p), 1, 1};
    for (int c = 1; c < 3 && accept(p, ','); c++) n[c] = number(p);
    for (int c = 0; c < 3; c++)
      if (n[c] < 1 || n[c] > 1024) refuse(p, "%.*s %ld", w.length, w.at, (long)n[c]);
    if (is(w, ".maxntid")) k->threads_most = (unsigned)(n[0] * n[1] * n[2]);
    else if (is(w, ".reqntid")) for (int c = 0; c < 3; c++) k->threads_exact[c] = (unsigned)n[c];
    else if (!is(w, ".minnctapersm") && !is(w, ".maxnreg")) refuse(p, "%.*s is not known here", w.length, w.at);
  }
}

// entry parses a kernel.
static void entry(struct parser *p) {
  struct ptx_kernel *k = calloc(1, sizeof *k);
  if (!k) abort();
  k->module = p->module;
  k->next = p->module->kernels;
  p->module->kernels = p->kernel = k;
  k->granule = 4;
  k->specials = calloc(SPECIALS, sizeof *k->specials);
  if (!k->specials) abort();
  slot_add(p, 8); // no operand is at 0
  memset(k->image, 0, 256); // of the missing arguments of an instruction, and of a carry that does not come in
  p->carry = p->dynamic[0] = p->dynamic[1] = 0;
  int known = p->names.count;
  struct word name = next_word(p);
  k->name = name.at, k->name_length = name.length;
  parameters(p);
  bounds(p);
  body(p);
  u64 dynamic = aligned(k->static_shared, 16);
  if (p->dynamic[0]) slot_fill(k, p->dynamic[0], dynamic, 4);
  if (p->dynamic[1]) slot_fill(k, p->dynamic[1], dynamic, 8);
  p->names.count = known;
  for (int n = 0; n < known; n++)
    if (p->names.list[n].kind == SHARED_VARIABLE && p->names.list[n].at != DYNAMIC) p->names.list[n].at = UNPLACED;
  p->kernel = NULL;
}

// pass_over skips what the first pass has seen, or the second is for.
static void pass_over(struct parser *p) {
  while (*p->p && *p->p != '{' && *p->p != ';') p->p++;
  if (*p->p == '{') skip_body(p);
  else expect(p, ';');
}

// module parses a text. The first pass is for functions and variables, the second for kernels,
// which may use those that follow.
static void module(struct parser *p, int kernels) {
  p->p = p->module->text;
  for (skip_space(p); *p->p; skip_space(p)) {
    struct word w = next_word(p);
    if (is(w, ".version") || is(w, ".address_size")) next_word(p);
    else if (is(w, ".target")) do next_word(p); while (accept(p, ','));
    else if (is(w, ".visible") || is(w, ".weak") || is(w, ".extern")) continue;
    else if (is(w, ".entry")) kernels ? entry(p) : pass_over(p);
    else if (is(w, ".func")) kernels ? pass_over(p) : function_declare(p);
    else if (is(w, ".global") || is(w, ".const") || is(w, ".shared")) {
      if (!kernels) is(w, ".shared") ? declare_shared(p) : declare_module(p);
      while (kernels && *p->p && *p->p != ';') p->p++;
      expect(p, ';');
    } else refuse(p, "%.*s is not known here", w.length ? w.length : 20, w.at);
  }
}

// without_comments returns a copy of a text in which comments are spaces.
static char *without_comments(const char *text) {
  char *copy = strdup(text);
  for (char *c = copy; c && *c;) {
    const char *end = NULL;
    if (!strncmp(c, "//", 2)) end = strchrnul(c, '\n');
    else if (!strncmp(c, "/*", 2)) end = (end = strstr(c + 2, "*/")) ? end + 2 : c + strlen(c);
    if (!end) c++;
    for (; end && c < end; c++)
      if (*c != '\n') *c = ' ';
  }
  return copy;
}

struct ptx_module *ptx_load(const char *text, char *error, size_t size) {
  struct parser *p = calloc(1, sizeof *p);
  struct ptx_module *m = calloc(1, sizeof *m);
  if (!p || !m || !(m->text = without_comments(text))) abort();
  p->module = m;
  p->error = error, p->error_size = size;
  int failed = setjmp(p->failed);
  if (!failed) {
    module(p, 0);
    module(p, 1);
  }
  free(p->names.list), free(p->labels.list), free(p->functions), free(p->jumps), free(p);
  if (!failed) return m;
  ptx_unload(m);
  return NULL;
}

void ptx_unload(struct ptx_module *m) {
  for (struct ptx_kernel *k = m->kernels, *next; k; k = next) {
    next = k->next;
    free(k->code), free(k->parameters), free(k->specials), free(k->constants), free(k->watched), free(k->lists), free(k->image), free(k);
  }
  free(m->text), free(m->memory), free(m);
}

struct ptx_kernel *ptx_find(struct ptx_module *m, const char *name) {
  for (struct ptx_kernel *k = m->kernels; k; k = k->next)
    if (strlen(name) == (size_t)k->name_length && !memcmp(k->name, name, (size_t)k->name_length)) return k;
  return NULL;
}

int ptx_parameter(struct ptx_kernel *k, size_t index, size_t *offset, size_t *size) {
  if (index >= (size_t)k->parameter_count) return 0;
  *offset = k->parameters[index].at;
  *size = k->parameters[index].bytes;
  return 1;
}

size_t ptx_parameter_bytes(struct ptx_kernel *k) { return k->parameter_bytes; }
unsigned ptx_shared(struct ptx_kernel *k) { return k->static_shared; }
