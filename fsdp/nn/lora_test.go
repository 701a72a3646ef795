package nn_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// TestLoRA is its formula: x·wᵀ + bias + alpha/rank · (x·aᵀ)·bᵀ.
func TestLoRA(t *testing.T) {
	for alpha, scale := range map[float64]float64{0: 1, 3: 1.5} {
		s := wrap(t, calling(&nn.Linear{In: 3, Out: 2, LoRA: nn.LoRA{Rank: 2, Alpha: alpha}}, 1))
		set(t, s, "m.weight", 1, 2, 3, 4, 5, 6)
		set(t, s, "m.bias", 7, 8)
		set(t, s, "m.lora_a", 1, 0, 1, 0, 2, 0)
		set(t, s, "m.lora_b", 1, 10, 100, 1000)
		x := tensor.New(tensor.WithShape(1, 3), tensor.WithBacking([]float64{1, 1, 2}))
		low := []float64{1 + 2, 2} // x·aᵀ
		require.InDeltaSlice(t, []float64{
			9 + 7 + scale*(low[0]+10*low[1]), 21 + 8 + scale*(100*low[0]+1000*low[1]),
		}, eval(t, s, x), 1e-12)
	}
}

// TestLoRAInitialValues starts the adapter at nothing, and its first matrix so that x·aᵀ has the
// size of x.
func TestLoRAInitialValues(t *testing.T) {
	s, err := fsdp.Wrap(calling(&nn.Linear{In: 100, Out: 50, LoRA: nn.LoRA{Rank: 40}}, 1), fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}})
	require.NoError(t, err)
	_, std := spread(state(t, s, "m.lora_a"))
	require.InDelta(t, 0.1, std, 0.01)
	require.Equal(t, make([]float64, 50*40), state(t, s, "m.lora_b"))
}

// gpt returns a small GPT.
func gpt(l nn.LoRA) *nn.GPT {
	return &nn.GPT{Vocab: 7, Context: 4, Layers: 2, Dim: 8, Heads: 2, Tied: true, LoRA: l}
}

// notAdapter freezes all but the adapters.
func notAdapter(name string) bool { return !nn.IsAdapter(name) }

// adapted returns a GPT with frozen weights, which base has, and adapters that have been trained
// for some steps.
func adapted(t *testing.T, base map[string]*tensor.Dense, l nn.LoRA, batch []fsdp.Tensor) *fsdp.Sharded {
	s, err := fsdp.Wrap(gpt(l), fsdp.Config{
		Precision: fsdp.Precision{Compute: fsdp.Float64}, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Frozen: notAdapter, Poison: true,
	})
	require.NoError(t, err)
	require.NoError(t, s.LoadStateDict(t.Context(), 0, base))
	opt, err := optim.SGD{}.New(s.Params())
	require.NoError(t, err)
	for range 3 {
		_, err := s.Forward(t.Context(), batch...)
		require.NoError(t, err)
		require.NoError(t, s.Backward(t.Context()))
		require.NoError(t, opt.Step(10))
		s.ZeroGrad()
	}
	return s
}

