package nccl

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// errHalted is why Run returns when Stop was called: the handle knows why that was.
var errHalted = errors.New("the group has failed")

// types and operators are NCCL's names for those of package comm.
var (
	types = [...]DataType{
		comm.Float32: Float32, comm.Float64: Float64, comm.Int32: Int32, comm.Int64: Int64, comm.Uint8: Uint8,
		comm.BFloat16: BFloat16, comm.Float16: Float16,
	}
	operators = [...]RedOp{comm.Sum: Sum, comm.Avg: Avg, comm.Max: Max, comm.Min: Min}
)

// Run implements [comm.Backend].
func (b *backend) Run(ctx context.Context, seq uint64, c *comm.Call) error {
	staged, err := b.meet(ctx, seq, c)
	if err != nil {
		return err
	}
	switch {
	case c.Kind == comm.KindBarrier:
	case c.Kind == comm.KindSplit:
		err = b.divide(ctx, seq, c)
	case c.Bytes() == 0:
	case staged:
		err = b.stage(ctx, c)
	default:
		err = b.direct(ctx, seq, c)
	}
	if err != nil {
		return b.broken(seq, c, err)
	}
	b.mu.Lock()
	b.launched, b.complete = seq, seq
	b.wake()
	b.mu.Unlock()
	return nil
}

// broken gives up a collective that NCCL may be at work in: it tells the others, who
// would wait in vain, and returns when no buffer is touched any more.
func (b *backend) broken(seq uint64, c *comm.Call, err error) error {
	err = fmt.Errorf("%s: %w", numbered(seq, c), b.reason(err))
	var remote *comm.RankError
	switch {
	case errors.Is(err, errHalted), errors.As(err, &remote):
		err = heard(err)
	case errors.Is(err, RemoteError):
		err = fmt.Errorf("%w: %w", comm.ErrLost, err) // the rank that it comes from may still tell
	default:
		err = &comm.RankError{Group: b.name, Rank: b.meta.Rank(), Err: err}
		b.serial.Failed(err)
		b.Tell(err)
	}
	b.giveUp()
	return err
}

// direct runs a collective in place, in device memory.
func (b *backend) direct(ctx context.Context, seq uint64, c *comm.Call) error {
	ops, err := b.plan(c)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := b.launch(ctx, start, ops); err != nil {
		return err
	}
	b.mu.Lock()
	err = b.reached.Record(b.stream)
	if err == nil {
		b.launched = seq
		b.wake()
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	return b.await(ctx, start, b.reached)
}

// plan returns what NCCL has to do for a collective of device memory. In a gather the
// root copies its own part.
func (b *backend) plan(c *comm.Call) ([]Op, error) {
	op := Op{Type: types[c.DType()], Reduce: operators[c.Op], Peer: c.Root, Count: c.Src.Len()}
	op.Send, _ = c.Src.Device()
	op.Recv, _ = c.Dst.Device()
	switch c.Kind {
	case comm.KindAllGather:
		op.Kind = AllGather
	case comm.KindReduceScatter:
		op.Kind, op.Count = ReduceScatter, c.Dst.Len()
	case comm.KindAllReduce:
		op.Kind = AllReduce
	case comm.KindBroadcast:
		op.Kind = Broadcast
	case comm.KindGather:
		return b.planGather(c, op)
	default:
		return nil, fmt.Errorf("nccl: no collective %v", c.Kind)
	}
	return append(b.ops[:0], op), nil
}

func (b *backend) planGather(c *comm.Call, op Op) ([]Op, error) {
	ops, rank := b.ops[:0], b.meta.Rank()
	if rank != c.Root {
		if op.Kind = Send; op.Count > 0 {
			ops = append(ops, op)
		}
		return ops, nil
	}
	size, own := uintptr(c.DType().Size()), op.Send
	op.Kind = Recv
	for r, n := range c.Counts {
		switch {
		case n == 0:
		case r != rank:
			op.Peer, op.Count = r, n
			ops = append(ops, op)
		case own != op.Recv:
			if err := b.stream.CopyDevice(op.Recv, own, n*int(size)); err != nil {
				return nil, err
			}
		}
		op.Recv += uintptr(n) * size
	}
	return ops, nil
}

// launch enqueues operations of NCCL. The call is given up like any other wait.
func (b *backend) launch(ctx context.Context, start time.Time, ops []Op) error {
	if len(ops) == 0 {
		return nil
	}
	b.hang.begin(ctx.Done(), start)
	err := b.communicator.Group(ops, b.stream.Handle())
	if b.hang.end() {
		return b.impatient(ctx, start)
	}
	return err
}

// impatient returns why what has begun at start is waited for no longer, or nil.
func (b *backend) impatient(ctx context.Context, start time.Time) error {
	select {
	case <-b.halt:
		return errHalted
	case <-ctx.Done():
		return context.Cause(ctx)
	default:
	}
	if time.Since(start) > b.cfg.Timeout {
		return fmt.Errorf("%w of NCCL for %v", comm.ErrTimeout, b.cfg.Timeout)
	}
	return nil
}

// spins is how often await looks before it sleeps: together some ten microseconds.
const spins = 20

// await waits until the stream has come to e and NCCL has had no failure.
func (b *backend) await(ctx context.Context, start time.Time, e *Event) error {
	b.pause.reset()
	for i := 0; ; i++ {
		reached, err := e.Query()
		if err != nil {
			return err
		}
		if reached || i >= spins { // a stream also comes past collectives that have failed
			if err := b.communicator.AsyncError(); err != nil || reached {
				return err
			}
			if err := b.impatient(ctx, start); err != nil {
				return err
			}
			b.pause.sleep(ctx.Done(), b.halt)
			continue
		}
		runtime.Gosched()
	}
}
