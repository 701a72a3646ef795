package state

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// TestMain is a rank where this program has started itself as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == RankCommand {
		if err := Serve(context.Background(), os.Stdout, os.Args[2]); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// TestState runs a round on the smallest model, whose results are all checked.
func TestState(t *testing.T) {
	var out strings.Builder
	dir := t.TempDir()
	o := stateOptions{models: []string{"0.1M"}, ranks: []int{3}, rounds: 1, dir: dir, tcp: runtime.GOOS != "linux"}
	require.NoError(t, states(t.Context(), &out, o))
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	names := []string{
		"0.1M: 2 blocks", "  AdamW state",
		"    rank 0: broadcast a tensor ", "    rank 0: broadcast a rank ", "    rank 0: OptimStateDict ", "    rank 0: the same, Into ",
		"    every rank: broadcast a tensor ", "    every rank: OptimStateDict ", "    every rank: the same, Into ",
		"    transport, into new memory ", "    transport, into warm memory ", "    parameters, gather ", "    copy, into new memory ", "    copy, into warm memory ",
		"  files of",
		"    plain write ", "    plain write, fsync ", "    Save ", "    SaveAsync, training waits ", "    SaveAsync, until on disk ",
		"    Export of parameters ", "    plain read ", "    Load on 3 ranks ", "    Load on 1 ", "    Import of parameters ",
		"  plain: each of 3",
	}
	require.Len(t, rows, len(names))
	for i, name := range names {
		require.True(t, strings.HasPrefix(rows[i], name), "%q is not of %q", rows[i], name)
		if strings.HasPrefix(name, "    ") {
			require.Regexp(t, `^ +\d+ +[\d.]+ \([\d.]+\.\.[\d.]+\) +\d+( +[\d.]+x)+ +- +(-|\d+ / \d+)$`, rows[i][len(name):])
		}
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// The "before" gives what the library gives.
func TestStateBroadcast(t *testing.T) {
	model, err := stateModelOf("0.1M")
	require.NoError(t, err)
	require.NoError(t, comm.Run(t.Context(), 3, func(ctx context.Context, g comm.Group) error {
		r := &stateRank{stateJob: stateJob{Rank: g.Rank(), Size: g.Size()}, model: model, group: g}
		var err error
		if r.held, err = r.hold(ctx, g); err != nil {
			return err
		}
		defer r.held.Close()
		got, err := r.broadcast(ctx)
		if err != nil {
			return err
		}
		parts, err := r.listParts(ctx)
		if err != nil {
			return err
		}
		for _, all := range []bool{false, true} {
			each, err := r.broadcastParts(ctx, parts, all)
			if err != nil {
				return err
			}
			require.Equal(t, all || g.Rank() == 0, each != nil)
			if each != nil {
				require.NoError(t, r.checkFull(each))
			}
		}
		want, err := r.held.OptimStateDict(ctx, r.held.opt, &fsdp.StateDictOptions{AllRanks: true})
		if err == nil && g.Rank() == 0 {
			want.Groups = nil // which no message has
			require.Equal(t, want, got)
			require.NoError(t, r.checkFull(got))
			got.Params["blocks.1.fc.weight"].Entries["exp_avg"].F32[7]++
			require.ErrorContains(t, r.checkFull(got), "element 7 of exp_avg:blocks.1.fc.weight")
			require.ErrorContains(t, r.checkFull(&optim.FullState{}), "0 numbers, want 199936")
		}
		return err
	}))
}

// What was not filled is noticed.
func TestStateCheck(t *testing.T) {
	r := &stateRank{model: stateModels[0]}
	h, err := r.hold(t.Context(), comm.Local(1)[0])
	require.NoError(t, err)
	defer h.Close()
	require.NoError(t, h.check())
	n := 0
	for part := range h.memory {
		n += len(part)
	}
	require.Equal(t, 12*r.model.params(), n)
	h.forget(false)
	require.ErrorContains(t, h.check(), "element 0 of blocks.0")
	require.NoError(t, h.fill())
	h.forget(true)
	for _, p := range h.params {
		fillState(p.Name, p.Offset, p.Value.(optim.Host).F32)
	}
	require.ErrorContains(t, h.check(), "element 0 of exp_avg")
}

func TestStateRefusesBadFlags(t *testing.T) {
	o := stateOptions{models: []string{"0.1M"}, ranks: []int{2}, rounds: 1, dir: t.TempDir()}
	refuse := func(want string, change func(*stateOptions)) {
		bad := o
		change(&bad)
		require.ErrorContains(t, states(t.Context(), new(strings.Builder), bad), want)
	}
	refuse("0 rounds", func(o *stateOptions) { o.rounds = 0 })
	refuse(`unknown model "7B"`, func(o *stateOptions) { o.models = []string{"7B"} })
	refuse("1 ranks: want 2 to 64", func(o *stateOptions) { o.ranks = []int{1} })
	refuse("0.1M on 2 ranks: ", func(o *stateOptions) { o.dir = filepath.Join(o.dir, "missing") })
	require.ErrorContains(t, Run(t.Context(), new(strings.Builder), []string{"-ranks", "2,x"}), `"2,x" is not a list of numbers`)
	require.ErrorContains(t, Serve(t.Context(), new(strings.Builder), `{"Model":"7B"}`), `unknown model "7B"`)
}
