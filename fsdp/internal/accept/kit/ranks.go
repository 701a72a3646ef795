package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/mapped"
	"github.com/gofsdp/gofsdp/optim"
)

// GroupsCarryPasses reports whether the collectives of passes use Config.Group, where tests see
// them. On GPUs they use NCCL.
var GroupsCarryPasses = device != "gpu"

// LastStrategy is the last supported strategy: a GPU keeps no second copy of parameters.
var LastStrategy = map[bool]fsdp.Strategy{true: fsdp.SecondaryShard, false: fsdp.HybridGradOp}[GroupsCarryPasses]

// Patience bounds every test with several ranks: a hang becomes an error. Loaded machines, the race
// detector and doubles need this much time.
const Patience = 20 * time.Minute

// OnRanks runs f on n ranks and requires that none fails.
func OnRanks(t require.TestingT, n int, f func(ctx context.Context, g comm.Group)) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	require.NoError(t, comm.Run(ctx, n, func(ctx context.Context, g comm.Group) error {
		f(ctx, g)
		return nil
	}))
}

// ErrorsOf runs f on n ranks and returns the error of each. It requires that every rank fails, and
// not by a timeout.
func ErrorsOf(t *testing.T, n int, f func(ctx context.Context, g comm.Group) error) []error {
	errs := make([]error, n)
	OnRanks(t, n, func(ctx context.Context, g comm.Group) { errs[g.Rank()] = f(ctx, g) })
	for r, err := range errs {
		require.Error(t, err, "rank %d", r)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "rank %d", r)
	}
	return errs
}

// Wrap wraps m and fails the test if that fails.
func Wrap(t require.TestingT, m fsdp.Model, cfg fsdp.Config) *fsdp.Sharded {
	s, err := fsdp.Wrap(m, cfg)
	require.NoError(t, err)
	return s
}

// ForwardBackward runs one forward and backward and returns the loss.
func ForwardBackward(t require.TestingT, ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor, opts ...fsdp.BackwardOption) float64 {
	loss, err := m.Forward(ctx, batch...)
	require.NoError(t, err)
	require.NoError(t, m.Backward(ctx, opts...))
	return loss
}

// Updater returns a function that makes one update of m with AdamW after clipping to limit.
func Updater(t require.TestingT, m *fsdp.Sharded, limit float64) func(context.Context) {
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	require.NoError(t, err)
	return func(ctx context.Context) {
		_, err := m.ClipGradNorm(ctx, limit)
		require.NoError(t, err)
		require.NoError(t, opt.Step(1e-2))
		m.ZeroGrad()
	}
}

// Train makes steps updates of a new model on n ranks and returns the bits of its parameters. It
// requires that they are the same on every rank.
func Train(t require.TestingT, model fsdp.Model, n, steps int, limit float64, cfg fsdp.Config) Bits {
	states := make([]Bits, n)
	OnRanks(t, n, func(ctx context.Context, g comm.Group) {
		cfg := cfg
		cfg.Group = g
		m := Wrap(t, model, cfg)
		update := Updater(t, m, limit)
		for step := range steps {
			ForwardBackward(t, ctx, m, TinyBatch(step, g.Rank(), 2, TinyContext))
			update(ctx)
		}
		states[g.Rank()] = StateBits(t, ctx, m)
	})
	for r, s := range states {
		RequireSameBits(t, states[0], s, "rank ", r)
	}
	return states[0]
}

// TrainStep is the body of a training without an update.
func TrainStep(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor, opts ...fsdp.BackwardOption) error {
	if _, err := m.Forward(ctx, batch...); err != nil {
		return err
	}
	return m.Backward(ctx, opts...)
}

// ErrorOf returns the error of a call with two results.
func ErrorOf[T any](_ T, err error) error { return err }

// HeapBytes returns the bytes of the Go heap in use.
func HeapBytes() int {
	var s runtime.MemStats
	for range 2 { // the second collection frees the contents of sync.Pool
		runtime.GC()
	}
	runtime.ReadMemStats(&s)
	return int(s.HeapAlloc)
}

// StepAllocatesLittle bounds the allocations of a step on the Go heap.
func StepAllocatesLittle(t *testing.T, threads int) {
	ctx := context.Background()
	m := Wrap(t, TinyGPT(3), fsdp.Config{WrapPolicy: Blocks, Threads: threads})
	defer func() { require.NoError(t, m.Close()) }()
	batch := TinyBatch(0, 0, 2, 5)
	step := func() {
		if _, err := m.Forward(ctx, batch...); err != nil {
			panic(err)
		}
		if err := m.Backward(ctx); err != nil {
			panic(err)
		}
		if _, err := m.ClipGradNorm(ctx, 1); err != nil {
			panic(err)
		}
		m.ZeroGrad()
	}
	for range 5 {
		step()
	}
	require.LessOrEqual(t, testing.AllocsPerRun(20, step), 24.0, "allocations a step")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const steps = 50
	for range steps {
		step()
	}
	runtime.ReadMemStats(&after)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)/steps, uint64(2048), "bytes a step")
}

// CaptureDefault makes slog.Default write to a buffer until the test ends. Read the buffer after
// the ranks have returned: handlers write one after the other, but reading is not synchronised.
func CaptureDefault(t *testing.T) (written func() string) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return log.String
}

// RequireIdle requires that m holds nothing but its shards and the optimizer's state.
func RequireIdle(t require.TestingT, ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) {
	_, err := m.Eval(ctx, batch...) // discards a last forward
	require.NoError(t, err)
	plan, err := m.Plan(batch...)
	require.NoError(t, err)
	require.Equal(t, plan.ShardBytes+plan.ErrorBytes+plan.StateBytes, m.Memory().Live, "bytes that nobody owns")
}

// GradsOf returns the gradients of every parameter, as numbers.
func GradsOf(t require.TestingT, ctx context.Context, m *fsdp.Sharded) map[string][]float64 {
	grads, err := m.FullGrads(ctx)
	require.NoError(t, err)
	out := make(map[string][]float64)
	for name, g := range grads {
		out[name] = Elements(g)
	}
	return out
}

// Memories are the places for shards: the heap, and files if the system supports them.
func Memories(t *testing.T) []string {
	dir := t.TempDir()
	files, err := mapped.Open(dir)
	if errors.Is(err, mapped.ErrUnsupported) {
		return []string{""}
	}
	require.NoError(t, err)
	require.NoError(t, files.Close())
	return []string{"", dir}
}

// together calls f for all ranks at once.
func together(world int, f func(rank int)) {
	var ranks sync.WaitGroup
	for r := range world {
		ranks.Go(func() { f(r) })
	}
	ranks.Wait()
}

// PanickedHere is the text of a panic on the line of the call.
func PanickedHere(what, with string) string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s panicked at %s:%d: %s", what, file, line, with)
}
