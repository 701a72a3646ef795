package parity_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// The golden numbers were computed by PyTorch 1.13 for a GPT whose parameters and batches are
// functions of integers, so that nothing but the results needs to be stored. Tolerances: 1e-10 in
// float64; 1e-5 in float32, where PyTorch's own float32 differs from its float64 by up to 4e-7.

const (
	goldenVocab = 61
	goldenT     = 16
	goldenB     = 4
)

// goldenModel is nn.GPT with the golden initial values.
type goldenModel struct{ nn.GPT }

func newGoldenModel(family string) *goldenModel {
	m := &goldenModel{nn.GPT{Vocab: goldenVocab, Context: goldenT, Layers: 2, Dim: 32, Heads: 4}}
	m.Tied = strings.Contains(family, "_tied_")
	m.NoBias = strings.Contains(family, "nobias")
	if strings.Contains(family, "tanh") {
		m.Act = nn.GELUTanh
	}
	return m
}

// goldenInit sets the shards of a wrapped golden model: parameter k of the golden order, element i.
func goldenInit(t require.TestingT, order []string, params []optim.Param) {
	index := make(map[string]int)
	for k, name := range order {
		index[name] = k
	}
	for _, p := range params {
		kit.Edit(t, p.Value, func(j int, _ float64) float64 {
			v := kit.Value(p.Offset+j, index[p.Name]+1)
			switch {
			case len(p.Shape) >= 2:
				v *= 0.125
			case strings.HasSuffix(p.Name, "bias"):
				v *= 0.0625
			default:
				v = 1 + 0.125*v
			}
			return v
		})
	}
}

// goldenBatch returns rows lo to hi of batch number n.
func goldenBatch(n, lo, hi int) (tokens, targets *tensor.Dense) {
	var x, y []int
	for b := lo; b < hi; b++ {
		for t := range goldenT + 1 {
			tok := kit.U24(b*(goldenT+1)+t, 1000+n) % goldenVocab
			if t < goldenT {
				x = append(x, tok)
			}
			if t > 0 {
				y = append(y, tok)
			}
		}
	}
	shape := tensor.WithShape(hi-lo, goldenT)
	return tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y))
}

type goldenFile struct {
	Single map[string]json.RawMessage `json:"single"`
}

type goldenCase struct {
	Loss       float64                   `json:"loss"`
	GradNorm   float64                   `json:"grad_total_norm"`
	Grad       map[string][2]float64     `json:"grad"` // l2, sum
	ParamOrder []string                  `json:"param_order"`
	Train      map[string]goldenTraining `json:"train"`
}

type goldenTraining struct {
	Loss     []float64                        `json:"loss_before_step"`
	GradNorm []float64                        `json:"grad_norm"`
	EvalLoss map[string]float64               `json:"eval_loss"`
	Params   map[string]map[string][2]float64 `json:"params"`
}

var golden = sync.OnceValues(func() (f goldenFile, err error) {
	b, err := os.ReadFile("testdata/golden_gpt.json")
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(b, &f)
})

func goldenFamily(t *testing.T, family string) map[string]goldenCase {
	f, err := golden()
	require.NoError(t, err)
	var cases map[string]goldenCase
	require.NoError(t, json.Unmarshal(f.Single[family], &cases))
	return cases
}

func TestGoldenGenerator(t *testing.T) {
	f, err := golden()
	require.NoError(t, err)
	var v struct {
		Hash32 map[string]uint32  `json:"hash32"`
		Val    map[string]float64 `json:"val"`
		Tokens [][]int            `json:"gpt_tokens_step0"`
	}
	require.NoError(t, json.Unmarshal(f.Single["vectors"], &v))
	for key, want := range v.Hash32 {
		var i, s uint32
		_, err := fmt.Sscanf(key, "%d,%d", &i, &s)
		require.NoError(t, err)
		require.Equal(t, want, kit.Hash32(i, s), key)
	}
	for key, want := range v.Val {
		var i, s int
		_, err := fmt.Sscanf(key, "%d,%d", &i, &s)
		require.NoError(t, err)
		require.Equal(t, want, kit.Value(i, s), key)
	}
	tokens, targets := goldenBatch(0, 0, goldenB)
	for b, row := range v.Tokens {
		require.Equal(t, row[:goldenT], tokens.Ints()[b*goldenT:(b+1)*goldenT])
		require.Equal(t, row[1:], targets.Ints()[b*goldenT:(b+1)*goldenT])
	}
}

