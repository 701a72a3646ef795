package nn_test

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/optim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// model is a function as a model.
type model func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref

func (f model) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	return []fsdp.Ref{f(t, in)}, nil
}

// calling is a model that is one call of m, named "m", with n inputs.
func calling(m fsdp.Module, n int) model {
	return func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref { return t.Call("m", m, in[:n]...) }
}

// wrap wraps a model in float64 and gives every parameter values that are a function of its name
// without the prefix "m.", so that models with equal parameter names have equal values.
func wrap(t *testing.T, m fsdp.Model) *fsdp.Sharded {
	s, err := fsdp.Wrap(m, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}, Poison: true})
	require.NoError(t, err)
	for _, p := range s.Params() {
		values := make([]float64, p.Value.Len())
		for i := range values {
			h := fnv.New32a()
			fmt.Fprint(h, strings.TrimPrefix(p.Name, "m."), p.Offset+i)
			values[i] = float64(h.Sum32())/(1<<31) - 1
		}
		require.NoError(t, p.Value.Write(optim.Host{F64: values}))
	}
	return s
}

// set gives a parameter its values.
func set(t *testing.T, s *fsdp.Sharded, name string, values ...float64) {
	for _, p := range s.Params() {
		if p.Name == name {
			require.NoError(t, p.Value.Write(optim.Host{F64: values[p.Offset:]}))
		}
	}
}

// eval returns the first result of a model.
func eval(t *testing.T, s *fsdp.Sharded, batch ...fsdp.Tensor) []float64 {
	out, err := s.Eval(t.Context(), batch...)
	require.NoError(t, err)
	return out[0].Data().([]float64)
}

// floats returns a tensor of numbers between -1 and 1.
func floats(shape ...int) *tensor.Dense {
	d := tensor.New(tensor.WithShape(shape...), tensor.Of(tensor.Float64))
	for i := range d.Float64s() {
		d.Float64s()[i] = float64(i*7%11)/5.5 - 1
	}
	return d
}

func ints(shape []int, v ...int) *tensor.Dense {
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(v))
}

// names lists parameters with their shapes.
func names(params []fsdp.Param) (list []string) {
	for _, p := range params {
		list = append(list, fmt.Sprint(p.Name, p.Shape))
	}
	return list
}

