package fsdp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// memoryGroup is a group that has memory to give: a [comm.Allocator]. It knows what is out and
// which of it operations use, and fails when it is told to. Memory is full of NaN when it comes and
// when it has gone.
type memoryGroup struct {
	comm.Group
	out       [][]byte
	sizes     map[int]bool // that were asked for
	allocs    int
	frees     int
	failAlloc int // which Alloc fails, counted from 1
	failFree  error
	working   []*memoryWork
	gone      bool         // the group is closed: nobody should write to what is out
	seen      int          // collectives whose buffers were all in this memory
	strangers map[int]bool // lengths in bytes of buffers that were not
}

type memoryWork struct {
	comm.Work
	buffers []comm.Buffer
	waited  bool
}

func (w *memoryWork) Wait(ctx context.Context) error {
	err := w.Work.Wait(ctx)
	w.waited = true
	return err
}

func newMemoryGroup(g comm.Group) *memoryGroup {
	return &memoryGroup{Group: g, sizes: map[int]bool{}, strangers: map[int]bool{}}
}

var (
	errMemoryFull = errors.New("no room in the group's memory")
	errMemoryGone = errors.New("the memory has gone")
)

func (g *memoryGroup) Alloc(n int) ([]byte, error) {
	g.allocs++
	if g.gone {
		return nil, errMemoryGone
	}
	if g.allocs == g.failAlloc {
		return nil, errMemoryFull
	}
	raw := make([]byte, n+64)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & 63)
	b := raw[skip : skip+n : skip+n]
	fill(b, nan)
	g.out, g.sizes[n] = append(g.out, b), true
	return b, nil
}

func (g *memoryGroup) Free(b []byte) error {
	if g.gone {
		return errMemoryGone
	}
	g.frees++
	i := slices.IndexFunc(g.out, func(o []byte) bool { return len(o) == len(b) && within(b, o) })
	if i < 0 {
		return fmt.Errorf("%d bytes are not mine", len(b))
	}
	for _, w := range g.working {
		for _, u := range w.buffers {
			if !w.waited && within(u.Bytes(), b) {
				return fmt.Errorf("%v is in use", u)
			}
		}
	}
	fill(b, nan)
	g.out = slices.Delete(g.out, i, i+1)
	return g.failFree
}

// What memory is full of when it is nobody's: bytes that read as NaN, and bytes that fsdp does not
// write.
const (
	nan       = 0xFF
	untouched = 0x55
)

func fill(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

// within tells whether all of b lies in o.
func within(b, o []byte) bool {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(o)))
	return len(b) <= len(o) && lo <= uintptr(len(o)-len(b))
}

func (g *memoryGroup) Close() error {
	err := g.Group.Close()
	g.gone = true
	for _, b := range g.out {
		fill(b, untouched)
	}
	return err
}

func (g *memoryGroup) AllGather(dst, src comm.Buffer) comm.Work {
	return g.watch(g.Group.AllGather(dst, src), dst, src)
}

func (g *memoryGroup) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return g.watch(g.Group.ReduceScatter(dst, src, op), dst, src)
}

func (g *memoryGroup) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return g.watch(g.Group.AllReduce(buf, op), buf)
}

func (g *memoryGroup) Broadcast(buf comm.Buffer, root int) comm.Work {
	return g.watch(g.Group.Broadcast(buf, root), buf)
}

// fewWords are the labels of exchanges about the model. They are small, and live on the stack or
// the Go heap.
var fewWords = []string{"agreement", "gradient norm", "lengths of bytes", "bytes"}

func (g *memoryGroup) watch(w comm.Work, buffers ...comm.Buffer) comm.Work {
	if slices.Contains(fewWords, buffers[0].Label()) {
		return w
	}
	g.seen++
	for _, b := range buffers {
		inside := b.Len() == 0
		for _, o := range g.out {
			inside = inside || within(b.Bytes(), o)
		}
		if !inside {
			g.strangers[len(b.Bytes())] = true
		}
	}
	mw := &memoryWork{Work: w, buffers: buffers}
	g.working = append(slices.DeleteFunc(g.working, func(w *memoryWork) bool { return w.waited }), mw)
	return mw
}

