package fsdp_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/life.txt anew")

// lived is a model in some state, on one rank, and what its methods are called with.
type lived struct {
	*filler
	group  comm.Group
	dir    string // of a checkpoint, and a file of Export
	values params
	state  *optim.FullState
}

// lifeStates are what a model can be in that has made one step, and has an optimizer. Some can be
// left other than by Close, which over finds out after a call.
var lifeStates = []struct {
	name  string
	enter func(t *testing.T, ctx context.Context, l *lived)
	over  func(ctx context.Context, l *lived) bool
}{
	{"fresh", func(*testing.T, context.Context, *lived) {}, nil},
	{"forwarded", func(t *testing.T, ctx context.Context, l *lived) { l.forward(t, ctx) }, loses},
	{"held", func(t *testing.T, ctx context.Context, l *lived) {
		l.forward(t, ctx)
		l.Hold()
	}, steps},
	{"unreduced", func(t *testing.T, ctx context.Context, l *lived) {
		require.NoError(t, l.NoSync(func() error {
			l.forward(t, ctx)
			return l.Backward(ctx)
		}))
	}, steps},
	{"mixed", breakOff, evaluates},
	{"half", func(t *testing.T, ctx context.Context, l *lived) {
		breakOff(t, ctx, l)
		_, err := l.Load(ctx, l.dir, nil)
		require.NoError(t, err)
	}, steps},
	{"refused", func(t *testing.T, ctx context.Context, l *lived) {
		bad := &stubborn{l.opt, "l0.w"}
		require.ErrorContains(t, l.SetFullOptim(ctx, 0, bad, l.state), errStubborn.Error())
	}, evaluates},
	{"former", func(t *testing.T, ctx context.Context, l *lived) {
		_, err := l.Freeze(ctx, nil, nil)
		require.NoError(t, err)
	}, steps},
	{"broken", func(t *testing.T, ctx context.Context, l *lived) {
		l.group.Abort(errors.New("cable pulled"))
		_, err := l.Forward(ctx, shapeBatch(0)...)
		require.ErrorContains(t, err, "cable pulled")
	}, evaluates},
	{"closed", func(t *testing.T, _ context.Context, l *lived) { require.NoError(t, l.Close()) }, evaluates},
}

func loses(ctx context.Context, l *lived) bool { return l.Backward(ctx) != nil }

func steps(_ context.Context, l *lived) bool { return l.opt.Step(0.1) == nil }

func evaluates(ctx context.Context, l *lived) bool {
	return errorOf(l.Eval(ctx, shapeBatch(0)...)) == nil
}

// lifeReasons are the errors of these states, and their names in the table.
var lifeReasons = []struct{ name, text string }{
	{"none", "Backward without a Forward before it, or its Backward has run, or another pass has discarded it, see Hold"},
	{"held", "1 passes put aside by Hold are waiting for their Backward"},
	{"waits", "a Forward waits for its Backward: parameters must not change in between"},
	{"unreduced", "the gradients of 1 passes inside NoSync are not reduced: run a Backward outside, SyncGrads or ZeroGrad first"},
	{"mixed", "has broken off: parameters are not whole until a Load or Import succeeds"},
	{"half", "has broken off: the optimizer is not whole until it is loaded again, or made anew of Sharded.Shards"},
	{"refused", "a SetFullOptim has broken off: the optimizers are not whole until a SetFullOptim, Load or Import succeeds"},
	{"former", "the optimizer was made before Freeze: make a new one of Sharded.Shards, and let it Adopt what Freeze returned"},
	{"broken", "cable pulled"},
	{"closed", "the model is closed"},
}

