package plan_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/optim"
)

// simple is a cluster whose times can be told by hand: 1 byte or FLOP takes a second, and a
// collective over two ranks as long as half its bytes.
func simple() *plan.Cluster {
	return &plan.Cluster{
		PerHost: 2, Device: plan.Device{Memory: 1, Peak: 1, PeakWide: 1, Bandwidth: 1, Multiprocessors: 1},
		Inside: plan.Link{Bandwidth: 1}, Between: plan.Link{Bandwidth: 1},
		Software: plan.Software{Product: 1, Attention: 1, SmallHead: 1, Memory: 1, Traffic: 1, Link: 1},
	}
}

// chain is a pass of n calls, each in a group of its own that takes gather seconds to gather and
// that is gathered ahead by one. A call takes seconds forward.
func chain(n, gather, seconds int) *plan.Pass {
	p := &plan.Pass{Units: []plan.Unit{{Forward: []plan.Work{{Class: plan.Other, Count: 1, Bytes: seconds}}}}}
	op := func(k plan.Kind, i int) {
		o := plan.Op{Kind: k, Group: i, Call: -1}
		if k == plan.Forward {
			o.Group, o.Call = -1, i
		}
		p.Ops = append(p.Ops, o)
	}
	op(plan.Gather, 0)
	for i := range n {
		p.Calls = append(p.Calls, plan.Call{Name: "c"})
		p.Groups = append(p.Groups, plan.Group{Name: "g", Shards: 2, Params: 2 * gather})
		if i+1 < n {
			op(plan.Gather, i+1)
		}
		op(plan.Wait, i)
		op(plan.Forward, i)
	}
	return p
}

// TestTime compares times with what they are by hand.
func TestTime(t *testing.T) {
	for _, c := range []struct {
		name            string
		gather, compute int
		overlap         float64
		total, exposed  float64
		communication   float64
	}{
		{"nothing to gather", 0, 5, 0, 15, 0, 0},
		{"computation hides it", 2, 5, 0, 17, 2, 6},
		{"it hides computation", 5, 2, 0, 17, 11, 15},
		{"beside it, computation is slower", 2, 5, 1, 19, 2, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := simple()
			cluster.Software.Overlap = c.overlap
			got := chain(3, c.gather, c.compute).Time(cluster, 1)
			require.InDelta(t, c.total, got.Total, 1e-9)
			require.InDelta(t, c.exposed, got.Exposed, 1e-9)
			require.InDelta(t, c.communication, got.Communication, 1e-9)
			require.InDelta(t, 3*c.compute, got.Compute, 1e-9)
		})
	}
	once, thrice := chain(3, 2, 5).Time(simple(), 1), chain(3, 2, 5).Time(simple(), 3)
	require.InDelta(t, 3*once.Total, thrice.Total, 1e-9)
	require.InDelta(t, 3*once.Exposed, thrice.Exposed, 1e-9)
}

// TestStreamsDoNotOverlapThemselves plays random passes: what one stream does follows each other,
// the whole takes at least as long as either, and no longer than both one after the other.
func TestStreamsDoNotOverlapThemselves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := chain(rapid.IntRange(1, 9).Draw(t, "calls"), rapid.IntRange(0, 20).Draw(t, "gather"), rapid.IntRange(1, 20).Draw(t, "compute"))
		line := p.Time(simple(), rapid.IntRange(1, 2).Draw(t, "passes"))
		var end [2]float64
		for _, e := range line.Events {
			require.GreaterOrEqual(t, e.Begin, end[e.Stream]-1e-9)
			require.GreaterOrEqual(t, e.End, e.Begin)
			end[e.Stream] = e.End
		}
		require.GreaterOrEqual(t, line.Total+1e-9, max(line.Compute, line.Communication))
		require.LessOrEqual(t, line.Total, line.Compute+line.Communication+1e-9)
		require.InDelta(t, line.Total, line.Compute+line.Exposed, 1e-9)
	})
}

