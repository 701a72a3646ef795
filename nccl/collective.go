package nccl

import (
	"context"
	"fmt"
)

// AllGather writes the count elements at send of every rank to recv, in the order of the ranks. In
// place, send is the rank's part of recv.
func (c *Communicator) AllGather(send, recv uintptr, count int, t DataType, stream uintptr) error {
	return c.one(Op{Kind: AllGather, Send: send, Recv: recv, Count: count, Type: t}, stream)
}

// ReduceScatter reduces Size*count elements at send, and leaves this rank's count of
// the result at recv. In place, recv is the rank's part of send.
func (c *Communicator) ReduceScatter(send, recv uintptr, count int, t DataType, op RedOp, stream uintptr) error {
	return c.one(Op{Kind: ReduceScatter, Send: send, Recv: recv, Count: count, Type: t, Reduce: op}, stream)
}

// AllReduce reduces the count elements at send of all ranks, and writes the result to recv on every
// rank. In place, send and recv are the same.
func (c *Communicator) AllReduce(send, recv uintptr, count int, t DataType, op RedOp, stream uintptr) error {
	return c.one(Op{Kind: AllReduce, Send: send, Recv: recv, Count: count, Type: t, Reduce: op}, stream)
}

// Broadcast copies count elements from send of the root to recv of all ranks. In place, send and
// recv are the same. Ranks other than the root do not use send.
func (c *Communicator) Broadcast(send, recv uintptr, count int, t DataType, root int, stream uintptr) error {
	return c.one(Op{Kind: Broadcast, Send: send, Recv: recv, Count: count, Type: t, Peer: root}, stream)
}

// Reduce reduces the count elements at send of all ranks, and writes the result to recv of the
// root. Other ranks do not use recv.
func (c *Communicator) Reduce(send, recv uintptr, count int, t DataType, op RedOp, root int, stream uintptr) error {
	return c.one(Op{Kind: Reduce, Send: send, Recv: recv, Count: count, Type: t, Reduce: op, Peer: root}, stream)
}

// Send sends count elements to a rank that receives as many. A Send and a Recv that
// depend on each other belong in one [Communicator.Group].
func (c *Communicator) Send(send uintptr, count int, t DataType, peer int, stream uintptr) error {
	return c.one(Op{Kind: Send, Send: send, Count: count, Type: t, Peer: peer}, stream)
}

// Recv receives count elements that a rank sends.
func (c *Communicator) Recv(recv uintptr, count int, t DataType, peer int, stream uintptr) error {
	return c.one(Op{Kind: Recv, Recv: recv, Count: count, Type: t, Peer: peer}, stream)
}

func (c *Communicator) one(op Op, stream uintptr) error {
	ops := [1]Op{op}
	return c.Group(ops[:], stream)
}

// Group enqueues operations as one: none of them waits for another, and either all are
// enqueued or none. All ranks that take part make the same group.
func (c *Communicator) Group(ops []Op, stream uintptr) error {
	for i := range ops {
		if o := &ops[i]; o.Kind < AllGather || o.Kind > Recv || o.Count < 0 || o.Peer < 0 || o.Peer >= c.size {
			return c.failure(describe(ops, i), InvalidArgument, fmt.Sprintf("kind %v, %d elements, peer or root %d of %d ranks", o.Kind, o.Count, o.Peer, c.size))
		}
	}
	if len(ops) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	r := c.slot.run(ops, stream)
	if r == Success {
		return nil
	}
	at := -1 // in progress: a later failure concerns all of them
	if r != InProgress {
		at, _ = c.slot.failed()
	}
	return c.settle(context.Background(), describe(ops, at), r)
}

// describe names the i-th of some operations, or with a negative i all of them.
func describe(ops []Op, i int) string {
	switch {
	case len(ops) == 1:
		return ops[0].Kind.String()
	case i < 0:
		return fmt.Sprintf("ncclGroupEnd of %d operations", len(ops))
	}
	return fmt.Sprintf("%v, operation %d of a group of %d", ops[i].Kind, i+1, len(ops))
}