// TestLoRAOfGPT takes the weights of a plain GPT, starts out computing the same bits, and trains
// the adapters alone. Merged into the weights they make a plain GPT that computes what the adapted
// one does.
func TestLoRAOfGPT(t *testing.T) {
	lora := nn.LoRA{Rank: 3, Alpha: 4}
	batch := []fsdp.Tensor{ints([]int{2, 4}, 0, 1, 2, 3, 4, 5, 6, 0), ints([]int{2, 4}, 1, 2, 3, 4, 5, 6, 0, 1)}
	plain := wrap(t, gpt(nn.LoRA{}))
	base, err := plain.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)

	fresh := wrap(t, gpt(lora))
	for _, p := range fresh.Params() {
		if nn.IsAdapter(p.Name) {
			require.NoError(t, p.Value.Zero()) // wrap has drawn lora_b, too
		}
	}
	require.NoError(t, fresh.LoadStateDict(t.Context(), 0, base))
	require.Equal(t, eval(t, plain, batch...), eval(t, fresh, batch...))

	tuned := adapted(t, base, lora, batch)
	require.Less(t, eval(t, tuned, batch...)[0], eval(t, plain, batch...)[0])
	checkGradients(t, tuned, batch...)
	all, err := tuned.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	adapters := 0
	for name, v := range all {
		if !nn.IsAdapter(name) {
			require.Equal(t, base[name].Float64s(), v.Float64s(), name)
			continue
		}
		adapters++
		require.NotZero(t, v.Float64s(), name)
	}
	require.Equal(t, 2*4*2, adapters, "two matrices for each of four layers in two blocks")
	grads, err := tuned.FullGrads(t.Context())
	require.NoError(t, err)
	require.Len(t, grads, adapters)

	require.NoError(t, lora.Merge(all))
	require.ElementsMatch(t, slices.Collect(maps.Keys(base)), slices.Collect(maps.Keys(all)))
	want := eval(t, tuned, batch...)
	require.NoError(t, plain.LoadStateDict(t.Context(), 0, all))
	require.InDeltaSlice(t, want, eval(t, plain, batch...), 1e-12)
}

// TestLoRAMemory keeps no more for backward than the layers without adapters do, but for the narrow
// product in the middle, and neither gradients nor optimizer state of what is frozen.
func TestLoRAMemory(t *testing.T) {
	tokens := ints([]int{64, 4}, make([]int, 256)...)
	plan := func(m *nn.GPT, frozen func(string) bool) *fsdp.Plan {
		s, err := fsdp.Wrap(m, fsdp.Config{WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Frozen: frozen})
		require.NoError(t, err)
		_, err = optim.AdamW{}.New(s.Params())
		require.NoError(t, err)
		p, err := s.Plan(tokens, tokens)
		require.NoError(t, err)
		return p
	}
	plain, adapted := plan(gpt(nn.LoRA{}), nil), plan(gpt(nn.LoRA{Rank: 1}), notAdapter)
	require.Less(t, adapted.PassBytes, plain.PassBytes*11/10)
	require.Less(t, adapted.ShardBytes, plain.ShardBytes*3/4)
	require.Less(t, adapted.StateBytes, plain.StateBytes/3)
}

// TestMergeErrors are states that adapters cannot be merged in; they stay as they are.
func TestMergeErrors(t *testing.T) {
	matrix := func(dt tensor.Dtype, shape ...int) *tensor.Dense {
		return tensor.New(tensor.WithShape(shape...), tensor.Of(dt))
	}
	const missing = "adapter of h.0.fc: its weight, lora_a or lora_b is missing"
	for _, c := range []struct {
		want   string
		change func(m map[string]*tensor.Dense)
	}{
		{missing, func(m map[string]*tensor.Dense) { delete(m, "h.0.fc.weight") }},
		{missing, func(m map[string]*tensor.Dense) { delete(m, "h.0.fc.lora_b") }},
		{missing, func(m map[string]*tensor.Dense) { delete(m, "h.0.fc.lora_a") }},
		{"(3, 4) and (5, 3) do not make an adapter of rank 2 for (5, 4)", func(m map[string]*tensor.Dense) {
			m["h.0.fc.lora_a"], m["h.0.fc.lora_b"] = matrix(tensor.Float32, 3, 4), matrix(tensor.Float32, 5, 3)
		}},
		{"(2, 5) and (5, 2) do not make an adapter of rank 2 for (5, 4)", func(m map[string]*tensor.Dense) { m["h.0.fc.lora_a"] = matrix(tensor.Float32, 2, 5) }},
		{"float64 (2, 4) is no matrix of the same float type as the weight, float32", func(m map[string]*tensor.Dense) { m["h.0.fc.lora_a"] = matrix(tensor.Float64, 2, 4) }},
		{"float32 (10) is no matrix of the same float type as the weight, float32", func(m map[string]*tensor.Dense) { m["h.0.fc.lora_b"] = matrix(tensor.Float32, 10) }},
		{"shape (2, 4) is a view or column-major", func(m map[string]*tensor.Dense) {
			m["h.0.fc.lora_a"] = matrix(tensor.Float32, 4, 2)
			require.NoError(t, m["h.0.fc.lora_a"].T())
		}},
	} {
		params := map[string]*tensor.Dense{
			"a.weight": matrix(tensor.Float32, 5, 4), "a.lora_a": matrix(tensor.Float32, 2, 4), "a.lora_b": matrix(tensor.Float32, 5, 2),
			"h.0.fc.weight": matrix(tensor.Float32, 5, 4), "h.0.fc.lora_a": matrix(tensor.Float32, 2, 4), "h.0.fc.lora_b": matrix(tensor.Float32, 5, 2),
		}
		c.change(params)
		before := maps.Clone(params)
		require.ErrorContains(t, (nn.LoRA{Rank: 2}).Merge(params), c.want)
		require.Equal(t, before, params)
	}
	require.NoError(t, nn.LoRA{}.Merge(map[string]*tensor.Dense{"h.0.fc.weight": matrix(tensor.Float32, 5, 4)}))
}

