package state_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
)

// anyTensor selects all tensors.
func anyTensor(string) bool { return true }

// spoil gives the last element that this rank owns another value, and returns the name of its parameter.
func spoil(t require.TestingT, m *fsdp.Sharded, x float64) string {
	name := ""
	for _, p := range m.Params() {
		if p.Value.Len() > 0 {
			kit.Edit(t, p.Value, func(i int, old float64) float64 {
				if i == p.Value.Len()-1 {
					return x
				}
				return old
			})
			name = p.Name
			break
		}
	}
	return name
}

// TestSaveRefusesNotFinite diverges after a good checkpoint: the next Save is an error on every rank that
// names rank and tensor, the good checkpoint is still there and Load takes it, and the training may
// go on. Where an option accepts the values, KeepLast(1) keeps the good one beside them.
func TestSaveRefusesNotFinite(t *testing.T) {
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for _, state := range []bool{false, true} {
			for _, asynchronous := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/of the optimizer %t/asynchronous %t", x, state, asynchronous), func(t *testing.T) {
					disk := crashfs.New()
					kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
						f := kit.NewFiller(t, ctx, g)
						defer f.Close()
						save := func(step int, allow func(string) bool) error {
							opts, ctx := &fsdp.SaveOptions{Step: step, KeepLast: 1, AllowNotFinite: allow}, kit.OnFS(ctx, disk)
							if !asynchronous {
								return f.Save(ctx, kit.Ckpt, f.Opt, opts)
							}
							v, err := f.SaveAsync(ctx, kit.Ckpt, f.Opt, opts)
							require.NoError(t, err)
							return v.Wait(ctx)
						}
						f.Fill(1)
						require.NoError(t, save(1, nil))
						name := ""
						if g.Rank() == 1 && state {
							e := f.Opt.State()[0]
							kit.Edit(t, e.Data, func(i int, old float64) float64 { return x })
							name = e.Name + ":" + e.Param
						} else if g.Rank() == 1 {
							name = spoil(t, f.Sharded, x)
						}
						err := save(2, nil)
						for _, part := range []string{"rank 1", "rank-00001-of-00003", name, "not finite", fmt.Sprint(x), "AllowNotFinite"} {
							require.ErrorContains(t, err, part)
						}
						require.NoError(t, g.Barrier(ctx))
						if g.Rank() == 0 {
							require.Len(t, entries(t, disk, kit.Ckpt), 1)
							require.Equal(t, 1, requireLatest(t, disk, kit.Ckpt))
						}
						require.NoError(t, g.Barrier(ctx))
						require.NoError(t, save(3, anyTensor))
						require.NoError(t, save(4, anyTensor))
						if g.Rank() == 0 {
							var steps []int
							for _, e := range entries(t, disk, kit.Ckpt) {
								steps = append(steps, e.Step)
							}
							require.Equal(t, []int{1, 4}, steps)
						}
						require.NoError(t, g.Barrier(ctx))
						f.Fill(5)
						require.NoError(t, save(5, nil))
						if g.Rank() == 0 {
							require.Len(t, entries(t, disk, kit.Ckpt), 1)
						}
					})
				})
			}
		}
	}
}

// TestLoadRefusesNotFinite loads a checkpoint with NaN, as an option or an earlier version has saved it:
// the error names tensor and file, says that starting again does not help, and which older checkpoint
// there is. AllowOlder takes that one, AllowNotFinite the one with NaN.
func TestLoadRefusesNotFinite(t *testing.T) {
	disk := crashfs.New()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		defer f.Close()
		require.NoError(t, f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 1))
		f.Fill(2)
		name := ""
		if g.Rank() == 1 {
			name = spoil(t, f.Sharded, math.NaN())
		}
		require.NoError(t, f.Save(kit.OnFS(ctx, disk), kit.Ckpt, f.Opt, &fsdp.SaveOptions{Step: 2, AllowNotFinite: anyTensor}))

		_, err := f.Load(kit.OnFS(ctx, disk), kit.Ckpt, f.Opt, nil)
		for _, part := range []string{"rank 1", name, "not finite", "NaN", "000002-step-2", "000001-step-1 is older", "AllowOlder: new(true)", "a restart does not help"} {
			require.ErrorContains(t, err, part)
		}
		c, err := f.Load(kit.OnFS(ctx, disk), kit.Ckpt, f.Opt, &fsdp.LoadOptions{AllowOlder: new(true)})
		require.NoError(t, err)
		require.Equal(t, 1, c.Step)
		f.Require(t, 1)
		c, err = f.Load(kit.OnFS(ctx, disk), kit.Ckpt, f.Opt, &fsdp.LoadOptions{AllowNotFinite: anyTensor})
		require.NoError(t, err)
		require.Equal(t, 2, c.Step)
	})
}

