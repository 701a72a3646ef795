package state_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// carriers are ways in which the state of an optimizer passes to another: each returns what gives
// it.
var carriers = map[string]func(t *testing.T, ctx context.Context, m *fsdp.Sharded, from optim.Optimizer, dir string) func(to optim.Optimizer, opts *fsdp.LoadOptions) error{
	"Load": func(t *testing.T, ctx context.Context, m *fsdp.Sharded, from optim.Optimizer, dir string) func(optim.Optimizer, *fsdp.LoadOptions) error {
		require.NoError(t, m.Save(ctx, dir, from, nil))
		return func(to optim.Optimizer, opts *fsdp.LoadOptions) error {
			_, err := m.Load(ctx, dir, to, opts)
			return err
		}
	},
	"Import": func(t *testing.T, ctx context.Context, m *fsdp.Sharded, from optim.Optimizer, dir string) func(optim.Optimizer, *fsdp.LoadOptions) error {
		path := filepath.Join(dir, "model.safetensors")
		require.NoError(t, m.Export(ctx, path, &fsdp.ExportOptions{Optimizer: from}))
		return func(to optim.Optimizer, opts *fsdp.LoadOptions) error {
			from := &fsdp.ImportOptions{Optimizer: to}
			if opts != nil {
				from.AllowMissing, from.AllowExtra, from.RestoreHyperparameters = opts.AllowMissing, opts.AllowExtra, opts.RestoreHyperparameters
			}
			return m.Import(ctx, path, from)
		}
	},
	"LoadOptimStateDict": func(t *testing.T, ctx context.Context, m *fsdp.Sharded, from optim.Optimizer, _ string) func(optim.Optimizer, *fsdp.LoadOptions) error {
		full, err := m.OptimStateDict(ctx, from, nil)
		require.NoError(t, err)
		return func(to optim.Optimizer, opts *fsdp.LoadOptions) error {
			return m.LoadOptimStateDict(ctx, 0, to, full, opts)
		}
	},
}