// TestLoRAOfModels trains the adapters of every model alone, and merges them.
func TestLoRAOfModels(t *testing.T) {
	tokens, mask := ints([]int{2, 3}, 0, 1, 2, 3, 4, 1), ints([]int{2, 3}, 1, 1, 1, 1, 1, 0)
	for name, c := range map[string]struct {
		model func(nn.LoRA) fsdp.Model
		batch []fsdp.Tensor
	}{
		"Llama": {func(l nn.LoRA) fsdp.Model {
			return &nn.Llama{Vocab: 5, Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, Hidden: 6, LoRA: l}
		}, []fsdp.Tensor{tokens, tokens}},
		"Qwen3": {func(l nn.LoRA) fsdp.Model {
			return &nn.Llama{Vocab: 5, Layers: 1, Dim: 8, Heads: 4, KVHeads: 2, HeadDim: 6, Hidden: 6, QKNorm: true, LoRA: l}
		}, []fsdp.Tensor{tokens, tokens}},
		"BERT": {func(l nn.LoRA) fsdp.Model {
			return &nn.BERT{Vocab: 5, Context: 3, Kinds: 5, Layers: 2, Dim: 8, Heads: 2, Hidden: 6, LoRA: l}
		}, []fsdp.Tensor{tokens, tokens, mask, tokens}},
		"ViT": {func(l nn.LoRA) fsdp.Model {
			return &nn.ViT{Height: 4, Width: 2, Patch: 2, Classes: 3, Layers: 2, Dim: 8, Heads: 2, Hidden: 6, LoRA: l}
		}, []fsdp.Tensor{floats(2, 3, 4, 2), ints([]int{2}, 1, 2)}},
		"T5": {func(l nn.LoRA) fsdp.Model {
			return &nn.T5{Vocab: 5, Encoder: 1, Decoder: 2, Dim: 8, Heads: 2, Hidden: 6, LoRA: l}
		}, []fsdp.Tensor{tokens, mask, tokens, tokens}},
	} {
		lora := nn.LoRA{Rank: 2, Alpha: 0.5}
		adapted, err := fsdp.Wrap(c.model(lora), fsdp.Config{
			Precision: fsdp.Precision{Compute: fsdp.Float64}, Frozen: notAdapter, Poison: true,
		})
		require.NoError(t, err)
		opt, err := optim.SGD{}.New(adapted.Params())
		require.NoError(t, err)
		for range 3 {
			_, err = adapted.Forward(t.Context(), c.batch...)
			require.NoError(t, err)
			require.NoError(t, adapted.Backward(t.Context()))
			require.NoError(t, opt.Step(0.5))
			adapted.ZeroGrad()
		}
		state, err := adapted.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		for name, v := range state {
			if nn.IsAdapter(name) {
				require.NotEqual(t, make([]float64, v.Size()), v.Float64s(), name)
			}
		}
		require.NoError(t, lora.Merge(state))
		plain := wrap(t, c.model(nn.LoRA{}))
		require.NoError(t, plain.LoadStateDict(t.Context(), 0, state))
		require.InDeltaSlice(t, eval(t, adapted, c.batch...), eval(t, plain, c.batch...), 1e-12, name)
	}
}
