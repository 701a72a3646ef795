package nccl

import "fmt"

// VersionCode is NCCL_VERSION_CODE: 23007 is NCCL 2.30.7.
type VersionCode int

// Floor is the oldest supported version of NCCL.
const Floor VersionCode = 21800

// String returns the version with dots.
func (v VersionCode) String() string {
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
}

// UniqueID is ncclUniqueId. One rank makes it, and every rank is given the same
// bytes by other means.
type UniqueID [128]byte

// DataType is ncclDataType_t.
type DataType int32

// The element types that NCCL moves.
const (
	Int8 DataType = iota
	Uint8
	Int32
	Uint32
	Int64
	Uint64
	Float16
	Float32
	Float64
	BFloat16
	Float8E4M3 // NCCL 2.24; sums need a GPU of compute capability 9.0
	Float8E5M2 // as Float8E4M3
)

var dataTypes = [...]struct {
	name string
	size int
}{
	{"int8", 1}, {"uint8", 1}, {"int32", 4}, {"uint32", 4}, {"int64", 8}, {"uint64", 8},
	{"float16", 2}, {"float32", 4}, {"float64", 8}, {"bfloat16", 2}, {"float8e4m3", 1}, {"float8e5m2", 1},
}

func (t DataType) valid() bool { return t >= 0 && int(t) < len(dataTypes) }

// Size returns the bytes of one element, 0 if t is no type.
func (t DataType) Size() int {
	if !t.valid() {
		return 0
	}
	return dataTypes[t].size
}

// String returns the name of the type in lower case.
func (t DataType) String() string {
	if !t.valid() {
		return fmt.Sprintf("DataType(%d)", int32(t))
	}
	return dataTypes[t].name
}

// RedOp is ncclRedOp_t, the operator of a reduction.
type RedOp int32

// The operators that every communicator has. NCCL adds 16-bit types in 16 bits, in
// its own order. Avg is the sum of x*(1/n), with 1/n rounded to the element type
// first; integers are divided after the sum.
const (
	Sum RedOp = iota
	Prod
	Max
	Min
	Avg
)

// Kind is the kind of an [Op].
type Kind int32

// The operations. The numbers are the ones of shim.h.
const (
	AllGather Kind = iota + 1
	ReduceScatter
	AllReduce
	Broadcast
	Reduce
	Send
	Recv
)

var kinds = [...]string{"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclSend", "ncclRecv"}

// String returns the name of NCCL's function.
func (k Kind) String() string {
	if k < AllGather || k > Recv {
		return fmt.Sprintf("Kind(%d)", int32(k))
	}
	return kinds[k-1]
}

// Op is one operation of a [Communicator.Group]. The methods of Communicator explain
// the fields for each kind.
type Op struct {
	Kind   Kind
	Type   DataType
	Reduce RedOp   // of ReduceScatter, AllReduce and Reduce
	Peer   int     // the other rank of Send and Recv, the root of Broadcast and Reduce
	Send   uintptr // address of device memory
	Recv   uintptr // address of device memory
	Count  int     // elements
}

// Config is the configuration of a communicator. The zero value leaves every choice
// to NCCL.
type Config struct {
	// Name appears in errors and in NCCL's own logs.
	Name string
	// NonBlocking makes NCCL start every call on its own thread, and the methods
	// poll it. They can then be given up at any time without another thread. NCCL
	// promises that only for such communicators: aborting during a call that hangs
	// usually works, but NCCL may free memory that the call still uses. Each call
	// costs about ten microseconds more.
	NonBlocking bool
	// MinCTAs and MaxCTAs bound the thread blocks, and so the multiprocessors, that
	// an operation takes from concurrent computation.
	MinCTAs, MaxCTAs int
	// ClusterSize is the number of thread blocks that share one cluster.
	ClusterSize int
	// Net names the network plugin to use.
	Net string
	// Share makes the communicators that are split from this one use its channels.
	// It takes less memory. Operations of parent and children must not overlap, and
	// aborting one aborts all of them.
	Share bool
}
