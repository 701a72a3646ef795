//go:build linux && cgo

package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

typedef void *program;

static int (*create)(program *, const char *, const char *, int, const char *const *, const char *const *);
static int (*compile)(program, int, const char *const *);
static int (*log_size)(program, size_t *), (*get_log)(program, char *);
static int (*ptx_size)(program, size_t *), (*get_ptx)(program, char *);
static int (*version)(int *, int *), (*destroy)(program *);

static const struct { const char *name; void *to; } functions[] = {
    {"nvrtcCreateProgram", &create}, {"nvrtcCompileProgram", &compile}, {"nvrtcGetProgramLogSize", &log_size},
    {"nvrtcGetProgramLog", &get_log}, {"nvrtcGetPTXSize", &ptx_size}, {"nvrtcGetPTX", &get_ptx},
    {"nvrtcVersion", &version}, {"nvrtcDestroyProgram", &destroy},
};

// load returns NULL, or why the library cannot be used.
static const char *load(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void *f = dlsym(library, functions[i].name);
    if (!f) return functions[i].name;
    *(void **)functions[i].to = f;
  }
  return NULL;
}
static int do_version(int *major, int *minor) { return version(major, minor); }
static int do_create(program *p, const char *text, const char *name, int n, const char **headers, const char **names) {
  return create(p, text, name, n, headers, names);
}
static int do_compile(program p, int n, const char **options) { return compile(p, n, options); }
static size_t do_log_size(program p) { size_t n = 0; log_size(p, &n); return n; }
static int do_log(program p, char *to) { return get_log(p, to); }
static size_t do_ptx_size(program p) { size_t n = 0; ptx_size(p, &n); return n; }
static int do_ptx(program p, char *to) { return get_ptx(p, to); }
static void do_destroy(program p) { destroy(&p); }
*/
import "C"

import (
	"fmt"
	"strings"
	"unsafe"
)

// open loads the library and returns its version.
func open(path string) (string, error) {
	if problem := C.load(C.CString(path)); problem != nil {
		return "", fmt.Errorf("%s: %s", path, C.GoString(problem))
	}
	var major, minor C.int
	C.do_version(&major, &minor)
	version := fmt.Sprintf("%d.%d", major, minor)
	if architectures[version] == "" {
		return "", fmt.Errorf("%s is of CUDA %s, want 11.8 or 12.0", path, version)
	}
	return version, nil
}

// compile returns the PTX of a source. The process ends soon: nothing is freed.
func compile(s source, headers []source) ([]byte, error) {
	var texts, names []string
	for _, h := range headers {
		texts, names = append(texts, string(h.text)), append(names, h.name)
	}
	var p C.program
	if r := C.do_create(&p, C.CString(string(s.text)), C.CString(s.name), C.int(len(headers)), list(texts), list(names)); r != 0 {
		return nil, fmt.Errorf("nvrtcCreateProgram: error %d", r)
	}
	defer C.do_destroy(p)
	r := C.do_compile(p, C.int(len(options(s))), list(options(s)))
	said := make([]byte, C.do_log_size(p)+1)
	C.do_log(p, (*C.char)(unsafe.Pointer(&said[0])))
	if text := strings.TrimRight(string(said), "\x00\n"); r != 0 || text != "" { // a warning is an error
		return nil, fmt.Errorf("nvrtcCompileProgram: error %d: %s", r, text)
	}
	ptx := make([]byte, C.do_ptx_size(p))
	if r := C.do_ptx(p, (*C.char)(unsafe.Pointer(&ptx[0]))); r != 0 {
		return nil, fmt.Errorf("nvrtcGetPTX: error %d", r)
	}
	return ptx[:len(ptx)-1], nil // its final 0
}

// list returns strings as C has them.
func list(texts []string) **C.char {
	const word = unsafe.Sizeof(uintptr(0))
	p := (**C.char)(C.malloc(C.size_t(word) * C.size_t(len(texts)+1)))
	for i, s := range texts {
		unsafe.Slice(p, len(texts))[i] = C.CString(s)
	}
	return p
}