// TestExportRefusesNotFinite writes values that a file may not have, among them such as are too large
// for its type. The file that was there stays.
func TestExportRefusesNotFinite(t *testing.T) {
	for name, c := range map[string]struct {
		x    float64
		as   fsdp.DType
		want []string
	}{
		"NaN":                {math.NaN(), fsdp.Float64, []string{"NaN", "diverged", "AllowNotFinite"}},
		"NaN as float16":     {math.NaN(), fsdp.Float16, []string{"NaN", "diverged", "AllowNotFinite"}},
		"infinity":           {math.Inf(-1), fsdp.Float64, []string{"-Inf", "diverged"}},
		"beyond float16":     {65520, fsdp.Float16, []string{"+Inf", "out of the range of F16", "option DType"}},
		"beyond bfloat16":    {-3.4e38, fsdp.BFloat16, []string{"-Inf", "out of the range of BF16"}},
		"beyond float32":     {1e39, fsdp.Float32, []string{"+Inf", "out of the range of F32"}},
		"largest of float16": {65504, fsdp.Float16, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.safetensors")
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				f := kit.NewFiller(t, ctx, g)
				defer f.Close()
				f.Fill(1)
				require.NoError(t, f.Export(ctx, path, nil))
				param := ""
				if g.Rank() == 1 {
					param = spoil(t, f.Sharded, c.x)
				}
				err := f.Export(ctx, path, &fsdp.ExportOptions{DType: new(c.as)})
				if c.want == nil {
					require.NoError(t, err)
					return
				}
				for _, part := range append(c.want, param) {
					require.ErrorContains(t, err, part)
				}
				require.NoError(t, g.Barrier(ctx))
				require.NoError(t, f.Import(ctx, path, nil))
				for _, p := range f.Params() {
					for _, x := range kit.Numbers(t, p.Value) {
						require.Equal(t, 1.0, x)
					}
				}
				if g.Rank() == 1 {
					spoil(t, f.Sharded, c.x)
				}
				require.NoError(t, f.Export(ctx, path, &fsdp.ExportOptions{DType: new(c.as), AllowNotFinite: anyTensor}))
				err = f.Import(ctx, path, nil)
				require.ErrorContains(t, err, "not finite")
				require.ErrorContains(t, err, path)
				require.NoError(t, f.Import(ctx, path, &fsdp.ImportOptions{AllowNotFinite: anyTensor}))
			})
		})
	}
}

