//go:build mpi && cgo && unix

package mpi

// #cgo !mpich pkg-config: ompi
// #cgo mpich pkg-config: mpich
// #cgo noescape shim_calls
// #cgo noescape shim_receive
// #cgo noescape shim_test
// #cgo noescape shim_exchange
// #cgo noescape shim_allgather
// #cgo noescape shim_broadcast
// #cgo noescape shim_send_part
// #cgo noescape shim_receive_part
// #cgo nocallback shim_calls
// #cgo nocallback shim_receive
// #cgo nocallback shim_test
// #cgo nocallback shim_exchange
// #cgo nocallback shim_allgather
// #cgo nocallback shim_broadcast
// #cgo nocallback shim_send_part
// #cgo nocallback shim_receive_part
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Handles of MPI objects. The C types differ between libraries, so they are opaque here.
type (
	communicator = C.MPI_Comm
	request      = C.MPI_Request
	rankInt      = C.int
)

// parts describes where in a tensor of total bytes the ranks' parts are: the part of rank
// r begins at+r*stride bytes after base and has size bytes, or the rest of the tensor.
type parts struct {
	base                    unsafe.Pointer
	total, at, stride, size int
}

func (p parts) c() C.shim_parts {
	return C.shim_parts{C.uintptr_t(uintptr(p.base)), C.size_t(p.total), C.size_t(p.at), C.size_t(p.stride), C.size_t(p.size)}
}

// check turns the code that an MPI function returned into an error.
func check(function string, code C.int) error {
	if code == 0 {
		return nil
	}
	var text [C.MPI_MAX_ERROR_STRING + 1]C.char
	if C.shim_text(code, &text[0]) != 0 {
		return fmt.Errorf("mpi: %s: error %d", function, int(code))
	}
	return fmt.Errorf("mpi: %s: %s", function, C.GoString(&text[0]))
}

// library is the result of shim_init.
type library struct {
	control, world communicator // of the same ranks: for messages, for the world group's data
	rank, size     int
}

// initialize initialises MPI. The thread that calls it must finalize it, too.
func initialize() (library, error) {
	var l library
	var rank, size, level, used C.int
	err := check("MPI_Init_thread", C.shim_init(&l.control, &l.world, &rank, &size, &level, &used))
	l.rank, l.size = int(rank), int(size)
	switch {
	case err != nil:
		return l, err
	case used != 0:
		return l, errors.New("mpi: this process has already initialised MPI: leave that to mpi.New")
	case level == 0:
		return l, errors.New("mpi: the MPI library does not support MPI_THREAD_MULTIPLE: use a build of MPI that does")
	}
	return l, nil
}

func finalize() error { return check("MPI_Finalize", C.shim_finalize()) }

// allocate returns n bytes of memory outside of the Go heap, aligned to a cache line.
func allocate(n int) []byte {
	p := C.shim_alloc(C.size_t(n))
	if p == nil {
		panic("mpi: out of memory") // as Go does
	}
	return unsafe.Slice((*byte)(p), n)
}

// release frees the memory that allocate has returned.
func release(b []byte) { C.free(unsafe.Pointer(unsafe.SliceData(b))) }

// create makes a communicator of some ranks of parent. All of these ranks must call create, which
// blocks until they have.
func create(parent communicator, ranks []rankInt, tag int) (made communicator, err error) {
	err = check("MPI_Comm_create_group", C.shim_create(parent, C.int(len(ranks)), &ranks[0], C.int(tag), &made))
	return made, err
}

func free(c communicator) error { return check("MPI_Comm_free", C.shim_free(&c)) }

// listen posts the receive of a message from any rank, and unlisten cancels it.
func listen(box []byte, c communicator, r *request) error {
	return check("MPI_Irecv", C.shim_listen(unsafe.Pointer(&box[0]), C.int(len(box)), c, r))
}

func unlisten(r *request) error { return check("MPI_Cancel", C.shim_unlisten(r)) }

// send sends a message; msg is memory of allocate's.
func send(msg []byte, to int, c communicator, r *request) error {
	return check("MPI_Isend", C.shim_send(unsafe.Pointer(&msg[0]), C.int(len(msg)), C.int(to), c, r))
}

// sendCalls sends the first size bytes of buf, from allocate, to every rank but self. If
// stride is not 0, rank r gets the bytes that begin r*stride later.
func sendCalls(buf []byte, stride, size, self int, to []rankInt, c communicator, rs []request) error {
	if len(rs) == 0 {
		return nil
	}
	return check("MPI_Isend", C.shim_calls((*C.char)(unsafe.Pointer(&buf[0])), C.size_t(stride), C.int(size),
		C.int(len(to)), C.int(self), &to[0], c, &rs[0]))
}

// receive makes some tests whether a message has come.
func receive(r *request, tests int) (from, size int, ok bool, err error) {
	res := C.shim_receive(r, C.int(tests))
	return int(res.source), int(res.bytes), res.done != 0, check("MPI_Test", res.err)
}

// test makes some tests whether all requests are complete.
func test(rs []request, tests int) (ok bool, err error) {
	if len(rs) == 0 {
		return true, nil
	}
	res := C.shim_test(C.int(len(rs)), &rs[0], C.int(tests))
	return res.done != 0, check("MPI_Testall", res.err)
}

// requests returns n requests that are complete.
func requests(n int) []request {
	rs := make([]request, n)
	if n > 0 {
		C.shim_none(C.int(n), &rs[0])
	}
	return rs
}

// exchange sends each of the other n-1 ranks its part of out and receives its part of in.
// All memory is pinned. rs has 2*(n-1) elements.
func exchange(out, in parts, n, self int, c communicator, rs []request) error {
	return check("MPI_Isend", C.shim_exchange(out.c(), in.c(), C.int(n), C.int(self), c, &rs[0]))
}

// allGather concatenates the size bytes of src of all ranks in dst; if src is nil, they
// are already in their places. All memory is pinned.
func allGather(src, dst unsafe.Pointer, size int, c communicator, r *request) error {
	return check("MPI_Iallgather", C.shim_allgather(C.uintptr_t(uintptr(src)), C.uintptr_t(uintptr(dst)), C.int(size), c, r))
}

// sendPart sends size bytes of pinned memory to a rank's receivePart.
func sendPart(p unsafe.Pointer, size, to int, c communicator, r *request) error {
	return check("MPI_Isend", C.shim_send_part(C.uintptr_t(uintptr(p)), C.int(size), C.int(to), c, r))
}

func receivePart(p unsafe.Pointer, size, from int, c communicator, r *request) error {
	return check("MPI_Irecv", C.shim_receive_part(C.uintptr_t(uintptr(p)), C.int(size), C.int(from), c, r))
}

// broadcast copies size bytes from the root's memory to the others' memory. All is
// pinned.
func broadcast(buf unsafe.Pointer, size, root int, c communicator, r *request) error {
	return check("MPI_Ibcast", C.shim_broadcast(C.uintptr_t(uintptr(buf)), C.int(size), C.int(root), c, r))
}