// TestCostIsThePlans compares the work of a pass with what the plan says.
func TestCostIsThePlans(t *testing.T) {
	p := dry(t, 4, fsdp.WrapTypes(&nn.Block{}))
	require.Equal(t, p.FLOPs, p.Pass.Cost().FLOPs)
	require.Less(t, p.Pass.Cost().Product, p.FLOPs)
	require.Greater(t, 10*p.Pass.Cost().Product, 9*p.FLOPs, "nearly all of it")
	require.Equal(t, p.PassBytes+p.ShardBytes+p.StateBytes, p.Pass.Ops[p.Pass.Peak()].Live.Total())
	require.Len(t, p.Pass.Ops, len(p.Schedule))
	for i, op := range p.Pass.Ops {
		require.Equal(t, p.Schedule[i], p.Pass.Text(op))
	}
	require.Equal(t, 28, p.Pass.PerOwned, "AdamW reads and writes the value and two moments, and reads the gradient")
}

func dry(t require.TestingT, ranks int, wrap fsdp.Policy) *fsdp.Plan {
	shape := fsdp.Ints(4, 64)
	p, err := fsdp.Planner{Model: &nn.GPT{Vocab: 1000, Context: 64, Layers: 4, Dim: 256, Heads: 4},
		Config: fsdp.Config{Group: comm.World{Ranks: ranks}, WrapPolicy: wrap}, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{shape, shape}}.Plan()
	require.NoError(t, err)
	return p
}

// TestFits names what is live when memory is short, and what helps.
func TestFits(t *testing.T) {
	p := dry(t, 4, nil).Pass
	most := p.Ops[p.Peak()].Live.Total()
	require.NoError(t, p.Fits(most))
	var misfit *plan.Misfit
	require.ErrorAs(t, p.Fits(most-1), &misfit)
	require.Equal(t, misfit.Live.Total(), most)
	require.NotEmpty(t, misfit.Help)
	require.Empty(t, misfit.Changes)
	require.EqualError(t, &plan.Misfit{Limit: 8e9, Op: "backward head", Live: plan.Memory{Shard: 2e9, Gradient: 7e9}, Help: "wrap smaller units, or reduce in bfloat16"},
		`plan: 8.0 GB are too few for the memory in use at "backward head", 9.0 GB: whole gradients 7.0 GB, parameters and gradients of this rank 2.0 GB: wrap smaller units, or reduce in bfloat16`)
	require.EqualError(t, &plan.Misfit{
		Limit: 8e9, Op: "backward head", Live: plan.Memory{Gradient: 9e9},
		Units:   []plan.Holder{{Name: "head", Memory: plan.Memory{Gradient: 6e9}}, {Name: "root", Memory: plan.Memory{Gradient: 3e9}}},
		Changes: []plan.Change{{Name: "BF16()", Memory: 6e9, Saved: 3e9}, {Name: "no Keep", Memory: 85e8, Saved: 5e8}},
	}, `plan: 8.0 GB are too few for the memory in use at "backward head", 9.0 GB: whole gradients 9.0 GB; most for head 6.0 GB, root 3.0 GB. `+
		`Each of these alone helps: BF16() saves 3.0 GB, which is enough; no Keep saves 500.0 MB`)
}

// TestHolders adds up what groups and calls hold during every operation: it is what is live by
// class.
func TestHolders(t *testing.T) {
	for _, wrap := range []fsdp.Policy{nil, fsdp.WrapTypes(&nn.Block{}), fsdp.WrapEach()} {
		p := dry(t, 4, wrap).Pass
		for i, op := range p.Ops {
			var classes [7]int
			names := make(map[string]bool)
			for _, h := range p.Holders(i) {
				require.False(t, names[h.Name], "each once")
				names[h.Name] = true
				for c, n := range [...]int{h.Shard, h.State, h.Gathered, h.Gradient, h.Activation, h.Saved, h.Work} {
					classes[c] += n
				}
			}
			live := op.Live
			require.Equal(t, [...]int{live.Shard, live.State, live.Gathered, live.Gradient, live.Activation, live.Saved, live.Work}, classes, p.Text(op))
			if wrap != nil && op.Kind == plan.Backward && p.Calls[op.Call].Name == "blocks.1" {
				top := p.Holders(i)[0]
				require.Equal(t, "blocks.1", top.Name)
				require.Positive(t, min(top.Gathered, top.Gradient, top.Saved, top.Work, top.Shard, top.State), "all of a block that computes")
			}
		}
	}
}

