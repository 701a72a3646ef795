package observe_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/perfetto/perfettotest"
)

// TestTraceDir compares the files of ranks with the events of a TraceFunc. Rank 1 runs out of batches.
func TestTraceDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "traces")
	const ranks, steps = 3, 3
	events := make([][]fsdp.Event, ranks)
	kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
		cfg := fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Observers: []fsdp.Observer{fsdp.TraceDir(dir)}, Strategy: fsdp.FullShard}
		cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) { events[g.Rank()] = append(events[g.Rank()], e) }))
		m := kit.Wrap(t, kit.TinyGPT(2), cfg)
		var batches [][]fsdp.Tensor
		for step := range steps {
			if g.Rank() != 1 || step == 0 {
				batches = append(batches, kit.TinyBatch(step, g.Rank(), 2, 4))
			}
		}
		for batch, err := range m.Join(ctx, fsdp.Batches(batches...)) {
			require.NoError(t, err)
			_, err = m.Forward(ctx, batch...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx))
		}
		require.NoError(t, m.Close())
	})
	for r := range ranks {
		files, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("rank-%d.*pftrace", r)))
		require.NoError(t, err)
		require.Len(t, files, 1)
		compareTrace(t, r, perfettotest.Read(t, files[0]), events[r])
	}
}

// compareTrace requires the rows of a rank to have the events, and the collectives behind them.
func compareTrace(t *testing.T, rank int, rows []*perfettotest.Row, events []fsdp.Event) {
	var calls, waits []string
	var live []int
	for _, e := range events {
		name := strings.TrimSpace(e.Kind + " " + e.Group + e.Call)
		if e.Absent {
			name += " (no batch)"
		}
		if e.Kind == "wait" || e.Kind == "sync" || e.Kind == "drain" {
			waits = append(waits, name)
		} else {
			calls = append(calls, name)
		}
		live = append(live, e.Live)
	}
	flights := make(map[string]int)
	for _, row := range rows {
		require.Regexp(t, fmt.Sprintf("^rank %d(, model [0-9]+)?$", rank), row.Process)
		switch {
		case row.Name == "passes":
			require.Equal(t, []string{"forward 1", "backward 1", "forward 2", "backward 2", "forward 3", "backward 3"}, names(row))
		case row.Name == "calls":
			require.Equal(t, calls, names(row))
		case row.Name == "waits":
			require.Equal(t, waits, names(row))
		case row.Name == "memory":
			require.Len(t, row.Counts, len(live))
			for i, c := range row.Counts {
				require.Equal(t, live[i], c.N)
			}
		default:
			group, ok := strings.CutPrefix(row.Name, "in flight: ")
			require.True(t, ok, row.Name)
			if group != "world" {
				require.False(t, kit.GroupsCarryPasses)
				require.Equal(t, "NCCL shards", group)
			}
			end := int64(0)
			for _, s := range row.Slices {
				require.LessOrEqual(t, s.Begin, s.End)
				if s.Depth > 0 {
					require.Equal(t, "moving", s.Name)
					require.Equal(t, end, s.End, "the collective around it ends with it")
					continue
				}
				require.GreaterOrEqual(t, s.Begin, end, "collectives of one row overlap")
				end = s.End
				kind, _, _ := strings.Cut(s.Name, " ")
				flights[kind]++
				require.Equal(t, group, s.Args["group"])
			}
		}
	}
	gathers, reduces := 0, 0
	for _, e := range events {
		if e.Kind == "gather" {
			gathers++
		} else if e.Kind == "reduce" {
			reduces++
		}
	}
	require.Positive(t, gathers)
	require.Positive(t, reduces)
	require.Equal(t, reduces, flights["reduce-scatter"])
	require.Equal(t, gathers, flights["all-gather"])
	require.GreaterOrEqual(t, flights["all-reduce"], 3, "the words that ranks exchange before a pass")
}

func names(row *perfettotest.Row) (list []string) {
	for _, s := range row.Slices {
		list = append(list, s.Name)
	}
	return list
}

// TestTraceDirByVariable has FSDP_TRACE name the directory. A second model has files of its own.
func TestTraceDirByVariable(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("FSDP_TRACE", dir)
	first := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{})
	second := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{})
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	files, err := filepath.Glob(filepath.Join(dir, "*.pftrace"))
	require.NoError(t, err)
	require.Len(t, files, 2)
}

// TestTraceDirRefused has directories that not all ranks have, or that cannot be made.
func TestTraceDirRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	errs := make([]error, 4)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		dir := ""
		if g.Rank() == 0 {
			dir = t.TempDir()
		}
		_, errs[g.Rank()] = fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: g, Observers: []fsdp.Observer{fsdp.TraceDir(dir)}})
	})
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		dir := file
		if g.Rank() == 0 {
			dir = t.TempDir()
		}
		_, errs[2+g.Rank()] = fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: g, Observers: []fsdp.Observer{fsdp.TraceDir(dir)}})
	})
	require.ErrorContains(t, errs[0], "TraceDir is set: true")
	require.ErrorContains(t, errs[1], "TraceDir is set: true")
	require.ErrorContains(t, errs[2], "TraceDir of Config.Observers: rank 1: ")
	require.ErrorContains(t, errs[3], "file")
}

// TestTraceDirOfTwo has two models on one group, the first of which is closed: the other one's
// collectives are still in its trace. A group tells of those of both, but NCCL's communicators are a
// model's own.
func TestTraceDirOfTwo(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		cfg := fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Observers: []fsdp.Observer{fsdp.TraceDir(filepath.Join(dir, "first"))}, Strategy: fsdp.FullShard}
		first := kit.Wrap(t, kit.TinyGPT(2), cfg)
		cfg.Observers = []fsdp.Observer{fsdp.TraceDir(filepath.Join(dir, "second"))}
		second := kit.Wrap(t, kit.TinyGPT(2), cfg)
		step := func(m *fsdp.Sharded) {
			_, err := m.Forward(ctx, kit.TinyBatch(0, g.Rank(), 2, 4)...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx))
		}
		step(first)
		require.NoError(t, first.Close())
		step(second)
		require.NoError(t, second.Close())
	})
	reduces := make(map[string]int)
	for _, which := range []string{"first", "second"} {
		files, err := filepath.Glob(filepath.Join(dir, which, "rank-1*"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		for _, row := range perfettotest.Read(t, files[0]) {
			for _, s := range row.Slices {
				if strings.HasPrefix(s.Name, "reduce-scatter") {
					reduces[which]++
				}
			}
		}
	}
	require.Positive(t, reduces["first"])
	want := reduces["first"]
	if kit.GroupsCarryPasses {
		want *= 2
	}
	require.Equal(t, want, reduces["second"])
}
