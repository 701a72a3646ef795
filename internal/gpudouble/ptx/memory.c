//go:build ignore

// Memory: addresses and what is checked of them, loads and stores, atomics, copies that run beside.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

static const char *const access_names[] = {"a read", "a write", "an atomic operation"};

// Shared memory. The shadow knows for each granule who wrote and who read it last, in which epoch:
// the time between two barriers of the block. Epochs only grow, also from block to block.

static void race(struct machine *x, u32 lane, u32 at, int other, const char *what) {
  if (other >= 0) fail(x, lane, PTX_FAILED, "race: shared+%u was %s by warp %d since the last barrier", at, what, other);
  fail(x, lane, PTX_FAILED, "race: shared+%u was %s by several warps since the last barrier", at, what);
}

enum { SEVERAL = -2 };

static void shadow_set(struct machine *x, u32 lane, struct shadow *s, u32 at) {
  if ((x->launch->checks & PTX_UNSET) && s->written < x->first_epoch)
    fail(x, lane, PTX_FAILED, "shared+%u is read and was never written", at);
}

static void shadow_read(struct machine *x, u32 lane, struct shadow *s, u32 at) {
  s16 warp = (s16)x->now->id;
  shadow_set(x, lane, s, at);
  if ((x->launch->checks & PTX_RACES) && s->written == x->epoch && s->writer != warp) race(x, lane, at, s->writer, "written");
  s->reader = s->read == x->epoch && s->reader != warp ? SEVERAL : warp;
  s->read = x->epoch;
}

static void shadow_write(struct machine *x, u32 lane, struct shadow *s, u32 at, int is_atomic) {
  s16 warp = (s16)x->now->id;
  int others = s->written == x->epoch && s->writer != warp, both = is_atomic && s->atomic;
  if (x->launch->checks & PTX_RACES) {
    if (others && !both) race(x, lane, at, s->writer, "written");
    if (s->read == x->epoch && s->reader != warp) race(x, lane, at, s->reader, "read");
  }
  s->writer = others ? SEVERAL : warp;
  s->moment = x->moment;
  s->atomic = (u32)is_atomic;
  s->written = x->epoch;
}

static char *shared_at(struct machine *x, u32 lane, u64 address, u32 size, enum access access) {
  if (address > x->shared_bytes || size > x->shared_bytes - address)
    fail(x, lane, PTX_ILLEGAL_ADDRESS, "%s of %u bytes at shared+%lu, the block has %u", access_names[access], size,
         (unsigned long)address, x->shared_bytes);
  if (!x->shadow) return x->shared + address;
  u32 granule = (u32)x->kernel->granule;
  for (u32 g = (u32)address / granule; g <= (address + size - 1) / granule; g++) {
    struct shadow *s = &x->shadow[g];
    if ((x->launch->checks & PTX_RACES) && s->copied == x->first_epoch)
      fail(x, lane, PTX_FAILED, "%s at shared+%u, where a copy that nobody has waited for goes", access_names[access], g * granule);
    if (access == ATOMIC) shadow_set(x, lane, s, g * granule);
    if (access == READ) shadow_read(x, lane, s, g * granule);
    else shadow_write(x, lane, s, g * granule, access == ATOMIC);
  }
  return x->shared + address;
}

// Global memory. The places where some was found lately are remembered.
static char *global_at(struct machine *x, u32 lane, u64 address, u32 size, enum access access) {
  enum { SEEN = sizeof x->seen / sizeof *x->seen };
  for (int n = 0; n < SEEN; n++) {
    int at = (x->seen_last + n) % SEEN;
    struct range *r = &x->seen[at];
    if (address < r->first || address >= r->last || size > r->last - address) continue;
    x->seen_last = at;
    return r->bytes + (address - r->first);
  }
  struct range r = {0};
  char *bytes = x->host->bytes(x->host->context, address, &r.first, &r.last);
  if (!bytes || size > r.last - address)
    fail(x, lane, PTX_ILLEGAL_ADDRESS, "illegal address: %s of %u bytes at %#lx", access_names[access], size,
         (unsigned long)address);
  r.bytes = bytes - (address - r.first);
  x->seen_last = x->seen_next;
  x->seen_next = (x->seen_next + 1) % SEEN;
  x->seen[x->seen_last] = r;
  return bytes;
}

static char *local_at(struct machine *x, u32 lane, u64 address, u32 size, enum access access) {
  size_t bytes = x->kernel->local_bytes;
  if (address > bytes || size > bytes - address)
    fail(x, lane, PTX_ILLEGAL_ADDRESS, "%s of %u bytes at local+%lu, the thread has %zu", access_names[access], size,
         (unsigned long)address, bytes);
  return x->local + ((u64)x->now->id * WARP + lane) * bytes + address;
}