// precision is an element type with its tolerance.
type precision struct {
	name string
	typ  fsdp.DType
	tol  float64
}

var precisions = []precision{{"f64", fsdp.Float64, 1e-10}, {"f32", fsdp.Float32, 1e-5}}

// wrapGolden wraps a golden model over g.
func wrapGolden(t *testing.T, family string, g comm.Group, typ fsdp.DType, cfg fsdp.Config) *fsdp.Sharded {
	cfg.Group, cfg.Precision.Compute = g, typ
	if cfg.WrapPolicy == nil {
		cfg.WrapPolicy = fsdp.WrapTypes(&nn.Block{})
	}
	cfg.Poison = true
	m, err := fsdp.Wrap(newGoldenModel(family), cfg)
	require.NoError(t, err)
	goldenInit(t, goldenFamily(t, family)["f64"].ParamOrder, m.Params())
	return m
}

// share returns the rows of a batch of n rows that rank r of w works on: an equal share, or all if
// there is not one for each.
func share(n, r, w int) (lo, hi int) {
	if w > n {
		return 0, n
	}
	return n * r / w, n * (r + 1) / w
}

// step runs forward and backward of one whole batch, cut over the ranks, and returns the loss of
// the whole.
func goldenStep(t *testing.T, ctx context.Context, m *fsdp.Sharded, g comm.Group, number int) float64 {
	lo, hi := share(goldenB, g.Rank(), g.Size())
	tokens, targets := goldenBatch(number, lo, hi)
	loss, err := m.Forward(ctx, tokens, targets)
	require.NoError(t, err)
	weight := float64(hi-lo) / goldenB
	if g.Size() > goldenB {
		weight = 1 / float64(g.Size())
	}
	require.NoError(t, m.Backward(ctx, fsdp.Scale(weight*float64(g.Size()))))
	sum := []float64{loss * weight}
	require.NoError(t, g.AllReduce(comm.Of(sum), comm.Sum).Wait(ctx))
	return sum[0]
}

func stats(v *tensor.Dense) (l2, sum float64) {
	add := func(x float64) { l2 += x * x; sum += x }
	if v.Dtype() == tensor.Float64 {
		for _, x := range v.Float64s() {
			add(x)
		}
	} else {
		for _, x := range v.Float32s() {
			add(float64(x))
		}
	}
	return math.Sqrt(l2), sum
}

// requireStats compares l2 and sum of every tensor. An l2 below floor counts as rounding noise
// around zero.
func requireStats(t *testing.T, want map[string][2]float64, got map[string]*tensor.Dense, tol float64, skip func(string) bool) {
	require.Len(t, got, len(want))
	for name, w := range want {
		require.Contains(t, got, name)
		if skip != nil && skip(name) {
			continue
		}
		l2, sum := stats(got[name])
		require.InDelta(t, w[0], l2, tol*(1+w[0]), "l2 of %s", name)
		require.InDelta(t, w[1], sum, tol*(1+w[0]), "sum of %s", name)
	}
}

var families = []string{"gpt_untied_erf", "gpt_tied_erf", "gpt_untied_tanh", "gpt_nobias_erf"}

// TestGoldenGradients compares loss, and norm and sum of every gradient, with PyTorch, at several
// world sizes.
func TestGoldenGradients(t *testing.T) {
	for _, family := range families {
		for _, prec := range precisions {
			want := goldenFamily(t, family)[prec.name]
			for _, world := range []int{1, 2, 3, 4, 5, 8} {
				t.Run(fmt.Sprintf("%s/%s/%d ranks", family, prec.name, world), func(t *testing.T) {
					err := comm.Run(t.Context(), world, func(ctx context.Context, g comm.Group) error {
						m := wrapGolden(t, family, g, prec.typ, fsdp.Config{})
						loss := goldenStep(t, ctx, m, g, 0)
						require.InDelta(t, want.Loss, loss, prec.tol*want.Loss)
						grads, err := m.FullGrads(ctx)
						require.NoError(t, err)
						requireStats(t, want.Grad, grads, prec.tol, nil)
						norm, err := m.ClipGradNorm(ctx, math.Inf(1))
						require.NoError(t, err)
						require.InDelta(t, want.GradNorm, norm, prec.tol*norm)
						return nil
					})
					require.NoError(t, err)
				})
			}
		}
	}
}

