package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// onRanks runs f on n ranks and requires that none fails.
func onRanks(t *testing.T, n int, f func(ctx context.Context, g comm.Group)) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	require.NoError(t, comm.Run(ctx, n, func(ctx context.Context, g comm.Group) error {
		f(ctx, g)
		return nil
	}))
}

// batch returns tokens and targets [2, 4] that are a function of the seed.
func batch(seed int) []fsdp.Tensor {
	pair := make([]fsdp.Tensor, 2)
	for i := range pair {
		data := make([]int, 8)
		for j := range data {
			data[j] = (seed*31 + i*17 + j*j*7) % 11
		}
		pair[i] = tensor.New(tensor.WithShape(2, 4), tensor.WithBacking(data))
	}
	return pair
}

var gpt = &nn.GPT{Vocab: 11, Context: 4, Layers: 2, Dim: 6, Heads: 2}

// normed is a model with buffers and a unit of experts.
type normed struct{}

// Forward implements fsdp.Model.
func (normed) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("wte", &nn.Embedding{Rows: 11, Dim: 5}, in[0])
	x = t.Call("norm", &nn.BatchNorm{Dim: 4}, x) // of the positions
	x = t.Call("expert", &nn.Linear{In: 5, Out: 5}, x)
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: 5, Classes: 11}, x, in[1])}, nil
}

// wrapped wraps a model whose experts are cut over groups of so many ranks, none if 0.
func wrapped(t *testing.T, ctx context.Context, g comm.Group, m fsdp.Model, experts int) (*fsdp.Sharded, optim.Optimizer) {
	cfg := fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Seed: 3}
	if experts > 0 {
		own, err := g.Split(ctx, g.Rank()/experts, g.Rank())
		require.NoError(t, err)
		cfg.Unit = func(u *fsdp.UnitConfig) {
			if u.Name == "expert" {
				u.Group = own
			}
		}
	}
	s, err := fsdp.Wrap(m, cfg)
	require.NoError(t, err)
	opt, err := optim.AdamW{}.New(s.Params())
	require.NoError(t, err)
	return s, opt
}

func train(t *testing.T, ctx context.Context, s *fsdp.Sharded, opt optim.Optimizer, rank, steps int) {
	for step := range steps {
		_, err := s.Forward(ctx, batch(10*step+rank)...)
		require.NoError(t, err)
		require.NoError(t, s.Backward(ctx))
		require.NoError(t, opt.Step(0.01))
		s.ZeroGrad()
	}
}

// bits returns the bytes of tensors of float32, as they are in files.
func bits(state map[string]*tensor.Dense) map[string][]byte {
	all := make(map[string][]byte)
	for name, v := range state {
		all[name] = littleEndian(v.Data().([]float32))
	}
	return all
}

func littleEndian(v []float32) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// requireSameBytes compares two files or states tensor by tensor.
func requireSameBytes(t *testing.T, want, got map[string][]byte) {
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
	for name := range want {
		require.True(t, bytes.Equal(want[name], got[name]), name)
	}
}

// state is all that a Load brings back: values and the optimizer's state, by name.
func state(t *testing.T, ctx context.Context, s *fsdp.Sharded, opt optim.Optimizer) map[string][]byte {
	full, err := s.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	all := bits(full)
	o, err := s.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	for _, e := range o.Entries() {
		all[e.Name+":"+e.Param] = append(littleEndian(e.Data.(optim.Host).F32), byte(e.Steps), byte(o.Steps))
	}
	return all
}

// TestTrainedGPT trains on 3 ranks, saves and merges. The merged file has the values of StateDict
// and of Export, and Import reads it.
func TestTrainedGPT(t *testing.T) {
	dir := t.TempDir()
	ckpt, exported := filepath.Join(dir, "ckpt"), filepath.Join(dir, "exported.safetensors")
	var values, want map[string][]byte
	onRanks(t, 3, func(ctx context.Context, g comm.Group) {
		s, opt := wrapped(t, ctx, g, gpt, 0)
		train(t, ctx, s, opt, g.Rank(), 3)
		require.NoError(t, s.Save(ctx, ckpt, opt, &fsdp.SaveOptions{Extra: map[string]any{"epoch": 7}}))
		require.NoError(t, s.Export(ctx, exported, &fsdp.ExportOptions{Optimizer: opt}))
		full, err := s.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		all := state(t, ctx, s, opt)
		if g.Rank() == 0 {
			values, want = bits(full), all
		}
		require.NoError(t, s.Close())
	})
	fsys := checkpoint.OS()
	succeed(t, fsys, "verify", ckpt)
	require.Regexp(t, `(?s)optimizer +3 steps, 58 tensors, [^\n]*\nsettings +AdamW, learning rate 0.01, .*: 29 parameters\nentries +exp_avg, exp_avg_sq\nextra +epoch 7\n`, succeed(t, fsys, "inspect", ckpt))

	out := filepath.Join(dir, "merged.safetensors")
	succeed(t, fsys, "merge", ckpt, out)
	data, _, _ := dataOf(t, fsys, out)
	requireSameBytes(t, values, data)
	succeed(t, fsys, "merge", ckpt, out, "-optimizer")
	data, types, about := dataOf(t, fsys, out)
	wantData, wantTypes, wantAbout := dataOf(t, fsys, exported)
	requireSameBytes(t, wantData, data)
	require.Equal(t, []any{wantTypes, wantAbout}, []any{types, about})
	succeed(t, fsys, "merge", ckpt, filepath.Join(dir, "prefixed.safetensors"), "-optimizer", "-prefix", "m.")

	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		s, opt := wrapped(t, ctx, g, gpt, 0)
		require.NoError(t, s.Import(ctx, filepath.Join(dir, "prefixed.safetensors"), &fsdp.ImportOptions{Optimizer: opt, Rename: func(name string) string { return "m." + name }}))
		requireSameBytes(t, want, state(t, ctx, s, opt))
		require.NoError(t, s.Close())
	})
}

