package train

import (
	"regexp"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp"
)

// size is a model with its batch.
type size struct {
	name                                      string
	Layers, Dim, Heads, Context, Batch, Vocab int
	adapters                                  int // their rank; 0 means none
}

var sizes = []size{
	{name: "tiny", Layers: 4, Dim: 128, Heads: 4, Context: 64, Batch: 8, Vocab: 256},
	{name: "small", Layers: 6, Dim: 384, Heads: 6, Context: 256, Batch: 8, Vocab: 256},
	{name: "medium", Layers: 12, Dim: 768, Heads: 12, Context: 256, Batch: 2, Vocab: 256},
}

// tokens returns the tokens of a batch.
func (s size) tokens() int { return s.Batch * s.Context }

// flops returns the floating point operations of a step.
func (s size) flops() float64 {
	n := s.Layers*12*s.Dim*s.Dim + s.Vocab*s.Dim
	return float64(s.tokens()) * float64(6*n+12*s.Layers*s.Dim*s.Context)
}

// way is a way to train, with a number of processes, of ranks in each and of threads in each.
// PyTorch has one rank in a process.
type way struct {
	name                      string
	torch                     bool
	Processes, Ranks, Threads int
	Transport                 string // of processes, auto unless it is given
	NoShard                   bool   // every rank has all parameters: DDP
	Precision                 precision
	Compile                   bool // by torch.compile
}

func (w way) cores() int { return w.Processes * w.Ranks * w.Threads }

// precision is the types of a way.
type precision string

const (
	float32s  precision = "float32"
	bfloat16s precision = "bfloat16" // of PyTorch: parameters and the optimizer's state too
	autocast  precision = "autocast" // PyTorch's products of bfloat16 from parameters of float32
)

// precisions has our types. Each is measured in all our ways.
var precisions = map[precision]fsdp.Precision{
	float32s:  {},
	bfloat16s: fsdp.BF16(),
}

// ours are our ways, each in all precisions. The others are compared with the first.
var ours = []way{
	{name: "1 rank", Processes: 1, Ranks: 1, Threads: 1},
	{name: "1 rank, 2 threads", Processes: 1, Ranks: 1, Threads: 2},
	{name: "2 ranks, goroutines", Processes: 1, Ranks: 2, Threads: 1},
	{name: "2 ranks, processes", Processes: 2, Ranks: 1, Threads: 1},
	{name: "2 ranks, over TCP", Processes: 2, Ranks: 1, Threads: 1, Transport: "tcp"},
	{name: "2 ranks, NoShard (DDP)", Processes: 1, Ranks: 2, Threads: 1, NoShard: true},
}

// torches are PyTorch's ways.
var torches = []way{
	{name: "PyTorch", Processes: 1, Threads: 1, Precision: float32s},
	{name: "PyTorch, compiled", Processes: 1, Threads: 1, Precision: float32s, Compile: true},
	{name: "PyTorch, 2 threads", Processes: 1, Threads: 2, Precision: float32s},
	{name: "PyTorch DDP", Processes: 2, Threads: 1, Precision: float32s, NoShard: true},
	{name: "PyTorch FSDP2", Processes: 2, Threads: 1, Precision: float32s},
	{name: "PyTorch", Processes: 1, Threads: 1, Precision: autocast},
	{name: "PyTorch", Processes: 1, Threads: 1, Precision: bfloat16s},
	{name: "PyTorch, compiled", Processes: 1, Threads: 1, Precision: autocast, Compile: true},
	{name: "PyTorch, compiled", Processes: 1, Threads: 1, Precision: bfloat16s, Compile: true},
	{name: "PyTorch, 2 threads", Processes: 1, Threads: 2, Precision: bfloat16s},
	{name: "PyTorch DDP", Processes: 2, Threads: 1, Precision: bfloat16s, NoShard: true},
	{name: "PyTorch FSDP2", Processes: 2, Threads: 1, Precision: bfloat16s},
}

// lineup returns the ways of one table: the first of ours in float32, which the others are compared
// with, and the ways of a precision whose names match.
func lineup(p precision, t *peer, match *regexp.Regexp) []way {
	first := ours[0]
	first.Precision = float32s
	var list []way
	if _, ok := precisions[p]; ok {
		for _, w := range ours {
			w.Precision = p
			list = append(list, w)
		}
	}
	for _, w := range torches {
		if t != nil && (w.Precision == float32s) == (p == float32s) && (!w.Compile || t.compile) {
			w.torch, w.Ranks = true, 1
			list = append(list, w)
		}
	}
	list = slices.DeleteFunc(list, func(w way) bool { return w == first || !match.MatchString(w.name) })
	list = append([]way{first}, list...)
	for i, w := range list {
		if w.Precision != p {
			list[i].name += ", " + string(w.Precision)
		}
	}
	return list
}
