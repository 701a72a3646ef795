//go:build linux && cgo

package nccl

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #cgo noescape fsdp_nccl_run
// #cgo noescape fsdp_nccl_init
// #cgo noescape fsdp_nccl_place
// #cgo nocallback fsdp_nccl_run
// #cgo nocallback fsdp_nccl_async
// #include <stdlib.h>
// #include "shim.h"
import "C"

import "unsafe"

// slot is a communicator in C memory, because NCCL writes to it after the call that gets it.
type slot C.fsdp_nccl_slot

// An Op is handed to C as it is.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Op{})-unsafe.Sizeof(C.fsdp_nccl_op{})]
	_ = [1]struct{}{}[unsafe.Offsetof(Op{}.Peer)-unsafe.Offsetof(C.fsdp_nccl_op{}.peer)]
	_ = [1]struct{}{}[unsafe.Offsetof(Op{}.Recv)-unsafe.Offsetof(C.fsdp_nccl_op{}.recv)]
	_ = [1]struct{}{}[unsafe.Offsetof(Op{}.Count)-unsafe.Offsetof(C.fsdp_nccl_op{}.count)]
	_ = [1]struct{}{}[AllGather-C.OP_ALL_GATHER]
	_ = [1]struct{}{}[Recv-C.OP_RECV]
)

// open loads the library at path, or returns why it cannot.
func open(path string) (why string, err error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var v C.int
	var text [512]C.char
	if C.fsdp_nccl_open(name, C.int(Floor), &v, &text[0], C.size_t(len(text))) != 0 {
		return C.GoString(&text[0]), nil
	}
	version = VersionCode(v)
	return "", nil
}

// setDriver gives the shim the address of cuCtxSetCurrent.
func setDriver(setCurrent uintptr) { C.fsdp_nccl_driver(C.uintptr_t(setCurrent)) }

func uniqueID() (id UniqueID, r Result, detail string) {
	var f C.fsdp_nccl_failure
	r = Result(C.fsdp_nccl_unique_id((*C.nccl_unique_id)(unsafe.Pointer(&id)), &f))
	return id, r, C.GoString(&f.text[0])
}

// newSlot returns a slot of no communicator yet.
func newSlot(context uintptr, cfg *Config) *slot {
	o := C.fsdp_nccl_options{
		min_ctas: C.int(cfg.MinCTAs), max_ctas: C.int(cfg.MaxCTAs), cluster_size: C.int(cfg.ClusterSize),
		non_blocking: number(cfg.NonBlocking), share_on_split: number(cfg.Share),
	}
	if cfg.Net != "" {
		o.net = C.CString(cfg.Net)
		defer C.free(unsafe.Pointer(o.net))
	}
	if cfg.Name != "" {
		o.name = C.CString(cfg.Name)
		defer C.free(unsafe.Pointer(o.name))
	}
	s := C.fsdp_nccl_new(C.uintptr_t(context), &o)
	if s == nil {
		panic("nccl: out of memory") // as Go does
	}
	return (*slot)(s)
}

func number(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func (s *slot) c() *C.fsdp_nccl_slot { return (*C.fsdp_nccl_slot)(s) }

func (s *slot) free()            { C.fsdp_nccl_free(s.c()) }
func (s *slot) live() bool       { return C.fsdp_nccl_live(s.c()) != 0 }
func (s *slot) async() Result    { return Result(C.fsdp_nccl_async(s.c())) }
func (s *slot) finalize() Result { return Result(C.fsdp_nccl_finalize(s.c())) }
func (s *slot) destroy() Result  { return Result(C.fsdp_nccl_destroy(s.c())) }

func (s *slot) init(n int, id *UniqueID, rank int) Result {
	return Result(C.fsdp_nccl_init(s.c(), C.int(n), (*C.nccl_unique_id)(unsafe.Pointer(id)), C.int(rank)))
}

func (s *slot) split(color, key int, child *slot) Result {
	return Result(C.fsdp_nccl_split(s.c(), C.int(color), C.int(key), child.c()))
}

func (s *slot) place() (rank, size int, r Result) {
	var me, n C.int
	r = Result(C.fsdp_nccl_place(s.c(), &me, &n))
	return int(me), int(n), r
}

// abort does not change the failure of s, which a call in flight may be writing.
func (s *slot) abort() (r Result, detail string) {
	var f C.fsdp_nccl_failure
	r = Result(C.fsdp_nccl_abort(s.c(), &f))
	return r, C.GoString(&f.text[0])
}

func (s *slot) run(ops []Op, stream uintptr) Result {
	first := (*C.fsdp_nccl_op)(unsafe.Pointer(unsafe.SliceData(ops)))
	return Result(C.fsdp_nccl_run(s.c(), first, C.int(len(ops)), C.uintptr_t(stream)))
}

// failed returns the text of the last failed call, and the index of the failed operation in its
// group, or -1.
func (s *slot) failed() (at int, detail string) {
	f := &s.c().failure
	return int(f.at), C.GoString(&f.text[0])
}
