//go:build gpu && linux && cgo

package gpucheck

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/calibrate"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/gpu"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/nccl"
)

// TestRates measures, in bfloat16, what the kernels of operations and of their gradients take at
// the sizes of a model, and what that makes of the device: bytes that must be read and written, and
// operations of arithmetic, by the time between two events around some runs. Inputs are random. It
// also measures the work on shards, see shards_test.go. With -cluster it measures smaller sizes
// too, which separate the fixed time of a kernel from its time per byte, and writes a file for
// fsdpplan.
func TestRates(t *testing.T) {
	dev, err := nccl.OpenDevice(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	s := &rates{T: t, dev: dev, seen: make(map[string]bool)}
	s.open()
	defer s.close()
	fmt.Printf("\nRates, bfloat16\n  %-90s %9s %8s %8s\n", "", "ms", "GB/s", "TFLOP/s")
	z := scale().rates
	block := 12 * z.Dim * z.Dim // its parameters
	s.all(figures(z))
	s.transfers(block)
	s.update(4)
	if *cluster == "" {
		return
	}
	z.Context /= 4
	s.quiet = true
	s.all(figures(z))
	s.transfers(block / 4)
	s.update(1)
	_, memory, err := dev.Memory()
	require.NoError(t, err)
	name := strings.TrimSuffix(filepath.Base(*cluster), ".json")
	made := s.kernels.Cluster(name, dev.Name(), memory, plan.Clusters()[*like])
	require.NoError(t, os.WriteFile(*cluster, made.JSON(), 0o644))
	fmt.Printf("%s: %d rates\n", *cluster, len(made.Rates))
}

// all measures what figures have.
func (s *rates) all(list []figure) {
	for _, f := range list {
		u, err := f.compile()
		require.NoError(s, err, f.name)
		for _, p := range []*exec.Program{u.Forward, u.Backward} {
			list := slices.Collect(p.All())
			for _, in := range list {
				s.measure(f.name, in)
			}
			s.pair(f.name, list)
		}
	}
}

// A figure is an operation whose kernels are measured.
type figure struct {
	name  string
	in    []argument
	build func(in G.Nodes) (*G.Node, error)
}

// An argument of an operation is a value that takes a gradient, integers, or a parameter in
// float32.
type argument struct {
	shape []int
	ints  bool
	full  bool
}

// figures are the operations of a GPT, a Llama and a T5 of some size.
func figures(z size) []figure {
	rows, hidden := z.Batch*z.Context, 4*z.Dim
	value := func(shape ...int) argument { return argument{shape: shape} }
	full := func(shape ...int) argument { return argument{shape: shape, full: true} }
	ints := func(shape ...int) argument { return argument{shape: shape, ints: true} }
	tokens := func(channels int) argument { return value(z.Batch, z.Context, channels) }
	linear := func(name string, in, out int) figure {
		return figure{"linear " + name, []argument{value(rows, in), value(out, in), value(out)},
			func(in G.Nodes) (*G.Node, error) { return op.Linear(in[0], in[1], in[2]) }}
	}
	unary := func(name string, f func(*G.Node) (*G.Node, error)) figure {
		return figure{name, []argument{value(rows, hidden)}, func(in G.Nodes) (*G.Node, error) { return f(in[0]) }}
	}
	keys := z.Dim / z.Heads * max(1, z.Heads/5) // a fifth of the heads
	return []figure{
		linear("qkv", z.Dim, 3*z.Dim), linear("proj", z.Dim, z.Dim), linear("fc", z.Dim, hidden), linear("out", hidden, z.Dim),
		{"head", []argument{value(rows, z.Dim), value(z.Vocab, z.Dim)},
			func(in G.Nodes) (*G.Node, error) { return op.Linear(in[0], in[1], nil) }},
		{"cross-entropy", []argument{value(rows, z.Vocab), ints(rows)},
			func(in G.Nodes) (*G.Node, error) { return op.CrossEntropy(in[0], in[1], -1) }},
		{"fused head", []argument{value(rows, z.Dim), value(z.Vocab, z.Dim), ints(rows)},
			func(in G.Nodes) (*G.Node, error) {
				return op.LinearCrossEntropy(in[0], in[1], nil, in[2], op.Loss{Ignore: -1})
			}},
		{"attention, causal", []argument{tokens(3 * z.Dim)},
			func(in G.Nodes) (*G.Node, error) {
				return op.SelfAttention(in[0], op.Attention{Heads: z.Heads, Causal: true})
			}},
		{"attention, causal, grouped keys", []argument{tokens(z.Dim), tokens(keys), tokens(keys)},
			func(in G.Nodes) (*G.Node, error) {
				return op.SDPA(in[0], in[1], in[2], op.Attention{Heads: z.Heads, KVHeads: max(1, z.Heads/5), Causal: true})
			}},
		{"layer norm", []argument{value(rows, z.Dim), full(z.Dim), full(z.Dim)},
			func(in G.Nodes) (*G.Node, error) { return op.LayerNorm(in[0], in[1], in[2], 1e-5) }},
		{"rms norm", []argument{value(rows, z.Dim), full(z.Dim)},
			func(in G.Nodes) (*G.Node, error) { return op.RMSNorm(in[0], in[1], 1e-5) }},
		{"rope", []argument{tokens(z.Dim)},
			func(in G.Nodes) (*G.Node, error) { return op.Rope(in[0], nil, op.Rotary{HeadDim: z.Dim / z.Heads}) }},
		{"relative bias", []argument{full(32, z.Heads)},
			func(in G.Nodes) (*G.Node, error) {
				return op.RelativeBias(in[0], op.Relative{Queries: z.Context, Keys: z.Context, MaxDistance: 128})
			}},
		{"embedding", []argument{value(z.Vocab, z.Dim), ints(z.Batch, z.Context)},
			func(in G.Nodes) (*G.Node, error) { return op.Embedding(in[0], in[1]) }},
		{"positions", []argument{tokens(z.Dim), value(z.Context, z.Dim)},
			func(in G.Nodes) (*G.Node, error) { return op.AddPositions(in[0], in[1]) }},
		{"residual", []argument{value(rows, z.Dim), value(rows, z.Dim)},
			func(in G.Nodes) (*G.Node, error) { return G.Add(in[0], in[1]) }},
		{"swiglu", []argument{value(rows, 2*hidden)}, func(in G.Nodes) (*G.Node, error) { return op.SwiGLU(in[0], nil) }},
		{"gelu and a product", []argument{value(rows, hidden), value(z.Dim, hidden)},
			func(in G.Nodes) (*G.Node, error) {
				y, err := op.GELUTanh(in[0])
				if err != nil {
					return nil, err
				}
				return op.Linear(y, in[1], nil)
			}},
		unary("gelu", op.GELU), unary("gelu tanh", op.GELUTanh), unary("relu", op.ReLU),
		unary("dropout", func(x *G.Node) (*G.Node, error) { return op.Dropout(x, 0.1, 1) }),
	}
}

// compile returns the figure as a unit in bfloat16.
func (f *figure) compile() (*exec.Unit, error) {
	sig := &exec.Signature{DType: tensor.Float32, Half: true, Apart: true, GradOut: []bool{true}}
	spec := &exec.Spec{Build: f.module}
	for i, a := range f.in {
		switch {
		case a.ints:
			sig.Inputs = append(sig.Inputs, exec.Input{Shape: a.shape, DType: tensor.Int})
		case len(a.shape) < 3 && i > 0 || a.full: // weights
			spec.Params = append(spec.Params, exec.Param{Name: fmt.Sprint(i), Shape: a.shape})
			sig.HalfParam = append(sig.HalfParam, !a.full)
		default:
			sig.Inputs = append(sig.Inputs, exec.Input{Shape: a.shape, DType: tensor.Float32, Grad: true, Half: true})
		}
	}
	return exec.Compile(spec, sig)
}

// module builds the module that the figure is.
func (f *figure) module(b *exec.Builder, inputs []*G.Node) (G.Nodes, error) {
	var in G.Nodes
	for i, a := range f.in {
		if a.ints || len(a.shape) >= 3 || i == 0 && !a.full {
			in, inputs = append(in, inputs[0]), inputs[1:]
			continue
		}
		n, err := b.Param(fmt.Sprint(i))
		if err != nil {
			return nil, err
		}
		in = append(in, n)
	}
	y, err := f.build(in)
	return G.Nodes{y}, err
}

// rates measures instructions.
type rates struct {
	*testing.T
	dev      *nccl.Device
	engine   *gpu.Engine
	stream   *nccl.Stream
	from, to *nccl.Event
	random   [2]*nccl.Memory // of floats, and of indices
	seen     map[string]bool
	kernels  calibrate.Kernels
	quiet    bool // print nothing
}

// pool is how many bytes of random numbers there are, to copy from.
const pool = 16 << 20

func (s *rates) open() {
	var err error
	s.engine, err = gpu.New(s.dev)
	require.NoError(s, err)
	s.stream, err = s.dev.NewStream()
	require.NoError(s, err)
	s.from, err = s.dev.NewTimer()
	require.NoError(s, err)
	s.to, err = s.dev.NewTimer()
	require.NoError(s, err)
	h, err := s.dev.AllocHost(pool)
	require.NoError(s, err)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range s.random {
		s.random[i], err = s.dev.Alloc(pool)
		require.NoError(s, err)
		if i == 0 { // two of them are a float32 of about the second's size
			for j := range pool / 2 {
				exec.Data[half.BFloat16](h.Bytes())[j] = half.ToBFloat16(float32(r.NormFloat64()))
			}
		} else {
			for j := range pool / 8 {
				exec.Data[int](h.Bytes())[j] = r.IntN(scale().rates.Vocab)
			}
		}
		require.NoError(s, s.stream.CopyToDevice(s.random[i].Addr(), h, 0, pool))
		require.NoError(s, s.stream.Sync())
	}
	require.NoError(s, h.Free())
}

func (s *rates) close() {
	for _, m := range s.random {
		require.NoError(s, m.Free())
	}
	require.NoError(s, s.from.Close())
	require.NoError(s, s.to.Close())
	require.NoError(s, s.stream.Close())
	require.NoError(s, s.engine.Close())
}

// measure prints what an instruction takes, if it is the first of its kind and shapes.
func (s *rates) measure(name string, in exec.Instr) {
	line := fmt.Sprint(in.Op)
	for _, o := range in.In {
		line += fmt.Sprint(" ", o.Shape)
	}
	if s.seen[line] {
		return
	}
	s.seen[line] = true
	if !gpu.Supports(in.Op.Kind) {
		if s.quiet {
			return
		}
		report("rates", "%s: %s: there are no kernels for it", name, line)
		return
	}
	cost := in.Cost()
	line = name + ": " + line
	measured := in // which bind changes
	call, free := s.bind(&in)
	defer free()
	took := s.run(line, []exec.Instr{in}, call)
	s.kernels.Add(&measured, took)
	s.print(line, took, cost.Read+cost.Written, cost.FLOPs)
}

// pair prints the time of the gradients of a weight and of its bias together, if they are in the
// list: the product sums, where cuBLASLt can do so.
func (s *rates) pair(name string, list []exec.Instr) {
	at := func(kind exec.Kind) int {
		return slices.IndexFunc(list, func(in exec.Instr) bool { return in.Op.Kind == kind })
	}
	w, b := at("linear dw"), at("linear db")
	if w < 0 || b < 0 || s.quiet {
		return
	}
	dw, db := list[w], list[b]
	call, free := s.bind(&dw)
	defer free()
	bias, err := s.dev.Alloc(db.Out.Bytes)
	require.NoError(s, err)
	defer func() { require.NoError(s, bias.Free()) }()
	call.GradParam = []uintptr{bias.Addr()}
	db.In, db.Out.Space, db.Out.Index, db.Out.Offset = dw.In[:1], exec.SpaceGradParam, 0, 0
	cost := dw.Cost()
	took := s.run(name, []exec.Instr{dw, db}, call)
	s.print(name+": linear dw and db", took, cost.Read+cost.Written, cost.FLOPs)
}

// run returns the time of a program of instructions, whose operands have memory.
func (s *rates) run(name string, list []exec.Instr, call *gpu.Call) time.Duration {
	p, err := s.engine.Assemble(slices.Values(list), nil)
	require.NoError(s, err, name)
	defer func() { require.NoError(s, p.Free()) }()
	scratch, err := s.dev.Alloc(max(p.Scratch, 1))
	require.NoError(s, err, name)
	defer func() { require.NoError(s, scratch.Free()) }()
	call.Scratch = scratch.Addr()
	return s.time(name, func() error { return p.Run(s.stream, call) })
}

// print prints a line about something that took so long, unless s is quiet.
func (s *rates) print(what string, took time.Duration, bytes, flops int) {
	d := took.Seconds()
	if !s.quiet {
		report("rates", "%-90.90s %9.4f %8.0f %8.1f", what, d*1e3, float64(bytes)/d/1e9, float64(flops)/d/1e12)
	}
}

// bind gives the operands of an instruction memory, as inputs and as the result of a call. Those
// that are in one place stay so.
func (s *rates) bind(in *exec.Instr) (call *gpu.Call, free func()) {
	type place struct {
		space         exec.Space
		index, offset int
	}
	var memory []*nccl.Memory
	at := make(map[place]uintptr)
	alloc := func(o exec.Operand) uintptr {
		p := place{o.Space, o.Index, o.Offset}
		if at[p] == 0 {
			m, err := s.dev.Alloc(max(o.Bytes, 1))
			require.NoError(s, err, "%v", in.Op)
			memory = append(memory, m)
			at[p] = m.Addr()
			s.fill(m.Addr(), o)
		}
		return at[p]
	}
	call = &gpu.Call{Seed: 1, Train: true}
	call.Out = []uintptr{alloc(in.Out)}
	in.In = slices.Clone(in.In)
	for i, o := range in.In {
		call.In = append(call.In, alloc(o))
		in.In[i].Space, in.In[i].Index, in.In[i].Offset = exec.SpaceIn, i, 0
	}
	in.Out.Space, in.Out.Index, in.Out.Offset = exec.SpaceOut, 0, 0
	return call, func() {
		for _, m := range memory {
			require.NoError(s, m.Free())
		}
	}
}

// fill fills an operand with random numbers.
func (s *rates) fill(at uintptr, o exec.Operand) {
	from := s.random[0]
	if o.DType == tensor.Int {
		from = s.random[1]
	}
	for done := 0; done < o.Bytes; done += pool {
		require.NoError(s, s.stream.CopyDevice(at+uintptr(done), from.Addr(), min(pool, o.Bytes-done)))
	}
}

// time returns how long a run of f takes, the median of three measurements of some runs.
func (s *rates) time(what string, f func() error) time.Duration {
	run := func(times int) time.Duration {
		require.NoError(s, s.from.Record(s.stream), what)
		for range times {
			require.NoError(s, f(), what)
		}
		require.NoError(s, s.to.Record(s.stream), what)
		require.NoError(s, s.to.Sync(), what)
		took, err := s.to.Elapsed(s.from)
		require.NoError(s, err, what)
		return max(took, time.Microsecond) / time.Duration(times)
	}
	run(1) // kernels are loaded, plans are made
	times := int(min(max(scale().patience/run(1), 1), 50))
	list := []time.Duration{run(times), run(times), run(times)}
	slices.Sort(list)
	return list[1]
}
