package optim_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/optim"
)

// grouped returns an optimizer over "a" [4], in two pieces, and "b" [4], with gradients.
func grouped(t *testing.T, c config) (optim.Optimizer, []optim.Param) {
	piece := func(name string, offset, n int) optim.Param {
		return optim.Param{Name: name, Shape: []int{4}, Offset: offset, Value: optim.Host{F32: make([]float32, n)}, Grad: optim.Host{F32: make([]float32, n)}}
	}
	list := []optim.Param{piece("a", 0, 1), piece("a", 1, 3), piece("b", 0, 4)}
	for _, p := range list {
		for i := range p.Grad.Len() {
			p.Value.(optim.Host).F32[i], p.Grad.(optim.Host).F32[i] = float32(i+1), float32(i-1)
		}
	}
	return newOptimizer(t, c, list), list
}

func TestGroups(t *testing.T) {
	rules := []optim.Rule{{Match: func(p optim.Param) bool { return p.Name == "b" }, WeightDecay: new(0.0), LRScale: new(0.5)}}
	opt, _ := grouped(t, optim.AdamW{Beta1: optim.Zero, WeightDecay: 0.1, Rules: rules})
	adamw := optim.Settings{Kind: "AdamW", LRScale: 1, WeightDecay: 0.1, Betas: [2]float64{0, 0.999}, Eps: 1e-8}
	other := adamw
	other.LRScale, other.WeightDecay = 0.5, 0
	require.Equal(t, []optim.Group{{Settings: adamw, Params: []string{"a"}}, {Settings: other, Params: []string{"b"}}}, optim.Groups(opt))
	require.NoError(t, opt.Step(0.25))
	require.Error(t, opt.Step(-1))
	require.Equal(t, 0.25, optim.Groups(opt)[1].LR)

	sgd, _ := grouped(t, optim.SGD{Momentum: 0.9, Nesterov: true})
	require.Equal(t, []optim.Group{{Settings: optim.Settings{Kind: "SGD", LRScale: 1, Momentum: 0.9, Nesterov: true}, Params: []string{"a", "b"}}}, optim.Groups(sgd))
	text, err := json.Marshal(optim.Groups(sgd)[0])
	require.NoError(t, err)
	require.Equal(t, `{"kind":"SGD","lr":0,"lr_scale":1,"weight_decay":0,"momentum":0.9,"nesterov":true,"params":["a","b"]}`, string(text))
	var back optim.Group
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, optim.Groups(sgd)[0], back)
	require.Nil(t, optim.Groups(foreign{sgd}))
}

// TestRegroup gives an optimizer the settings of another, and compares what both do from there on.
func TestRegroup(t *testing.T) {
	half := []optim.Rule{{Match: func(p optim.Param) bool { return p.Name == "b" }, WeightDecay: new(0.0), LRScale: new(0.5)}}
	for name, c := range map[string][2]config{
		"AdamW": {optim.AdamW{Beta1: 0.5, Beta2: 0.75, Eps: 1e-3, WeightDecay: 0.1, Rules: half}, optim.AdamW{}},
		"Adam":  {optim.Adam{WeightDecay: 0.1, Rules: half}, optim.Adam{Beta1: 0.7, WeightDecay: 0.3}},
		"SGD":   {optim.SGD{Momentum: 0.5, Nesterov: true, WeightDecay: 0.1}, optim.SGD{Momentum: 0.9, Rules: half}},
	} {
		t.Run(name, func(t *testing.T) {
			saved, want := grouped(t, c[0])
			opt, got := grouped(t, c[1])
			for range 2 {
				require.NoError(t, saved.Step(0.25))
				require.NoError(t, opt.Step(0.5))
			}
			apply, err := optim.Regroup(opt, optim.Groups(saved))
			require.NoError(t, err)
			require.NotEqual(t, optim.Groups(saved), optim.Groups(opt), "only the function changes anything")
			apply()
			require.Equal(t, optim.Groups(saved), optim.Groups(opt))
			require.NoError(t, opt.Restore(saved.Steps(), saved.State()))
			for i, p := range got {
				require.NoError(t, p.Value.Write(want[i].Value.(optim.Host)))
			}
			for range 2 {
				require.NoError(t, saved.Step(0.125))
				require.NoError(t, opt.Step(0.125))
			}
			require.Equal(t, values(want), values(got))
			require.Equal(t, saved.State(), opt.State())
		})
	}
}

func values(list []optim.Param) (all []optim.Vec) {
	for _, p := range list {
		all = append(all, p.Value)
	}
	return all
}

func TestRegroupRefuses(t *testing.T) {
	adamw, _ := grouped(t, optim.AdamW{})
	plain, _ := grouped(t, optim.SGD{})
	momentum, _ := grouped(t, optim.SGD{Momentum: 0.5})
	group := func(opt optim.Optimizer, change func(*optim.Settings), params ...string) optim.Group {
		g := optim.Group{Settings: optim.Groups(opt)[0].Settings, Params: params}
		change(&g.Settings)
		return g
	}
	same := func(*optim.Settings) {}
	for want, c := range map[string]struct {
		opt    optim.Optimizer
		groups []optim.Group
	}{
		`optim: regroup: adamw: parameter "b": its settings are for SGD`:                                                          {adamw, []optim.Group{group(adamw, same, "a"), group(plain, same, "b")}},
		`optim: regroup: group 0: Beta2 is 1: must be in [0, 1)`:                                                                  {adamw, []optim.Group{group(adamw, func(s *optim.Settings) { s.Betas[1] = 1 }, "a")}},
		`optim: regroup: sgd: parameter "a": Momentum cannot change from 0 to 0.5: only an optimizer with Momentum has its state`: {plain, []optim.Group{group(momentum, same, "a")}},
		`optim: regroup: sgd: parameter "a": Momentum cannot change from 0.5 to 0: only an optimizer with Momentum has its state`: {momentum, []optim.Group{group(plain, same, "a")}},
		`optim: regroup: LR is 0 in one group and 0.5 in another`:                                                                 {adamw, []optim.Group{group(adamw, same, "a"), group(adamw, func(s *optim.Settings) { s.LR = 0.5 }, "b")}},
		`one optimizer cannot have [Beta1 0.9 Beta2 0.999 Eps 1e-08] for parameter "a" and [Beta1 0`:                              {adamw, []optim.Group{group(adamw, same, "a"), group(adamw, func(s *optim.Settings) { s.Betas[0] = 0 }, "b")}},
		`is not of this package`: {foreign{adamw}, nil},
	} {
		before := optim.Groups(c.opt)
		_, err := optim.Regroup(c.opt, c.groups)
		require.ErrorContains(t, err, want)
		require.Equal(t, before, optim.Groups(c.opt))
	}
}

// foreign is an optimizer of somebody else's.
type foreign struct{ optim.Optimizer }