// TestSettings passes the state of an optimizer to one that was made otherwise.
func TestSettings(t *testing.T) {
	saved := optim.AdamW{WeightDecay: 0.1, Beta2: 0.95, Rules: []optim.Rule{optim.NoDecay()}}
	all := func(string) bool { return true }
	for name, c := range map[string]struct {
		to      func([]optim.Param) (optim.Optimizer, error)
		options *fsdp.LoadOptions
		said    string // by the logger
		kinds   []string
		err     string
		taken   bool // the settings are those of the state in the end
	}{
		"alike": {to: saved.New, taken: true},
		"other numbers": {to: optim.AdamW{WeightDecay: 0.01, Beta2: 0.95, Eps: 1e-6}.New,
			said: `: the optimizer keeps its own settings, which differ from the settings of the loaded state: set RestoreHyperparameters to load these too" ` +
				`"state -> optimizer"="[weight decay 0.1 -> 0.01 of a.w, b.w Eps 1e-08 -> 1e-06 of a.w, a.b, b.w weight decay 0 -> 0.01 of a.b]"`},
		"taken":         {to: optim.AdamW{WeightDecay: 0.01, Eps: 1e-6}.New, options: &fsdp.LoadOptions{RestoreHyperparameters: true}, taken: true},
		"another kind":  {to: optim.Adam{}.New, kinds: []string{"AdamW -> Adam of a.w, a.b, b.w"}, err: "does not fit the model: saved by another kind of optimizer: AdamW -> Adam of a.w, a.b, b.w: make an optimizer of the saved kind, or start without its state by AllowMissing and AllowExtra"},
		"not to be had": {to: optim.Adam{}.New, options: &fsdp.LoadOptions{RestoreHyperparameters: true}, kinds: []string{"AdamW -> Adam of a.w, a.b, b.w"}, err: "saved by another kind of optimizer"},
		"other entries": {to: optim.SGD{Momentum: 0.5}.New, kinds: []string{"AdamW -> SGD of a.w, a.b, b.w"},
			err: "does not fit the model: saved by another kind of optimizer: AdamW -> SGD of a.w, a.b, b.w: make an optimizer of the saved kind, or start without its state by AllowMissing and AllowExtra; missing momentum_buffer:a.w, momentum_buffer:a.b, momentum_buffer:b.w, see AllowMissing; extra exp_avg:"},
		"begins anew": {to: optim.SGD{Momentum: 0.5}.New, options: &fsdp.LoadOptions{AllowMissing: all, AllowExtra: all}},
		"somebody else's": {to: func(list []optim.Param) (optim.Optimizer, error) {
			opt, err := optim.Adam{}.New(list)
			return &kit.Stubborn{Optimizer: opt, Refuse: "none"}, err
		}},
		"somebody else's, taken": {to: func(list []optim.Param) (optim.Optimizer, error) {
			opt, err := saved.New(list)
			return &kit.Stubborn{Optimizer: opt, Refuse: "none"}, err
		}, options: &fsdp.LoadOptions{RestoreHyperparameters: true}, err: "option RestoreHyperparameters: "},
	} {
		for carrier, carry := range carriers {
			for _, logs := range []bool{false, true} {
				t.Run(name+"/"+carrier, func(t *testing.T) {
					var said, other bytes.Buffer
					log.SetOutput(&said)
					defer log.SetOutput(os.Stderr)
					dir := t.TempDir()
					kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
						cfg := fsdp.Config{Group: g}
						if logs {
							cfg.Logger = slog.New(slog.NewTextHandler(map[bool]io.Writer{true: &other, false: io.Discard}[g.Rank() == 0], &slog.HandlerOptions{Level: slog.LevelWarn}))
						}
						m := kit.Wrap(t, smallModel, cfg)
						from := kit.FiveUpdates(t, m.Params(), func(name string) string { return name }, saved.New)
						give := carry(t, ctx, m, from, dir)
						to, err := c.to(m.Params())
						require.NoError(t, err)
						before := optim.Groups(to)
						err = give(to, c.options)
						if c.err != "" {
							require.ErrorContains(t, err, c.err)
							require.Equal(t, before, optim.Groups(to))
							require.Zero(t, to.Steps())
							var unfit *fsdp.StateError
							require.Equal(t, c.kinds != nil, errors.As(err, &unfit))
							if unfit != nil {
								require.Equal(t, c.kinds, unfit.Kinds)
							}
							return
						}
						require.NoError(t, err)
						require.Equal(t, 5, to.Steps())
						if c.taken && c.options != nil {
							require.Equal(t, optim.Groups(from), optim.Groups(to), "the learning rate, too")
						} else {
							require.Equal(t, before, optim.Groups(to))
						}
					})
					lines := said.String()
					if logs {
						require.Empty(t, lines)
						lines = other.String()
					}
					if c.said == "" {
						require.Empty(t, lines)
						return
					}
					require.Equal(t, 1, strings.Count(lines, "\n"))
					require.Contains(t, strings.ReplaceAll(lines, `msg="`, ""), "fsdp: "+carrier)
					if logs {
						require.Contains(t, lines, c.said)
					} else {
						require.Contains(t, lines, strings.Replace(c.said, `"`, "", 1))
					}
				})
			}
		}
	}
}

// TestSettingsOfOlderState checks that states without settings are taken as before, in silence, and
// that nobody can ask for what is not there.
func TestSettingsOfOlderState(t *testing.T) {
	dir := t.TempDir()
	var said bytes.Buffer
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		from := kit.FiveUpdates(t, m.Params(), func(name string) string { return name }, optim.AdamW{}.New)
		require.NoError(t, m.Save(ctx, dir, from, nil))
		if g.Rank() == 0 {
			path, err := fsdp.LatestCheckpoint(dir)
			require.NoError(t, err)
			forgetSettings(t, path)
		}
		require.NoError(t, g.Barrier(ctx))
		to, err := optim.Adam{Eps: 1}.New(m.Params())
		require.NoError(t, err)
		_, err = m.Load(ctx, dir, to, &fsdp.LoadOptions{RestoreHyperparameters: true})
		require.ErrorContains(t, err, "option RestoreHyperparameters: the state does not contain its settings")
		require.Zero(t, to.Steps())
		_, err = m.Load(ctx, dir, to, nil)
		require.NoError(t, err)
		require.Equal(t, 5, to.Steps())

		full, err := m.OptimStateDict(ctx, from, nil)
		require.NoError(t, err)
		if full != nil {
			full.Groups = nil
		}
		require.NoError(t, m.LoadOptimStateDict(ctx, 0, to, full, nil))
	})
	require.Empty(t, said.String())
}

