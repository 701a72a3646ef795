//go:build ignore

// What the files of the machine share. Parsing (parse.c, decode.c) makes instructions, which
// run.c executes; the other files have the instructions themselves.
//
// A warp has a register file in memory. A slot of it holds one value for each of the 32 lanes: 128
// bytes for values of up to 32 bits, 256 for those of 64. Every operand is the offset of a slot, be
// it a register, a number or a special register, so that executing an instruction looks nothing up.
// A value of 8 or 16 bits is in the low bits of a 32-bit element; who reads it ignores the rest. A
// predicate is the first word of a slot, with one bit a lane.
#ifndef PTX_MACHINE_H
#define PTX_MACHINE_H

#include <setjmp.h>
#include <stdint.h>

#include "ptx.h"

typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

enum { WARP = 32, MOST_WARPS = 32, MOST_OPERANDS = 12 };
static const u32 everyone = ~0u;

#define LANES for (int l = 0; l < WARP; l++)
#define EACH(l, mask) for (u32 m_ = (mask), l = 0; m_ && (l = (u32)__builtin_ctz(m_), 1); m_ &= m_ - 1)

enum type { NO_TYPE, PRED, B8, U8, S8, B16, U16, S16, BF16, F16, B32, U32, S32, F32, BF16X2, F16X2, B64, U64, S64, F64, TYPES };
extern const int type_sizes[TYPES];

// Spaces of memory. Generic addresses are those of global memory but for these windows.
enum space { GENERIC, GLOBAL, CONST, SHARED, LOCAL, PARAM };
static const u64 module_window = 0x7c00000000000000, local_window = 0x7d00000000000000, shared_window = 0x7e00000000000000;

struct machine;
struct instruction;

// An execute runs an instruction for the lanes of a mask, which is not empty.
typedef void execute(struct machine *, const struct instruction *, char *file, u32 mask);

// Kinds of instructions for who schedules: most concern single lanes. Those of a warp run when all
// lanes that they name have come.
enum kind { LANEWISE, BRANCH, END, WARPWIDE, BARRIER };

// How floats are computed, in bits of an instruction's mode.
enum { TO_ZERO = 1, DOWN = 2, UP = 3, ROUNDING = 3, FLUSH = 4, SATURATE = 8 };

struct instruction {
  execute *run, *inner;              // inner is what run wraps
  enum kind kind;
  enum type type, from;              // from is that of what cvt reads
  enum space space;
  int guard, guard_negated;          // the slot of a predicate, or -1
  int d[8], a[MOST_OPERANDS];        // slots of results and arguments, -1 for a result that nobody wants
  u32 negated;                       // bit n: argument n is a negated predicate
  int n;                             // elements of a vector, or whatever run needs
  int list;                          // where the registers of a product begin in the kernel's lists
  int which;                         // of a family of operations
  unsigned mode;
  int wide_address;                  // of 64 bits
  s64 offset;                        // of an address
  s64 to_offset;                     // and of where cp.async copies to
  int to_wide;
  int members;                       // slot of the lanes that a warp-wide instruction needs, -1 for all
  int target;                        // of a branch
  const char *text;                  // the statement
  int length;
};

struct constant { u64 value; int size, at; };
struct parameter { size_t at, bytes; };

struct ptx_kernel {
  struct ptx_kernel *next;
  struct ptx_module *module;
  const char *name; // in the module's text
  int name_length;
  struct instruction *code;
  int count, code_room;
  struct parameter *parameters;
  int parameter_count;
  size_t parameter_bytes;
  unsigned threads_most, threads_exact[3], static_shared;
  size_t local_bytes;
  int granule; // of shared memory: the size of the smallest access
  int *specials;
  struct constant *constants;
  int constant_count, constant_room;
  int *watched, *lists; // slots of all registers of products, and the indices that each product has
  int watched_count, watched_room, list_count, list_room;
  char *image; // of a register file: numbers are filled in, registers are NaN
  int file_bytes, file_room;
};

struct ptx_module {
  struct ptx_kernel *kernels;
  char *text, *memory; // of .global and .const variables, from module_window on
  size_t memory_bytes, memory_room;
};

// Special registers, in the order of special_names.
enum special {
  TID_X, TID_Y, TID_Z, NTID_X, NTID_Y, NTID_Z, CTAID_X, CTAID_Y, CTAID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z,
  LANEID, WARPID, NWARPID, MASK_EQ, MASK_LT, MASK_LE, MASK_GT, MASK_GE, DYNAMIC_SHARED, SPECIALS
};
extern const char *const special_names[SPECIALS];

// Lanes of a warp that went different ways are groups.
struct group { u32 mask; int pc, waits; };

// A copy of cp.async that nobody has waited for.
struct copy { u32 lane, group, to, bytes, zeros; u64 from; };

// A product is a wgmma that nobody has waited for, with its operands as they were when it began. The
// rows of b are the columns of the result. An accumulator has the rows of a warp.
enum { MOST_COLUMNS = 256, MOST_ACCUMULATORS = 4 };
struct product {
  const struct instruction *of;
  u64 descriptors[2];
  u32 group;
  int accumulator, adds;
  u16 a[16][16], b[MOST_COLUMNS][16];
};
struct accumulator {
  const struct instruction *of;
  int pending; // products
  float values[16][MOST_COLUMNS];
};