// goldenOptimizer is a training run of the golden file.
type goldenOptimizer struct {
	lr, clip float64
	build    func([]optim.Param) (optim.Optimizer, error)
}

func adamW(decay float64) func([]optim.Param) (optim.Optimizer, error) {
	return optim.AdamW{Beta1: 0.9, Beta2: 0.95, WeightDecay: decay}.New
}

var goldenOptimizers = map[string]goldenOptimizer{
	"adamw_wd0":                  {3e-3, 0, adamW(0)},
	"adamw_wd0.1":                {3e-3, 0, adamW(0.1)},
	"adamw_wd0.1_clip0.5":        {3e-3, 0.5, adamW(0.1)},
	"adamw_wd0.1_clip1e3":        {3e-3, 1e3, adamW(0.1)},
	"adam_l2_0.1":                {3e-3, 0, optim.Adam{WeightDecay: 0.1}.New},
	"sgd_lr0.1":                  {0.1, 0, optim.SGD{}.New},
	"sgd_mom0.9":                 {0.05, 0, optim.SGD{Momentum: 0.9}.New},
	"sgd_mom0.9_nesterov_wd0.01": {0.05, 0, optim.SGD{Momentum: 0.9, Nesterov: true, WeightDecay: 0.01}.New},
}

// TestGoldenTraining compares ten steps of every optimizer with PyTorch, at several world sizes.
func TestGoldenTraining(t *testing.T) {
	for _, family := range families {
		for _, prec := range precisions {
			for name, want := range goldenFamily(t, family)[prec.name].Train {
				opt, ok := goldenOptimizers[name]
				require.True(t, ok, "no optimizer for %s", name)
				for world := 1; world <= 4; world++ {
					t.Run(fmt.Sprintf("%s/%s/%s/%d ranks", family, prec.name, name, world), func(t *testing.T) {
						t.Parallel()
						require.NoError(t, comm.Run(t.Context(), world, func(ctx context.Context, g comm.Group) error {
							trainGolden(t, ctx, g, family, prec, name, opt, want)
							return nil
						}))
					})
				}
			}
		}
	}
}

func trainGolden(t *testing.T, ctx context.Context, g comm.Group, family string, prec precision, name string, o goldenOptimizer, want goldenTraining) {
	m := wrapGolden(t, family, g, prec.typ, fsdp.Config{})
	opt, err := o.build(m.Params())
	require.NoError(t, err)
	for step := range want.Loss {
		loss := goldenStep(t, ctx, m, g, step)
		require.InDelta(t, want.Loss[step], loss, prec.tol*loss, "loss before step %d", step)
		limit := math.Inf(1)
		if o.clip > 0 {
			limit = o.clip
		}
		norm, err := m.ClipGradNorm(ctx, limit)
		require.NoError(t, err)
		require.InDelta(t, want.GradNorm[step], norm, prec.tol*norm, "gradient norm of step %d", step)
		require.NoError(t, opt.Step(o.lr))
		m.ZeroGrad()
		done := fmt.Sprint(step + 1)
		if params, ok := want.Params[done]; ok {
			got, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			// The key third of qkv.bias has a gradient that is zero but for rounding, which Adam scales up
			// to full steps; in float32 that tensor is noise.
			requireStats(t, params, got, prec.tol, func(p string) bool {
				return prec.typ == fsdp.Float32 && strings.HasPrefix(name, "adam") && strings.HasSuffix(p, "qkv.bias")
			})
		}
		if loss, ok := want.EvalLoss[done]; ok {
			tokens, targets := goldenBatch(0, 0, goldenB)
			out, err := m.Eval(ctx, tokens, targets)
			require.NoError(t, err)
			_, got := stats(out[0].(*tensor.Dense))
			require.InDelta(t, loss, got, prec.tol*loss, "evaluation after step %s", done)
		}
	}
}

func orInf(clip float64) float64 {
	if clip == 0 {
		return math.Inf(1)
	}
	return clip
}
