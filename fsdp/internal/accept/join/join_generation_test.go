package join_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// translator is an encoder and a decoder that turns a state and what the encoder made of the source
// into the next state. Trained, the decoder makes one step.
type translator struct{}

func (translator) Inputs() []string { return []string{"source", "state", "target"} }

func (m translator) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	memory := m.encode(t, in[0])
	return kit.Regress(t, in[1:], m.decode(t, in[1], memory)), nil
}

func (translator) encode(t *fsdp.Tape, source fsdp.Ref) fsdp.Ref {
	return t.Call("enc.1", &kit.Dense{Dim: kit.ShapeDim}, t.Call("enc.0", &kit.Dense{Dim: kit.ShapeDim}, source))
}

func (translator) decode(t *fsdp.Tape, state, memory fsdp.Ref) fsdp.Ref {
	state = t.Call("dec.0", &kit.Dense{Dim: kit.ShapeDim, Mem: true}, state, memory)
	return t.Again("dec.0", t.Call("dec.1", &kit.Dense{Dim: kit.ShapeDim, Mem: true}, state, memory), memory)
}

// Programs are the two halves, and a second name of one.
func (m translator) Programs() map[string]fsdp.Program {
	decode := func(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
		return []fsdp.Ref{m.decode(t, in[0], in[1])}, nil
	}
	return map[string]fsdp.Program{
		"encode": func(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) { return []fsdp.Ref{m.encode(t, in[0])}, nil },
		"decode": decode, "step": decode,
	}
}

const translationSteps = 5 // at most

// translates tells whether a translation of n steps, the last of which is state, goes on.
func translates(n int, state []float64) bool { return n < translationSteps && state[0] > -0.3 }

// prompt is a source of a rank, and where its translation begins. The number of rows is another for
// each.
func prompt(rank, i int) (source, state *tensor.Dense) {
	rows := 1 + (rank+i)%3
	return kit.Floats(100+10*rank+i, rows, kit.ShapeDim), kit.Floats(200+10*rank+i, rows, kit.ShapeDim)
}

// translate generates by the definition: tanh(x·w), and tanh(x·w + memory·v).
func translate(p map[string][]float64, source, state []float64) (states [][]float64) {
	layer := func(name string, x, memory []float64) []float64 {
		y := make([]float64, len(x))
		for i := range y {
			row, col := i/kit.ShapeDim, i%kit.ShapeDim
			for k := range kit.ShapeDim {
				y[i] += x[row*kit.ShapeDim+k] * p[name+".w"][k*kit.ShapeDim+col]
				if memory != nil {
					y[i] += memory[row*kit.ShapeDim+k] * p[name+".v"][k*kit.ShapeDim+col]
				}
			}
			y[i] = math.Tanh(y[i])
		}
		return y
	}
	memory := layer("enc.1", layer("enc.0", source, nil), nil)
	for n := 0; translates(n, state); n++ {
		state = layer("dec.0", layer("dec.1", layer("dec.0", state, memory), memory), memory)
		states = append(states, state)
	}
	return states
}

// interpreter is one rank.
type interpreter struct {
	t      require.TestingT
	m      *fsdp.Sharded
	rank   int
	groups map[string]bool // gathered since it was cleared
}

// generate translates a rank's prompts, each with as many steps as it takes, and returns the
// states.
func (w *interpreter) generate(ctx context.Context, prompts int) (all [][]float64, steps int) {
	i := 0
	sources := kit.Batches(prompts, func(i int) []fsdp.Tensor { source, _ := prompt(w.rank, i); return []fsdp.Tensor{source} })
	for source, err := range w.m.Join(ctx, sources) {
		require.NoError(w.t, err)
		clear(w.groups)
		out, err := w.m.EvalProgram(ctx, "encode", source...)
		require.NoError(w.t, err)
		require.Equal(w.t, map[string]bool{"enc.0": true, "enc.1": true}, w.groups)
		var state, memory fsdp.Tensor
		if source != nil {
			memory = out[0]
			_, state = prompt(w.rank, i)
		}
		n := 0
		states := func(yield func([]fsdp.Tensor, error) bool) {
			for source != nil && translates(n, kit.Elements(state)) && yield([]fsdp.Tensor{state, memory}, nil) {
				n++
			}
		}
		for batch, err := range w.m.Join(ctx, states) {
			require.NoError(w.t, err)
			clear(w.groups)
			out, err := w.m.EvalProgram(ctx, "decode", batch...)
			require.NoError(w.t, err)
			require.Equal(w.t, map[string]bool{"dec.0": true, "dec.1": true}, w.groups)
			steps++
			if batch != nil {
				state = out[0]
				all = append(all, kit.Elements(state))
			}
		}
		i++
	}
	return all, steps
}