// TestGroupMemory trains over groups that have memory to give, under every kind of configuration.
// Every flat buffer of every collective lies in that memory, which changes no bit; nothing else
// does; steps that repeat ask for no more; and Close gives all of it back.
func TestGroupMemory(t *testing.T) {
	knobs := map[string]fsdp.Config{
		"root only":       {},
		"blocks":          {Wrap: blocks},
		"each":            {Wrap: fsdp.WrapEach(), Prefetch: 2},
		"no prefetch":     {Wrap: blocks, Prefetch: fsdp.NoPrefetch},
		"prefetch 3":      {Wrap: blocks, Prefetch: 3},
		"poison":          {Wrap: blocks, Poison: true},
		"poison, float64": {Wrap: blocks, Poison: true, Prefetch: 2, Precision: float64s},
		"checkpoint":      {Wrap: blocks, Checkpoint: blocks, Poison: true},
		"keep":            {Wrap: blocks, Keep: fsdp.WrapEach(), Poison: true},
		"ShardGradOp":     {Wrap: blocks, Strategy: fsdp.ShardGradOp, Poison: true},
		"NoShard":         {Wrap: blocks, Strategy: fsdp.NoShard, Poison: true},
		"bfloat16":        {Wrap: blocks, Precision: fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16}, Poison: true},
		"computes":        {Wrap: blocks, Precision: fsdp.BF16(), Poison: true},
		"frozen":          {Wrap: blocks, Frozen: func(name string) bool { return name == "blocks.0.qkv.weight" }, Poison: true},
	}
	for name, cfg := range knobs {
		for world := 1; world <= 3; world++ {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				const steps = 8
				want := train(t, tinyGPT(2), world, steps, 0.5, cfg)
				onRanks(t, world, func(ctx context.Context, g comm.Group) {
					mem, cfg := newMemoryGroup(g), cfg
					cfg.Group = mem
					m := wrap(t, tinyGPT(2), cfg)
					update, warm := updater(t, m, 0.5), 0
					for step := range steps {
						forwardBackward(t, ctx, m, tinyBatch(step, g.Rank(), 2, tinyContext))
						update(ctx)
						_, err := m.Eval(ctx, tinyBatch(step, g.Rank(), 1, 3)...)
						require.NoError(t, err)
						if step == 1 {
							warm = mem.allocs
						}
					}
					require.Equal(t, warm, mem.allocs, "allocations after two steps")
					requireFlatBuffersOnly(t, m, mem)
					gradBits(t, ctx, m) // goes straight to tensors of the caller's, or together if small
					requireSameBits(t, want, stateBits(t, ctx, m))
					require.LessOrEqual(t, mem.allocs, warm+2, "allocations after steps, but for two parcels under way")
					require.NoError(t, m.Close())
					require.Empty(t, mem.out)
					require.Equal(t, fsdp.Memory{Peak: m.Memory().Peak}, m.Memory())
				})
			})
		}
	}
}

// requireFlatBuffersOnly checks that the memory of the group served flat buffers, and all of them.
func requireFlatBuffersOnly(t require.TestingT, m *fsdp.Sharded, mem *memoryGroup) {
	require.Empty(t, mem.strangers, "bytes of buffers that are not in the memory of the group")
	plan, err := m.Plan(good(0)...)
	require.NoError(t, err)
	if plan.Ranks > 1 {
		require.Positive(t, mem.seen)
	}
	flat := map[int]bool{}
	for _, g := range plan.Groups {
		master := g.Bytes // of shards and gradients
		if plan.Compute == fsdp.BFloat16 && !strings.Contains(g.Name, "(full)") {
			master *= 2
		}
		flat[g.Bytes], flat[master], flat[master/g.Ranks] = true, true, true
	}
	require.Equal(t, flat, mem.sizes)
}