static char *module_at(struct machine *x, u32 lane, u64 address, u32 size, enum access access) {
  struct ptx_module *m = x->kernel->module;
  u64 at = address - module_window;
  if (at > m->memory_bytes || size > m->memory_bytes - at)
    fail(x, lane, PTX_ILLEGAL_ADDRESS, "%s of %u bytes beyond the variables of the module", access_names[access], size);
  return m->memory + at;
}

char *memory_at(struct machine *x, u32 lane, enum space space, u64 address, u32 size, enum access access) {
  if (address & (size - 1))
    fail(x, lane, PTX_MISALIGNED, "misaligned address: %s of %u bytes at %#lx", access_names[access], size, (unsigned long)address);
  if (space == GENERIC && address >= shared_window) return shared_at(x, lane, address - shared_window, size, access);
  if (space == GENERIC && address >= local_window) return local_at(x, lane, address - local_window, size, access);
  if (space == SHARED) return shared_at(x, lane, address, size, access);
  if (space == LOCAL) return local_at(x, lane, address, size, access);
  if (address >= module_window && address < local_window) return module_at(x, lane, address, size, access);
  return global_at(x, lane, address, size, access);
}

// address returns that of a lane.
static inline u64 address(const struct instruction *i, const char *file, int n, u32 l) {
  return i->wide_address ? ((const u64 *)(file + i->a[n]))[l] : ((const u32 *)(file + i->a[n]))[l];
}

// places finds the bytes that each lane of a mask means. Mostly they are all in one range that was
// found before. The others get the place of one of them.
static void places(struct machine *x, const struct instruction *i, const char *file, u32 mask, u32 size, enum access access, char **to) {
  u64 at[WARP], any = address(i, file, 0, (u32)__builtin_ctz(mask)), least = ~0ull, most = 0, bits = 0;
  LANES at[l] = (mask >> l & 1 ? address(i, file, 0, l) : any) + (u64)i->offset;
  LANES {
    least = at[l] < least ? at[l] : least;
    most = at[l] > most ? at[l] : most;
    bits |= at[l];
  }
  struct range *r = &x->seen[x->seen_last];
  if (i->space <= GLOBAL && !(bits & (size - 1)) && least >= r->first && most < r->last && size <= r->last - most) {
    LANES to[l] = r->bytes + (at[l] - r->first);
    return;
  }
  char *some = NULL;
  EACH(l, mask) some = to[l] = memory_at(x, l, i->space, at[l], size, access);
  LANES if (!(mask >> l & 1)) to[l] = some;
}

#define LOAD(type, n, R, T)                                                                         \
  static void load_##type(char *const *from, int offset, char *file, int slot, u32 mask) {          \
    R out[WARP];                                                                                    \
    LANES out[l] = (R)*(const T *)(from[l] + offset);                                               \
    put_##n(file, slot, mask, out);                                                                 \
  }
LOAD(u8, 32, u32, u8)
LOAD(s8, 32, s32, s8)
LOAD(u16, 32, u32, u16)
LOAD(s16, 32, s32, s16)
LOAD(u32, 32, u32, u32)
LOAD(u64, 64, u64, u64)

typedef void load_element(char *const *from, int offset, char *file, int slot, u32 mask);
static load_element *const loads[TYPES] = {
  [B8] = load_u8, [U8] = load_u8, [S8] = load_s8, [B16] = load_u16, [U16] = load_u16, [S16] = load_s16, [B32] = load_u32,
  [U32] = load_u32, [S32] = load_u32, [F32] = load_u32, [B64] = load_u64, [U64] = load_u64, [S64] = load_u64, [F64] = load_u64,
};

void load(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  char *from[WARP];
  int size = type_sizes[i->type];
  places(x, i, file, mask, (u32)(size * i->n), READ, from);
  for (int n = 0; n < i->n; n++)
    if (i->d[n] >= 0) loads[i->type](from, n * size, file, i->d[n], mask);
}

void load_parameter(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  char *from[WARP];
  u32 size = (u32)(type_sizes[i->type] * i->n);
  LANES from[l] = (char *)x->launch->parameters;
  EACH(l, mask) {
    u64 at = address(i, file, 0, l) + (u64)i->offset;
    if (at > x->kernel->parameter_bytes || size > x->kernel->parameter_bytes - at || at & (size - 1))
      fail(x, l, PTX_ILLEGAL_ADDRESS, "%u bytes of parameters at %lu", size, (unsigned long)at);
    from[l] += at;
  }
  for (int n = 0; n < i->n; n++)
    if (i->d[n] >= 0) loads[i->type](from, n * type_sizes[i->type], file, i->d[n], mask);
}