// TestStepRefusesNotFinite has gradients of one rank that are not finite, without clipping: its optimizer
// changes nothing, but the others have stepped. So each call that needs the parameters whole is an error on
// every rank that says why, and writes nothing. Load mends it.
func TestStepRefusesNotFinite(t *testing.T) {
	for _, x := range []float64{math.NaN(), math.Inf(1)} {
		dir := t.TempDir()
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			l := &kit.Lived{Filler: kit.NewFiller(t, ctx, g), Group: g, Dir: dir}
			defer l.Close()
			require.NoError(t, l.SaveStep(ctx, dir, 1))
			err := l.Refuse(ctx, g.Rank(), x, 1)
			require.Equal(t, g.Rank() != 1, err == nil)
			name := ""
			if g.Rank() == 1 {
				for _, p := range l.Params() {
					if p.Grad.Len() > 0 {
						name = p.Name // of the last call
					}
				}
				for _, part := range []string{"rank 1", "Step", name, "not finite", "no parameter of this rank has changed", "ClipGradNorm"} {
					require.ErrorContains(t, err, part)
				}
				require.Equal(t, 1, l.Opt.Steps())
				l.Filler.Require(t, 1)
			}
			tried := 0
			for _, m := range kit.LifeMethods {
				switch m.Name {
				case "Forward", "Eval", "EvalProgram", "StateDict", "OptimStateDict", "Export", "Save", "SaveAsync", "Freeze":
					tried++
					err := m.Call(ctx, l)
					for _, part := range []string{"rank 1 refused its step because the gradient of " + name, "is not finite", "rank 0 did not refuse", "load the last checkpoint", "ClipGradNorm before Step"} {
						require.ErrorContains(t, err, part, m.Name)
					}
				}
			}
			require.Equal(t, 9, tried)
			require.NoError(t, g.Barrier(ctx))
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, files, 2, "only the lock and the first checkpoint are there")
			c, err := l.Load(ctx, dir, l.Opt, nil)
			require.NoError(t, err)
			require.Equal(t, 1, c.Step)
			l.Filler.Require(t, 1)
			require.NoError(t, l.Refuse(ctx, g.Rank(), x))
			require.NoError(t, l.Save(ctx, dir, l.Opt, nil))
		})
	}
}

// TestStepRefusedByAll has gradients that are not finite on all ranks: no rank has stepped, so they are alike and
// may go on. A rank that has refused and then steps as the others do is alike, too.
func TestStepRefusedByAll(t *testing.T) {
	disk := crashfs.New()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		defer f.Close()
		require.ErrorContains(t, f.Refuse(ctx, g.Rank(), math.NaN(), 0, 1), "not finite")
		require.NoError(t, f.Save(kit.OnFS(ctx, disk), kit.Ckpt, f.Opt, nil))
		f.ZeroGrad()
		if f.Refuse(ctx, g.Rank(), math.NaN(), 1) != nil {
			for _, p := range f.Params() {
				kit.Edit(t, p.Grad, func(int, float64) float64 { return 0 })
			}
			require.NoError(t, f.Opt.Step(0.01))
		}
		f.ZeroGrad()
		kit.ForwardBackward(t, ctx, f.Sharded, kit.ShapeBatch(g.Rank()))
	})
}

// TestNotFiniteLossNamesItsOrigin says of a loss that is NaN in which batch, parameter or call it began.
func TestNotFiniteLossNamesItsOrigin(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach()})
		defer func() { require.NoError(t, m.Close()) }()
		batch := kit.ShapeBatch(g.Rank())
		kit.Elements(batch[1])[3] = math.NaN()
		_, err := m.Forward(ctx, batch...)
		require.NoError(t, err)
		err = m.Backward(ctx)
		require.ErrorContains(t, err, "NaN: batch tensor 1 has 1 of ")
		if rows := batch[1].Shape()[0]; g.Rank() == 0 {
			require.ErrorContains(t, err, fmt.Sprintf("the first is NaN, element 3, in row %d of %d", 3/(len(kit.Elements(batch[1]))/rows), rows))
		}
		kit.Elements(batch[1])[3] = 1

		require.NoError(t, m.Close())

		m = kit.Wrap(t, &nn.GPT{Vocab: 11, Context: 4, Layers: 3, Dim: 8, Heads: 2}, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
		const name = "blocks.1.fc.weight"
		require.NoError(t, m.Summon(ctx, []string{name}, func(p map[string]*tensor.Dense) error {
			p[name].Float32s()[3] = float32(math.NaN())
			return nil
		}, fsdp.WriteBack(0)))
		tokens := tensor.New(tensor.WithShape(1, 4), tensor.WithBacking([]int{1, 2, 3, 4}))
		_, err = m.Forward(ctx, tokens, tokens)
		require.NoError(t, err)
		err = m.Backward(ctx)
		require.ErrorContains(t, err, "the loss of pass 1 is NaN: the first call with a result that is not finite is blocks.1: it has ")
		if g.Rank() == 0 {
			require.ErrorContains(t, err, "parameter "+name+"[0:")
		}
	})
}