// TestJoinGenerates translates, on ranks with different numbers of prompts that take different
// numbers of steps, between epochs of an uneven training, and compares with the definition. A rank
// that is done with a prompt waits for the others before it begins another.
func TestJoinGenerates(t *testing.T) {
	for _, prompts := range [][]int{{3}, {1, 4}, {2, 0, 3, 1}} {
		kit.EveryStrategy(t, len(prompts), func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, len(prompts), func(ctx context.Context, g comm.Group) {
				w := &interpreter{t: t, rank: g.Rank(), groups: map[string]bool{}}
				cfg := cfg
				cfg.Group, cfg.WrapPolicy, cfg.Precision, cfg.Seed, cfg.GradAverage = g, fsdp.WrapEach(), kit.Float64s, 4, fsdp.ByActive
				cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
					if e.Kind == "forward" { // what it is gathered for, where it is
						w.groups[e.Call[:len("enc.0")]] = true
					} else if e.Group != "" {
						w.groups[e.Group] = true
					}
				}))
				w.m = kit.Wrap(t, translator{}, cfg)
				opt := kit.Momentum(t, w.m.Params())
				for range 2 {
					state := kit.Record{}
					tensors, err := w.m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
					require.NoError(t, err)
					for name, v := range tensors {
						state[name] = kit.Elements(v)
					}
					got, steps := w.generate(ctx, prompts[g.Rank()])
					var want [][]float64
					total, lengths := 0, map[int]bool{}
					for i := range slices.Max(prompts) {
						longest := 0
						for r, n := range prompts {
							if i < n {
								source, begin := prompt(r, i)
								states := translate(state, source.Float64s(), begin.Float64s())
								longest = max(longest, len(states))
								if r == g.Rank() {
									want = append(want, states...)
								}
								lengths[len(states)] = true
							}
						}
						total += longest
					}
					require.Greater(t, len(lengths), 1, "translations of one length")
					require.Equal(t, total, steps)
					require.Len(t, got, len(want))
					for i := range want {
						require.InDeltaSlice(t, want[i], got[i], 1e-14, "state %d", i)
					}
					sentences := kit.Batches(prompts[g.Rank()], func(i int) []fsdp.Tensor {
						source, state := prompt(g.Rank(), i)
						return []fsdp.Tensor{source, state, kit.Floats(i, state.Shape()...)}
					})
					for batch, err := range w.m.Join(ctx, sentences) {
						require.NoError(t, err)
						require.NoError(t, kit.TrainStep(ctx, w.m, batch))
						require.NoError(t, opt.Step(0.1))
						w.m.ZeroGrad()
					}
				}
				plan, err := w.m.Plan(kit.Floats(1, 1, kit.ShapeDim), kit.Floats(1, 1, kit.ShapeDim), kit.Floats(1, 1, kit.ShapeDim))
				require.NoError(t, err)
				require.Equal(t, plan.ShardBytes+plan.StateBytes, w.m.Memory().Live)
			})
		})
	}
}

// TestJoinProgramsDiffer lets one rank run another program than the others, which needs the same
// parameters or not.
func TestJoinProgramsDiffer(t *testing.T) {
	for _, name := range []string{"encode", "step", ""} {
		for odd := range 2 {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, translator{}, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s})
				source, state := prompt(0, 0)
				data := kit.Batches(1-g.Rank(), func(int) []fsdp.Tensor { return []fsdp.Tensor{state, source} })
				for batch, err := range m.Join(ctx, data) {
					require.NoError(t, err)
					what := "decode"
					if g.Rank() == odd {
						what = name
						if batch != nil {
							batch = map[string][]fsdp.Tensor{"encode": {source}, "step": batch, "": {source, state, state}}[name]
						}
					}
					_, err = m.EvalProgram(ctx, what, batch...)
					require.ErrorContains(t, err, "ranks disagree: ")
					require.ErrorContains(t, err, "of program decode")
					if name != "" {
						require.ErrorContains(t, err, "of program "+name)
					}
					require.ErrorContains(t, err, fmt.Sprintf("rank %d runs Eval as call", odd))
				}
			})
		}
	}
}
