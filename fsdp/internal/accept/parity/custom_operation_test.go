package parity_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// bend is y = x²·gain + x for x [... d] and gain [d], an operation of the user's own.
var bend = &op.Custom{
	Name: "bend", Shapes: "x [... d], gain [d] -> y [... d] | square [... d]", Reads: []string{"x", "gain", "square"},
	Forward: op.Kernel{F32: bendForward[float32], F64: bendForward[float64], Split: true},
	Backward: op.Kernel{
		F32: bendBackward[float32], F64: bendBackward[float64],
		Scratch: func(s op.Sizes) int { return s.Dim("d") },
	},
}

func bendForward[T op.Float](a op.Args[T]) error {
	lo, hi := a.Rows()
	d := a.Dim("d")
	for i := lo * d; i < hi*d; i++ {
		x := a.In(0)[i]
		a.Out(1)[i] = x * x
		a.Out(0)[i] = x*x*a.In(1)[i%d] + x
	}
	return nil
}

func bendBackward[T op.Float](a op.Args[T]) error {
	d, sum := a.Dim("d"), a.Scratch()
	clear(sum)
	for i, dy := range a.DOut() {
		a.Grad(0)[i] = dy * (2*a.In(0)[i]*a.In(1)[i%d] + 1)
		sum[i%d] += dy * a.Out(1)[i]
	}
	copy(a.Grad(1), sum)
	return nil
}

// bent is a module of it.
func bent(dim int) *kit.Module {
	return &kit.Module{Parameters: []fsdp.Param{{Name: "gain", Shape: []int{dim}, Init: fsdp.Normal(0.5)}}, Graph: func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		gain, err := b.Param("gain")
		if err != nil {
			return nil, err
		}
		y, err := bend.Apply(in[0], gain)
		return gorgonia.Nodes{y}, err
	}}
}

// bentModel uses it between layers.
var bentModel = kit.ParityModel{
	Name: "custom", Model: kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("in", &nn.Linear{In: 7, Out: 11, Std: 0.4}, in[0])
		x = t.Call("bent", bent(11), x)
		x = t.Call("out", &nn.Linear{In: 11, Out: 3, Std: 0.4}, x)
		return kit.Regress(t, in, t.Call("again", bent(3), x)), nil
	}), Typed: fsdp.WrapTypes(&nn.Linear{}, &kit.Module{}), Batch: kit.ParityModels[0].Batch,
}

// TestCustomParity trains it on 1 to 4 ranks, frozen or not, in float64, float32 and bfloat16, and
// compares with one process and with the emulation of the ranks.
func TestCustomParity(t *testing.T) {
	kit.Needs(t, kit.OwnOperations)
	extras := []parityExtra{{name: "nothing"}, {name: "frozen", frozen: regexp.MustCompile(`^bent`)}}
	for world := 1; world <= 4; world++ {
		for _, precision := range []int{0, 1, len(kit.ParityPrecisions) - 1} {
			for _, extra := range extras {
				c := parityCell{placement{world, fsdp.FullShard, 0}, bentModel, "each", fsdp.WrapEach(), kit.ParityPrecisions[precision], 1, "ns", extra}
				t.Run(c.String(), func(t *testing.T) {
					got := c.train(t)
					requireRecord(t, c.emulate(t), got, 0)
					if c.precision.Tolerance > 0 {
						requireRecord(t, c.alone(t), got, c.precision.Tolerance)
					}
				})
			}
		}
	}
}

// TestCustomKnobs turns the knobs that keep it, compute it again, or run it elsewhere: the bits are
// the same.
func TestCustomKnobs(t *testing.T) {
	kit.Needs(t, kit.OwnOperations)
	knobs := map[string]func(*fsdp.Config){
		"checkpoint": func(c *fsdp.Config) { c.Activations.Recompute = fsdp.WrapEach() },
		"keep":       func(c *fsdp.Config) { c.Activations.Save = fsdp.WrapEach() },
		"threads":    func(c *fsdp.Config) { c.Threads = 3 },
	}
	run := func(cfg fsdp.Config) (state kit.Bits) {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			cfg := cfg
			cfg.Group, cfg.WrapPolicy, cfg.Poison = g, fsdp.WrapEach(), true
			m := kit.Wrap(t, bentModel.Model, cfg)
			update := kit.Updater(t, m, 1)
			for step := range 3 {
				kit.ForwardBackward(t, ctx, m, kit.InType(bentModel.Batch(2*step+g.Rank(), 5), fsdp.Float32))
				update(ctx)
			}
			if got := kit.StateBits(t, ctx, m); g.Rank() == 0 {
				state = got
			}
			require.NoError(t, m.Close())
		})
		return state
	}
	for _, precision := range []fsdp.Precision{{}, {Compute: fsdp.BFloat16}} {
		want := run(fsdp.Config{Precision: precision})
		for name, turn := range knobs {
			cfg := fsdp.Config{Precision: precision}
			turn(&cfg)
			kit.RequireSameBits(t, want, run(cfg), name)
		}
		restore := kit.UseFarDevice()
		kit.RequireSameBits(t, want, run(fsdp.Config{Precision: precision}), "far device")
		restore()
	}
}

// TestCustomFails has a kernel return an error, panic and ask for what it does not have, in forward
// and in backward, on one rank. All ranks are told what happened where.
func TestCustomFails(t *testing.T) {
	kit.Needs(t, kit.OwnOperations)
	wrong := errors.New("element is negative")
	for name, c := range map[string]struct {
		fail func(op.Args[float64]) error
		want string
	}{
		"error": {func(op.Args[float64]) error { return wrong }, wrong.Error()},
		"panic": {func(op.Args[float64]) error { panic("lost") }, `the kernel panicked at .*custom_operation_test\.go:\d+: lost`},
		"index": {func(a op.Args[float64]) error { a.In(1)[0] = 0; return nil }, `the kernel panicked at .*custom_operation_test\.go:\d+: runtime error: index out of range \[1\]`},
	} {
		for _, backward := range []bool{false, true} {
			at, direction := "forward", "custom fickle"
			if backward {
				at, direction = "backward", "custom fickle grad"
			}
			t.Run(at+" "+name, func(t *testing.T) {
				errs := kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
					kernel := func(back bool) op.Kernel {
						return op.Kernel{F64: func(a op.Args[float64]) error {
							switch {
							case back == backward && g.Rank() == 1:
								return c.fail(a)
							case back:
								copy(a.Grad(0), a.DOut())
							default:
								copy(a.Out(0), a.In(0))
							}
							return nil
						}}
					}
					fickle := &op.Custom{Name: "fickle", Shapes: "x [...] -> y [...]", Forward: kernel(false), Backward: kernel(true)}
					m := kit.Wrap(t, kit.Around(&kit.Module{Graph: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
						y, err := fickle.Apply(in[0])
						return gorgonia.Nodes{y}, err
					}}), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s})
					_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
					return errors.Join(err, m.Backward(ctx), m.Backward(ctx)) // a rank that was done already is told now
				})
				for _, err := range errs {
					require.Regexp(t, fmt.Sprintf(`rank 1( of group "world")?: pass 1: %s mid: %s: %s`, at, direction, c.want), err.Error())
				}
				if name == "error" {
					require.ErrorIs(t, errs[1], wrong)
				}
			})
		}
	}
}