// TestSamples compares the memory of a step in time with that of its operations.
func TestSamples(t *testing.T) {
	p := dry(t, 4, fsdp.WrapTypes(&nn.Block{})).Pass
	line := p.Time(plan.Clusters()["h100"], 3)
	list := p.Samples(line)
	require.Len(t, list, 2*len(p.Ops)+1, "two passes")
	most, before := 0, 0.0
	for i, s := range list {
		if i < 2*len(p.Ops) {
			require.Equal(t, p.Ops[i%len(p.Ops)].Live, s.Live)
		}
		require.GreaterOrEqual(t, s.At, before)
		most, before = max(most, s.Live.Total()), s.At
	}
	require.Equal(t, p.Ops[p.Peak()].Live.Total(), most)
	require.Equal(t, p.Ops[0].Live.State, list[len(list)-1].Live.State)
	require.Less(t, before, line.Total)
}

// TestPassByHand asks passes that no engine compiled: the least that can be said of one, and an
// empty one.
func TestPassByHand(t *testing.T) {
	for _, p := range []*plan.Pass{{}, {Ops: []plan.Op{{Kind: plan.Gather}, {Kind: plan.Wait}, {Kind: plan.Reduce}, {Kind: plan.Drain}}, Groups: []plan.Group{{Params: 8, Grads: 8}}}} {
		for _, c := range plan.Clusters() {
			line := p.Time(c, 1)
			require.GreaterOrEqual(t, line.Total, 0.0)
			p.Samples(line)
		}
		for i := range p.Ops {
			require.Equal(t, plan.Work{FLOPs: 8, Wide: true}, p.Groups[0].Work(p.Ops[i].Kind), "nothing comes from other ranks")
			require.NotEmpty(t, p.Text(p.Ops[i]))
		}
		require.Equal(t, len(p.Ops) == 0, len(p.Samples(p.Time(plan.Clusters()["h100"], 1))) == 0)
	}
}

// TestClusters reads the clusters that come with the package.
func TestClusters(t *testing.T) {
	for name, c := range plan.Clusters() {
		require.Equal(t, name, c.Name)
		require.NotEmpty(t, c.Sources)
	}
	require.Len(t, plan.Clusters(), 7)
	for want, file := range map[string]string{
		"unknown field":                 `{"Memory": 3}`,
		"unexpected text after its end": `{} {}`,
		`cluster "": Device.Memory`:     `{}`,
	} {
		_, err := plan.Parse([]byte(file))
		require.ErrorContains(t, err, want)
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range plan.Clusters() {
		text, err := json.Marshal(c)
		require.NoError(f, err)
		f.Add(text)
	}
	p := dry(f, 16, nil).Pass
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := plan.Parse(text); err == nil {
			require.GreaterOrEqual(t, p.Time(c, 2).Total, 0.0)
		}
	})
}

// TestAdviceOfTypes: the type in which parameters travel does not change the peak, and advice does not
// name it. Computing in bfloat16 halves gathered parameters. Reducing in bfloat16 halves whole
// gradients.
func TestAdviceOfTypes(t *testing.T) {
	live := func(p fsdp.Precision) plan.Memory {
		shape := fsdp.Ints(1, 64)
		r, err := fsdp.Planner{
			Model:  &nn.GPT{Vocab: 1000, Context: 64, Layers: 4, Dim: 256, Heads: 4},
			Config: fsdp.Config{Group: comm.World{Ranks: 8}, WrapPolicy: fsdp.WrapEach(), Precision: p}, Batch: []fsdp.Shape{shape, shape},
		}.Plan()
		require.NoError(t, err)
		var m *plan.Misfit
		require.ErrorAs(t, r.Pass.Fits(1), &m)
		require.NotContains(t, m.Help, "in 16 bits")
		return m.Live
	}
	want := live(fsdp.Precision{})
	require.Equal(t, want, live(fsdp.Precision{Gather: fsdp.BFloat16}))
	require.Equal(t, want, live(fsdp.Precision{Reduce: fsdp.Float16}))
	require.InEpsilon(t, want.Gradient/2, live(fsdp.Precision{Reduce: fsdp.BFloat16}).Gradient, 0.01, "but for norms")
	require.InEpsilon(t, want.Gathered/2, live(fsdp.BF16()).Gathered, 0.01, "but for padding")
}