// TestParams pins names, shapes and order of the parameters of every module: they define the flat
// layout and the names in checkpoints.
func TestParams(t *testing.T) {
	block := []string{
		"ln1.weight[8]", "ln1.bias[8]", "qkv.weight[24 8]", "qkv.bias[24]", "proj.weight[8 8]", "proj.bias[8]",
		"ln2.weight[8]", "ln2.bias[8]", "fc.weight[32 8]", "fc.bias[32]", "out.weight[8 32]", "out.bias[8]",
	}
	for _, c := range []struct {
		module fsdp.Module
		want   []string
	}{
		{&nn.Linear{In: 2, Out: 3}, []string{"weight[3 2]", "bias[3]"}},
		{&nn.Linear{In: 2, Out: 3, NoBias: true}, []string{"weight[3 2]"}},
		{&nn.Embedding{Rows: 5, Dim: 2}, []string{"weight[5 2]"}},
		{&nn.Positions{Rows: 5, Dim: 2}, []string{"weight[5 2]"}},
		{&nn.LayerNorm{Dim: 4}, []string{"weight[4]", "bias[4]"}},
		{&nn.RMSNorm{Dim: 4}, []string{"weight[4]"}},
		{&nn.BatchNorm{Dim: 4}, []string{"weight[4]", "bias[4]", "running_mean[4]", "running_var[4]"}},
		{&nn.Conv2d{In: 4, Out: 6, Kernel: [2]int{3, 5}}, []string{"weight[6 4 3 5]", "bias[6]"}},
		{&nn.Conv2d{In: 4, Out: 6, Kernel: [2]int{3, 5}, Conv: op.Conv{Groups: 2}, NoBias: true}, []string{"weight[6 2 3 5]"}},
		{&nn.GroupNorm{Dim: 4, Groups: 2}, []string{"weight[4]", "bias[4]"}},
		{&nn.MaxPool2d{}, nil},
		{&nn.AvgPool2d{}, nil},
		{&nn.Flatten{}, nil},
		{&nn.Linear{In: 2, Out: 3, LoRA: nn.LoRA{Rank: 5}}, []string{"weight[3 2]", "bias[3]", "lora_a[5 2]", "lora_b[3 5]"}},
		{&nn.Add{}, nil},
		{&nn.Dropout{Rate: 0.5}, nil},
		{&nn.Attention{Dim: 8, Heads: 2}, block[2:6]},
		{&nn.Attention{Dim: 8, Heads: 2, NoBias: true}, []string{block[2], block[4]}},
		{&nn.Attention{Dim: 8, Heads: 4, KVHeads: 1, HeadDim: 3, NoProjBias: true}, []string{"qkv.weight[18 8]", "qkv.bias[18]", "proj.weight[8 12]"}},
		{&nn.Attention{Dim: 8, Heads: 4, KVHeads: 2, Cross: true}, []string{"q.weight[8 8]", "q.bias[8]", "k.weight[4 8]", "k.bias[4]", "v.weight[4 8]", "v.bias[4]", "proj.weight[8 8]", "proj.bias[8]"}},
		{&nn.Attention{Dim: 8, Heads: 2, QKNorm: true, NoBias: true}, []string{"q.weight[8 8]", "k.weight[8 8]", "v.weight[8 8]", "q_norm.weight[4]", "k_norm.weight[4]", "proj.weight[8 8]"}},
		{&nn.MLP{Dim: 8, Hidden: 32}, block[8:]},
		{&nn.Block{Dim: 8, Heads: 2}, block},
		{&nn.Block{Dim: 8, Heads: 2, Hidden: 3, NoBias: true}, slices.Concat(block[:3], block[4:5], block[6:8], []string{"fc.weight[3 8]", "out.weight[8 3]"})},
		{&nn.MLP{Dim: 8, Hidden: 2, NoBias: true, LoRA: nn.LoRA{Rank: 1}}, []string{"fc.weight[2 8]", "fc.lora_a[1 8]", "fc.lora_b[2 1]", "out.weight[8 2]", "out.lora_a[1 2]", "out.lora_b[8 1]"}},
		{&nn.Head{Dim: 4, Classes: 7}, []string{"weight[7 4]"}},
		{&nn.Head{Dim: 4, Classes: 7, Bias: true}, []string{"weight[7 4]", "bias[7]"}},
		{&nn.RelativePositions{Heads: 2}, []string{"weight[32 2]"}},
		{&nn.Patches{Channels: 2, Height: 4, Width: 6, Size: 2, Dim: 5}, []string{"weight[5 2 2 2]", "bias[5]", "class[1 1 5]", "positions[1 7 5]"}},
		{&nn.First{}, nil},
		{&nn.Layer{Attn: nn.Attention{Dim: 8, Heads: 2, NoBias: true}, MLP: nn.MLP{Dim: 8, Hidden: 3, Gated: true, NoBias: true}, RMS: true}, []string{
			"attn_norm.weight[8]", "attn.qkv.weight[24 8]", "attn.proj.weight[8 8]", "mlp_norm.weight[8]", "mlp.fc.weight[6 8]", "mlp.out.weight[8 3]",
		}},
		{&nn.Layer{Attn: nn.Attention{Dim: 4, Heads: 1}, Cross: &nn.Attention{Dim: 4, Heads: 1, Cross: true, NoBias: true}, MLP: nn.MLP{Dim: 4, Hidden: 3}}, []string{
			"attn_norm.weight[4]", "attn_norm.bias[4]", "attn.qkv.weight[12 4]", "attn.qkv.bias[12]", "attn.proj.weight[4 4]", "attn.proj.bias[4]",
			"cross_norm.weight[4]", "cross_norm.bias[4]", "cross.q.weight[4 4]", "cross.k.weight[4 4]", "cross.v.weight[4 4]", "cross.proj.weight[4 4]",
			"mlp_norm.weight[4]", "mlp_norm.bias[4]", "mlp.fc.weight[3 4]", "mlp.fc.bias[3]", "mlp.out.weight[4 3]", "mlp.out.bias[4]",
		}},
	} {
		require.Equal(t, c.want, names(c.module.Params()), "%T", c.module)
	}
}

