package nccl

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// Communicator is one rank's handle to a communicator of NCCL. Its methods may be called
// from any goroutine and take turns. They enqueue work on a stream of the device. A
// method returns when the work is in the stream, and its buffers belong to NCCL until the
// stream has executed it.
//
// All ranks must make the same calls in the same order, over all communicators of a
// device. After an error other than [InvalidArgument] the communicator returns that error
// from every call, and must be aborted, on all ranks.
type Communicator struct {
	context    uintptr // of the device, which outlives the communicator
	cfg        Config
	rank, size int

	closed atomic.Bool // set once, by the call that frees slot
	mu     sync.Mutex  // held during calls, except an abort of one that hangs
	slot   *slot       // valid until closed is set
	err    error       // the first fatal error
	stuck  bool        // in a call that uses slot and does not return: slot is not freed
}

// NewCommunicator joins a communicator of n ranks, all of which call it with the same
// id, and waits for the others. If ctx ends first, the communicator is aborted.
func NewCommunicator(ctx context.Context, dev *Device, n int, id UniqueID, rank int, cfg Config) (*Communicator, error) {
	if n < 1 || n > math.MaxInt32 || rank < 0 || rank >= n {
		return nil, fmt.Errorf("nccl: rank %d is not one of %d ranks", rank, n)
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("nccl: rank %d of %d: ncclCommInitRankConfig: %w", rank, n, context.Cause(ctx))
	}
	if err := attach(dev); err != nil {
		return nil, err
	}
	c := &Communicator{context: dev.Context(), cfg: cfg, rank: rank, size: n}
	c.slot = newSlot(c.context, &cfg)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.wait(ctx, "ncclCommInitRankConfig", func() Result { return c.slot.init(n, &id, rank) }); err != nil {
		c.discard()
		return nil, err
	}
	return c, nil
}

// check refuses values that NCCL's ints cannot hold.
func (cfg *Config) check() error {
	for _, v := range []int{cfg.MinCTAs, cfg.MaxCTAs, cfg.ClusterSize} {
		if v < 0 || v > math.MaxInt32 {
			return fmt.Errorf("nccl: Config has %d thread blocks: MinCTAs, MaxCTAs and ClusterSize must be int32 and not negative", v)
		}
	}
	return nil
}

// Rank returns the rank of this handle.
func (c *Communicator) Rank() int { return c.rank }

// Size returns the number of ranks.
func (c *Communicator) Size() int { return c.size }

// NoColor is the color of the ranks that do not take part in a new communicator.
const NoColor = -1

// Split makes new communicators, each of the ranks that give the same color, in the
// order of their keys and then of their ranks here. All ranks call it. It returns nil
// for the color [NoColor]. If ctx ends first, both communicators are aborted.
func (c *Communicator) Split(ctx context.Context, color, key int, cfg Config) (*Communicator, error) {
	if color < NoColor || color > math.MaxInt32 || key < math.MinInt32 || key > math.MaxInt32 {
		return nil, fmt.Errorf("nccl: Split by color %d and key %d: both must be int32, and the color at least NoColor", color, key)
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return nil, err
	}
	child := &Communicator{context: c.context, cfg: cfg, rank: c.rank, size: c.size}
	child.slot = newSlot(c.context, &cfg)
	child.mu.Lock()
	defer child.mu.Unlock()
	err := c.wait(ctx, "ncclCommSplit", func() Result { return c.slot.split(color, key, child.slot) })
	if c.stuck { // in a call that may write to the child's slot
		return nil, err
	}
	if err == nil && color == NoColor {
		child.discard()
		return nil, nil
	}
	if err == nil {
		err = child.settle(ctx, "ncclCommSplit", child.slot.async())
	}
	if err == nil {
		rank, size, r := child.slot.place()
		if err = child.result("ncclCommUserRank", r); err == nil {
			child.rank, child.size = rank, size
		}
	}
	if err != nil {
		child.discard()
		return nil, err
	}
	return child, nil
}

// AsyncError returns the asynchronous error of the communicator, nil if there is none or
// if another call is being made, which then reports it. It never waits.
func (c *Communicator) AsyncError() error {
	if !c.mu.TryLock() {
		return nil
	}
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	r := c.slot.async()
	if r == InProgress {
		return nil
	}
	return c.result("ncclCommGetAsyncError", r)
}

// Finalize waits until all enqueued work is complete. Only Destroy or Abort may follow
// it. All ranks call it. If ctx ends first, the communicator is aborted.
func (c *Communicator) Finalize(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	return c.wait(ctx, "ncclCommFinalize", c.slot.finalize)
}

// Destroy frees the communicator, which must be finalized before. All ranks call it. A
// communicator that has failed is not destroyed: Destroy returns its error, and it must
// be aborted.
func (c *Communicator) Destroy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil { // after a failure it takes an Abort
		return err
	}
	if r := c.slot.async(); r != Success { // or else NCCL leaves a group open on this thread
		return c.result("ncclCommDestroy", r)
	}
	if c.closed.Swap(true) {
		return c.usable()
	}
	err := c.result("ncclCommDestroy", c.slot.destroy())
	c.slot.free()
	return err
}

// usable returns the error of a communicator that has failed or is closed. The lock is
// held.
func (c *Communicator) usable() error {
	if c.err != nil {
		return c.err
	}
	if c.closed.Load() {
		return fmt.Errorf("nccl: rank %d of %d: %w", c.rank, c.size, ErrClosed)
	}
	return nil
}

// result turns the result of a call into an error, which stays if it is fatal. The lock
// is held.
func (c *Communicator) result(call string, r Result) error {
	if r == Success {
		return nil
	}
	_, detail := c.slot.failed()
	e := c.failure(call, r, detail)
	if e.fatal() {
		c.err = e
	}
	return e
}

func (c *Communicator) failure(call string, r Result, detail string) *Error {
	return &Error{Call: call, Name: c.cfg.Name, Rank: c.rank, Size: c.size, Result: r, Detail: detail}
}