// lifeMethods are all methods of Sharded, and Step of an optimizer.
var lifeMethods = []struct {
	name string // a method's, and what else tells two calls apart
	call func(ctx context.Context, l *lived) error
}{
	{"Forward", func(ctx context.Context, l *lived) error { return errorOf(l.Forward(ctx, shapeBatch(0)...)) }},
	{"Eval", func(ctx context.Context, l *lived) error { return errorOf(l.Eval(ctx, shapeBatch(0)...)) }},
	{"EvalProgram", func(ctx context.Context, l *lived) error { return errorOf(l.EvalProgram(ctx, "", shapeBatch(0)...)) }},
	{"Backward", func(ctx context.Context, l *lived) error { return l.Backward(ctx) }},
	{"Hold, Backward", func(ctx context.Context, l *lived) error { return l.Hold().Backward(ctx) }},
	{"Hold, Discard", func(ctx context.Context, l *lived) error { return l.Hold().Discard(ctx) }},
	{"ClipGradNorm", func(ctx context.Context, l *lived) error { return errorOf(l.ClipGradNorm(ctx, 1)) }},
	{"Unscale", func(ctx context.Context, l *lived) error { return errorOf(l.Unscale(ctx, &optim.LossScaler{})) }},
	{"GradNorms", func(ctx context.Context, l *lived) error { return errorOf(l.GradNorms(ctx, fsdp.L2Norm)) }},
	{"ParamNorms", func(ctx context.Context, l *lived) error { return errorOf(l.ParamNorms(ctx, fsdp.L2Norm)) }},
	{"Any", func(ctx context.Context, l *lived) error { return errorOf(l.Any(ctx, true)) }},
	{"Mean", func(ctx context.Context, l *lived) error { return errorOf(l.Mean(ctx, 1)) }},
	{"FullGrads", func(ctx context.Context, l *lived) error { return errorOf(l.FullGrads(ctx)) }},
	{"SyncGrads", func(ctx context.Context, l *lived) error { return l.SyncGrads(ctx) }},
	{"AverageBuffers", func(ctx context.Context, l *lived) error { return l.AverageBuffers(ctx) }},
	{"Full", func(ctx context.Context, l *lived) error { return l.Full(ctx, nil, noop) }},
	{"Full, WriteBack", func(ctx context.Context, l *lived) error { return l.Full(ctx, nil, noop, fsdp.WriteBack(0)) }},
	{"Join", func(ctx context.Context, l *lived) (err error) {
		for _, err = range l.Join(ctx, fsdp.Batches()) {
		}
		return err
	}},
	{"JoinCalls", func(ctx context.Context, l *lived) error { return l.JoinCalls(ctx, func() error { return nil }) }},
	{"SetFull", func(ctx context.Context, l *lived) error { return l.SetFull(ctx, 0, l.values) }},
	{"FullState", func(ctx context.Context, l *lived) error { return errorOf(l.FullState(ctx)) }},
	{"FullOptimState", func(ctx context.Context, l *lived) error { return errorOf(l.FullOptimState(ctx, l.opt)) }},
	{"Export", func(ctx context.Context, l *lived) error {
		return l.Export(ctx, filepath.Join(l.dir, "other"), fsdp.WithOptimizer(l.opt))
	}},
	{"Save", func(ctx context.Context, l *lived) error { return l.Save(ctx, filepath.Join(l.dir, "saved"), l.opt) }},
	{"SaveAsync", func(ctx context.Context, l *lived) error {
		s, err := l.SaveAsync(ctx, filepath.Join(l.dir, "saved"), l.opt)
		if err == nil {
			err = s.Wait(ctx)
		}
		return err
	}},
	{"Load", func(ctx context.Context, l *lived) error { return errorOf(l.Load(ctx, l.dir, l.opt)) }},
	{"Load, no optimizer", func(ctx context.Context, l *lived) error { return errorOf(l.Load(ctx, l.dir, nil)) }},
	{"Import", func(ctx context.Context, l *lived) error {
		return l.Import(ctx, filepath.Join(l.dir, "model"), fsdp.WithOptimizer(l.opt))
	}},
	{"SetFullOptim", func(ctx context.Context, l *lived) error { return l.SetFullOptim(ctx, 0, l.opt, l.state) }},
	{"Freeze", func(ctx context.Context, l *lived) error { return errorOf(l.Freeze(ctx, nil, l.opt)) }},
	{"Step", func(_ context.Context, l *lived) error { return l.opt.Step(0.1) }},
	{"Plan", func(_ context.Context, l *lived) error { return errorOf(l.Plan(shapeBatch(0)...)) }},
	{"NoSync", func(_ context.Context, l *lived) error { return l.NoSync(func() error { return nil }) }},
	{"Shards", func(_ context.Context, l *lived) error {
		if l.Shards() == nil {
			return errNoShards
		}
		return nil
	}},
	{"ZeroGrad", func(_ context.Context, l *lived) error { l.ZeroGrad(); return nil }},
	{"ScaleGrads", func(_ context.Context, l *lived) error { l.ScaleGrads(2); return nil }},
	{"String", func(_ context.Context, l *lived) error { _ = l.String(); return nil }},
	{"LogValue", func(_ context.Context, l *lived) error { l.LogValue(); return nil }},
	{"Memory", func(_ context.Context, l *lived) error { l.Memory(); return nil }},
	{"ResetPeak", func(_ context.Context, l *lived) error { l.ResetPeak(); return nil }},
	{"Close", func(_ context.Context, l *lived) error { return l.Close() }},
}

