//go:build !race

package memory_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// residentVariable describes, in JSON, the job of a process that TestResident starts.
const residentVariable = "FSDP_TEST_RESIDENT"

// residentJob is a training on some ranks: goroutines, or processes of which this is one.
type residentJob struct {
	Strategy  fsdp.Strategy
	Ranks     int
	Recompute bool // checkpoint blocks
	Processes bool
	Transport comm.Transport // of processes
	Rank      int
	Dir       string // where they meet
}

// residentCount is what a rank has planned, and by how much its process has grown.
type residentCount struct{ Planned, Grown int }

// TestResident compares the memory by which processes grow with what Plan says, to a tenth. Goroutine
// ranks are one process. Pages that processes share count for each in equal parts, so what counts is
// the sum. Nothing is collected before it is measured. It is not for the race detector, which has a
// shadow of all memory.
func TestResident(t *testing.T) {
	kit.Needs(t, kit.Processor)
	for name, j := range map[string]residentJob{
		"1 rank":                 {Strategy: fsdp.FullShard, Ranks: 1},
		"checkpoints":            {Strategy: fsdp.FullShard, Ranks: 1, Recompute: true},
		"goroutines":             {Strategy: fsdp.ShardGradOp, Ranks: 2},
		"TCP":                    {Strategy: fsdp.FullShard, Ranks: 4, Processes: true, Transport: comm.TCP},
		"TCP, NoShard":           {Strategy: fsdp.NoShard, Ranks: 2, Processes: true, Transport: comm.TCP},
		"shared memory":          {Strategy: fsdp.FullShard, Ranks: 2, Processes: true, Transport: comm.SharedMemory},
		"shared memory, NoShard": {Strategy: fsdp.NoShard, Ranks: 2, Processes: true, Transport: comm.SharedMemory},
	} {
		t.Run(name, func(t *testing.T) {
			var sum residentCount
			for _, c := range j.run(t) {
				sum.Planned += c.Planned
				sum.Grown += c.Grown
			}
			require.InEpsilon(t, sum.Planned, sum.Grown, 0.1)
		})
	}
}

// run runs the job in processes and returns what their ranks say.
func (j residentJob) run(t *testing.T) (counts []residentCount) {
	ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
	defer cancel()
	n := 1
	if j.Processes {
		n, j.Dir = j.Ranks, t.TempDir()
	}
	outs, errs := make([]bytes.Buffer, n), make([]error, n)
	children := make([]*exec.Cmd, n)
	for r := range children {
		j.Rank = r
		text, err := json.Marshal(j)
		require.NoError(t, err)
		children[r] = exec.CommandContext(ctx, os.Args[0], "-test.run=^TestResidentJob$")
		children[r].Env = append(os.Environ(), "GOMAXPROCS=2", residentVariable+"="+string(text))
		children[r].Stdout, children[r].Stderr = &outs[r], &outs[r]
		require.NoError(t, children[r].Start())
	}
	for r, c := range children {
		errs[r] = c.Wait()
	}
	for r, out := range outs {
		require.NoError(t, errors.Join(errs...), out.String())
		for line := range strings.Lines(outs[r].String()) {
			var c residentCount
			if k, _ := fmt.Sscanf(line, "job: planned %d, grown %d", &c.Planned, &c.Grown); k == 2 {
				counts = append(counts, c)
			}
		}
	}
	require.Len(t, counts, j.Ranks)
	return counts
}

// TestResidentJob does nothing but in the processes that TestResident starts.
func TestResidentJob(t *testing.T) {
	kit.Needs(t, kit.Processor)
	text := os.Getenv(residentVariable)
	if text == "" {
		return
	}
	var j residentJob
	require.NoError(t, json.Unmarshal([]byte(text), &j))
	require.NoError(t, unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0)) // no pages but those that are touched
	before := residentBytes(t)
	grown := func(g comm.Group) int {
		if !j.Processes && g.Rank() > 0 {
			return 0 // the first says it for the process
		}
		return residentBytes(t) - before
	}
	if !j.Processes {
		kit.OnRanks(t, j.Ranks, func(ctx context.Context, g comm.Group) { j.train(t, ctx, g, grown) })
		return
	}
	g, err := comm.Connect(t.Context(), comm.Config{
		Rank: j.Rank, Size: j.Ranks, Rendezvous: "file://" + j.Dir, Job: "resident", Transport: j.Transport,
		Secret: []byte("nobody else knows this"),
	})
	require.NoError(t, err)
	j.train(t, t.Context(), g, grown)
	require.NoError(t, g.Close())
}

// train makes steps until all memory that they need is there, and prints what has been planned and
// by how much the process has grown.
func (j residentJob) train(t *testing.T, ctx context.Context, g comm.Group, grown func(comm.Group) int) {
	model := &nn.GPT{Vocab: 256, Context: 32, Layers: 8, Dim: 256, Heads: 4}
	cfg := fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Strategy: j.Strategy}
	if j.Recompute {
		cfg.Activations.Recompute = kit.Blocks
	}
	m := kit.Wrap(t, model, cfg)
	opt, err := optim.AdamW{}.New(m.Params())
	require.NoError(t, err)
	batch := []fsdp.Tensor{kit.Tokens(g.Rank(), 256, 4, 32), kit.Tokens(g.Rank()+2, 256, 4, 32)}
	plan, err := m.Plan(batch...)
	require.NoError(t, err)
	for range 3 {
		kit.ForwardBackward(t, ctx, m, batch)
		require.NoError(t, opt.Step(1e-4))
		m.ZeroGrad()
	}
	require.NoError(t, g.Barrier(ctx))
	fmt.Printf("job: planned %d, grown %d\n", plan.Resident(), grown(g))
	require.NoError(t, g.Barrier(ctx)) // nobody ends before all have looked
	require.NoError(t, m.Close())
}

// residentBytes returns the resident memory of this process without pages of files: its own, and its
// part of what it shares.
func residentBytes(t *testing.T) (n int) {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	require.NoError(t, err)
	for _, name := range []string{"Pss_Anon:", "Pss_Shmem:"} {
		_, line, found := strings.Cut(string(text), name)
		require.True(t, found, name)
		var kb int
		_, err := fmt.Sscan(line, &kb)
		require.NoError(t, err)
		n += kb << 10
	}
	return n
}
