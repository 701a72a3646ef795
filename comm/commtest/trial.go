package commtest

import (
	"math/rand/v2"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
)

// Trial is a collective with made-up contents that every rank can compute for every other one:
// every rank can compute the result, to the last bit, without communication.
type Trial struct {
	Kind    string // AllGather, ReduceScatter, AllReduce, Broadcast, Gather or AllToAll
	Type    comm.DType
	Op      comm.Op
	Root    int
	Len     int // elements of a shard or of the one buffer; of a gather, up to twice as many
	InPlace bool
	Seed    uint64 // of the contents; part of the label
}

// Issue starts t on one rank. check compares the buffers with the reference, and
// may be called once Wait has returned nil.
func (t Trial) Issue(g comm.Group) (w comm.Work, check func() error) { return t.step().issue(g) }

// String describes t.
func (t Trial) String() string { return t.step().String() }

func (t Trial) step() step {
	return step{kind: t.Kind, dtype: t.Type, op: t.Op, root: t.Root, len: t.Len, inPlace: t.InPlace, seed: t.Seed}
}

// RandomTrial draws a trial for n ranks with up to maxLen elements per shard or
// buffer, small ones most often.
func RandomTrial(rng *rand.Rand, n, maxLen int) Trial {
	t := Trial{
		Kind: []string{AllGather, ReduceScatter, AllReduce, Broadcast, Gather, AllToAll}[rng.IntN(6)],
		Type: dtypes[rng.IntN(len(dtypes))], Op: comm.Sum, InPlace: rng.IntN(2) == 0, Seed: rng.Uint64(),
	}
	t.Len = rng.IntN(1 + rng.IntN(1+rng.IntN(maxLen+1)))
	switch t.Kind {
	case Broadcast, Gather:
		t.Root = rng.IntN(n)
	case ReduceScatter, AllReduce:
		t.Op = ops[rng.IntN(len(ops))]
		if t.Op == comm.Avg && !slices.Contains(floats, t.Type) {
			t.Type = comm.Float64
		}
	}
	return t
}
