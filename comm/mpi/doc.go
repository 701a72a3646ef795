// Package mpi makes process groups over an MPI library, for clusters whose MPI
// supports the interconnect. It is the only part of comm that needs an
// installed library, so it is built on request only, with cgo:
//
//	go build -tags mpi          # Open MPI, found by pkg-config as "ompi"
//	go build -tags mpi,mpich    # MPICH and its descendants, as "mpich"
//	mpirun -n 4 ./program
//
// PKG_CONFIG_PATH chooses among several installations (Debian: libopenmpi-dev,
// libmpich-dev). Without the tag, [New] returns [ErrUnavailable]. The mpirun of
// the library that the program was built with must start the program; started
// without any it is a job of one rank.
//
//	world, err := mpi.New(ctx, mpi.Config{})
//	if err != nil { ... }
//	defer world.Close()
//
// # Additions to MPI
//
// MPI checks nothing: calls that differ between ranks give wrong numbers or
// hang, an operation that has begun cannot be given up, and sums depend on the
// library's choice of algorithm. A group of this package keeps the contract of
// [comm.Group] instead. Every collective has two phases:
//
//	agree     each rank sends each other rank its call: number, signature, and
//	          the data, where that is 4 KiB or less for each receiver
//	transfer  what was too large for a message, now that every rank is known to
//	          be here and to want the same
//
// A collective happens when every rank has sent its call, and on every rank or
// on none: calls and the news that a rank will make no more calls travel in
// order, so all ranks decide alike. Small ones need nothing else and cost one
// message each way. Transfers are MPI_Iallgather, MPI_Ibcast and, for gathers
// and reductions, MPI_Isend and MPI_Irecv of blocks. Blocks are summed in the
// canonical order of package comm while the next blocks travel. So the bits are
// the same as over every other transport, and it is faster than
// MPI_Reduce_scatter_block.
//
//	rank 0 ── call #7 ──▶ rank 1        committed: both have sent #7
//	rank 0 ◀── call #7 ── rank 1
//	rank 0 ◀══ blocks ══▶ rank 1        transfer
//	rank 0 ── stop ─────▶ rank 1        #8 will not happen
//
// # Threads
//
// MPI_THREAD_MULTIPLE is required. A goroutine that waits for an operation
// polls the library itself, one goroutine at a time: passing requests to a
// thread of MPI and back would cost more than most small operations. It spins,
// then yields the processor, and sleeps between polls when a rank is late.
// While no operation is in progress, a goroutine on the thread that initialised
// MPI checks for bad news 200 times a second. Memory is pinned during a
// transfer.
//
// # Failures
//
// Invalid and mismatched calls, Abort, Close, and contexts that end give the
// errors of package comm, on every rank. A rank that makes no progress for
// [Config.Timeout] fails the group. A transfer in progress when a group fails
// is completed. If it then makes no progress for 3 seconds, it is abandoned, and
// its buffers stay pinned and must never be used again, because MPI may still
// write to them. Progress inside a piece of 64 MiB between two ranks cannot be
// seen.
//
// A process that dies ends the job: mpirun kills the other ranks.
//
// Closing the world waits until the other ranks close theirs, like
// MPI_Finalize, which it calls. It waits for [Config.Timeout], and for a second
// if the group has failed. If some rank has not closed by then, or a transfer
// was abandoned, MPI is not finalized, Close returns that error, and mpirun
// will report the exit of this process and end the job.
//
// # Limits
//
// MPI can be initialised once in a process, so New works once. Every rank sends
// its call to every other: N-1 messages for a collective, which slows down
// small collectives beyond some hundred ranks. A group keeps 13 KiB for each of
// its ranks, and 512 KiB for each once it has reduced a large buffer.
package mpi
