package profile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/fsdp/profile"
	"github.com/gofsdp/gofsdp/internal/perfetto/perfettotest"
	"github.com/gofsdp/gofsdp/internal/text"
	"github.com/gofsdp/gofsdp/optim"
)

// parts is a model whose calls are each of one class: products, attention, and what moves bytes.
type parts struct{}

func (parts) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("wte", &nn.Embedding{Rows: 10, Dim: 256}, in[0])
	x = t.Call("attention", &nn.Attention{Dim: 256, Heads: 2, Causal: true}, x)
	x = t.Call("products", &nn.Linear{In: 256, Out: 4096, NoBias: true}, x)
	x = t.Call("bytes", &nn.LayerNorm{Dim: 4096}, x)
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: 4096, Classes: 10}, x, in[1])}, nil
}

// dry plans it.
func dry(t *testing.T) *plan.Pass {
	p, err := fsdp.Planner{Model: parts{},
		Config:       fsdp.Config{Group: comm.World{Ranks: 16}, WrapPolicy: fsdp.WrapEach()},
		NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{fsdp.Ints(4, 512), fsdp.Ints(4, 512)}}.Plan()
	require.NoError(t, err)
	return p.Pass
}

// replay has a profile count passes that run as they are played on a cluster.
func replay(t *testing.T, p *plan.Pass, c *plan.Cluster, to profile.Target) *profile.Profile {
	prof := profile.New()
	to.Group = comm.World{Ranks: 16}
	require.NoError(t, prof.Attach(to))
	line := p.Time(c, 1)
	for pass := range 4 {
		begin := at(0, 1e3*line.Total*float64(pass))
		for i, op := range p.Ops {
			kind, name, _ := strings.Cut(p.Text(op), " ")
			o := profile.Operation{Pass: pass + 1, Kind: kind, Name: name, Begin: begin, Live: op.Live.Total() - op.Live.Work}
			for _, e := range line.Events {
				if e.Op == i && e.Stream == plan.Computing {
					o.Took += time.Duration(1e9 * (e.End - e.Begin))
				}
			}
			begin = begin.Add(o.Took)
			prof.Record(o)
		}
	}
	return prof
}

// TestBeside has a cluster's file be wrong in one figure: what that makes slower than it is named.
func TestBeside(t *testing.T) {
	p := dry(t)
	for name, c := range map[string]struct {
		plant func(c *plan.Cluster)
		worst string
	}{
		"products":  {func(c *plan.Cluster) { c.Device.PeakWide /= 20 }, "backward products"},
		"attention": {func(c *plan.Cluster) { c.Software.Attention /= 20000 }, "backward attention"},
		"bytes":     {func(c *plan.Cluster) { c.Software.Traffic *= 1e5 }, "backward bytes"},
		"links":     {func(c *plan.Cluster) { c.Between.Latency = 1 }, "wait"},
	} {
		t.Run(name, func(t *testing.T) {
			truth, wrong := plan.Clusters()["h100"], plan.Clusters()["h100"]
			truth.Software.Launch, wrong.Software.Launch = 1e-9, 1e-9
			c.plant(wrong)
			prof := replay(t, p, truth, profile.Target{})
			same, err := prof.Beside(p, truth)
			require.NoError(t, err)
			require.InDelta(t, same.Pass.Predicted, same.Pass.Measured, 1e-6)
			require.InDelta(t, p.Time(truth, 1).Total-same.Optimizer, same.Pass.Measured, 1e-6)
			require.Equal(t, same.Memory.Predicted, same.Memory.Measured)
			require.Equal(t, 3, same.Passes)

			b, err := prof.Beside(p, wrong)
			require.NoError(t, err)
			require.Contains(t, b.Ops[0].Op, c.worst, b)
			require.Contains(t, b.String(), b.Ops[0].Op)
			require.Empty(t, text.Wider(b.String(), 74))
			require.Greater(t, b.Ops[0].Predicted, 2*b.Ops[0].Measured)
			require.Equal(t, b.Ops[0].Op, p.Text(p.Ops[b.Ops[0].Index]))
		})
	}
	_, err := profile.New().Beside(p, plan.Clusters()["h100"])
	require.ErrorContains(t, err, "no pass has been counted")
	other, err := fsdp.Planner{Model: &nn.GPT{Vocab: 10, Context: 8, Layers: 1, Dim: 16, Heads: 2},
		Config: fsdp.Config{}, Batch: []fsdp.Shape{fsdp.Ints(1, 8), fsdp.Ints(1, 8)}}.Plan()
	require.NoError(t, err)
	_, err = replay(t, p, plan.Clusters()["h100"], profile.Target{}).Beside(other.Pass, plan.Clusters()["h100"])
	require.ErrorContains(t, err, "has not run: the plan belongs to another model")
}

// TestWriteTrace reads what is written of a step, and of a pass that is added to a trace.
func TestWriteTrace(t *testing.T) {
	p, c := dry(t), plan.Clusters()["h100"]
	line := p.Time(c, 2)
	var b bytes.Buffer
	require.NoError(t, profile.WriteTrace(&b, p, line, "predicted", 7, time.Unix(5, 0)))
	path := filepath.Join(t.TempDir(), "trace")
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o666))
	rows := perfettotest.Read(t, path)
	require.Len(t, rows, 3)
	require.Len(t, rows[plan.Computing].Slices, len(line.Events)-len(rows[plan.Communicating].Slices))
	last := rows[plan.Computing].Slices[len(rows[plan.Computing].Slices)-1]
	require.Equal(t, "optimizer", last.Name)
	require.InDelta(t, 5+line.Total, float64(last.End)/1e9, 1e-6)

	added := filepath.Join(t.TempDir(), "added")
	prof := replay(t, p, c, profile.Target{Trace: added, Number: 8})
	got, err := prof.AddTrace(p, c)
	require.NoError(t, err)
	require.Equal(t, added, got)
	rows = perfettotest.Read(t, added)
	require.Equal(t, "rank 0, predicted for h100", rows[0].Process)
	require.Equal(t, at(0, 3e3*p.Time(c, 1).Total).UnixNano(), rows[plan.Communicating].Slices[0].Begin, "where the last pass begins")
	_, err = replay(t, p, c, profile.Target{}).AddTrace(p, c)
	require.ErrorContains(t, err, "no TraceDir in Config.Observers")
}
