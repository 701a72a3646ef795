package fsdp_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// A strictGroup holds one rank to the contract of comm.Group, where a group that is fast forgives a
// lot: from the call of a collective until Wait returns, what will be received is there for nobody
// to read or write, and what is sent must stay as it is. It calculates on copies, fills the
// destination with NaN at the call, and delivers in Wait.
type strictGroup struct {
	comm.Group
	book *strictBook
}

// strictBook is what a strictGroup, and those that were split off, have seen.
type strictBook struct {
	wrong []string // what breaks the contract
	open  int      // works that nobody has waited for
	works int
	fault error // of every Wait from when it is set
}

func newStrictGroup(g comm.Group) *strictGroup { return &strictGroup{g, &strictBook{}} }

// Failing makes the group tell of its failures: see [comm.Failing].
func (g *strictGroup) Failing() <-chan struct{} { return comm.Failing(g.Group) }

// require requires that the contract was kept, and that no work is in flight.
func (b *strictBook) require(t require.TestingT) {
	require.Empty(t, b.wrong)
	require.Zero(t, b.open, "works of %d that nobody has waited for", b.works)
}

type strictWork struct {
	comm.Work
	book           *strictBook
	what           string
	dst, src       []byte // the user's
	result         []byte // where the copy arrives
	dstWas, srcWas []byte
	waited         bool
	err            error
}

// start begins a collective on copies of dst and src.
func (g *strictGroup) start(kind string, dst, src comm.Buffer, begin func(dst, src comm.Buffer) comm.Work) comm.Work {
	to := duplicate(dst)
	w := &strictWork{
		Work: begin(to, duplicate(src)), book: g.book, what: fmt.Sprintf("rank %d: %s of %q", g.Rank(), kind, dst.Label()),
		dst: dst.Bytes(), src: src.Bytes(), result: to.Bytes(),
	}
	for i := range w.dst {
		w.dst[i] = 0xff // NaN in every type
	}
	w.dstWas, w.srcWas = bytes.Clone(w.dst), bytes.Clone(w.src) // src may be a part of dst, or the other way round
	g.book.works++
	g.book.open++
	return w
}

// Wait checks that nobody has touched the buffers and delivers.
func (w *strictWork) Wait(ctx context.Context) error {
	if w.waited {
		return w.err
	}
	w.waited = true
	w.book.open--
	if !bytes.Equal(w.dst, w.dstWas) {
		w.book.wrong = append(w.book.wrong, w.what+": the destination was written before Wait")
	}
	if !bytes.Equal(w.src, w.srcWas) {
		w.book.wrong = append(w.book.wrong, w.what+": the source was written before Wait")
	}
	if w.err = cmp.Or(w.Work.Wait(ctx), w.book.fault); w.err == nil {
		copy(w.dst, w.result)
	}
	return w.err
}

func (g *strictGroup) AllGather(dst, src comm.Buffer) comm.Work {
	return g.start("all-gather", dst, src, g.Group.AllGather)
}

func (g *strictGroup) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return g.start("reduce-scatter", dst, src, func(dst, src comm.Buffer) comm.Work { return g.Group.ReduceScatter(dst, src, op) })
}

func (g *strictGroup) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return g.start("all-reduce", buf, buf, func(buf, _ comm.Buffer) comm.Work { return g.Group.AllReduce(buf, op) })
}

func (g *strictGroup) Broadcast(buf comm.Buffer, root int) comm.Work {
	return g.start("broadcast", buf, buf, func(buf, _ comm.Buffer) comm.Work { return g.Group.Broadcast(buf, root) })
}

func (g *strictGroup) Gather(dst, src comm.Buffer, counts []int, root int) comm.Work {
	return g.start("gather", dst, src, func(dst, src comm.Buffer) comm.Work { return g.Group.Gather(dst, src, counts, root) })
}

func (g *strictGroup) Split(ctx context.Context, color, key int) (comm.Group, error) {
	part, err := g.Group.Split(ctx, color, key)
	if part == nil || err != nil {
		return nil, err
	}
	return &strictGroup{part, g.book}, nil
}

// duplicate returns a buffer like b in other memory.
func duplicate(b comm.Buffer) comm.Buffer {
	switch b.DType() {
	case comm.Float64:
		return duplicateOf[float64](b)
	case comm.Float32:
		return duplicateOf[float32](b)
	case comm.BFloat16:
		return duplicateOf[comm.BF16](b)
	case comm.Float16:
		return duplicateOf[comm.F16](b)
	case comm.Int64:
		return duplicateOf[int64](b)
	case comm.Int32:
		return duplicateOf[int32](b)
	default:
		return duplicateOf[uint8](b)
	}
}