// TestGroupMemoryIsGivenBackEarly: what steps stop using returns to the group before Close.
func TestGroupMemoryIsGivenBackEarly(t *testing.T) {
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		mem := newMemoryGroup(g)
		m := wrap(t, tinyGPT(2), fsdp.Config{Group: mem, Wrap: blocks})
		forwardBackward(t, ctx, m, good(g.Rank()))
		require.Zero(t, mem.frees)
		for range 4 { // forwards alone have no gradients
			_, err := m.Forward(ctx, good(g.Rank())...)
			require.NoError(t, err)
		}
		require.Positive(t, mem.frees)
		require.NoError(t, m.Close())
		require.Empty(t, mem.out)
	})
}

// TestGroupMemoryRefusesBlock: memory that a group does not take back is an error of the step that
// gives it back.
func TestGroupMemoryRefusesBlock(t *testing.T) {
	for _, err := range errorsOf(t, 2, func(ctx context.Context, g comm.Group) (err error) {
		mem := newMemoryGroup(g)
		m := wrap(t, tinyGPT(2), fsdp.Config{Group: mem, Wrap: blocks})
		forwardBackward(t, ctx, m, good(g.Rank()))
		if g.Rank() == 1 {
			mem.failFree = errors.New("I do not want it")
		}
		for i := 0; i < 6 && err == nil; i++ {
			_, err = m.Forward(ctx, good(g.Rank())...)
		}
		return err
	}) {
		require.ErrorContains(t, err, "giving memory back: I do not want it")
		require.ErrorContains(t, err, "rank 1")
	}
}

// TestNoGroupMemory lets every Alloc in a training run fail in turn, on one rank. Every rank
// returns an error that says so, and gives back what it has.
func TestNoGroupMemory(t *testing.T) {
	for world := 1; world <= 3; world++ {
		for k, failed := 1, true; failed; k++ {
			require.Less(t, k, 100)
			failed = false
			errs := make([]error, world)
			onRanks(t, world, func(ctx context.Context, g comm.Group) {
				mem := newMemoryGroup(g)
				if g.Rank() == world-1 {
					mem.failAlloc = k
				}
				errs[g.Rank()] = useOnce(ctx, mem)
				require.Empty(t, mem.out)
			})
			for r, err := range errs {
				failed = failed || err != nil
				if failed {
					require.NotErrorIs(t, err, context.DeadlineExceeded)
					require.Regexp(t, `allocating \d+ bytes of (shard|gathered|gradient) memory: `+errMemoryFull.Error(), err, "rank %d", r)
					require.ErrorContains(t, err, fmt.Sprintf("rank %d", world-1))
				}
			}
		}
	}
}

// useOnce makes, uses and closes a model.
func useOnce(ctx context.Context, g comm.Group) error {
	m, err := fsdp.Wrap(tinyGPT(1), fsdp.Config{Group: g, Wrap: blocks})
	if err != nil {
		return err
	}
	use := func() error {
		if _, err := m.Forward(ctx, good(g.Rank())...); err != nil {
			return err
		}
		if err := m.Backward(ctx); err != nil {
			return err
		}
		if _, err := m.Eval(ctx, good(g.Rank())...); err != nil {
			return err
		}
		_, err := m.FullState(ctx) // a rank that was done already is told now
		return err
	}
	return errors.Join(use(), m.Close())
}

// TestSetFullWithoutMemory: that there is no memory for what is on its way does not cost the model.
func TestSetFullWithoutMemory(t *testing.T) {
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		mem := newMemoryGroup(g)
		m := wrap(t, tinyGPT(1), fsdp.Config{Group: mem, Wrap: blocks})
		if g.Rank() == 1 {
			mem.failAlloc = mem.allocs + 1
		}
		err := m.SetFull(ctx, 0, nil)
		require.Regexp(t, `fsdp: rank \d: SetFull: (rank 1: )?allocating \d+ bytes of gathered memory: `+errMemoryFull.Error(), err)
		forwardBackward(t, ctx, m, good(g.Rank()))
		stateBits(t, ctx, m)
		require.NoError(t, m.Close())
		require.Empty(t, mem.out)
	})
}

