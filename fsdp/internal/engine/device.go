package engine

import (
	"context"
	"fmt"
	"iter"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/optim"
)

// A Device owns memory and executes operations, in the order in which they are issued. It may
// return before it has executed them. Methods that return a result to the caller, and methods whose
// comments say so, wait for all earlier operations.
//
// The first operation that fails ends the use of the Device. The method that issued it may have
// returned: any later method may return the error, as an [OpError] if it was an operation of a
// pass. Operations issued after it are skipped, but Settle, Whole, Stats and Close work as
// described. A method that waits, and fails by itself, ends nothing.
//
// All methods of a Device, its Shards and Frames are called by one goroutine. Vectors are for any
// goroutine: see optim.Vec.
type Device interface {
	// Threads returns how many threads of the host compute, at least 1. Each has separate scratch
	// memory in a pass.
	Threads() int
	// Apart reports whether every instruction runs separately: see exec.Signature.
	Apart() bool
	// Work returns the bytes of scratch memory that a run of the program takes. Operations that the
	// device cannot run are an error, which is [errors.ErrUnsupported].
	Work(p *exec.Program) (int, error)
	// SumWork returns the bytes of scratch memory in which the device sums the gradients of a group
	// over its ranks, and then over the replicas, in a step of Options.Passes; and the bytes of room
	// that it needs behind the full gradients until then. Sums may be leafwise: see Turn.
	SumWork(g *layout.Group, leafwise bool) (room, reduce, sync int)
	// Runs returns the instructions of a program that the device runs. The operations of others are
	// parts of these.
	Runs(p *exec.Program) iter.Seq[exec.Instr]
	// Slow returns why the device is slow at an instruction, as a noun, or "".
	Slow(in *exec.Instr) string
	// Prepare returns the data that the device needs to open a pass. It becomes Compiled.Prepared.
	// It is called once for a pass, when the rest of the pass is complete.
	Prepare(c *Compiled) (any, error)
	// Keep sets the passes that may be opened from now on. Data of other passes is freed, once
	// those of them that are open have ended.
	Keep(passes []*Compiled)
	// NewShards allocates the shards of a layout whose groups use these meshes, all zero. After an
	// error it frees everything it has allocated. It may be a collective of the meshes' ranks,
	// whose waits end with ctx.
	NewShards(ctx context.Context, l *layout.Layout, meshes []ranks.Mesh) (Shards, error)
	// Copies reports whether Open copies the batch. Otherwise the batch must not change until the
	// pass ends.
	Copies() bool
	// Rounds reports whether Shards keep copies of parameters in the type that calls read: see
	// layout.Options.Copies.
	Rounds() bool
	// Open begins the pass of a number on a batch. Nothing is allocated yet.
	Open(c *Compiled, number int, s Shards, batch []exec.Value) Frame
	// Watch has f called for the collectives of passes that do not go through the groups: see
	// transport.Watcher. It is called before the first pass, if ever.
	Watch(f func(transport.Flight))
	// Finish is called at the end of a forward and of a backward. It waits for operations that use
	// the groups of the ranks, which serve other purposes from then on, or the context of the pass.
	Finish() error
	// Wait waits for all operations.
	Wait() error

	// MaxAbs returns the largest magnitude in each vector, which is not finite if an element is
	// not. It waits once for all.
	MaxAbs(vs []optim.Vec) ([]float64, error)
	// Squares returns the exact sums of squares of the vectors, in words of package vec. No element
	// exceeds the bound of its vector. It waits once for all.
	Squares(vs []optim.Vec, bounds []float64) ([][4]float64, error)
	// Scale multiplies the elements of the vectors by c.
	Scale(vs []optim.Vec, c float64) error

	// Host returns n bytes of counted host memory. The caller frees them.
	Host(n int, class arena.Class) (*arena.Block, error)
	// Free frees memory returned by Host. It does nothing for nil.
	Free(b *arena.Block)
	// Begin sets the kind of the next pass.
	Begin(p arena.Phase)
	// EndStep frees memory that steps have stopped using. From then on a group may take back the
	// memory that it has given: EndStep waits for the operations that use it.
	EndStep() error
	// Stats returns the counts of memory after all issued operations.
	Stats() arena.Stats
	// ResetPeak makes Stats count the peak from here on.
	ResetPeak()
	// Reserve returns the most bytes that Stats will count as reserved for the buffers of passes
	// like c, of the classes that count, once the passes repeat.
	Reserve(c *Compiled, counts func(arena.Class) bool) int
	// InFile reports whether memory of a class is in files.
	InFile(class arena.Class) bool
	// Close waits for all operations, and frees all memory.
	Close() error
}