// TestNotFiniteEvalWarns says once, on the rank that has it, that the loss of an Eval is NaN, and
// where it began. If it began in a call, the second such Eval names the call.
func TestNotFiniteEvalWarns(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(m *fsdp.Sharded, batch []fsdp.Tensor) string
		want  string
	}{
		"batch": {func(_ *fsdp.Sharded, batch []fsdp.Tensor) string {
			kit.Elements(batch[1])[3] = math.NaN()
			return ""
		}, "batch tensor 1 has 1 of "},
		"parameter": {func(m *fsdp.Sharded, _ []fsdp.Tensor) string { return spoil(t, m, math.NaN()) }, "call l0: parameter "},
		"overflow": {func(_ *fsdp.Sharded, batch []fsdp.Tensor) string {
			kit.Elements(batch[1])[3] = 1e200
			return ""
		}, "the first call with a result that is not finite is distance: it has 1 of 1 values"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				var log bytes.Buffer
				m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Precision: kit.Float64s, Logger: slog.New(slog.NewTextHandler(&log, nil)), WrapPolicy: fsdp.WrapEach()})
				defer m.Close()
				batch := kit.ShapeBatch(g.Rank())
				_, err := m.Eval(ctx, batch...)
				require.NoError(t, err)
				require.NotContains(t, log.String(), "not finite")
				require.NoError(t, g.Barrier(ctx))
				param := ""
				if g.Rank() == 1 {
					param = c.spoil(m, batch)
				}
				for range 3 {
					_, err = m.Eval(ctx, batch...)
					require.NoError(t, err)
				}
				if g.Rank() == 0 && name != "parameter" {
					require.NotContains(t, log.String(), "not finite")
					return
				}
				warnings := 1
				if name == "overflow" || g.Rank() == 0 { // which does not have the parameter
					warnings = 2
				}
				require.Equal(t, warnings, strings.Count(log.String(), "the loss of an Eval is not finite"), log.String())
				want := c.want + param
				if g.Rank() == 0 {
					want = "the first call with a result that is not finite is l0: it has "
				}
				require.Contains(t, log.String(), want)
			})
		})
	}
}

// TestNotFiniteGradientNamesItsOrigin has a square root of 0, whose loss is finite and whose gradient is not. The NaN
// spreads to the calls before, and to a parameter that a later call shares with them.
func TestNotFiniteGradientNamesItsOrigin(t *testing.T) {
	square := func(name string) fsdp.Param { return fsdp.Param{Name: name, Shape: []int{kit.ShapeDim, kit.ShapeDim}} }
	zero, tied, own := square("w"), square("w"), square("own")
	zero.Init, tied.Tied, own.Init = fsdp.Constant(0), "a.w", fsdp.Normal(0.3)
	root := &kit.Module{Parameters: []fsdp.Param{zero}, Graph: func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		w, err := b.Param("w")
		require.NoError(t, err)
		y, err := gorgonia.Sqrt(gorgonia.Must(gorgonia.Mul(in[0], w)))
		return gorgonia.Nodes{y}, err
	}}
	reader := &kit.Module{Parameters: []fsdp.Param{own, tied}, Graph: (&kit.Dense{Dim: kit.ShapeDim}).Graph}
	net := kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("a", &kit.Dense{Dim: kit.ShapeDim}, in[0])
		x = t.Call("b", root, x)
		x = t.Call("c", reader, x)
		return kit.Regress(t, in, t.Call("d", &kit.Dense{Dim: kit.ShapeDim}, x)), nil
	})
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, net, fsdp.Config{Group: g, Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach()})
		defer m.Close()
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		_, err := m.ClipGradNorm(ctx, 1)
		require.ErrorContains(t, err, "the gradient of b.w[")
		require.ErrorContains(t, err, "is not finite (it began in the backward of b or of a later call)")
	})
}
