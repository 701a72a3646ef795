package optim_test

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
	"github.com/stretchr/testify/require"
)

// PyTorch trained a 6-8-8-3 ReLU classifier on two data-parallel ranks that had 3 and 5 batches (a
// rank without data adds a zero gradient, the sum is halved); testdata/torch_mlp.json has each
// rank's losses and the final parameters. Here one process computes the averaged gradients and
// three ranks' optimizers, each over its shard, do the updates.
func TestTorchMLP(t *testing.T) {
	data, err := os.ReadFile("testdata/torch_mlp.json")
	require.NoError(t, err)
	var golden map[string]struct {
		Losses [2][]float64
		Params map[string][2]float64 // l2 norm and sum
	}
	require.NoError(t, json.Unmarshal(data, &golden))
	for name, c := range map[string]struct {
		config interface {
			New([]optim.Param) (optim.Optimizer, error)
		}
		lr float64
	}{
		"sgd_lr0.1":   {optim.SGD{}, 0.1},
		"adamw_wd0.1": {optim.AdamW{Beta2: 0.95, WeightDecay: 0.1}, 3e-3},
	} {
		t.Run(name, func(t *testing.T) {
			want := golden[name]
			m := newMLP()
			opts, layout := m.shardedOptimizers(t, c.config.New)
			for step := range want.Losses[1] {
				for i := range m.grads {
					clear(m.grads[i])
				}
				for rank, losses := range want.Losses {
					if step < len(losses) {
						loss := m.backward(uint32(step*2+rank), 0.5)
						require.InDelta(t, losses[step], loss, 1e-12, "step %d rank %d", step, rank)
					}
				}
				m.step(t, opts, layout, c.lr)
			}
			for i, p := range m.params {
				var sum, squares float64
				for _, v := range m.values[i] {
					sum += v
					squares += v * v
				}
				require.InDelta(t, want.Params[p.Name][0], math.Sqrt(squares), 1e-12, p.Name)
				require.InDelta(t, want.Params[p.Name][1], sum, 1e-12, p.Name)
			}
		})
	}
}

// hash24 and val are the generator of the golden data: integers in, numbers in [-1, 1) out, the
// same in any language.
func hash24(i, s uint32) uint32 {
	x := i*0x9E3779B1 + s*0x85EBCA77 + 0x165667B1
	x ^= x >> 15
	x *= 0x2C1B3C6D
	x ^= x >> 12
	x *= 0x297A2D39
	x ^= x >> 15
	return x >> 8
}

func val(i, s uint32) float64 { return (float64(hash24(i, s)) - 1<<23) / (1 << 23) }

// mlp is three linear layers, y = x·Wᵀ + b, with ReLU between them, and mean cross-entropy.
type mlp struct {
	params        []shard.Param // weight [out, in] and bias [out] of each layer
	values, grads [][]float64
}

func newMLP() *mlp {
	m := &mlp{params: []shard.Param{
		{Name: "layers.0.weight", Shape: []int{8, 6}}, {Name: "layers.0.bias", Shape: []int{8}},
		{Name: "layers.1.weight", Shape: []int{8, 8}}, {Name: "layers.1.bias", Shape: []int{8}},
		{Name: "head.weight", Shape: []int{3, 8}}, {Name: "head.bias", Shape: []int{3}},
	}}
	for k, p := range m.params {
		scale := 0.125
		if strings.HasSuffix(p.Name, "bias") {
			scale = 0.0625
		}
		v := make([]float64, p.Len())
		for i := range v {
			v[i] = scale * val(uint32(i), uint32(k+1))
		}
		m.values, m.grads = append(m.values, v), append(m.grads, make([]float64, p.Len()))
	}
	return m
}

// backward adds scale times the gradient of batch k to grads and returns the batch's loss. One
// sample at a time.
func (m *mlp) backward(k uint32, scale float64) (loss float64) {
	const batch, features = 4, 6
	for b := range uint32(batch) {
		x := make([]float64, features)
		for i := range x {
			x[i] = val(b*features+uint32(i), 4000+k)
		}
		acts := [][]float64{x} // input of each layer, then the logits
		for layer := range 3 {
			w, bias, in := m.values[2*layer], m.values[2*layer+1], acts[layer]
			out := make([]float64, len(bias))
			for o := range out {
				out[o] = bias[o]
				for i := range in {
					out[o] += w[o*len(in)+i] * in[i]
				}
				if layer < 2 {
					out[o] = max(out[o], 0)
				}
			}
			acts = append(acts, out)
		}
		logits, label := acts[3], hash24(b, 5000+k)%3
		var z float64
		for _, l := range logits {
			z += math.Exp(l)
		}
		loss += (math.Log(z) - logits[label]) / batch
		dy := make([]float64, len(logits))
		for o, l := range logits {
			dy[o] = math.Exp(l) / z
		}
		dy[label]--
		for o := range dy {
			dy[o] *= scale / batch
		}
		for layer := 2; layer >= 0; layer-- {
			dy = m.layerBackward(layer, acts[layer], dy)
		}
	}
	return loss
}

// layerBackward adds the gradients of one layer and returns that of its input, through the ReLU
// that made the input.
func (m *mlp) layerBackward(layer int, in, dy []float64) (dx []float64) {
	w, dw, db := m.values[2*layer], m.grads[2*layer], m.grads[2*layer+1]
	dx = make([]float64, len(in))
	for o, d := range dy {
		db[o] += d
		for i := range in {
			dw[o*len(in)+i] += d * in[i]
			if in[i] > 0 {
				dx[i] += d * w[o*len(in)+i]
			}
		}
	}
	return dx
}

// rankShard is one rank's buffers and the optimizer over them.
type rankShard struct {
	value, grad []float64
	opt         optim.Optimizer
}

// shardedOptimizers cuts the model over three ranks, at uneven places.
func (m *mlp) shardedOptimizers(t *testing.T, new func([]optim.Param) (optim.Optimizer, error)) ([]rankShard, *shard.Layout) {
	l, err := shard.New(m.params, 3, 4)
	require.NoError(t, err)
	ranks := make([]rankShard, l.World())
	for rank := range ranks {
		r := &ranks[rank]
		r.value, r.grad = make([]float64, l.ShardLen()), make([]float64, l.ShardLen())
		m.scatter(l, rank, r.value, m.values)
		var params []optim.Param
		for _, s := range l.Segments(rank) {
			params = append(params, optim.Param{
				Name: s.Name, Shape: m.params[s.Param].Shape, Offset: s.Offset,
				Value: optim.Host{F64: r.value[s.At : s.At+s.Len]},
				Grad:  optim.Host{F64: r.grad[s.At : s.At+s.Len]},
			})
		}
		r.opt, err = new(params)
		require.NoError(t, err)
	}
	return ranks, l
}

// step scatters the gradients, steps every rank and gathers the values.
func (m *mlp) step(t *testing.T, ranks []rankShard, l *shard.Layout, lr float64) {
	for rank, r := range ranks {
		m.scatter(l, rank, r.grad, m.grads)
		require.NoError(t, r.opt.Step(lr))
		for _, s := range l.Segments(rank) {
			copy(m.values[s.Param][s.Offset:], r.value[s.At:s.At+s.Len])
		}
	}
}

// scatter copies what a rank owns of whole parameters to its shard.
func (m *mlp) scatter(l *shard.Layout, rank int, to []float64, whole [][]float64) {
	for _, s := range l.Segments(rank) {
		copy(to[s.At:], whole[s.Param][s.Offset:s.Offset+s.Len])
	}
}
