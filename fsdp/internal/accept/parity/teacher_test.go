package parity_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// withTeacher wraps a model twice: the second one is frozen.
func withTeacher(t require.TestingT, g comm.Group, cfg fsdp.Config) (student, teacher *fsdp.Sharded) {
	cfg.Group, cfg.Poison, cfg.Seed = g, true, 1
	student = kit.Wrap(t, kit.Shapes["chain"], cfg)
	cfg.Frozen, cfg.Seed = func(string) bool { return true }, 2
	return student, kit.Wrap(t, kit.Shapes["chain"], cfg)
}

// TestTeacher trains a student, whose frozen teacher follows it. The teacher has the bits of the
// averages that the student's optimizer keeps, in its values and in an Eval, which gathers them anew.
func TestTeacher(t *testing.T) {
	for _, where := range []string{"", "far", "files", "bfloat16"} {
		for _, ranks := range []int{1, 2, 4} {
			for i, spread := range kit.Spreads {
				t.Run(fmt.Sprintf("%s %s on %d", spread.Name, where, ranks), func(t *testing.T) {
					cfg := kit.Spreads[i].Config(ranks)
					cfg.Precision = kit.Float64s
					switch where {
					case "far":
						defer kit.UseFarDevice()()
					case "files":
						cfg.Offload.Dir = t.TempDir()
					case "bfloat16":
						cfg.Precision = fsdp.Precision{Compute: fsdp.BFloat16}
					}
					kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
						student, teacher := withTeacher(t, g, cfg)
						opt, err := optim.SGD{}.New(student.Params())
						require.NoError(t, err)
						require.NoError(t, optim.EMA(opt, 0.75))
						averages, params := teacher.FrozenParams(), student.Params()
						require.Len(t, averages, len(params))
						before := kit.StateBits(t, ctx, teacher)
						for step := range 3 {
							kit.ForwardBackward(t, ctx, student, kit.BatchPart(step, g, cfg.Precision.Compute))
							require.NoError(t, opt.Step(0.1))
							student.ZeroGrad()
							decay := 0.75
							if step == 0 { // as EMA does
								decay = 0
							}
							require.NoError(t, optim.UpdateEMA(averages, params, decay))
							out, err := teacher.Eval(ctx, kit.BatchPart(9, g, cfg.Precision.Compute)...)
							require.NoError(t, err)
							require.NoError(t, optim.Swap(opt))
							want, err := student.Eval(ctx, kit.BatchPart(9, g, cfg.Precision.Compute)...)
							require.NoError(t, err)
							require.Equal(t, want[0].Data(), out[0].Data())
							kit.RequireSameBits(t, kit.StateBits(t, ctx, student), kit.StateBits(t, ctx, teacher))
							require.NoError(t, optim.Swap(opt))
						}
						require.NotEqual(t, before, kit.StateBits(t, ctx, teacher))
						require.NoError(t, student.Close())
						require.NoError(t, teacher.Close())
						require.Empty(t, teacher.FrozenParams())
					})
				})
			}
		}
	}
}

// TestTeacherInside has a frozen parameter follow another one of the same model.
func TestTeacherInside(t *testing.T) {
	t.Run("near", testTeacherInside)
	defer kit.UseFarDevice()()
	t.Run("far", testTeacherInside)
}

func testTeacherInside(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
			m := kit.Chain64(t, g, func(c *fsdp.Config) { c.Frozen = func(name string) bool { return name == "l1.w" } })
			averages, params := m.FrozenParams(), m.Params()
			require.Len(t, averages, 1)
			require.ErrorContains(t, optim.UpdateEMA(averages, params, 0.5), `parameter "l1.w" has no parameter of this name to follow`)
			averages[0].Name = "l0.w"
			require.NoError(t, optim.UpdateEMA(averages, params, 0))
			values := kit.StateBits(t, ctx, m)
			require.Equal(t, values["l0.w"], values["l1.w"])

			_, err := m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
			require.NoError(t, err)
			require.ErrorContains(t, optim.UpdateEMA(averages, params, 0), "a Forward waits for its Backward")
			require.NoError(t, m.Backward(ctx))
			require.NoError(t, optim.UpdateEMA(averages, params, 0.5))
			_, err = m.Freeze(ctx, nil, nil)
			require.NoError(t, err)
			require.ErrorContains(t, optim.UpdateEMA(averages, m.Params(), 0), "was made before Freeze")
			require.Empty(t, m.FrozenParams())
			require.NoError(t, m.Close())
		})
	}
}

// TestTeacherRefused lets ranks update a teacher in different ways, cuts it elsewhere, and saves its
// student without it.
func TestTeacherRefused(t *testing.T) {
	each := fsdp.Config{WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s}
	for name, tt := range map[string]struct {
		decay func(rank int) float64 // negative: no update
		want  string
	}{
		"other decays":   {func(rank int) float64 { return []float64{0.5, 0.75}[rank] }, "rank 0 has UpdateEMA with decay 0.5, rank 1 has UpdateEMA with decay 0.75"},
		"one rank alone": {func(rank int) float64 { return float64(-rank) }, "rank 0 has made a step of UpdateEMA since the last pass, but rank 1 has made none"},
	} {
		for r, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
			student, teacher := withTeacher(t, g, each)
			if decay := tt.decay(g.Rank()); decay >= 0 {
				require.NoError(t, optim.UpdateEMA(teacher.FrozenParams(), student.Params(), decay))
			}
			return kit.ErrorOf(teacher.Eval(ctx, kit.ShapeBatch(0)...))
		}) {
			require.ErrorContains(t, err, tt.want, "%s, rank %d", name, r)
		}
	}
	kit.OnRanks(t, 2, func(_ context.Context, g comm.Group) {
		student, teacher := withTeacher(t, g, each)
		other, _ := withTeacher(t, g, fsdp.Config{Strategy: fsdp.NoShard, Precision: kit.Float64s})
		before := kit.StateBits(t, t.Context(), teacher)
		require.ErrorContains(t, optim.UpdateEMA(teacher.FrozenParams(), other.Params(), 0.5), "give both the same ranks, Config.Strategy and Config.WrapPolicy")
		kit.RequireSameBits(t, before, kit.StateBits(t, t.Context(), teacher))
		_, err := optim.SGD{}.New(teacher.FrozenParams())
		require.ErrorContains(t, err, "no gradient: an optimizer takes the pieces of Params, not of FrozenParams")
		require.NoError(t, student.Close())
		require.ErrorContains(t, optim.UpdateEMA(teacher.FrozenParams(), student.Params(), 0.5), "has no parameter of this name to follow")
	})
	dir := t.TempDir()
	for r, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		m := kit.Chain64(t, g, func(c *fsdp.Config) { c.Frozen = func(name string) bool { return name == "l1.w" } })
		require.NoError(t, m.Save(ctx, dir, nil, &fsdp.SaveOptions{TrainedOnly: true, Step: 1}))
		averages := m.FrozenParams()
		averages[0].Name = "l0.w"
		require.NoError(t, optim.UpdateEMA(averages, m.Params(), 0.5))
		require.NoError(t, m.Save(ctx, dir, nil, &fsdp.SaveOptions{Step: 2}))
		return m.Save(ctx, dir, nil, &fsdp.SaveOptions{TrainedOnly: true, Step: 3})
	}) {
		require.ErrorContains(t, err, "option TrainedOnly: the frozen parameter l1.w has changed by optim.UpdateEMA, and the checkpoint would lack it", "rank %d", r)
	}
}
