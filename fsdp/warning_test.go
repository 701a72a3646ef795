package fsdp_test

import (
	"bytes"
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// aside returns a model of a linear layer, beside one that the loss ignores if there is to be one.
func aside(ignored bool) kit.Model {
	sum := &kit.Module{Parameters: nil, Graph: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		n, err := gorgonia.Sum(in[0])
		return gorgonia.Nodes{n}, err
	}}
	return func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		out := []fsdp.Ref{t.Call("loss", sum, t.Call("fc", &nn.Linear{In: 4, Out: 4}, in[0]))}
		if ignored {
			out = append(out, t.Call("aside", &nn.Linear{In: 4, Out: 4}, in[0]))
		}
		return out, nil
	}
}

// TestWarnings wraps models with what may be a mistake, and without a Logger. It is said once, and
// with names.
func TestWarnings(t *testing.T) {
	defer fsdp.Native(true)()
	none := func(string) bool { return false }
	blocks := fsdp.WrapTypes(&nn.Block{})
	for name, c := range map[string]struct {
		model fsdp.Model
		cfg   fsdp.Config
		want  string // of what is said, or nothing is
	}{
		"nothing to say": {kit.TinyGPT(1), fsdp.Config{WrapPolicy: blocks}, ""},
		"no blocks":      {aside(false), fsdp.Config{WrapPolicy: blocks}, `Config.WrapPolicy selects nothing: all parameters are in the root unit, which is whole during a pass: no call is a *nn.Block among="[fc (*nn.Linear)`},
		"frozen":         {kit.TinyGPT(1), fsdp.Config{Frozen: none}, `Config.Frozen selects nothing among="[wte.weight`},
		"ignored":        {kit.TinyGPT(1), fsdp.Config{Ignored: none}, `Config.Ignored selects nothing among="[wte.weight`},
		"checkpoint":     {aside(false), fsdp.Config{Activations: fsdp.Activations{Recompute: blocks}}, `Config.Activations.Recompute selects nothing: no call is a *nn.Block among="[fc (*nn.Linear)`},
		"wide":           {aside(false), fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.BFloat16, Wide: kit.Never}}, `Config.Precision.Wide selects nothing among="[fc (*nn.Linear)`},
		"no such name":   {aside(false), fsdp.Config{WrapPolicy: kit.Never}, `which is whole during a pass among="[fc (*nn.Linear)`},
		"a part": {kit.TinyGPT(1), fsdp.Config{WrapPolicy: fsdp.WrapTypes(&nn.Attention{})},
			"Config.WrapPolicy selects nothing: all parameters are in the root unit, which is whole during a pass: no call is a *nn.Attention, " +
				"but it is a part of blocks.0 (*nn.Block), with parameter blocks.0.qkv.weight: select the type of the call, or call the part on the Tape among="},
		"a part of a part": {kit.Translating, fsdp.Config{Activations: fsdp.Activations{Save: fsdp.WrapTypes(&kit.DecoderLayer{}, &nn.Linear{})}},
			"Config.Activations.Save: no call is a *nn.Linear, but it is a part of encoder.0 (*nn.Block) and 4 more, " +
				"with parameter encoder.0.qkv.weight: select the type of the call, or call the part on the Tape among="},
		"one of two types":  {kit.TinyGPT(1), fsdp.Config{WrapPolicy: fsdp.WrapTypes(&kit.DecoderLayer{}, &nn.Block{}, &kit.DecoderLayer{})}, `Config.WrapPolicy: no call is a *kit.DecoderLayer among=`},
		"a nil module":      {kit.TinyGPT(1), fsdp.Config{WrapPolicy: fsdp.WrapTypes(nil, &nn.Block{})}, `Config.WrapPolicy: WrapTypes was given a nil module among=`},
		"one of any":        {kit.TinyGPT(1), fsdp.Config{WrapPolicy: fsdp.WrapAny(blocks, nil, kit.Never)}, `Config.WrapPolicy: policy 3 of WrapAny selects nothing among=`},
		"none of any":       {kit.TinyGPT(1), fsdp.Config{WrapPolicy: fsdp.WrapAny(kit.Never, kit.Never)}, `a pass: policy 1 of WrapAny selects nothing; policy 2 of WrapAny selects nothing among=`},
		"all but none":      {kit.TinyGPT(1), fsdp.Config{WrapPolicy: fsdp.WrapAllBut(kit.Never)}, `Config.WrapPolicy: the policy of WrapAllBut selects nothing among=`},
		"all but all":       {kit.TinyGPT(1), fsdp.Config{WrapPolicy: fsdp.WrapAllBut(fsdp.WrapEach())}, `which is whole during a pass among=`},
		"any, same and nil": {kit.TinyGPT(1), fsdp.Config{WrapPolicy: fsdp.WrapAny(blocks, nil, blocks, fsdp.WrapAllBut(nil))}, ""},
		"one by one": {kit.TinyGPT(1), fsdp.Config{WrapPolicy: func(calls []fsdp.CallInfo) (names []string) {
			for i := range calls {
				names = append(names, fsdp.WrapAny(blocks, kit.Never)(calls[i:i+1])...)
			}
			return names
		}}, ""},
		"loss ignores": {aside(true), fsdp.Config{}, `the loss does not depend on some parameters: they get no gradient parameters="[aside.weight aside.bias]"`},
		"long list":    {kit.TinyGPT(9), fsdp.Config{Frozen: none}, ` and 97 more]"`},
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			log.SetOutput(&said)
			defer log.SetOutput(os.Stderr)
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				cfg := c.cfg
				cfg.Group = g
				require.NoError(t, kit.Wrap(t, c.model, cfg).Close())
			})
			if c.want == "" {
				require.Empty(t, said.String())
				return
			}
			require.Contains(t, said.String(), c.want)
			require.Equal(t, 1, strings.Count(said.String(), "\n"))
		})
	}
}

