package comm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/quorum"
	"github.com/gofsdp/gofsdp/internal/simnet"
	"github.com/gofsdp/gofsdp/internal/store"
)

// TestReconnectWitness loses one of two ranks, or cuts it off with or without the witness: the
// other one continues, or the rank that reaches the witness.
func TestReconnectWitness(t *testing.T) {
	const at = "10.0.1.0"
	for name, c := range map[string]struct {
		lose func(net *simnet.Net, h *simnet.Host)
		rank int // that is lost
		wins int // the other one if it is -1
	}{
		"rank 0 dies":                  {func(_ *simnet.Net, h *simnet.Host) { h.Kill() }, 0, 1},
		"rank 1 dies":                  {func(_ *simnet.Net, h *simnet.Host) { h.Kill() }, 1, 0},
		"rank 0 is cut off":            {func(_ *simnet.Net, h *simnet.Host) { h.Isolate(time.Hour) }, 0, 1},
		"rank 0 keeps the witness":     {func(n *simnet.Net, h *simnet.Host) { n.Part([]*simnet.Host{h, n.Host(at)}, time.Hour) }, 0, 0},
		"both ranks reach the witness": {func(n *simnet.Net, h *simnet.Host) { n.Part([]*simnet.Host{h}, time.Hour, n.Host(at)) }, 0, -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := simnet.New(simnet.Config{Seed: 1, Latency: time.Millisecond})
				address := at + ":29600"
				w, err := quorum.Serve(store.WithNetwork(t.Context(), net.Host(at)), address, store.Config{Secret: secret})
				require.NoError(t, err)
				errs := simulatedOn(t, net, 2, address, func(ctx context.Context, h *simnet.Host, g comm.Group) error {
					if g.Rank() == c.rank {
						c.lose(net, h)
					}
					if err := g.Barrier(ctx); err == nil {
						return errors.New("the barrier is complete")
					}
					next, err := comm.Reconnect(ctx, g)
					_ = g.Close() // it has failed
					if err != nil {
						return err
					}
					return errors.Join(next.Barrier(ctx), next.Close())
				})
				if c.wins >= 0 {
					require.NoError(t, errs[c.wins])
					require.Error(t, errs[1-c.wins])
				} else {
					require.NotEqual(t, errs[0] == nil, errs[1] == nil, "%v", errs)
					require.ErrorContains(t, errors.Join(errs...), "the others have continued without this rank")
				}
				require.NoError(t, w.Close())
			})
		})
	}
}

// TestWitnessDiffers gives ranks different witnesses, or one that is not there: all get the error.
func TestWitnessDiffers(t *testing.T) {
	_, errs := connect(t, 3, func(c *comm.Config) {
		if c.Rank == 1 {
			c.Witness = "host2:29600"
		}
	})
	for _, err := range errs {
		require.ErrorContains(t, err, `rank 1 has the witness "host2:29600", rank 0 has "": set FSDP_WITNESS`)
	}
	synctest.Test(t, func(t *testing.T) {
		errs = simulatedOn(t, simnet.New(simnet.Config{Seed: 1, Latency: time.Millisecond}), 2, "10.0.1.0:29600", nil)
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "rank 0 has not found the witness at 10.0.1.0:29600: start it with fsdprun -serve-witness")
	}
	require.ErrorContains(t, errs[0], "connection refused (timed out after half of 1m0s)")
	_, err := comm.Connect(t.Context(), comm.Config{Size: 1, Witness: "host2"})
	require.EqualError(t, err, `comm: Config.Witness is "host2", want host:port of at most 256 bytes`)
}

// TestWitnessOfJob: over TLS, a process that joins with another witness than the job's gets an
// error, and one with the job's takes part.
func TestWitnessOfJob(t *testing.T) {
	server, _, err := auth.TLS()
	require.NoError(t, err)
	w, err := quorum.Serve(t.Context(), "127.0.0.1:0", store.Config{Secret: secret, TLS: server})
	require.NoError(t, err)
	cfg := comm.Config{Size: 1, Rendezvous: "file://" + t.TempDir(), Job: t.Name(), Secret: secret, TLS: true, Witness: w.Addr().String(), JoinTimeout: time.Minute}
	g, err := comm.Connect(t.Context(), cfg)
	require.NoError(t, err)
	cfg.Join, cfg.Witness = true, "host2:29600"
	_, err = comm.Connect(t.Context(), cfg)
	require.ErrorContains(t, err, fmt.Sprintf(`the job has the witness %q, this process has "host2:29600"`, w.Addr()))
	require.NoError(t, errors.Join(g.Close(), w.Close()))
}