// DeviceOptions are the decisions of a configuration for a Device that is not the Host.
type DeviceOptions struct {
	Dry     bool // for a plan: it counts memory and has none, and runs no pass
	Poison  bool // fill freed buffers with NaN
	Offload bool // shards and the state of optimizers are in memory of the host
	Cores   int  // of the host that this rank may use
	Virtual bool // bits do not depend on the number of ranks
	Float16 bool // values of 16 bits in calls are float16 instead of bfloat16
}

// Shards are the parts that this rank has of the parameters of a layout and of their gradients.
type Shards interface {
	// Value returns the shard of a group's parameters, of Flat.ShardLen elements.
	Value(group int) optim.Vec
	// Grad returns the shard of a group's gradients, or nil if it has none.
	Grad(group int) optim.Vec
	// Alloc returns n elements in the type of a group, for the state of an optimizer. They live as
	// long as the shards.
	Alloc(group, n int) (optim.Vec, error)
	// Average gives the values of a group their mean over the ranks that have it. It waits.
	Average(ctx context.Context, group int) error

	// Whole reports whether a pass has left whole gradients of a group, which are not reduced.
	Whole(group int) bool
	// ReduceWhole adds the sums over the ranks of the whole gradients to the shard, and frees them.
	// It waits. See Frame.Reduce and Drain.
	ReduceWhole(ctx context.Context, group int, before float32, after float64) error
	// DropWhole frees the whole gradients of all groups.
	DropWhole()
	// Forget drops the rounding errors of gradients, which would travel with the next gradients.
	Forget()

	// Free frees the memory.
	Free()
}

// A Frame is a pass under way on a Device: its buffers, and the operations of its plan, which are
// called in the plan's order.
type Frame interface {
	// Enter allocates the buffers of a step of the plan, and clears the gradients in them that no
	// call writes.
	Enter(step int) error
	// Leave frees the buffers that a step is the last to use.
	Leave(step int)

	// Forward and Backward run a call. Random numbers follow from the seed. An evaluation has none.
	Forward(step *program.Step, seed uint64) error
	Backward(step *program.Step, seed uint64) error
	// Seed sets the gradient of the loss.
	Seed(scale float64) error
	// Gather begins to gather the parameters of a group. Wait returns when they are there.
	Gather(group int) error
	Wait(ctx context.Context, group int) error
	// Reduce begins to sum the gradients of a group over the ranks that share them, multiplied by
	// before if they travel in 16 bits. Sync continues over the replicas. Drain adds the sum,
	// multiplied by after, to the shard.
	Reduce(group int, before float32) error
	// ScaleGrad multiplies the whole gradient of a parameter by c.
	ScaleGrad(param int, c float64) error
	Sync(ctx context.Context, group int) error
	Drain(ctx context.Context, group int, after float64) error

	// Follow waits until the step that was entered last is over, for tracing. A collective that it
	// has begun may continue.
	Follow() error
	// Number waits for a buffer of one number and returns it. Result waits for a buffer and copies
	// it, converted to float32 if it is in bfloat16: to must then have room for twice as many
	// bytes.
	Number(buffer int) (float64, error)
	Result(buffer int, to []byte) error

	// Switch changes the pass to another plan of the same calls, and frees buffers that the new
	// plan does not use.
	Switch(c *Compiled)
	// Inherit takes over the whole gradients that the plan adds to. Bequeath leaves the gradients
	// that the plan does not reduce.
	Inherit()
	Bequeath()

	// Await waits for the gathers in flight. With an error it returns the group of the gather.
	Await(ctx context.Context) (group int, err error)
	// Settle waits until all collectives in flight are over, failed ones included.
	Settle()
	// Free frees all buffers.
	Free()
}

// A Place is an operation of a pass.
type Place struct {
	Pass    int // its number
	Program *program.Program
	Op      program.Op
}

// An OpError is the failure of an operation, which may become known in a later one.
type OpError struct {
	Place
	Err error
}

func (e *OpError) Error() string {
	if e.Op.Kind == program.Turn {
		return fmt.Sprintf("pass %d, between forward and backward: %v", e.Pass, e.Err)
	}
	return fmt.Sprintf("pass %d: %s: %v", e.Pass, e.Program.Text(e.Op), e.Err)
}
func (e *OpError) Unwrap() error { return e.Err }
