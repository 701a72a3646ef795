package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The same call gives the same bits whatever the workspace did before and wherever the operands
// lie, and allocates nothing once the workspace has grown.
func TestDeterministicWithoutAllocation(t *testing.T) {
	t.Run("float32", requireDeterministic[float32])
	t.Run("float64", requireDeterministic[float64])
}

func requireDeterministic[T Float](t *testing.T) {
	want := newStep[T](0)
	require.NoError(t, want.run())
	for offset := range 9 {
		got := newStep[T](offset)
		require.NoError(t, got.run())
		if offset == 1 {
			require.NoError(t, got.run()) // with a used workspace, over its own results
		}
		for name, buffer := range want.results {
			requireBits(t, name, buffer, got.results[name])
		}
	}
	var err error
	require.Zero(t, testing.AllocsPerRun(3, func() { err = want.run() }))
	require.NoError(t, err)
}

// step is a call of every kernel, each with results of its own.
type step[T Float] struct {
	c       Context
	offset  int
	results map[string][]T
	run     func() error
}

// newStep lays its buffers offset elements off their natural alignment.
func newStep[T Float](offset int) *step[T] {
	const n, d, heads = 150, 24, 3
	s, idx := &step[T]{offset: offset, results: map[string][]T{}}, make([]int, n)
	a := Attention{Batch: 1, QLen: n, KLen: n, Heads: heads, HeadDim: d / heads, Causal: true,
		QStride: d, KStride: d, VStride: d, OutStride: d}
	for i := range idx {
		idx[i] = i * i % d
	}
	x, w, b := s.operand(n*d), s.operand(d*d), s.operand(d)
	y, dx, dw, db := s.result("linear", n*d), s.result("dx", n*d), s.result("dw", d*d), s.result("db", d)
	norm, stats, dnorm := s.result("norm", n*d), s.result("stats", 2*n), s.result("dnorm", n*d)
	dgain, dbias := s.result("dgain", d), s.result("dbias", d)
	rms, rstd, drms, drgain := s.result("rms", n*d), s.result("rstd", n), s.result("drms", n*d), s.result("drgain", d)
	act, dact, drop := s.result("gelu", n*d), s.result("dgelu", n*d), s.result("dropout", n*d)
	out, lse := s.result("attention", n*d), s.result("lse", heads*n)
	dq, dk, dv := s.result("dq", n*d), s.result("dk", n*d), s.result("dv", n*d)
	rows, drows := s.result("embedding", n*d), s.result("dembedding", d*d)
	celse, dlogits := s.result("ce lse", n), s.result("dlogits", n*d)
	scratch, block := make([]T, AttentionScratch(a)), make([]T, CrossEntropyScratch(d))
	s.run = func() error {
		Linear(&s.c, y, x, w, b, n, d, d)
		LinearGradX(&s.c, dx, y, w, n, d, d)
		LinearGradW(&s.c, dw, y, x, n, d, d, false)
		LinearGradB(db, y, n, d, false)
		LayerNorm(norm, stats, x, b, b, n, d, 1e-5)
		LayerNormGrad(dnorm, dgain, dbias, x, b, stats, y, n, d)
		RMSNorm(rms, rstd, x, b, n, d, 1e-5)
		RMSNormGrad(drms, drgain, x, b, rstd, y, n, d)
		GELU(act, x)
		GELUGrad(dact, x, y)
		Dropout(drop, x, 1, 2, 0.1)
		AttentionForward(&s.c, a, out, lse, x, y, norm, nil, nil, scratch)
		AttentionBackward(&s.c, a, dq, dk, dv, nil, x, y, norm, out, lse, rms, nil, nil, scratch)
		if err := Embedding(rows, w, idx, d, d); err != nil {
			return err
		}
		EmbeddingGrad(drows, rows, idx, d, d, false)
		_, counted, err := CrossEntropy(celse, x, idx, n, d, -100, block)
		CrossEntropyGrad(dlogits, x, celse, idx, n, d, -100, counted, 1)
		return err
	}
	return s
}

func (s *step[T]) operand(n int) []T {
	x := make([]T, s.offset+n)[s.offset:]
	copy(x, random[T](n))
	return x
}

func (s *step[T]) result(name string, n int) []T {
	s.results[name] = garbage[T](s.offset + n)[s.offset:]
	return s.results[name]
}