// TestClosedModel: a closed model returns errors at once, whatever the other ranks do, and leaves
// the group as it is.
func TestClosedModel(t *testing.T) {
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		for _, g := range []comm.Group{g, newMemoryGroup(g)} {
			m := wrap(t, tinyGPT(1), fsdp.Config{Group: g, Wrap: blocks, Poison: true})
			forwardBackward(t, ctx, m, good(g.Rank()))
			require.NoError(t, m.Close())
			require.NoError(t, m.Close(), "again")
			if g.Rank() == 0 {
				closed := "fsdp: rank 0: %s: the model is closed"
				_, err := m.Forward(ctx, good(0)...)
				require.EqualError(t, err, fmt.Sprintf(closed, "Forward"))
				require.EqualError(t, m.Backward(ctx), fmt.Sprintf(closed, "Backward"))
				_, err = m.Eval(ctx, good(0)...)
				require.EqualError(t, err, fmt.Sprintf(closed, "Eval"))
				_, err = m.ClipGradNorm(ctx, 1)
				require.EqualError(t, err, fmt.Sprintf(closed, "ClipGradNorm"))
				_, err = m.FullState(ctx)
				require.EqualError(t, err, fmt.Sprintf(closed, "FullState"))
				_, err = m.FullGrads(ctx)
				require.EqualError(t, err, fmt.Sprintf(closed, "FullGrads"))
				require.Empty(t, m.Shards())
				m.ZeroGrad()
			}
			require.NoError(t, g.Barrier(ctx))
		}
	})
}

// TestCloseWaitsForGathers: a forward without a backward has gathers in flight, whose memory is not
// given back before.
func TestCloseWaitsForGathers(t *testing.T) {
	onRanks(t, 3, func(ctx context.Context, g comm.Group) {
		mem := newMemoryGroup(g)
		m := wrap(t, tinyGPT(3), fsdp.Config{Group: mem, Wrap: blocks, Prefetch: 2})
		_, err := m.Forward(ctx, good(g.Rank())...)
		require.NoError(t, err)
		flying := func(w *memoryWork) bool { return !w.waited }
		require.True(t, slices.ContainsFunc(mem.working, flying))
		require.NoError(t, m.Close())
		require.False(t, slices.ContainsFunc(mem.working, flying))
		require.Empty(t, mem.out)
		require.NoError(t, g.Barrier(ctx))
	})
}

// TestGroupClosedBeforeModel: the memory of a group that is closed may not be there any more. The
// model returns errors, and writes to none of it.
func TestGroupClosedBeforeModel(t *testing.T) {
	forward := func(ctx context.Context, m *fsdp.Sharded) error { _, err := m.Forward(ctx, good(0)...); return err }
	state := func(ctx context.Context, m *fsdp.Sharded) error { _, err := m.FullState(ctx); return err }
	for i, after := range []string{"Wrap", "Wrap", "Forward", "Forward", "Backward", "Backward"} {
		order := []func(context.Context, *fsdp.Sharded) error{forward, state}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		onRanks(t, 2, func(ctx context.Context, g comm.Group) {
			mem := newMemoryGroup(g)
			m := wrap(t, tinyGPT(3), fsdp.Config{Group: mem, Wrap: blocks, Prefetch: 2, Poison: true})
			if after == "Forward" {
				_, err := m.Forward(ctx, good(g.Rank())...)
				require.NoError(t, err)
			} else if after == "Backward" {
				forwardBackward(t, ctx, m, good(g.Rank()))
			}
			require.NoError(t, g.Barrier(ctx))
			require.NoError(t, mem.Close())
			for _, use := range order {
				require.ErrorIs(t, use(ctx, m), comm.ErrClosed)
			}
			require.ErrorContains(t, m.Close(), fmt.Sprintf("fsdp: rank %d: Close: giving memory back: the memory has gone", g.Rank()))
			require.NoError(t, m.Close(), "again")
			for _, b := range mem.out {
				require.Equal(t, len(b), bytes.Count(b, []byte{untouched}), "memory that has gone was written to")
			}
		})
	}
}