func errorOf[T any](_ T, err error) error { return err }

var errNoShards = errors.New("no shards")

func noop(map[string]*tensor.Dense) error { return nil }

// forward runs a Forward.
func (l *lived) forward(t *testing.T, ctx context.Context) {
	_, err := l.Forward(ctx, shapeBatch(0)...)
	require.NoError(t, err)
}

// breakOff has a Load break off when a part of the parameters has changed.
func breakOff(t *testing.T, ctx context.Context, l *lived) {
	_, err := l.Load(ctx, l.dir, l.opt, kit.OnFS(&unreadable{FS: checkpoint.OS(), rank: 1}))
	require.ErrorIs(t, err, errDiskFull)
}

// TestLife calls every method in every state. What becomes of each call is in testdata/life.txt: ok
// or the reason, and whether that was the end of the state. A Forward after a Forward ends one and
// begins another.
func TestLife(t *testing.T) {
	for i := range reflect.TypeFor[*fsdp.Sharded]().NumMethod() {
		name := reflect.TypeFor[*fsdp.Sharded]().Method(i).Name
		listed := false
		for _, m := range lifeMethods {
			method, _, _ := strings.Cut(m.name, ",")
			listed = listed || method == name
		}
		require.True(t, listed, "%s is not in the table", name)
	}
	var got strings.Builder
	for _, r := range lifeReasons {
		fmt.Fprintf(&got, "%-9s  %s\n", r.name, r.text)
	}
	got.WriteString("\n")
	w := tabwriter.NewWriter(&got, 0, 0, 2, ' ', 0)
	for _, s := range lifeStates {
		fmt.Fprintf(w, "\t%s", s.name)
	}
	fmt.Fprintln(w)
	whole := newLived(t, t.TempDir())
	require.NoError(t, whole.Save(t.Context(), whole.dir, whole.opt))
	require.NoError(t, whole.Export(t.Context(), filepath.Join(whole.dir, "model"), fsdp.WithOptimizer(whole.opt)))
	for _, m := range lifeMethods {
		fmt.Fprint(w, m.name)
		for _, s := range lifeStates {
			l := newLived(t, whole.dir)
			s.enter(t, t.Context(), l)
			err := m.call(t.Context(), l)
			fmt.Fprintf(w, "\t%s", reasonOf(err))
			if err == nil && s.over != nil && s.over(t.Context(), l) {
				fmt.Fprint(w, ", ends it")
			}
			require.NoError(t, l.Close())
		}
		fmt.Fprintln(w)
	}
	require.NoError(t, w.Flush())

	const file = "testdata/life.txt"
	if *rewrite {
		require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

// newLived returns a model that has made one step.
func newLived(t *testing.T, dir string) *lived {
	g := comm.Local(1)[0]
	l := &lived{filler: newFiller(t, t.Context(), g), group: g, dir: dir}
	var err error
	l.values, err = l.FullState(t.Context())
	require.NoError(t, err)
	l.state, err = l.FullOptimState(t.Context(), l.opt, fsdp.OnEveryRank())
	require.NoError(t, err)
	return l
}

// reasonOf returns the name of an error in the table, or all of it.
func reasonOf(err error) string {
	if err == nil {
		return "ok"
	}
	for _, r := range lifeReasons {
		if strings.Contains(err.Error(), r.text) {
			return r.name
		}
	}
	return err.Error()
}
