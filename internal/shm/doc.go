// Package shm provides memory that several processes of one host map.
//
// Every process creates one [Segment], passes its file to the others, and maps theirs. It allocates
// only in its own segment. The others access an allocation at the same offset of their mapping, at
// another address:
//
//	own, err := shm.Create(64 << 30)     // address space: memory is taken by Alloc
//	b, err := own.Alloc(1 << 20)         // zeroed, present in this process
//	off, ok := own.Offset(b)
//	... pass own.File() and off to another process ...
//	theirs, err := shm.Open(file)
//	b, ok := theirs.Bytes(off, 1<<20)    // the same memory
//
// A segment has no name in any file system: it is freed when the last process that maps it ends, in
// any way. Memory is reserved before it is used, so on a machine without free memory Alloc returns
// an error, and no signal arrives later. The file is sealed so that no process can shrink it.
//
//	0        header: layout, bell, directory (see [Segment.Publish])
//	8 KiB    heap, grown from below
//	limit    end of the mapping; only addresses follow
//
// Processes wait for one another with [Wait] and [Wake] on a word of a segment, which the kernel
// identifies by file and offset, not by address.
//
// The package works on Linux. On other systems Create and Open return [ErrUnsupported].
package shm