static void store_element(char *to, const char *file, int slot, u32 l, int size) {
  switch (size) {
  case 1: *(u8 *)to = (u8)((const u32 *)(file + slot))[l]; break;
  case 2: *(u16 *)to = (u16)((const u32 *)(file + slot))[l]; break;
  case 4: *(u32 *)to = ((const u32 *)(file + slot))[l]; break;
  case 8: *(u64 *)to = ((const u64 *)(file + slot))[l]; break;
  }
}

// store lets the last lane win where several store to one place: which one that is has to change
// nothing.
void store(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  char *to[WARP];
  int size = type_sizes[i->type], last = x->launch->checks & PTX_REVERSE ? WARP - 1 : 0;
  places(x, i, file, mask, (u32)(size * i->n), WRITE, to);
  for (int n = 0; n < i->n; n++)
    for (int k = 0; k < WARP; k++) {
      int l = k ^ last;
      if (mask >> l & 1) store_element(to[l] + n * size, file, i->d[n], (u32)l, size);
    }
}

// Atomics, one at a time in the whole process.
static pthread_mutex_t atomics = PTHREAD_MUTEX_INITIALIZER;

static u64 sum_of(enum type type, u64 a, u64 b) {
  float f, g;
  double d, e;
  if (type == F32) {
    memcpy(&f, &a, 4);
    memcpy(&g, &b, 4);
    f += g;
    memcpy(&a, &f, 4);
    return a;
  }
  if (type != F64) return a + b;
  memcpy(&d, &a, 8);
  memcpy(&e, &b, 8);
  d += e;
  memcpy(&a, &d, 8);
  return a;
}

static int is_less(enum type type, u64 a, u64 b) {
  return type == S32 ? (s32)a < (s32)b : type == S64 ? (s64)a < (s64)b : a < b;
}

static u64 combine(const struct instruction *i, u64 old, u64 value, u64 swap) {
  switch ((enum atomic_kind)i->which) {
  case ATOMIC_ADD: return sum_of(i->type, old, value);
  case ATOMIC_MAX: return is_less(i->type, old, value) ? value : old;
  case ATOMIC_MIN: return is_less(i->type, value, old) ? value : old;
  case ATOMIC_CAS: return old == value ? swap : old;
  case ATOMIC_EXCH: return value;
  case ATOMIC_OR: return old | value;
  case ATOMIC_AND: return old & value;
  case ATOMIC_XOR: return old ^ value;
  case ATOMIC_INC: return old >= value ? 0 : old + 1;
  case ATOMIC_DEC: return old == 0 || old > value ? value : old - 1;
  }
  return old;
}

static u64 operand(const char *file, int slot, u32 l, int size) {
  return size == 8 ? ((const u64 *)(file + slot))[l] : ((const u32 *)(file + slot))[l];
}

void atomic(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  int size = type_sizes[i->type], last = x->launch->checks & PTX_REVERSE ? WARP - 1 : 0;
  char *at[WARP];
  places(x, i, file, mask, (u32)size, ATOMIC, at);
  pthread_mutex_lock(&atomics);
  for (int k = 0; k < WARP; k++) {
    u32 l = (u32)(k ^ last);
    if (!(mask >> l & 1)) continue;
    u64 old = 0, next;
    memcpy(&old, at[l], (size_t)size);
    next = combine(i, old, operand(file, i->a[1], l, size), operand(file, i->a[2], l, size));
    memcpy(at[l], &next, (size_t)size);
    if (i->d[0] < 0) continue;
    if (size == 8) ((u64 *)(file + i->d[0]))[l] = old;
    else ((u32 *)(file + i->d[0]))[l] = (u32)old;
  }
  pthread_mutex_unlock(&atomics);
}

// Copies that run beside: cp.async. a[0] is where from, a[1] where to, a[2] how many bytes are
// read, the rest being zeros. They are made when they are waited for, as late as they may.

// copied notes that a copy to shared memory begins, or has been made.
static void copied(struct machine *x, u32 to, u32 bytes, u32 epoch) {
  u32 granule = (u32)x->kernel->granule;
  for (u32 g = to / granule; x->shadow && g <= (to + bytes - 1) / granule; g++) x->shadow[g].copied = epoch;
}

