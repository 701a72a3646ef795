package observe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/profile"
	"github.com/gofsdp/gofsdp/optim"
)

// requirePrinted checks the text of v, by fmt and in logs.
func requirePrinted(t *testing.T, want string, v any) {
	t.Helper()
	for _, format := range []string{"%v", "%+v", "%s"} {
		require.Equal(t, want, fmt.Sprintf(format, v), format)
	}
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("m", "v", v)
	require.Contains(t, b.String(), fmt.Sprintf("msg=m v=%q\n", want))
}

// requireLogged checks the text of v in a log of JSON.
func requireLogged(t *testing.T, want string, v any) {
	t.Helper()
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, nil)).Info("m", "v", v)
	require.Contains(t, b.String(), fmt.Sprintf(`"msg":"m","v":%s}`, want))
}

// TestConfigAsText prints what is set, and neither functions nor what a group consists of.
func TestConfigAsText(t *testing.T) {
	require.Equal(t, "Config{}", fsdp.Config{}.String())
	names := func(string) bool { return true }
	cfg := fsdp.Config{
		Group: struct {
			comm.Group
			secret string
		}{comm.Local(4)[1], "12345"},
		Device:   new(gpu.Device),
		Strategy: fsdp.HybridShard, Unit: fsdp.KeepBelow(9), ShardRanks: 2,
		WrapPolicy:  fsdp.WrapAny(fsdp.WrapEach(), fsdp.WrapNames(regexp.MustCompile("."))),
		Precision:   fsdp.Precision{Gather: fsdp.BFloat16, Full: func(fsdp.CallInfo, fsdp.Param) bool { return true }},
		GradAverage: fsdp.ByWeights, VirtualRanks: 8, Prefetch: fsdp.NoPrefetch, InFlight: 1 << 20, Threads: 2, Frozen: names, Ignored: names,
		Activations: fsdp.Activations{Recompute: fsdp.WrapEach(), Save: fsdp.WrapEach(), Offload: fsdp.WrapEach()}, Offload: fsdp.Offload{Dir: "/scratch/a b", Pinned: true},
		Seed: 7, Poison: true, Observers: []fsdp.Observer{fsdp.TraceFunc(func(fsdp.Event) {}), fsdp.TraceDir("traces"), fsdp.HashDir("hashes"), fsdp.Profile(profile.New())}, Logger: slog.Default(),
	}
	want := "Config{Group: rank 1 of 4, Device: set, Strategy: HybridShard, ShardRanks: 2, Unit: set, WrapPolicy: set, " +
		"Precision: {Gather: bfloat16, Full: set}, GradAverage: ByWeights, VirtualRanks: 8, Prefetch: -1, InFlight: 1048576, Threads: 2, Frozen: set, Ignored: set, " +
		"Activations: {Recompute: set, Save: set, Offload: set}, Offload: {Dir: /scratch/a b, Pinned: true}, Seed: 7, Poison: true, Observers: set, Logger: set}"
	for i := range reflect.TypeFor[fsdp.Config]().NumField() {
		if f := reflect.TypeFor[fsdp.Config]().Field(i); f.IsExported() {
			require.Contains(t, want, f.Name+": ")
		}
	}
	requirePrinted(t, want, cfg)
	requirePrinted(t, want, &cfg)
	requireLogged(t, `"`+want+`"`, cfg)
	require.Equal(t, "{Gather: bfloat16, Full: set}", fmt.Sprint(cfg.Precision))
}

// TestEventAsText prints events with everything that they may have.
func TestEventAsText(t *testing.T) {
	e := fsdp.Event{Rank: 1, Pass: 12, Kind: "gather", Group: "blocks.0 (frozen)", Begin: time.Unix(1, 0), Duration: 1204 * time.Microsecond, Live: 3_149_000}
	want := "rank 1, pass 12: gather blocks.0 (frozen), 1.204ms, 3.1 MB live"
	requirePrinted(t, want, e)
	requirePrinted(t, want, &e)
	e = fsdp.Event{Pass: 3, Kind: "forward", Call: "cell#2", Absent: true}
	requirePrinted(t, "rank 0, pass 3: forward cell#2 without a batch, 0s, 0.0 kB live", e)
	requirePrinted(t, "rank 0, pass 3: turn, 1s, 0.0 kB live", fsdp.Event{Pass: 3, Kind: "turn", Duration: time.Second})
}

// TestShardedAsText prints a model in all states of its life, and with an optimizer.
func TestShardedAsText(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(30), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
		_, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, 3))
		what := fmt.Sprintf("rank %d of 2: parameters 26432, units 31, ", g.Rank())
		want := what + "112.6 kB of parameters and gradients here"
		requirePrinted(t, want, m)
		requireLogged(t, `"`+want+`"`, m)
		g.Abort(errors.New("the host is on fire\nand more"))
		_, err = m.Forward(ctx, kit.TinyBatch(0, g.Rank(), 2, 3)...)
		require.Error(t, err)
		require.Regexp(t, "^"+what+"broken: .*the host is on fire$", m.String())
		require.NoError(t, m.Close())
		requirePrinted(t, what+"closed", m)
	})
	require.Equal(t, "<nil>", fmt.Sprint((*fsdp.Sharded)(nil)))
	requireLogged(t, `"<nil>"`, (*fsdp.Sharded)(nil))
}