// TestIdleCores wraps a model on fewer ranks and threads than there are cores, and on as many: a logger is told
// of the former, once.
func TestIdleCores(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for _, c := range []struct {
		ranks, threads int
		want           string
	}{
		{1, 0, "computing=1 cores=4 ranks=1 threads=1"},
		{1, 3, "computing=3 cores=4 ranks=1 threads=3"},
		{3, 1, "computing=3 cores=4 ranks=3 threads=1"},
		{2, 2, ""},
		{4, 2, ""},
	} {
		said := make([]bytes.Buffer, c.ranks)
		kit.OnRanks(t, c.ranks, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Threads: c.threads, Logger: slog.New(slog.NewTextHandler(&said[g.Rank()], nil))})
			_, err := m.Freeze(ctx, func(string) bool { return false }, nil)
			require.NoError(t, errors.Join(err, m.Close()))
		})
		for rank := range said {
			text, times := said[rank].String(), 0
			if rank == 0 && c.want != "" {
				require.Contains(t, text, c.want)
				times = 1
			}
			require.Equal(t, times, strings.Count(text, "some cores compute nothing: more ranks (fsdprun -n) or Config.Threads use them"), text)
		}
	}
}

// TestInstructionSetsDiffer wraps on ranks that compute with different instruction sets: rank 0 names them,
// once for each Wrap. Ranks with one set say nothing, and exchange nothing more.
func TestInstructionSetsDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		sets    []string
		virtual int
		want    string
	}{
		"alike":         {[]string{"AVX2", "AVX2", "AVX2"}, 0, ""},
		"one of three":  {[]string{"AVX2", "AVX-512", "AVX2"}, 0, `sets="[AVX-512: rank 1 AVX2: ranks 0,2]"`},
		"bfloat16":      {[]string{"AVX-512", "AVX-512 with AMX"}, 0, `sets="[AVX-512: rank 0 AVX-512 with AMX: rank 1]"`},
		"virtual ranks": {[]string{"NEON", "plain Go on amd64"}, 4, `sets="[NEON: rank 0 plain Go on amd64: rank 1]"`},
	} {
		t.Run(name, func(t *testing.T) {
			defer fsdp.WithInstructionSet(c.sets...)()
			var said bytes.Buffer
			log.SetOutput(&said)
			defer log.SetOutput(os.Stderr)
			kit.OnRanks(t, len(c.sets), func(ctx context.Context, g comm.Group) {
				require.NoError(t, kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, VirtualRanks: c.virtual}).Close())
			})
			if c.want == "" {
				require.Empty(t, said.String())
				return
			}
			require.Contains(t, said.String(), "ranks compute with instruction sets that round differently")
			require.Contains(t, said.String(), c.want)
			require.Equal(t, 1, strings.Count(said.String(), "\n"))
		})
	}
}
