//go:build ignore

// What the files of the parser share: scan.c, operand.c, decode.c and parse.c.
#ifndef PTX_PARSE_H
#define PTX_PARSE_H

#include "machine.h"

// A word is a piece of the text.
struct word { const char *at; int length; };

// A name is something that is declared. Registers may be many: %r<4> are %r0 to %r3.
enum name_kind { REGISTER, SHARED_VARIABLE, LOCAL_VARIABLE, MODULE_VARIABLE, PARAMETER, CALL_PARAMETER, LABEL };
struct name {
  struct word word;
  enum name_kind kind;
  enum type type;
  s64 at; // slot of the first register, address, or index of an instruction; unplaced for some
  int count; // of registers, 0 for a single one
  u64 bytes;
};
enum { UNPLACED = -1, DYNAMIC = -2 }; // addresses of shared variables

struct names { struct name *list; int count, room; };

// A function is inlined where it is called.
struct function { struct word name; const char *result, *parameters, *body; };

// A jump is a branch whose label is not known yet. Without a name it goes to the end of a body.
struct jump { int instruction; struct word label; };

struct parser {
  const char *p; // where the text is read
  struct ptx_module *module;
  struct ptx_kernel *kernel; // that is parsed, or NULL
  struct names names, labels;
  struct function *functions;
  int function_count, function_room;
  struct jump *jumps;
  int jump_count, jump_room;
  int depth; // of calls
  int carry, dynamic[2]; // slots of the carry, and of the address of dynamic shared memory in 4 and 8 bytes
  jmp_buf failed;
  char *error;
  size_t error_size;
};

// refuse ends parsing with a reason.
void refuse(struct parser *, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

// The scanner. next_word takes a name with its dots, which may be empty.
void skip_space(struct parser *);
struct word next_word(struct parser *);
int accept(struct parser *, char c);
void expect(struct parser *, char c);
s64 number(struct parser *);
int is(struct word, const char *text);
enum type type_of(struct word);
int same(struct word, struct word);

struct name *name_find(struct parser *, struct word);
struct name *name_add(struct parser *, struct names *, struct name);
int slot_add(struct parser *, int size);
int slot_constant(struct parser *, u64 value, int size);
void slot_fill(struct ptx_kernel *, int at, u64 value, int size);
// shared_place gives a variable of shared memory its place in the kernel that uses it.
s64 shared_place(struct parser *, struct name *);

// The parts of "ld.global.f32". Whoever understands a modifier takes it. An instruction of which
// something is left is refused, so that nothing is ever ignored by mistake.
enum { MOST_PARTS = 16 };
struct parts {
  struct word whole, list[MOST_PARTS];
  int count;
  u32 taken; // a bit each; the first is taken from the beginning
};
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

struct parts split(struct parser *, struct word);
// take tells whether there is a modifier, once; take_one which of some names is one, or -1.
int take(struct parts *, const char *name);
int take_one(struct parts *, const char *const names[]);
void take_all(struct parts *, const char *const names[]);
enum type take_type(struct parts *);
// need refuses an instruction unless a condition holds.
void need(struct parser *, const struct parts *, int condition);

// Operands: each of these parses one. Sizes are 4 or 8 bytes; results are slots.
int value(struct parser *, int size);
int result(struct parser *, int size); // -1 for _
int predicate_register(struct parser *);
void condition(struct parser *, struct instruction *, int n);
void address(struct parser *, struct instruction *);
int elements(struct parser *, int *to, int most, int size, int (*one)(struct parser *, int));
// width returns how many bytes the register at p has, 0 if there is none.
int width(struct parser *);
int slot_size(enum type);

// decode_warpgroup parses the instructions that begin with wgmma.
void decode_warpgroup(struct parser *, struct instruction *, struct parts *);

// statement parses an instruction up to its semicolon; call one that begins with call.
void statement(struct parser *);
void call(struct parser *, struct word opcode);
// emit adds an instruction to the kernel.
struct instruction *emit(struct parser *, struct instruction);
void jump_to(struct parser *, struct word label);

// grow makes room for one more element of a list.
void *grow(void *list, int count, int *room, size_t size);

#endif