func duplicateOf[T comm.Elem](b comm.Buffer) comm.Buffer {
	c := comm.Of(make([]T, b.Len())).Named(b.Label())
	copy(c.Bytes(), b.Bytes())
	return c
}

// TestStrictGroupNotices breaks the contract on one of two ranks.
func TestStrictGroupNotices(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(dst, src []float64, wait func())
		wrong string
		open  int
	}{
		"honest":            {func(dst, src []float64, wait func()) { wait(); wait(); src[0], dst[0] = 9, 9 }, "", 0},
		"writes the source": {func(dst, src []float64, wait func()) { src[1] = 7; wait() }, `rank 1: all-gather of "x": the source was written`, 0},
		"writes too early":  {func(dst, src []float64, wait func()) { dst[3] = 7; wait() }, `rank 1: all-gather of "x": the destination was written`, 0},
		"does not wait":     {func(dst, src []float64, wait func()) {}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			onRanks(t, 2, func(ctx context.Context, g comm.Group) {
				strict := newStrictGroup(g)
				dst, src := make([]float64, 4), []float64{1 + 2*float64(g.Rank()), 2 + 2*float64(g.Rank())}
				w := strict.AllGather(comm.Of(dst).Named("x"), comm.Of(src).Named("x"))
				require.True(t, math.IsNaN(dst[0]), "what is read too early")
				wait := func() { require.NoError(t, w.Wait(ctx)); require.Equal(t, []float64{1, 2, 3, 4}, dst) }
				if g.Rank() == 0 {
					wait()
					strict.book.require(t)
				} else {
					c.do(dst, src, wait)
					require.Equal(t, c.open, strict.book.open)
					require.Equal(t, c.wrong != "", len(strict.book.wrong) == 1)
					require.Contains(t, fmt.Sprint(strict.book.wrong), c.wrong)
				}
				require.NoError(t, g.Barrier(ctx))
			})
		})
	}
}

// statistics is a chain with running statistics, which it updates twice in a pass.
var statistics model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("l0", &dense{dim: shapeDim}, in[0])
	x = t.Call("bn", &nn.BatchNorm{Dim: shapeDim}, x)
	x = t.Call("l1", &dense{dim: shapeDim}, x)
	x = t.Again("bn", x)
	for i := 2; i < 5; i++ {
		x = t.Call(fmt.Sprint("l", i), &dense{dim: shapeDim}, x)
	}
	return regress(t, in, x), nil
}

// everything calls every collective method, passes put aside and left waiting included, and returns
// the state at the end.
func everything(t require.TestingT, ctx context.Context, g comm.Group, cfg fsdp.Config) bits {
	cfg.Group = g
	m := wrap(t, statistics, cfg)
	make := optim.AdamW{WeightDecay: 0.1}.New
	opt, err := make(m.Shards())
	require.NoError(t, err)
	scaler, err := optim.LossScale{Init: 8}.New()
	require.NoError(t, err)
	forward := func(i int) {
		batch := inType([]fsdp.Tensor{floats(20*i+2*g.Rank(), 3+i%2, shapeDim), floats(20*i+2*g.Rank()+1, 3+i%2, shapeDim)}, cfg.Precision.Compute)
		_, err := m.Forward(ctx, batch...)
		require.NoError(t, err)
	}
	for step := range 2 {
		forward(4 * step)
		held := m.Hold()
		forward(4*step + 1)
		require.NoError(t, m.NoSync(func() error { return m.Backward(ctx, fsdp.Scale(8)) }))
		require.NoError(t, m.AverageBuffers(ctx))
		require.NoError(t, m.SyncGrads(ctx))
		require.NoError(t, m.NoSync(func() error { return held.Backward(ctx, fsdp.Scale(8)) }))
		forward(4*step + 2)
		require.NoError(t, m.Backward(ctx, fsdp.Scale(8)))
		_, err := m.Unscale(ctx, scaler)
		require.NoError(t, err)
		_, err = m.GradNorms(ctx, fsdp.L2Norm)
		require.NoError(t, err)
		_, err = m.ClipGradNorm(ctx, 0.1)
		require.NoError(t, err)
		require.NoError(t, opt.Step(1e-2))
		m.ZeroGrad()
		forward(4*step + 3) // discarded
		require.NoError(t, m.Full(ctx, []string{"l1.w"}, func(p params) error {
			clear(elements(p["l1.w"])[:step+1])
			return nil
		}, fsdp.WriteBack(g.Size()-1)))
		forward(4*step + 3) // discarded
		opt = refreeze(t, ctx, m, []func(string) bool{func(name string) bool { return name == "l1.w" }, nil}[step], opt, make)
	}
	last := stateBits(t, ctx, m)
	forward(1)
	m.Hold()
	forward(2)
	require.NoError(t, m.Close())
	return last
}

