package gpu

import (
	"math"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/nccl"
)

// What a group does in the wire before and after its collectives, as the host does it: see there for
// how a full buffer holds what travels in 16 bits. Full is where the buffer is. A link that is returned
// is nil if there is nothing to send.
//
// Numbers change their type in place: parameters are widened from the second half of the buffer to all
// of it, gradients narrowed to its first half. Where an element is written, later ones or earlier ones
// are read. So it is done in rounds, one launch each, which write over nothing but what the rounds
// before have read. In a round of one block that is also what the block itself has read.

// alone is how many elements one block of threads reads before it writes any: 256 times EACH of
// kernels/transfer.cu.
const alone = 4096

// transfers are the kernels of a group, nil where it needs none.
type transfers struct{ narrowParams, narrowGrads, widen, drain *nccl.Function }

// suffixes are the kernels' names of types.
var suffixes = [...]string{comm.Float32: "_f32", comm.Float64: "_f64", comm.BFloat16: "_bf16", comm.Float16: "_f16"}

// load finds the kernels of g.
func (g *group) load() error {
	for _, k := range []struct {
		to     **nccl.Function
		name   string
		t      comm.DType
		needed bool
	}{
		{&g.kernels.narrowParams, "narrow", g.Gather, g.Gather != g.Compute},
		{&g.kernels.widen, "widen", g.Gather, g.Gather != g.Read},
		{&g.kernels.narrowGrads, "narrow", g.Reduce, g.Reduce != g.Compute},
		{&g.kernels.drain, "drain", g.Reduce, true},
	} {
		if !k.needed {
			continue
		}
		var err error
		if *k.to, err = g.d.engine.Function("transfer_" + k.name + suffixes[k.t]); err != nil {
			return err
		}
	}
	return nil
}

// startGather prepares the parameters in full, and returns how they are gathered.
func (g *group) startGather(full uintptr) (*link, nccl.Op, error) {
	n := g.Flat.ShardLen()
	full += uintptr(g.Flat.Len() * (g.Read.Size() - g.Gather.Size())) // 0 but for what is widened
	own, op := g.own(full, g.Gather), nccl.Op{}
	if g.shard != nil {
		op = g.shard.allGather(full, n, g.Gather)
	}
	switch {
	case g.Gather != g.Compute:
		return g.shard, op, g.change(g.kernels.narrowParams, own, g.value.Addr(), 0, n, uint64(math.Float32bits(1)))
	case g.value.pinned != nil: // NCCL sends what is on the device
		return g.shard, op, g.d.fail(g.d.wire.CopyToDevice(own, g.value.pinned, 0, n*g.Gather.Size()))
	case g.shard == nil:
		return nil, op, g.d.fail(g.d.wire.CopyDevice(own, g.value.Addr(), n*g.Gather.Size()))
	}
	op.Send = g.value.Addr() // as it is
	return g.shard, op, nil
}

// finishGather makes what has arrived the parameters.
func (g *group) finishGather(full uintptr) error {
	if g.Gather == g.Read {
		return nil
	}
	n := g.Flat.Len()
	for from, to := 0, 0; from < n; from = to {
		if to = (from + n) / 2; n-from <= alone {
			to = n
		}
		if err := g.change(g.kernels.widen, full, full+uintptr(2*n), from, to); err != nil {
			return err
		}
	}
	return nil
}

// startReduce prepares the gradients in full, times c if they travel in 16 bits, and returns how they
// are summed over the ranks that share the parameters; if every rank has all of them, over the replicas.
func (g *group) startReduce(full uintptr, c float32) (*link, nccl.Op, error) {
	n := g.Flat.Len()
	if g.Reduce != g.Compute {
		for from, to := 0, 0; from < n; from = to {
			to = min(n, max(alone, 2*from))
			if err := g.change(g.kernels.narrowGrads, full, full, from, to, uint64(math.Float32bits(c))); err != nil {
				return nil, nccl.Op{}, err
			}
		}
	}
	switch {
	case g.shard != nil:
		return g.shard, g.shard.reduceScatter(full, g.Flat.ShardLen(), g.Reduce), nil
	case g.replica != nil:
		return g.replica, g.replica.allReduce(full, n, g.Reduce, nccl.Sum), nil
	}
	return nil, nccl.Op{}, nil
}

// startSync returns how this rank's range of the gradients is summed over the replicas.
func (g *group) startSync(full uintptr) (*link, nccl.Op) {
	return g.replica, g.replica.allReduce(g.own(full, g.Reduce), g.Flat.ShardLen(), g.Reduce, nccl.Sum)
}

// finishReduce adds c times this rank's range of the sums in full to the gradient shard.
func (g *group) finishReduce(full uintptr, c float64) error {
	n, bits := g.Flat.ShardLen(), uint64(math.Float32bits(float32(c)))
	if g.Compute == comm.Float64 {
		bits = math.Float64bits(c)
	}
	if n == 0 {
		return g.d.err()
	}
	return g.launch(g.kernels.drain, (n+255)/256, uint64(g.grad.Addr()), uint64(g.own(full, g.Reduce)), uint64(n), bits)
}

// own returns where this rank's range of a full buffer of any type is.
func (g *group) own(full uintptr, t comm.DType) uintptr {
	return full + uintptr(g.Ranks.Place*g.Flat.ShardLen()*t.Size())
}

// change launches a kernel that changes the type of elements [from, to).
func (g *group) change(f *nccl.Function, to, from uintptr, first, last int, c ...uint64) error {
	if first == last {
		return g.d.err()
	}
	args := [5]uint64{uint64(to), uint64(from), uint64(first), uint64(last)}
	return g.launch(f, (last-first+alone-1)/alone, args[:4+copy(args[4:], c)]...)
}

// launch gives the wire a kernel.
func (g *group) launch(f *nccl.Function, blocks int, args ...uint64) error {
	if err := g.d.err(); err != nil {
		return err
	}
	return g.d.fail(f.LaunchArgs(g.d.wire, [3]int{blocks, 1, 1}, [3]int{256, 1, 1}, 0, args))
}