// forgetSettings makes a checkpoint what earlier versions have written.
func forgetSettings(t *testing.T, path string) {
	name := filepath.Join(path, checkpoint.ManifestName)
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	m, err := checkpoint.Decode(text)
	require.NoError(t, err)
	var groups []optim.Group
	require.NoError(t, json.Unmarshal(m.Meta["optimizer_groups"], &groups))
	require.Equal(t, []string{"a.w", "a.b", "b.w"}, groups[0].Params)
	delete(m.Meta, "optimizer_groups")
	text, err = m.Encode()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, text, 0o644))
}

// TestGroupsOfExperts checks the names where ranks have others of a parameter.
func TestGroupsOfExperts(t *testing.T) {
	const world = 4
	kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.StateModel, kit.StateLayouts(world)["experts of 2 ranks, order 1"](t, ctx, g))
		opt, err := kit.StateOptimizers["AdamW"](m.Params())
		require.NoError(t, err)
		full, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Rank: 1})
		require.NoError(t, err)
		if g.Rank() != 1 {
			return
		}
		of := make(map[string]optim.Settings)
		for _, group := range full.Groups {
			for _, name := range group.Params {
				of[name] = group.Settings
			}
		}
		require.Equal(t, slices.Sorted(maps.Keys(full.Params)), slices.Sorted(maps.Keys(of)))
		require.Equal(t, 0.25, of["experts.up@2"].LRScale)
		require.Equal(t, of["experts.up@0"], of["experts.up@2"])
		require.Zero(t, of["a.b"].WeightDecay)
		require.Equal(t, 0.1, of["a.w"].WeightDecay)
	})
}

// TestSettingsOfSeveral passes the state of several optimizers from many ranks, of which most have
// nothing of the small parameter, to few, and back.
func TestSettingsOfSeveral(t *testing.T) {
	build := func(list []optim.Param, decay, momentum float64) optim.Optimizer {
		var weights, biases []optim.Param
		for _, p := range list {
			if strings.HasSuffix(p.Name, ".b") {
				biases = append(biases, p)
			} else {
				weights = append(weights, p)
			}
		}
		adam, err := optim.AdamW{WeightDecay: decay}.New(weights)
		require.NoError(t, err)
		sgd, err := optim.SGD{Momentum: momentum}.New(biases)
		require.NoError(t, err)
		both, err := optim.Compose(adam, sgd)
		require.NoError(t, err)
		return both
	}
	dir := t.TempDir()
	var want []optim.Group
	for _, n := range []int{16, 2, 16} {
		kit.OnRanks(t, n, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
			opt := build(m.Params(), 0.25, 0.5)
			if want != nil {
				opt = build(m.Params(), 0, 0.75)
				_, err := m.Load(ctx, dir, opt, &fsdp.LoadOptions{RestoreHyperparameters: true})
				require.NoError(t, err)
			}
			require.NoError(t, opt.Step(0.01))
			require.NoError(t, m.Save(ctx, dir, opt, nil))
			if want != nil {
				require.Equal(t, want, optim.Groups(opt))
			}
			require.NoError(t, m.Close()) // it holds the lock of the directory
		})
		if want == nil {
			want = []optim.Group{
				{Settings: optim.Settings{Kind: "SGD", LR: 0.01, LRScale: 1, Momentum: 0.5}, Params: []string{"a.b"}},
				{Settings: optim.Settings{Kind: "AdamW", LR: 0.01, LRScale: 1, WeightDecay: 0.25, Betas: [2]float64{0.9, 0.999}, Eps: 1e-8}, Params: []string{"a.w", "b.w"}},
			}
		}
	}
}

// TestSettingsOfNoOptimizer asks for the settings of a state without an optimizer that takes them.
func TestSettingsOfNoOptimizer(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "model.safetensors")
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, m.Save(ctx, dir, opt, nil))
		require.NoError(t, m.Export(ctx, file, &fsdp.ExportOptions{Optimizer: opt}))
		const want = "option RestoreHyperparameters needs an optimizer: "
		_, err = m.Load(ctx, dir, nil, &fsdp.LoadOptions{RestoreHyperparameters: true})
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, m.Import(ctx, file, &fsdp.ImportOptions{RestoreHyperparameters: true}), want)
		require.NoError(t, m.Import(ctx, file, &fsdp.ImportOptions{Optimizer: opt, RestoreHyperparameters: true}), "the model can still be used")
	})
}