// TestCommentListsModules finds every module and model in the comment of the package.
func TestCommentListsModules(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func \(\w* ?\*?([A-Z]\w*)\) (Params|Forward)\(`).FindAllStringSubmatch(string(src), -1) {
			require.Regexp(t, `(?m)^//\t(\w+, )*`+m[1]+`\b`, string(doc))
			found++
		}
	}
	require.Greater(t, found, 20)
}

// gptNames lists the parameters of a wrapped GPT.
func gptNames(t *testing.T, m *nn.GPT) (list []string) {
	s, err := fsdp.Wrap(m, fsdp.Config{WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
	require.NoError(t, err)
	state, err := s.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	for name, v := range state {
		list = append(list, fmt.Sprint(name, v.Shape()))
	}
	slices.Sort(list)
	return list
}

// TestGPTParams pins the parameters of a GPT that its comment lists.
func TestGPTParams(t *testing.T) {
	m := &nn.GPT{Vocab: 11, Context: 6, Layers: 2, Dim: 8, Heads: 2, NoBias: true}
	require.Equal(t, []string{"tokens", "targets"}, m.Inputs())
	want := []string{"wte.weight(11, 8)", "wpe.weight(6, 8)", "lnf.weight(8)", "lnf.bias(8)"}
	for i := range 2 {
		for _, p := range []string{"ln1.weight(8)", "ln1.bias(8)", "qkv.weight(24, 8)", "proj.weight(8, 8)", "ln2.weight(8)", "ln2.bias(8)", "fc.weight(32, 8)", "out.weight(8, 32)"} {
			want = append(want, fmt.Sprintf("blocks.%d.%s", i, p))
		}
	}
	untied := append([]string{"head.weight(11, 8)"}, want...)
	slices.Sort(untied)
	require.Equal(t, untied, gptNames(t, m))
	m.Tied = true
	slices.Sort(want)
	require.Equal(t, want, gptNames(t, m))
}

// TestBuildErrors are mistakes in sizes and in the number of inputs; the message says where.
func TestBuildErrors(t *testing.T) {
	image := floats(2, 3, 4, 4)
	x, tokens := floats(2, 3, 8), ints([]int{2, 3}, 0, 1, 2, 3, 4, 5)
	for _, c := range []struct {
		want   string
		module fsdp.Module
		batch  []fsdp.Tensor
	}{
		{"2 inputs, want 1", &nn.Linear{In: 8, Out: 2}, []fsdp.Tensor{x, x}},
		{"2 inputs, want 1", &nn.Embedding{Rows: 8, Dim: 2}, []fsdp.Tensor{tokens, tokens}},
		{"3 inputs, want 1 or 2", &nn.Positions{Rows: 8, Dim: 8}, []fsdp.Tensor{x, x, x}},
		{"2 inputs, want 1", &nn.LayerNorm{Dim: 8}, []fsdp.Tensor{x, x}},
		{"2 inputs, want 1", &nn.RMSNorm{Dim: 8}, []fsdp.Tensor{x, x}},
		{"2 inputs, want 1", &nn.BatchNorm{Dim: 8}, []fsdp.Tensor{x, x}},
		{"batch norm statistics: running mean is (7), want [3] for x (2, 3, 8)", &nn.BatchNorm{Dim: 7}, []fsdp.Tensor{x}},
		{"2 inputs, want 1", &nn.Conv2d{In: 3, Out: 2, Kernel: [2]int{1, 1}}, []fsdp.Tensor{x, x}},
		{"convolution: w is (2, 2, 3, 3), want [O 3/1 K L] for x (2, 3, 4, 4)", &nn.Conv2d{In: 2, Out: 2, Kernel: [2]int{3, 3}}, []fsdp.Tensor{image}},
		{"convolution: w is (4, 1, 3, 3), want [O 3/2 K L] for x (2, 3, 4, 4)", &nn.Conv2d{In: 3, Out: 4, Kernel: [2]int{3, 3}, Conv: op.Conv{Groups: 2}}, []fsdp.Tensor{image}},
		{"convolution: w is (2, 3, 5, 3): the kernel is larger than x (2, 3, 4, 4) with pad [0 0]", &nn.Conv2d{In: 3, Out: 2, Kernel: [2]int{5, 3}}, []fsdp.Tensor{image}},
		{"convolution: stride [-1 1], dilation [1 1] and groups 1 must be positive, and pad [0 0] not negative", &nn.Conv2d{In: 3, Out: 2, Kernel: [2]int{1, 1}, Conv: op.Conv{Stride: [2]int{-1, 1}}}, []fsdp.Tensor{image}},
		{"convolution: x is (2, 3, 8), want [B C H W]", &nn.Conv2d{In: 3, Out: 2, Kernel: [2]int{1, 1}}, []fsdp.Tensor{x}},
		{"group norm: x is (2, 3, 4, 4), want [B C ...] with C a multiple of 2 groups", &nn.GroupNorm{Dim: 3, Groups: 2}, []fsdp.Tensor{image}},
		{"batch norm: momentum 2 is not in (0, 1]", &nn.BatchNorm{Dim: 8, Momentum: 2}, []fsdp.Tensor{x}},
		{"2 inputs, want 1", &nn.MLP{Dim: 8, Hidden: 2}, []fsdp.Tensor{x, x}},
		{"3 inputs, want 1", &nn.Block{Dim: 8, Heads: 2}, []fsdp.Tensor{x, x, x}},
		{"3 inputs, want 1", &nn.Attention{Dim: 8, Heads: 2}, []fsdp.Tensor{x, x, x}},
		{"attention: positions are (2, 3, 8), want (2, 3)", &nn.Attention{Dim: 8, Heads: 2}, []fsdp.Tensor{x, x}},
		{"1 inputs, want 2", &nn.Attention{Dim: 8, Heads: 2, Masked: true}, []fsdp.Tensor{x}},
		{"2 inputs, want 4", &nn.Attention{Dim: 8, Heads: 2, Cross: true, Biased: true, Masked: true}, []fsdp.Tensor{x, x}},
		{"4 query heads are not a positive multiple of 3 key heads", &nn.Attention{Dim: 8, Heads: 4, KVHeads: 3}, []fsdp.Tensor{x}},
		{"2 query heads are not a positive multiple of -1 key heads", &nn.Attention{Dim: 8, Heads: 2, KVHeads: -1}, []fsdp.Tensor{x}},
		{"attention: window -2: want a positive one, or 0", &nn.Attention{Dim: 8, Heads: 2, Window: -2}, []fsdp.Tensor{x}},
		{"sdpa bias: bias is (2, 3, 8), want [heads 3 3] for q (2, 3, 8)", &nn.Attention{Dim: 8, Heads: 2, Apart: true, Biased: true}, []fsdp.Tensor{x, x}},
		{"angles: rotates 3 columns, want a positive even number", &nn.Attention{Dim: 8, Heads: 2, HeadDim: 3, Rope: true}, []fsdp.Tensor{x}},
		{"1 inputs, want 2 or 3", &nn.Head{Dim: 8, Classes: 3}, []fsdp.Tensor{x}},
		{"relative bias: the largest distance is 3, want more than 8 for 32 buckets", &nn.RelativePositions{Heads: 2, MaxDistance: 3}, []fsdp.Tensor{x}},
		{"x is (3), want [B T ...]", &nn.RelativePositions{Heads: 2}, []fsdp.Tensor{floats(3)}},
		{"images are (2, 3, 8), want [B 3 4 4]", &nn.Patches{Channels: 3, Height: 4, Width: 4, Size: 2, Dim: 5}, []fsdp.Tensor{x}},
		{"1 inputs, want 2", &nn.Layer{Attn: nn.Attention{Dim: 8, Heads: 2, Masked: true}, MLP: nn.MLP{Dim: 8, Hidden: 3}}, []fsdp.Tensor{x}},
		{"2 inputs, want 3", &nn.Layer{Attn: nn.Attention{Dim: 8, Heads: 2}, Cross: &nn.Attention{Dim: 8, Heads: 2, Cross: true, Masked: true}, MLP: nn.MLP{Dim: 8, Hidden: 3}}, []fsdp.Tensor{x, x}},
		{"attn: 8 channels do not divide into 3 heads", &nn.Layer{Attn: nn.Attention{Dim: 8, Heads: 3}, MLP: nn.MLP{Dim: 8, Hidden: 3}}, []fsdp.Tensor{x}},
		{"linear: weight is (2, 7), want [out 8] for x (2, 3, 8)", &nn.Linear{In: 7, Out: 2}, []fsdp.Tensor{x}},
		{"fc: linear: weight is (5, 7), want [out 8] for x (2, 3, 8)", &nn.MLP{Dim: 7, Hidden: 5}, []fsdp.Tensor{x}},
		{"layer norm: gain is (7), want [8]", &nn.LayerNorm{Dim: 7}, []fsdp.Tensor{x}},
		{"ln1: layer norm: gain is (4), want [8]", &nn.Block{Dim: 4, Heads: 2}, []fsdp.Tensor{x}},
		{"embedding: index is float64, want int", &nn.Embedding{Rows: 8, Dim: 2}, []fsdp.Tensor{x}},
		{"the sequences of the batch have 3 tokens, but the model has positions for only 2: cut the sequences, or raise Context", &nn.Positions{Rows: 2, Dim: 8}, []fsdp.Tensor{x}},
		{"8 channels do not divide into 3 heads", &nn.Attention{Dim: 8, Heads: 3}, []fsdp.Tensor{x}},
		{"8 channels do not divide into 3 heads", &nn.Block{Dim: 8, Heads: 3}, []fsdp.Tensor{x}},
		{"8 channels do not divide into 0 heads", &nn.Block{Dim: 8}, []fsdp.Tensor{x}},
		{"unknown activation 9", &nn.MLP{Dim: 8, Hidden: 2, Act: 9}, []fsdp.Tensor{x}},
		{"dropout: rate 1 is not in [0, 1)", &nn.MLP{Dim: 8, Hidden: 2, Dropout: 1}, []fsdp.Tensor{x}},
		{"cross-entropy: targets is (2, 3, 8), want [2 3]", &nn.Head{Dim: 8, Classes: 3}, []fsdp.Tensor{x, ints([]int{2, 3, 8}, make([]int, 48)...)}},
	} {
		s, err := fsdp.Wrap(calling(c.module, len(c.batch)), fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}})
		require.NoError(t, err)
		_, err = s.Eval(t.Context(), c.batch...)
		require.ErrorContains(t, err, c.want, "%T", c.module)
		require.ErrorContains(t, err, fmt.Sprintf("call m (%T): in Build: ", c.module))
	}
	dropout := model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		return t.Call("drop", &nn.Dropout{Rate: 0.5}, t.Call("m", &nn.Linear{In: 8, Out: 2}, in[0]), in[0])
	})
	add := model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		return t.Call("add", &nn.Add{}, t.Call("m", &nn.Linear{In: 8, Out: 8}, in[0]))
	})
	_, err := wrap(t, add).Eval(t.Context(), x)
	require.ErrorContains(t, err, "call add (*nn.Add): in Build: 1 inputs, want 2")
	_, err = wrap(t, dropout).Eval(t.Context(), x)
	require.ErrorContains(t, err, "call drop (*nn.Dropout): in Build: 2 inputs, want 1")
}

