package gpu

import (
	"math"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/nccl"
)

// This file has the operations of a group in wire before and after its collectives. They match the
// host's operations, whose comments explain the layout of 16-bit data in a full buffer. Full is the
// address of the buffer. A returned link is nil if there is nothing to send.
//
// Types change in place: parameters are widened from the second half of the buffer to all of it,
// and gradients are narrowed to its first half. A thread may write over elements that another has
// still to read. So the work is done in rounds, one launch each, that write only over elements
// which earlier rounds have read. A round of one block may also write over elements that the block
// itself has read.

// alone is the number of elements that one block of threads reads before it writes any: 256 × EACH
// of kernels/transfer.cu.
const alone = 4096

// transfers are the kernels of a group, nil where it needs none.
type transfers struct{ narrowParams, narrowGrads, widen, drain, round, tree, add *nccl.Function }

// suffixes are the suffixes of kernel names by type.
var suffixes = [...]string{comm.Float32: "_f32", comm.Float64: "_f64", comm.BFloat16: "_bf16", comm.Float16: "_f16"}

// load loads the kernels of g.
func (g *group) load() error {
	drain := "drain"
	if g.Store == comm.BFloat16 {
		drain = "drain16"
	}
	for _, k := range []struct {
		to     **nccl.Function
		name   string
		t      comm.DType
		needed bool
	}{
		{&g.kernels.narrowParams, "narrow", g.Gather, g.Gather != g.Store},
		{&g.kernels.widen, "widen", g.Gather, g.Gather != g.Read},
		{&g.kernels.narrowGrads, "narrow", g.Reduce, g.Reduce != g.Compute},
		{&g.kernels.drain, drain, g.Reduce, true},
		{&g.kernels.round, "round", g.Round, g.Round != g.Reduce},
		{&g.kernels.tree, "tree", g.Reduce, true},
	} {
		if !k.needed {
			continue
		}
		var err error
		if *k.to, err = g.d.engine.Function("transfer_" + k.name + suffixes[k.t]); err != nil {
			return err
		}
	}
	var err error
	g.kernels.add, err = g.d.engine.Function("elements_accumulate" + suffixes[g.Compute])
	return err
}

// startGather prepares the parameters in full, and returns the collective that gathers them.
func (g *group) startGather(full uintptr) (*link, nccl.Op, error) {
	n := g.Flat.ShardLen()
	full += uintptr(g.Flat.Len() * (g.Read.Size() - g.Gather.Size())) // 0 unless widened
	own, op := g.ownAddress(full, g.Gather), nccl.Op{}
	if g.shard != nil {
		op = g.shard.allGather(full, n, g.Gather)
	}
	switch {
	case g.Gather != g.Store:
		return g.shard, op, g.change(g.kernels.narrowParams, own, g.value.Addr(), 0, n, uint64(math.Float32bits(1)))
	case g.value.pinned != nil: // NCCL sends memory of the device
		return g.shard, op, g.d.fail(g.d.wire.CopyToDevice(own, g.value.pinned, 0, n*g.Gather.Size()))
	case g.shard == nil:
		return nil, op, g.d.fail(g.d.wire.CopyDevice(own, g.value.Addr(), n*g.Gather.Size()))
	}
	op.Send = g.value.Addr() // as it is
	return g.shard, op, nil
}

// finishGather converts the gathered values to parameters.
func (g *group) finishGather(full uintptr) error {
	if g.Gather == g.Read {
		return nil
	}
	n := g.Flat.Len()
	for from, to := 0, 0; from < n; from = to {
		to = (from + n) / 2
		if n-from <= alone {
			to = n
		}
		if err := g.change(g.kernels.widen, full, full+uintptr(2*n), from, to); err != nil {
			return err
		}
	}
	return nil
}

// startReduce prepares the gradients in full, of type t, scaled by c if they have to be narrowed.
// It returns the collective that sums them: over the ranks that share the parameters, or over the
// replicas if every rank has all of them.
func (g *group) startReduce(full uintptr, t comm.DType, c float32) (*link, nccl.Op, error) {
	if err := g.lower(full, t, c); err != nil {
		return nil, nccl.Op{}, err
	}
	switch {
	case g.shard != nil:
		return g.shard, g.shard.reduceScatter(full, g.Flat.ShardLen(), g.Reduce), nil
	case g.replica != nil:
		return g.replica, g.replica.allReduce(full, g.Flat.Len(), g.Reduce, nccl.Sum), nil
	}
	return nil, nccl.Op{}, nil
}

// lower narrows c times the gradients in full, of type t, to the type in which they travel.
func (g *group) lower(full uintptr, t comm.DType, c float32) error {
	n := g.Flat.Len()
	if g.Reduce == t {
		return g.d.err()
	}
	for from, to := 0, 0; from < n; from = to {
		to = min(n, max(alone, 2*from))
		if err := g.change(g.kernels.narrowGrads, full, full, from, to, uint64(math.Float32bits(c))); err != nil {
			return err
		}
	}
	return g.d.err()
}

// startSync returns the collective that sums this rank's range of the gradients over the replicas.
func (g *group) startSync(full uintptr) (*link, nccl.Op) {
	return g.replica, g.replica.allReduce(g.ownAddress(full, g.Reduce), g.Flat.ShardLen(), g.Reduce, nccl.Sum)
}

// finishReduce, in stream w, adds c times this rank's range of the sums in full to the gradient
// shard. It stores them if the shard is to be cleared, or if full is the shard. The beginning of
// the pass has made other deferred changes.
func (g *group) finishReduce(w *nccl.Stream, full uintptr, c float64) error {
	n, bits := g.Flat.ShardLen(), uint64(math.Float32bits(float32(c)))
	if g.Compute == comm.Float64 {
		bits = math.Float64bits(c)
	}
	if n == 0 {
		return g.d.err()
	}
	if err := g.round(w, g.ownAddress(full, g.Reduce), n, 1); err != nil {
		return err
	}
	store, there := uint64(0), full == g.grad.Addr()
	if there && c == 1 {
		return g.d.err()
	}
	if g.d.forget(g.grad) || there {
		store = 1
	}
	return g.launchIn(w, g.kernels.drain, (n+255)/256, uint64(g.grad.Addr()), uint64(g.ownAddress(full, g.Reduce)), uint64(n), bits, store)
}

// ownAddress returns the address of this rank's range in a full buffer of type t.
func (g *group) ownAddress(full uintptr, t comm.DType) uintptr {
	return full + uintptr(g.Ranks.Place*g.Flat.ShardLen()*t.Size())
}

// change launches a kernel that converts elements [first, last).
func (g *group) change(f *nccl.Function, to, from uintptr, first, last int, c ...uint64) error {
	if first == last {
		return g.d.err()
	}
	args := [5]uint64{uint64(to), uint64(from), uint64(first), uint64(last)}
	return g.launch(f, (last-first+alone-1)/alone, args[:4+copy(args[4:], c)]...)
}

// launch launches a kernel in wire.
func (g *group) launch(f *nccl.Function, blocks int, args ...uint64) error {
	return g.launchIn(g.d.wire, f, blocks, args...)
}

// launchIn launches a kernel in a stream.
func (g *group) launchIn(s *nccl.Stream, f *nccl.Function, blocks int, args ...uint64) error {
	if err := g.d.err(); err != nil {
		return err
	}
	return g.d.fail(f.LaunchArgs(s, [3]int{blocks, 1, 1}, [3]int{256, 1, 1}, 0, args))
}
