package nccl

import (
	"context"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// NCCL's names for the constants of package comm. A gather and an all-to-all are made of sends and
// receives.
var (
	types = [...]DataType{
		comm.Float32: Float32, comm.Float64: Float64, comm.Int32: Int32, comm.Int64: Int64, comm.Uint8: Uint8,
		comm.BFloat16: BFloat16, comm.Float16: Float16,
	}
	operators   = [...]RedOp{comm.Sum: Sum, comm.Avg: Avg, comm.Max: Max, comm.Min: Min}
	collectives = [...]Kind{
		transport.KindAllGather: AllGather, transport.KindReduceScatter: ReduceScatter, transport.KindAllReduce: AllReduce,
		transport.KindBroadcast: Broadcast, transport.KindGather: 0, transport.KindAllToAll: 0,
	}
)

// opOf returns NCCL's operation for c, without the buffers.
func opOf(c *transport.Call) Op {
	return Op{Kind: collectives[c.Kind], Type: types[c.DType()], Reduce: operators[c.Op], Peer: c.Root}
}

// direct runs collectives in place, in the device memory of the callers.
type direct struct {
	launcher *launcher
	progress *progress
	rank     int
	ops      []Op // scratch; its capacity is the number of ranks
}

func (d *direct) run(ctx context.Context, seq uint64, c *transport.Call) error {
	ops, err := d.plan(c)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := d.launcher.launch(ctx, start, ops); err != nil {
		return err
	}
	if err := d.progress.launch(seq, d.launcher.stream); err != nil {
		return err
	}
	return d.launcher.await(ctx, start, d.progress.reached)
}

// plan returns NCCL's operations for a collective.
func (d *direct) plan(c *transport.Call) ([]Op, error) {
	op := opOf(c)
	op.Count = c.Src.Len()
	op.Send, _ = c.Src.Device()
	op.Recv, _ = c.Dst.Device()
	switch c.Kind {
	case transport.KindGather:
		return d.planGather(c, op)
	case transport.KindAllToAll:
		return d.planAllToAll(c, op)
	case transport.KindReduceScatter:
		op.Count = c.Dst.Len()
	}
	return append(d.ops[:0], op), nil
}

// planGather is plan for a gather, in which the root copies its own part.
func (d *direct) planGather(c *transport.Call, op Op) ([]Op, error) {
	ops := d.ops[:0]
	if d.rank != c.Root {
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
		case r != d.rank:
			op.Peer, op.Count = r, n
			ops = append(ops, op)
		case own != op.Recv:
			if err := d.launcher.stream.CopyDevice(op.Recv, own, n*int(size)); err != nil {
				return nil, err
			}
		}
		op.Recv += uintptr(n) * size
	}
	return ops, nil
}

// planAllToAll is plan for an all-to-all, in which each rank copies its own part.
func (d *direct) planAllToAll(c *transport.Call, op Op) ([]Op, error) {
	n := c.Src.Len() / cap(d.ops)
	part := n * c.DType().Size()
	own := uintptr(d.rank * part)
	if err := d.launcher.stream.CopyDevice(op.Recv+own, op.Send+own, part); err != nil || part == 0 {
		return nil, err
	}
	return exchanges(nil, op, d.rank, cap(d.ops), n), nil
}

// exchanges appends to ops the sends of the parts at op.Send, of n elements each, to all other
// ranks, and the receives of their parts at op.Recv.
func exchanges(ops []Op, op Op, rank, ranks, n int) []Op {
	send, recv := op, op
	send.Kind, recv.Kind, send.Count, recv.Count = Send, Recv, n, n
	for r := range ranks {
		send.Peer, recv.Peer = r, r
		if r != rank {
			ops = append(ops, send, recv)
		}
		send.Send += uintptr(n * op.Type.Size())
		recv.Recv += uintptr(n * op.Type.Size())
	}
	return ops
}