// TestSizesOfModels refuses sizes that make no model, and names the first of them.
func TestSizesOfModels(t *testing.T) {
	for want, m := range map[string]fsdp.Model{
		"GPT: Vocab is 0, want at least 1":                                                    &nn.GPT{},
		"GPT: Layers is -1, want at least 0":                                                  &nn.GPT{Vocab: 5, Context: 5, Layers: -1, Dim: 4, Heads: 2},
		"GPT: Heads is 0, want at least 1":                                                    &nn.GPT{Vocab: 5, Context: 5, Layers: 1, Dim: 4},
		"GPT: Context is 0, want at least 1":                                                  &nn.GPT{Vocab: 5, Layers: 1, Dim: 4, Heads: 2},
		"Llama: Vocab is 0, want at least 1":                                                  &nn.Llama{},
		"Llama: Layers is -1, want":                                                           &nn.Llama{Vocab: 5, Layers: -1, Dim: 4, Heads: 2, Hidden: 8},
		"Llama: Hidden is 0, want at least 1":                                                 &nn.Llama{Vocab: 5, Layers: 1, Dim: 4, Heads: 2},
		"Llama: FullEvery is 2 and LocalRopeBase is 0, but no layer has a window: set Window": &nn.Llama{Vocab: 5, Layers: 1, Dim: 4, Heads: 2, Hidden: 8, FullEvery: 2},
		"Llama: HeadDim is -4, want":                                                          &nn.Llama{Vocab: 5, Layers: 1, Dim: 4, Heads: 2, Hidden: 8, HeadDim: -4},
		"BERT: Vocab is 0, want at least 1":                                                   &nn.BERT{},
		"BERT: Kinds is -2, want at least -1":                                                 &nn.BERT{Vocab: 5, Context: 5, Kinds: -2, Dim: 4, Heads: 2, Hidden: 8},
		"ModernBERT: Window is -1, want at least 0":                                           &nn.ModernBERT{Vocab: 5, Layers: 1, Dim: 4, Heads: 2, Hidden: 8, Window: -1},
		"ModernBERT has targets 2 with task 0: only ClassifySequences":                        &nn.ModernBERT{Vocab: 5, Layers: 1, Dim: 4, Heads: 2, Hidden: 3, Targets: nn.Numbers},
		"ModernBERT has 0 classes, want a positive":                                           &nn.ModernBERT{Vocab: 5, Layers: 1, Dim: 4, Heads: 2, Hidden: 8, Task: nn.ClassifyTokens},
		"ViT: Height is 0, want at least 1":                                                   &nn.ViT{},
		"ViT: Layers is -1, want at least 0":                                                  &nn.ViT{Height: 4, Width: 4, Patch: 2, Classes: 3, Layers: -1, Dim: 4, Heads: 2, Hidden: 8},
		"T5: Vocab is 0, want at least 1":                                                     &nn.T5{},
		"T5: Decoder is -1, want at least 0":                                                  &nn.T5{Vocab: 5, Encoder: 1, Decoder: -1, Dim: 4, Heads: 2, Hidden: 8},
	} {
		_, err := fsdp.Wrap(m, fsdp.Config{})
		require.ErrorContains(t, err, "nn: "+want)
		require.NotContains(t, err.Error(), "{", "it names one field")
	}
	for want, m := range map[string]*nn.BERT{
		"nn: BERT has task 9 and targets 0, which do not exist":                                      {Task: 9},
		"nn: BERT has 0 classes, want a positive number":                                             {Task: nn.ClassifyTokens},
		"nn: BERT has targets 2 with task 3: only ClassifySequences has other targets than OneClass": {Task: nn.ClassifyTokens, Classes: 2, Targets: nn.Numbers},
	} {
		m.Vocab, m.Context, m.Dim, m.Heads, m.Hidden = 5, 5, 4, 2, 8
		_, err := fsdp.Wrap(m, fsdp.Config{})
		require.ErrorContains(t, err, want)
	}
	_, err := fsdp.Wrap(&nn.ViT{Height: 4, Width: 5, Patch: 2, Classes: 3, Dim: 4, Heads: 2, Hidden: 8}, fsdp.Config{})
	require.ErrorContains(t, err, "nn: images of 4·5 pixels do not divide into patches of 2·2: change Patch, Height or Width")
	for _, m := range []fsdp.Model{
		&nn.GPT{Vocab: 5, Context: 5, Layers: 1, Dim: 16, Heads: 3}, &nn.Llama{Vocab: 5, Layers: 1, Dim: 16, Heads: 3, Hidden: 8},
		&nn.BERT{Vocab: 5, Context: 5, Layers: 1, Dim: 16, Heads: 3, Hidden: 8}, &nn.T5{Vocab: 5, Encoder: 1, Decoder: 1, Dim: 16, Heads: 3, Hidden: 8},
		&nn.ViT{Height: 4, Width: 4, Patch: 2, Classes: 3, Layers: 1, Dim: 16, Heads: 3, Hidden: 8},
	} {
		_, err := fsdp.Wrap(m, fsdp.Config{})
		require.ErrorContains(t, err, "16 channels do not divide into 3 heads", "%T", m)
	}
	_, err = fsdp.Wrap(&nn.Llama{Vocab: 5, Layers: 1, Dim: 16, Heads: 4, KVHeads: 3, Hidden: 8}, fsdp.Config{})
	require.ErrorContains(t, err, "nn: Llama: 4 query heads are not a positive multiple of 3 key heads")
}
