package kit

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// Lived is a model in some state, on one rank, with the arguments of its methods.
type Lived struct {
	*Filler
	Group  comm.Group
	Dir    string // of a checkpoint, and a file of Export
	Values Params
	State  *optim.FullState
}

// LifeMethods are all methods of Sharded, and Step of an optimizer.
var LifeMethods = []struct {
	Name string // a method's name, with a suffix if there are several calls of it
	Call func(ctx context.Context, l *Lived) error
}{
	{"Forward", func(ctx context.Context, l *Lived) error { return ErrorOf(l.Forward(ctx, ShapeBatch(0)...)) }},
	{"Eval", func(ctx context.Context, l *Lived) error { return ErrorOf(l.Eval(ctx, ShapeBatch(0)...)) }},
	{"EvalProgram", func(ctx context.Context, l *Lived) error { return ErrorOf(l.EvalProgram(ctx, "", ShapeBatch(0)...)) }},
	{"Backward", func(ctx context.Context, l *Lived) error { return l.Backward(ctx) }},
	{"Hold, Backward", func(ctx context.Context, l *Lived) error { return l.Hold().Backward(ctx) }},
	{"Hold, Discard", func(ctx context.Context, l *Lived) error { return l.Hold().Discard(ctx) }},
	{"ClipGradNorm", func(ctx context.Context, l *Lived) error { return ErrorOf(l.ClipGradNorm(ctx, 1)) }},
	{"Unscale", func(ctx context.Context, l *Lived) error { return ErrorOf(l.Unscale(ctx, &optim.LossScaler{})) }},
	{"GradNorms", func(ctx context.Context, l *Lived) error { return ErrorOf(l.GradNorms(ctx, fsdp.L2Norm)) }},
	{"ParamNorms", func(ctx context.Context, l *Lived) error { return ErrorOf(l.ParamNorms(ctx, fsdp.L2Norm)) }},
	{"Any", func(ctx context.Context, l *Lived) error { return ErrorOf(l.Any(ctx, true)) }},
	{"Mean", func(ctx context.Context, l *Lived) error { return ErrorOf(l.Mean(ctx, 1)) }},
	{"FullGrads", func(ctx context.Context, l *Lived) error { return ErrorOf(l.FullGrads(ctx)) }},
	{"SyncGrads", func(ctx context.Context, l *Lived) error { return l.SyncGrads(ctx) }},
	{"AverageBuffers", func(ctx context.Context, l *Lived) error { return l.AverageBuffers(ctx) }},
	{"Summon", func(ctx context.Context, l *Lived) error { return l.Summon(ctx, nil, noop) }},
	{"Full, WriteBack", func(ctx context.Context, l *Lived) error { return l.Summon(ctx, nil, noop, fsdp.WriteBack(0)) }},
	{"Join", func(ctx context.Context, l *Lived) (err error) {
		for _, err = range l.Join(ctx, fsdp.Batches()) {
		}
		return err
	}},
	{"JoinCalls", func(ctx context.Context, l *Lived) error { return l.JoinCalls(ctx, func() error { return nil }) }},
	{"LoadStateDict", func(ctx context.Context, l *Lived) error { return l.LoadStateDict(ctx, 0, l.Values) }},
	{"StateDict", func(ctx context.Context, l *Lived) error {
		return ErrorOf(l.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true}))
	}},
	{"OptimStateDict", func(ctx context.Context, l *Lived) error { return ErrorOf(l.OptimStateDict(ctx, l.Opt, nil)) }},
	{"Export", func(ctx context.Context, l *Lived) error {
		return l.Export(ctx, filepath.Join(l.Dir, "other"), &fsdp.ExportOptions{Optimizer: l.Opt})
	}},
	{"Save", func(ctx context.Context, l *Lived) error {
		return l.Save(ctx, filepath.Join(l.Dir, "saved"), l.Opt, nil)
	}},
	{"SaveAsync", func(ctx context.Context, l *Lived) error {
		s, err := l.SaveAsync(ctx, filepath.Join(l.Dir, "saved"), l.Opt, nil)
		if err == nil {
			err = s.Wait(ctx)
		}
		return err
	}},
	{"Load", func(ctx context.Context, l *Lived) error { return ErrorOf(l.Load(ctx, l.Dir, l.Opt, nil)) }},
	{"Load, no optimizer", func(ctx context.Context, l *Lived) error { return ErrorOf(l.Load(ctx, l.Dir, nil, nil)) }},
	{"Import", func(ctx context.Context, l *Lived) error {
		return l.Import(ctx, filepath.Join(l.Dir, "model"), &fsdp.ImportOptions{Optimizer: l.Opt})
	}},
	{"LoadOptimStateDict", func(ctx context.Context, l *Lived) error { return l.LoadOptimStateDict(ctx, 0, l.Opt, l.State, nil) }},
	{"Freeze", func(ctx context.Context, l *Lived) error { return ErrorOf(l.Freeze(ctx, nil, l.Opt)) }},
	{"Step", func(_ context.Context, l *Lived) error { return l.Opt.Step(0.1) }},
	{"Plan", func(_ context.Context, l *Lived) error { return ErrorOf(l.Plan(ShapeBatch(0)...)) }},
	{"NoSync", func(_ context.Context, l *Lived) error { return l.NoSync(func() error { return nil }) }},
	{"Params", func(_ context.Context, l *Lived) error {
		if l.Params() == nil {
			return errNoShards
		}
		return nil
	}},
	{"FrozenParams", func(_ context.Context, l *Lived) error {
		if list := l.FrozenParams(); len(list) > 0 {
			return fmt.Errorf("%d frozen pieces", len(list))
		}
		return nil
	}},
	{"ZeroGrad", func(_ context.Context, l *Lived) error { l.ZeroGrad(); return nil }},
	{"ScaleGrads", func(_ context.Context, l *Lived) error { l.ScaleGrads(2); return nil }},
	{"String", func(_ context.Context, l *Lived) error { _ = l.String(); return nil }},
	{"LogValue", func(_ context.Context, l *Lived) error { l.LogValue(); return nil }},
	{"Memory", func(_ context.Context, l *Lived) error { l.Memory(); return nil }},
	{"Targets", func(_ context.Context, l *Lived) error { l.Targets(); return nil }},
	{"Group", func(_ context.Context, l *Lived) error { l.Sharded.Group(); return nil }},
	{"ResetPeak", func(_ context.Context, l *Lived) error { l.ResetPeak(); return nil }},
	{"Close", func(_ context.Context, l *Lived) error { return l.Close() }},
}

var errNoShards = errors.New("no shards")

func noop(map[string]*tensor.Dense) error { return nil }

// RunForward runs a Forward.
func (l *Lived) RunForward(t *testing.T, ctx context.Context) {
	_, err := l.Forward(ctx, ShapeBatch(0)...)
	require.NoError(t, err)
}
