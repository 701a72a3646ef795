package faults_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/life.txt anew")

// lifeStates are what a model can be in that has made one step, and has an optimizer. Some can be
// left other than by Close, which over finds out after a call.
var lifeStates = []struct {
	name  string
	enter func(t *testing.T, ctx context.Context, l *kit.Lived)
	over  func(ctx context.Context, l *kit.Lived) bool
}{
	{"fresh", func(*testing.T, context.Context, *kit.Lived) {}, nil},
	{"forwarded", func(t *testing.T, ctx context.Context, l *kit.Lived) { l.RunForward(t, ctx) }, loses},
	{"held", func(t *testing.T, ctx context.Context, l *kit.Lived) {
		l.RunForward(t, ctx)
		l.Hold()
	}, steps},
	{"unreduced", func(t *testing.T, ctx context.Context, l *kit.Lived) {
		require.NoError(t, l.NoSync(func() error {
			l.RunForward(t, ctx)
			return l.Backward(ctx)
		}))
	}, steps},
	{"mixed", breakOff, evaluates},
	{"half", func(t *testing.T, ctx context.Context, l *kit.Lived) {
		breakOff(t, ctx, l)
		_, err := l.Load(ctx, l.Dir, nil, nil)
		require.NoError(t, err)
	}, steps},
	{"refused", func(t *testing.T, ctx context.Context, l *kit.Lived) {
		bad := &kit.Stubborn{Optimizer: l.Opt, Refuse: "l0.w"}
		require.ErrorContains(t, l.LoadOptimStateDict(ctx, 0, bad, l.State, nil), kit.ErrStubborn.Error())
	}, evaluates},
	{"former", func(t *testing.T, ctx context.Context, l *kit.Lived) {
		_, err := l.Freeze(ctx, nil, nil)
		require.NoError(t, err)
	}, steps},
	{"broken", func(t *testing.T, ctx context.Context, l *kit.Lived) {
		l.Group.Abort(errors.New("cable pulled"))
		_, err := l.Forward(ctx, kit.ShapeBatch(0)...)
		require.ErrorContains(t, err, "cable pulled")
	}, evaluates},
	{"closed", func(t *testing.T, _ context.Context, l *kit.Lived) { require.NoError(t, l.Close()) }, evaluates},
}

func loses(ctx context.Context, l *kit.Lived) bool { return l.Backward(ctx) != nil }

func steps(_ context.Context, l *kit.Lived) bool { return l.Opt.Step(0.1) == nil }

func evaluates(ctx context.Context, l *kit.Lived) bool {
	return kit.ErrorOf(l.Eval(ctx, kit.ShapeBatch(0)...)) == nil
}

// lifeReasons are the errors of these states, and their names in the table.
var lifeReasons = []struct{ name, text string }{
	{"none", "Backward has no pending Forward: none was called, its Backward has already run, or another pass, such as an Eval, has discarded it. Call Forward first; Hold keeps several passes"},
	{"held", "1 passes put aside by Hold are waiting for their Backward: call Backward or Discard of each first"},
	{"waits", "a Forward waits for its Backward, and parameters must not change in between: call Backward first, or Eval instead of Forward"},
	{"unreduced", "the gradients of 1 passes inside NoSync are not reduced: run a Backward outside, SyncGrads or ZeroGrad first"},
	{"mixed", "has failed in the middle and left parameters partly loaded: call Load or Import again"},
	{"half", "has failed in the middle: the optimizer is partly loaded: load it again, or make a new one of Sharded.Params"},
	{"refused", "a LoadOptimStateDict has failed in the middle and left optimizers partly loaded: call LoadOptimStateDict, Load or Import again"},
	{"former", "the optimizer was made before Freeze, which has changed the trained parameters: make a new one of Sharded.Params, and call its Adopt with the result of Freeze"},
	{"broken", "cable pulled"},
	{"closed", "the model is closed: call Close after the last use, or Wrap again"},
}

// breakOff has a Load break off when a part of the parameters has changed.
func breakOff(t *testing.T, ctx context.Context, l *kit.Lived) {
	_, err := l.Load(kit.OnFS(ctx, &kit.Unreadable{FS: checkpoint.OS(), Rank: 1}), l.Dir, l.Opt, nil)
	require.ErrorIs(t, err, kit.ErrDiskFull)
}

// TestLife calls every method in every state. What becomes of each call is in testdata/life.txt: ok
// or the reason, and whether that was the end of the state. A Forward after a Forward ends one and
// begins another.
func TestLife(t *testing.T) {
	for i := range reflect.TypeFor[*fsdp.Sharded]().NumMethod() {
		name := reflect.TypeFor[*fsdp.Sharded]().Method(i).Name
		listed := false
		for _, m := range kit.LifeMethods {
			method, _, _ := strings.Cut(m.Name, ",")
			listed = listed || method == name
		}
		require.True(t, listed, "%s is not in the table", name)
	}
	var got strings.Builder
	for _, r := range lifeReasons {
		fmt.Fprintf(&got, "%-9s  %s\n", r.name, r.text)
	}
	got.WriteString("\n")
	w := tabwriter.NewWriter(&got, 0, 0, 2, ' ', 0)
	for _, s := range lifeStates {
		fmt.Fprintf(w, "\t%s", s.name)
	}
	fmt.Fprintln(w)
	whole := newLived(t, t.TempDir())
	require.NoError(t, whole.Save(t.Context(), whole.Dir, whole.Opt, nil))
	require.NoError(t, whole.Export(t.Context(), filepath.Join(whole.Dir, "model"), &fsdp.ExportOptions{Optimizer: whole.Opt}))
	for _, m := range kit.LifeMethods {
		fmt.Fprint(w, m.Name)
		for _, s := range lifeStates {
			l := newLived(t, whole.Dir)
			s.enter(t, t.Context(), l)
			err := m.Call(t.Context(), l)
			fmt.Fprintf(w, "\t%s", reasonOf(err))
			if err == nil && s.over != nil && s.over(t.Context(), l) {
				fmt.Fprint(w, ", ends it")
			}
			require.NoError(t, l.Close())
		}
		fmt.Fprintln(w)
	}
	require.NoError(t, w.Flush())

	const file = "testdata/life.txt"
	if *rewrite {
		require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

// newLived returns a model that has made one step.
func newLived(t *testing.T, dir string) *kit.Lived {
	g := comm.Local(1)[0]
	l := &kit.Lived{Filler: kit.NewFiller(t, t.Context(), g), Group: g, Dir: dir}
	var err error
	l.Values, err = l.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	l.State, err = l.OptimStateDict(t.Context(), l.Opt, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	return l
}

// reasonOf returns the name of an error in the table, or all of it.
func reasonOf(err error) string {
	if err == nil {
		return "ok"
	}
	for _, r := range lifeReasons {
		if strings.Contains(err.Error(), r.text) {
			return r.name
		}
	}
	return err.Error()
}