struct warp {
  struct group groups[WARP];
  int group_count, id;
  u32 alive;
  const struct instruction *barrier; // where all of it waits for other warps
  char *file;
  struct copy *copies;
  int copy_count, copy_room;
  u32 committed[WARP];
  struct product *products;
  int product_count, product_room, is_fenced;
  u32 products_committed;
  u64 products_said; // a hash of the products so far
  struct accumulator *accumulators; // if the kernel has products
  u32 *fenced;       // what watched registers held at the last wgmma.fence
  u32 proxied;       // the moment of the last fence.proxy.async
};

// A shadow is what is known of a granule of shared memory: who touched it since which barrier. It is
// copied to if copied is the first epoch of the block. moment is the number of fences of proxies
// before the last write.
struct shadow { u32 written, read, copied, moment; s16 writer, reader; u32 atomic; };

struct range { u64 first, last; char *bytes; };

struct machine {
  const struct ptx_launch *launch;
  const struct ptx_host *host;
  struct ptx_kernel *kernel;
  u32 shared_bytes, block[3], epoch, first_epoch, moment;
  char *shared, *local, *files;
  struct shadow *shadow;
  struct warp warps[MOST_WARPS];
  int warp_count, threads, live, arrived;
  u32 some, all, sum; // of the predicates of bar.red
  struct range seen[8]; // where global memory was found
  int seen_last, seen_next;
  u64 executed, steps;
  // What fails, where.
  jmp_buf failed;
  char *error;
  size_t error_size;
  struct warp *now;
  const struct instruction *at;
};

// fail ends the launch with a result and a reason.
void fail(struct machine *, int lane, int result, const char *format, ...) __attribute__((noreturn, format(printf, 4, 5)));

// An operation is an instruction by its name, without what decode.c knows of modifiers. operands
// has a letter for each: 4 and 8 are values of so many bytes, p a predicate.
struct operation { const char *name; execute *run; const char *operands; };
const struct operation *arithmetic_find(const char *name);
// convert_find, compare_find set up the instruction; they return 0 if there is no such.
int convert_find(struct instruction *);
int compare_find(struct instruction *, const char *how, const char *combined);

execute move_32, move_64, move_predicate, pack, unpack, to_window, from_window, in_space;
execute load, store, load_parameter, atomic, copy_async, copy_commit, copy_wait, matrix_load;
execute product_fence, product_begin, product_commit, product_wait, proxy_fence;
execute matrix_multiply, shuffle, vote, match, reduce_warp, active, nothing, trap, in_mode, barrier_arrive;

// Which one of a family: instruction.which.
enum whole_kind { AS_IT_IS, WHOLE_NEAREST, WHOLE_ZERO, WHOLE_DOWN, WHOLE_UP };
enum barrier_kind { BARRIER_ONLY, BARRIER_SUM, BARRIER_ALL, BARRIER_ANY };
enum atomic_kind { ATOMIC_ADD, ATOMIC_MAX, ATOMIC_MIN, ATOMIC_CAS, ATOMIC_EXCH, ATOMIC_OR, ATOMIC_AND, ATOMIC_XOR, ATOMIC_INC, ATOMIC_DEC };
enum shuffle_kind { SHUFFLE_XOR, SHUFFLE_DOWN, SHUFFLE_UP, SHUFFLE_INDEX };
enum vote_kind { VOTE_ALL, VOTE_ANY, VOTE_UNIFORM, VOTE_BALLOT };

// The kinds of products: bits of instruction.which.
enum { LEFT_REGISTERS = 1, LEFT_TRANSPOSED = 2, RIGHT_TRANSPOSED = 4, FLOAT16 = 8 };

// products_agree compares the products of the warps of each warpgroup. products_forget begins a
// block.
void products_agree(struct machine *, int at_end);
void products_forget(struct warp *);

// memory_at returns the bytes at an address for a lane, or fails.
enum access { READ, WRITE, ATOMIC };
char *memory_at(struct machine *, u32 lane, enum space, u64 address, u32 size, enum access);
// shared_async returns 16 bytes of shared memory for a product, which uses the asynchronous proxy.
char *shared_async(struct machine *, u32 address);

static inline u32 predicate(const struct instruction *i, const char *file, int n) {
  u32 value = *(const u32 *)(file + i->a[n]);
  return i->negated >> n & 1 ? ~value : value;
}

static inline void set_predicate(char *file, int slot, u32 mask, u32 value) {
  u32 *p = (u32 *)(file + slot);
  *p = (*p & ~mask) | (value & mask);
}

static inline void put_32(char *file, int slot, u32 mask, const void *values) {
  u32 *to = (u32 *)(file + slot);
  const u32 *from = values;
  if (mask == everyone) LANES to[l] = from[l];
  else LANES if (mask >> l & 1) to[l] = from[l];
}

static inline void put_64(char *file, int slot, u32 mask, const void *values) {
  u64 *to = (u64 *)(file + slot);
  const u64 *from = values;
  if (mask == everyone) LANES to[l] = from[l];
  else LANES if (mask >> l & 1) to[l] = from[l];
}

static inline u32 bf16_of(float f) {
  u32 bits;
  __builtin_memcpy(&bits, &f, 4);
  return f != f ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static inline float of_bf16(u32 bits) {
  float f;
  bits <<= 16;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}

static inline u32 f16_of(float f) {
  _Float16 v = (_Float16)f;
  u16 bits;
  __builtin_memcpy(&bits, &v, 2);
  return f != f ? 0x7fff : bits;
}

static inline float of_f16(u32 bits) {
  u16 low = (u16)bits;
  _Float16 v;
  __builtin_memcpy(&v, &low, 2);
  return (float)v;
}

#endif