void copy_async(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  struct warp *w = x->now;
  EACH(l, mask) {
    u32 bytes = (u32)i->n, read = i->a[2] >= 0 ? ((u32 *)(file + i->a[2]))[l] : bytes;
    u32 to = (u32)((i->to_wide ? ((u64 *)(file + i->a[1]))[l] : ((u32 *)(file + i->a[1]))[l]) + (u64)i->to_offset);
    if (read > bytes) fail(x, (int)l, PTX_FAILED, "%u bytes are to be read for a copy of %u", read, bytes);
    memset(memory_at(x, l, SHARED, to, bytes, WRITE), 0xff, bytes); // NaN until it is waited for
    copied(x, to, bytes, x->first_epoch);
    if (w->copy_count == w->copy_room) {
      w->copy_room = w->copy_room ? 2 * w->copy_room : 64;
      w->copies = realloc(w->copies, (size_t)w->copy_room * sizeof *w->copies);
    }
    w->copies[w->copy_count++] = (struct copy){l, w->committed[l], to, bytes, bytes - read, address(i, file, 0, l) + (u64)i->offset};
  }
}

void copy_commit(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  EACH(l, mask) x->now->committed[l]++;
}

static void copy_make(struct machine *x, const struct copy *c) {
  copied(x, c->to, c->bytes, 0);
  char *to = memory_at(x, c->lane, SHARED, c->to, c->bytes, WRITE);
  u32 read = c->bytes - c->zeros;
  if (c->from & (c->bytes - 1))
    fail(x, (int)c->lane, PTX_MISALIGNED, "misaligned address: a copy of %u bytes from %#lx", c->bytes, (unsigned long)c->from);
  memset(to, 0, c->bytes);
  if (read) memcpy(to, global_at(x, c->lane, c->from, read, READ), read);
}

// copy_wait makes the copies of all but the last n groups of a lane, or all.
void copy_wait(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  struct warp *w = x->now;
  int kept = 0;
  for (int n = 0; n < w->copy_count; n++) {
    struct copy c = w->copies[n];
    int done = mask >> c.lane & 1 && (i->n < 0 || c.group + (u32)i->n < w->committed[c.lane]);
    if (done) copy_make(x, &c);
    else w->copies[kept++] = c;
  }
  w->copy_count = kept;
}

// matrix_load loads matrices of 8 by 8 numbers of 16 bits, whose rows lanes point to.
void matrix_load(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  if (mask != everyone) fail(x, 0, PTX_FAILED, "a warp without some of its lanes");
  const u16 *rows[4][8];
  for (u32 n = 0; n < (u32)i->n; n++)
    for (u32 r = 0; r < 8; r++)
      rows[n][r] = (const u16 *)memory_at(x, n * 8 + r, SHARED, address(i, file, 0, n * 8 + r) + (u64)i->offset, 16, READ);
  for (int n = 0; n < i->n; n++) LANES {
    int r = l >> 2, c = (l & 3) * 2;
    u32 first = i->which ? rows[n][c][r] : rows[n][r][c], second = i->which ? rows[n][c + 1][r] : rows[n][r][c + 1];
    ((u32 *)(file + i->d[n]))[l] = first | second << 16;
  }
}

// Proxies. Writes of warps become visible to products by a fence.proxy.async of the writing warp.

void proxy_fence(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  if (!(x->now->alive & ~mask)) x->now->proxied = ++x->moment;
}

// seen_by_proxy checks that the last writer of a granule has executed a fence since.
static void seen_by_proxy(struct machine *x, const struct shadow *s, u32 at) {
  if (s->written < x->first_epoch) return;
  int first = s->writer >= 0 ? s->writer : 0, last = s->writer >= 0 ? s->writer : x->warp_count - 1; // or of several
  for (int n = first; n <= last; n++)
    if (x->warps[n].proxied <= s->moment)
      fail(x, 0, PTX_FAILED, "a product reads shared+%u, which warp %d wrote without a fence.proxy.async since", at, n);
}

char *shared_async(struct machine *x, u32 address) {
  char *bytes = memory_at(x, 0, SHARED, address, 16, READ);
  u32 granule = (u32)x->kernel->granule;
  for (u32 g = address / granule; x->shadow && g <= (address + 15) / granule; g++)
    seen_by_proxy(x, &x->shadow[g], g * granule);
  return bytes;
}

// Generic addresses.
static u64 window(enum space space) { return space == SHARED ? shared_window : space == LOCAL ? local_window : 0; }

void to_window(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  u64 out[WARP];
  LANES out[l] = ((u64 *)(file + i->a[0]))[l] + window(i->space);
  put_64(file, i->d[0], mask, out);
}

void from_window(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  u64 out[WARP];
  LANES out[l] = ((u64 *)(file + i->a[0]))[l] - window(i->space);
  put_64(file, i->d[0], mask, out);
}

void in_space(struct machine *x, const struct instruction *i, char *file, u32 mask) {
  u32 out = 0;
  EACH(l, mask) {
    u64 a = ((u64 *)(file + i->a[0]))[l];
    enum space is = a >= shared_window ? SHARED : a >= local_window ? LOCAL : GLOBAL;
    out |= (u32)(is == i->space) << l;
  }
  set_predicate(file, i->d[0], mask, out);
}