// TestTrainedAdapters saves adapters without the model under them. The commands say that it is not
// there.
func TestTrainedAdapters(t *testing.T) {
	dir := t.TempDir()
	ckpt, out := filepath.Join(dir, "ckpt"), filepath.Join(dir, "merged.safetensors")
	model := *gpt
	model.LoRA = nn.LoRA{Rank: 2}
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		s, err := fsdp.Wrap(&model, fsdp.Config{Group: g, Frozen: func(name string) bool { return !nn.IsAdapter(name) }})
		require.NoError(t, err)
		opt, err := optim.AdamW{}.New(s.Params())
		require.NoError(t, err)
		train(t, ctx, s, opt, g.Rank(), 2)
		require.NoError(t, s.Save(ctx, ckpt, opt, &fsdp.SaveOptions{TrainedOnly: true}))
		require.NoError(t, s.Close())
	})
	fsys := checkpoint.OS()
	succeed(t, fsys, "verify", ckpt)
	require.Regexp(t, `(?m)^parameters +\d+ tensors, .*\nfrozen +29 tensors, 1,188 elements, left out by SaveOptions.TrainedOnly\noptimizer +2 steps`, succeed(t, fsys, "inspect", ckpt))
	var c checkpointJSON
	require.NoError(t, json.Unmarshal([]byte(succeed(t, fsys, "inspect", ckpt, "-json")), &c))
	require.Len(t, c.Base, 29)
	require.Contains(t, succeed(t, fsys, "merge", ckpt, out),
		"\n29 parameters, such as wte.weight, are not in it: they were frozen, and Save has left them out.\nSharded.Export writes a whole model.\n")
	data, _, _ := dataOf(t, fsys, out)
	for name := range data {
		require.True(t, nn.IsAdapter(name), name)
	}
}

// TestTrainedExperts has what ranks have of their own: buffers, of which merge takes rank 0's, and
// experts, of which it takes all.
func TestTrainedExperts(t *testing.T) {
	dir := t.TempDir()
	ckpt, exported := filepath.Join(dir, "ckpt"), filepath.Join(dir, "exported.safetensors")
	want := make([]map[string][]byte, 4)
	onRanks(t, 4, func(ctx context.Context, g comm.Group) {
		s, opt := wrapped(t, ctx, g, normed{}, 2)
		train(t, ctx, s, opt, g.Rank(), 2)
		require.NoError(t, s.Save(ctx, ckpt, opt, &fsdp.SaveOptions{RankExtra: map[string]any{"rank": g.Rank()}}))
		require.NoError(t, s.Export(ctx, exported, &fsdp.ExportOptions{Optimizer: opt}))
		want[g.Rank()] = state(t, ctx, s, opt)
		require.NoError(t, s.Close())
	})
	require.NotEqual(t, want[0]["norm.running_mean"], want[1]["norm.running_mean"])
	fsys, out := checkpoint.OS(), filepath.Join(dir, "merged.safetensors")
	succeed(t, fsys, "merge", ckpt, out, "-optimizer")
	data, types, about := dataOf(t, fsys, out)
	wantData, wantTypes, wantAbout := dataOf(t, fsys, exported)
	require.Contains(t, wantData, "exp_avg:expert.weight@2")
	requireSameBytes(t, wantData, data)
	require.Equal(t, []any{wantTypes, wantAbout}, []any{types, about})

	text := succeed(t, fsys, "inspect", ckpt)
	require.Contains(t, text, "\nbuffers     8 tensors, 32 elements of F32, 128 B, different on every rank\n")
	require.Contains(t, text, "\nrank extra  rank of 4 ranks\n")
	var c checkpointJSON
	require.NoError(t, json.Unmarshal([]byte(succeed(t, fsys, "inspect", ckpt, "-json")), &c))
	require.Equal(t, 4, len(c.RankExtra))
}