// TestCollectivesOwnTheirBuffers runs whole steps of every strategy and precision over a strict
// group: what is read too early is NaN, what is written too early is noticed, and every work is
// waited for at last. The bits are those of a group that forgives.
func TestCollectivesOwnTheirBuffers(t *testing.T) {
	const world = 4
	for _, p := range parityPrecisions {
		everyStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			cfg.Wrap, cfg.Precision = fsdp.WrapEach(), fsdp.Precision{Compute: p.compute, Gather: p.gather, Reduce: p.reduce}
			for _, prefetch := range []int{fsdp.NoPrefetch, 3} {
				cfg.Prefetch = prefetch
				cfg.Ignored = func(name string) bool { return prefetch > 0 && name == "l2.w" }
				var want bits
				onRanks(t, world, func(ctx context.Context, g comm.Group) {
					if got := everything(t, ctx, g, cfg); g.Rank() == 0 {
						want = got
					}
				})
				onRanks(t, world, func(ctx context.Context, g comm.Group) {
					strict := newStrictGroup(g)
					if got := everything(t, ctx, strict, cfg); g.Rank() == 0 {
						requireSameBits(t, want, got, p.name)
					}
					strict.book.require(t)
				})
			}
		})
	}
}

// TestUnitGroupsOwnTheirBuffers is the same with a unit over a strict group of its own.
func TestUnitGroupsOwnTheirBuffers(t *testing.T) {
	const world = 4
	var states [2][world]bits
	for strict := range states {
		onRanks(t, world, func(ctx context.Context, g comm.Group) {
			book := new(strictBook)
			if strict == 1 {
				g = &strictGroup{g, book}
			}
			cfg := groupedBy(t, ctx, g, "l1", 2)
			cfg.Prefetch = 3
			m := wrap(t, shapes["chain"], cfg)
			update := updater(t, m, 0.1)
			for range 3 {
				forwardBackward(t, ctx, m, shapeBatch(g.Rank()))
				update(ctx)
			}
			states[strict][g.Rank()] = stateBits(t, ctx, m)
			_, err := m.Forward(ctx, shapeBatch(g.Rank())...)
			require.NoError(t, err)
			require.NoError(t, m.Close())
			book.require(t)
			require.Equal(t, strict == 1, book.works > 0)
		})
	}
	for r := range world {
		requireSameBits(t, states[0][r], states[1][r], "rank ", r)
	}
}

// TestSetFullOwnsItsBuffers sets parameters that gathers for a backward may be reading: those are
// over first.
func TestSetFullOwnsItsBuffers(t *testing.T) {
	for _, how := range []string{"SetFull", "Full"} {
		onRanks(t, 2, func(ctx context.Context, g comm.Group) {
			strict := newStrictGroup(g)
			m := wrap(t, tinyGPT(3), fsdp.Config{Group: strict, Precision: float64s, Wrap: blocks, Prefetch: 2})
			_, err := m.Forward(ctx, tinyBatch(0, g.Rank(), 2, 5)...)
			require.NoError(t, err)
			require.Positive(t, strict.book.open, "gathers for the backward")
			double := func(p params) error {
				for _, v := range p {
					for i := range elements(v) {
						elements(v)[i] *= 2
					}
				}
				return nil
			}
			state, err := m.FullState(ctx)
			require.NoError(t, errors.Join(err, double(state)))
			if how == "SetFull" {
				err = m.SetFull(ctx, 1, map[int]map[string]*tensor.Dense{1: state}[g.Rank()])
			} else {
				err = m.Full(ctx, nil, double, fsdp.WriteBack(1))
			}
			require.NoError(t, err)
			strict.book.require(t)
			requireSameBits(t, bitsOf(state), stateBits(t, ctx, m))
			require.ErrorContains(t, m.Backward(ctx), "Backward without a Forward before it")
			forwardBackward(t, ctx, m, tinyBatch(0, g.Rank(), 2, 5))
			strict.book.require(t)
		})
	}
}
