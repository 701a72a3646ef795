package nccl

import (
	"context"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
)

// AllGather concatenates the count elements at send of all ranks at recv. In place,
// send is the rank's part of recv.
func (c *Communicator) AllGather(send, recv uintptr, count int, t DataType, stream uintptr) error {
	return c.one(Op{Kind: AllGather, Send: send, Recv: recv, Count: count, Type: t}, stream)
}

// ReduceScatter reduces Size*count elements at send, and leaves this rank's count of
// the result at recv. In place, recv is the rank's part of send.
func (c *Communicator) ReduceScatter(send, recv uintptr, count int, t DataType, op RedOp, stream uintptr) error {
	return c.one(Op{Kind: ReduceScatter, Send: send, Recv: recv, Count: count, Type: t, Reduce: op}, stream)
}

// AllReduce reduces count elements at send to recv on every rank. In place, they are
// the same.
func (c *Communicator) AllReduce(send, recv uintptr, count int, t DataType, op RedOp, stream uintptr) error {
	return c.one(Op{Kind: AllReduce, Send: send, Recv: recv, Count: count, Type: t, Reduce: op}, stream)
}

// Broadcast copies count elements from send of the root to recv of all ranks. In place,
// they are the same. Elsewhere than on the root send is not used.
func (c *Communicator) Broadcast(send, recv uintptr, count int, t DataType, root int, stream uintptr) error {
	return c.one(Op{Kind: Broadcast, Send: send, Recv: recv, Count: count, Type: t, Peer: root}, stream)
}

// Reduce reduces count elements at send to recv of the root. Elsewhere recv is not used.
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
// enqueued or none. All ranks make the same group, as far as they take part.
func (c *Communicator) Group(ops []Op, stream uintptr) error {
	for i := range ops {
		if o := &ops[i]; o.Kind < AllGather || o.Kind > Recv || o.Count < 0 || o.Peer < 0 || o.Peer >= c.size {
			return c.failure(describe(ops, i), InvalidArgument, fmt.Sprintf("%d elements, peer or root %d", o.Count, o.Peer))
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
	at := -1 // in progress: what fails later is all of them
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

// PreMulSum makes an operator that sums what every rank has multiplied by its scalar,
// which is rounded to the type. It applies to elements of that type, and is freed by
// DestroyRedOp.
func (c *Communicator) PreMulSum(scalar float64, t DataType) (RedOp, error) {
	bits, ok := element(scalar, t)
	if !ok {
		return 0, c.failure("ncclRedOpCreatePreMulSum", InvalidArgument, fmt.Sprintf("%g is no %v", scalar, t))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return 0, err
	}
	op, r := c.slot.preMulSum(bits, t)
	return op, c.result("ncclRedOpCreatePreMulSum", r)
}

// element returns the bits of x as an element of type t, little endian. Floats are
// rounded, integers have to be exact.
func element(x float64, t DataType) (bits uint64, ok bool) {
	switch t {
	case Float64:
		return math.Float64bits(x), true
	case Float32:
		return uint64(math.Float32bits(float32(x))), true
	case Float16:
		return uint64(half.ToFloat16(float32(x))), true
	case BFloat16:
		return uint64(half.ToBFloat16(float32(x))), true
	case Int8, Int32, Int64:
		limit := math.Ldexp(1, 8*t.Size()-1)
		return uint64(int64(x)), x == math.Trunc(x) && x >= -limit && x < limit
	case Uint8, Uint32, Uint64:
		return uint64(x), x == math.Trunc(x) && x >= 0 && x < math.Ldexp(1, 8*t.Size())
	}
	return 0, false
}

// DestroyRedOp frees an operator of PreMulSum. Operations that use it have been
// enqueued before.
func (c *Communicator) DestroyRedOp(op RedOp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	return c.result("ncclRedOpDestroy", c.slot.destroyRedOp(op))
}

// Registration is memory that NCCL may use directly, without copies of its own.
type Registration uintptr

// Register lets NCCL use n bytes of [MemAlloc] directly. It needs NCCL 2.19.1.
func (c *Communicator) Register(addr uintptr, n int) (Registration, error) {
	if err := needs("ncclCommRegister", sinceMemAlloc); err != nil {
		return 0, err
	}
	if n <= 0 {
		return 0, c.failure("ncclCommRegister", InvalidArgument, fmt.Sprintf("%d bytes", n))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return 0, err
	}
	h, r := c.slot.register(addr, n)
	return h, c.result("ncclCommRegister", r)
}

// Deregister takes a Register back, before the memory is freed.
func (c *Communicator) Deregister(h Registration) error {
	if err := needs("ncclCommDeregister", sinceMemAlloc); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	return c.result("ncclCommDeregister", c.slot.deregister(h))
}
