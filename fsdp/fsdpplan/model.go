package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
)

// A subject is a model to plan.
type subject struct {
	name  string
	model fsdp.Model
	seq   int // tokens of a sequence, unless a flag says otherwise
}

// gpts has layers, width and heads of GPT-3 (Brown et al., 2020, arXiv:2005.14165, table 2.1, with
// widths that heads divide) and of the model of a trillion parameters of PyTorch's FSDP blog
// (2022-03-14). The vocabulary is 50,000, the head is not tied, as there.
var gpts = map[string][3]int{
	"gpt-125m": {12, 768, 12}, "gpt-350m": {24, 1024, 16}, "gpt-760m": {24, 1536, 16}, "gpt-1.3b": {24, 2048, 16}, "gpt-2.7b": {32, 2560, 32},
	"gpt-6.7b": {32, 4096, 32}, "gpt-13b": {40, 5120, 40}, "gpt-175b": {96, 12288, 96}, "gpt-1t": {128, 25600, 160},
}

// llamas has layers, width, heads and the width of the MLP of Llama 3 (arXiv:2407.21783, table 3).
var llamas = map[string][4]int{"llama-8b": {32, 4096, 32, 14336}, "llama-70b": {80, 8192, 64, 28672}, "llama-405b": {126, 16384, 128, 53248}}

// t5 is the model of 11 billion parameters of Raffel et al., 2020.
const t5 = "t5-11b"

// modelNames lists the models in the order of their sizes.
func modelNames() []string {
	names := slices.SortedFunc(maps.Keys(gpts), func(a, b string) int { return weight(gpts[a]) - weight(gpts[b]) })
	return append(append(names, slices.SortedFunc(maps.Keys(llamas), func(a, b string) int { return llamas[a][0] - llamas[b][0] })...), t5)
}

func weight(g [3]int) int { return g[0] * g[1] * g[1] }

// named returns the model with a name.
func named(name string, seq int) (*subject, error) {
	if g, ok := gpts[name]; ok {
		m := &nn.GPT{Vocab: 50000, Context: max(seq, 2048), Layers: g[0], Dim: g[1], Heads: g[2]}
		return &subject{name, m, 2048}, nil
	}
	if l, ok := llamas[name]; ok {
		m := &nn.Llama{Vocab: 128256, Layers: l[0], Dim: l[1], Heads: l[2], KVHeads: 8, Hidden: l[3], RopeBase: 500000, Eps: 1e-5}
		return &subject{name, m, 8192}, nil
	}
	if name == t5 {
		m := &nn.T5{Vocab: 32128, Encoder: 24, Decoder: 24, Dim: 1024, Heads: 128, HeadDim: 128, Hidden: 65536, Act: nn.ReLU, Tied: true}
		return &subject{name, m, 512}, nil
	}
	return nil, fmt.Errorf("unknown model %q; the models are %s, or use -hf DIR", name, strings.Join(modelNames(), ", "))
}

// fromHF returns the model of a config.json.
func fromHF(dir string) (*subject, error) {
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	m, err := hf.ReadConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	s := &subject{name: filepath.Base(filepath.Clean(dir)), model: m, seq: 2048}
	switch m := m.(type) {
	case *nn.GPT:
		s.seq = m.Context
	case *nn.BERT:
		s.seq = m.Context
	case *nn.Llama:
		s.seq = min(m.Context, s.seq)
	case *nn.T5:
		s.seq = 512
	default:
		return nil, fmt.Errorf("%s: a %T is not supported: its batch has more than tokens", dir, m)
	}
	return s, nil
}

// batch returns the shapes of a number of samples for a model whose tensors are all tokens or
// masks, as for all models here.
func (s *subject) batch(samples, seq int) []fsdp.Shape {
	inputs := s.model.(interface{ Inputs() []string }).Inputs() // all models of package nn have it
	return slices.Repeat([]fsdp.Shape{fsdp.Ints(samples, seq)}, len(inputs))
}

// blocks makes units of n consecutive blocks.
func blocks(n int) fsdp.Policy {
	return func(calls []fsdp.CallInfo) []string {
		names := make([]string, len(calls))
		run := 0 // number of consecutive blocks so far
		for i, c := range calls {
			switch c.Module.(type) {
			case *nn.Block, *nn.Layer:
				names[i] = calls[i-run%n].Name
				run++
			default:
				run = 0
			}
		}
		return names
	}
}
