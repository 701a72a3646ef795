package comm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/internal/launch"
)

var secret = []byte("known to all ranks and nobody else")

// connect connects n ranks that live in this process, each with its own
// configuration, and returns their handles and errors by rank.
func connect(t testing.TB, n int, change func(*comm.Config)) ([]comm.Group, []error) {
	addr := "tcp://" + grouptest.FreeAddr(t)
	gs, errs := make([]comm.Group, n), make([]error, n)
	var ranks sync.WaitGroup
	for r := range n {
		cfg := comm.Config{
			Rank: r, Size: n, Rendezvous: addr, Job: t.Name(), Secret: secret, JoinTimeout: time.Minute,
		}
		change(&cfg)
		ranks.Go(func() { gs[r], errs[r] = comm.Connect(t.Context(), cfg) })
	}
	ranks.Wait()
	return gs, errs
}

// TestConnectContract checks groups made by Connect over every transport. All but
// the first group of a size are split from it: what happens to one must not
// matter to the others.
func TestConnectContract(t *testing.T) {
	for name, c := range map[string]struct {
		sizes  []int
		change func(*comm.Config)
	}{
		"shared memory": {[]int{1, 2, 5}, func(c *comm.Config) { c.Transport = comm.SharedMemory }},
		"tcp":           {[]int{1, 3}, func(c *comm.Config) { c.Transport = comm.TCP }},
		"hosts of 2":    {[]int{3, 6}, func(c *comm.Config) { c.Host = fmt.Sprint("host", c.Rank/2) }},
		"hosts of 4":    {[]int{5}, func(c *comm.Config) { c.Host = fmt.Sprint("host", c.Rank/4) }},
	} {
		sizes, change := c.sizes, c.change
		t.Run(name, func(t *testing.T) {
			var world []comm.Group
			done := func() {
				for _, err := range grouptest.PerRank(world, func(g comm.Group) error { return g.Close() }) {
					require.NoError(t, err)
				}
			}
			commtest.Contract{Sizes: sizes}.Test(t, func(tb testing.TB, n int) []comm.Group {
				if len(world) != n {
					done()
					var errs []error
					world, errs = connect(t, n, change)
					require.NoError(tb, errors.Join(errs...))
				}
				fresh := make([]comm.Group, n)
				for _, err := range grouptest.PerRank(world, func(g comm.Group) (err error) {
					fresh[g.Rank()], err = g.Split(tb.Context(), 0, g.Rank())
					return err
				}) {
					require.NoError(tb, err)
				}
				return fresh
			}, done)
		})
	}
}

// TestSameBitsEverywhere checks that a reduction has the same bits in a process,
// in shared memory, over TCP and over hosts of every size.
func TestSameBitsEverywhere(t *testing.T) {
	sum := func(gs []comm.Group) [][]byte {
		out := make([][]byte, len(gs))
		for _, err := range grouptest.PerRank(gs, func(g comm.Group) error {
			var all []byte
			sizes := []int{1, 5, 1000, 70001, 200003} // below and above a block, and a stretch, of TCP
			if g.Size() == 2 {
				sizes = append(sizes, 8<<20+1) // a whole tensor of 64 MiB and a little
			}
			for _, n := range sizes {
				x := make([]float32, n*g.Size())
				for i := range x {
					x[i] = 1 / float32(1+(i*7919+g.Rank()*104729)%100003)
				}
				shard := make([]float32, n)
				w := g.ReduceScatter(comm.Of(shard), comm.Of(x), comm.Avg)
				if err := w.Wait(context.Background()); err != nil {
					return err
				}
				if err := g.AllReduce(comm.Of(x), comm.Sum).Wait(context.Background()); err != nil {
					return err
				}
				all = append(append(all, comm.Of(shard).Bytes()...), comm.Of(x).Bytes()...)
			}
			out[g.Rank()] = all
			return g.Close()
		}) {
			require.NoError(t, err)
		}
		return out
	}
	for _, n := range []int{2, 3, 4, 6} {
		want := sum(comm.Local(n))
		for name, change := range map[string]func(*comm.Config){
			"shared memory": func(c *comm.Config) { c.Transport = comm.SharedMemory },
			"tcp":           func(c *comm.Config) { c.Transport = comm.TCP },
			"tls":           func(c *comm.Config) { c.Transport, c.TLS = comm.TCP, true },
			"hosts of 2":    func(c *comm.Config) { c.Host = fmt.Sprint("host", c.Rank/2) },
			"hosts of 3":    func(c *comm.Config) { c.Host = fmt.Sprint("host", c.Rank/3) },
		} {
			gs, errs := connect(t, n, change)
			require.NoError(t, errors.Join(errs...), name)
			for r, got := range sum(gs) {
				require.Equalf(t, want[r], got, "%s, rank %d of %d", name, r, n) // all at once
			}
		}
	}
}

// TestConnectFails checks ranks that cannot come together: each learns why, soon.
func TestConnectFails(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*comm.Config)
		want   []string // in the errors, by rank
	}{
		"another secret": {func(c *comm.Config) {
			if c.Rank == 1 {
				c.Secret = []byte("something else altogether")
			}
			c.JoinTimeout = 3 * time.Second
		}, []string{"have not joined", "secret"}},
		"another world size": {func(c *comm.Config) { c.Size += c.Rank }, []string{"size", "size"}},
		"the same rank twice": {func(c *comm.Config) {
			c.Rank = 0
			c.JoinTimeout = 3 * time.Second
		}, []string{"", ""}},
		"a rank that cannot make the group": {func(c *comm.Config) {
			c.Host = fmt.Sprint("host", c.Rank)
			if c.Rank == 1 {
				c.Transport = comm.SharedMemory
			}
		}, []string{"rank 1 of group \"world\": group \"world\" spans several hosts", "spans several hosts"}},
		"a rank that never comes": {func(c *comm.Config) {
			c.Size = 3
			c.JoinTimeout = 6 * time.Second // in which the two have met
		}, []string{"[2]", "[2]"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gs, errs := connect(t, 2, c.change)
			for r, err := range errs {
				require.Nil(t, gs[r])
				require.ErrorContainsf(t, err, c.want[r], "rank %d", r)
				require.ErrorContainsf(t, err, "tcp://127.0.0.1:", "rank %d", r)
			}
		})
	}
}

// TestConnectSaysForWhomItWaits lets one rank of three come alone: it says whom it waits for and
// where, and what ended the wait.
func TestConnectSaysForWhomItWaits(t *testing.T) {
	for rank, want := range map[int]string{0: "ranks [1 2] to join", 1: "ranks [0] to serve the rendezvous"} {
		t.Run(fmt.Sprint(rank), func(t *testing.T) {
			t.Parallel()
			addr := "tcp://" + grouptest.FreeAddr(t)
			var told bytes.Buffer
			_, err := comm.Connect(t.Context(), comm.Config{
				Rank: rank, Size: 3, Rendezvous: addr, Job: t.Name(), Secret: secret,
				JoinTimeout: 3 * time.Second, // of which a busy machine skips no more than a second
				Logger:      slog.New(slog.NewTextHandler(&told, nil)),
			})
			require.ErrorContains(t, err, "timed out after 3s (the limit is FSDP_JOIN_TIMEOUT, or Config.JoinTimeout)")
			require.Contains(t, told.String(), fmt.Sprintf("comm: rank %d of 3 waits for %s\" at=%s", rank, want, addr))
			require.Contains(t, told.String(), "FSDP_JOIN_TIMEOUT=3s")
		})
	}
}

// TestTimeoutNamesTheMissing checks that a rank that does not come is named on all
// others, over every transport, with what they were waiting in.
func TestTimeoutNamesTheMissing(t *testing.T) {
	for _, transport := range []comm.Transport{comm.SharedMemory, comm.TCP} {
		t.Run(fmt.Sprint(transport), func(t *testing.T) {
			t.Parallel()
			gs, errs := connect(t, 3, func(c *comm.Config) { c.Transport, c.Timeout = transport, 2*time.Second })
			require.NoError(t, errors.Join(errs...))
			for r, err := range grouptest.PerRank(gs[:2], func(g comm.Group) error {
				x := comm.Of(make([]float32, 1000)).Named("h.3")
				return g.AllReduce(x, comm.Sum).Wait(context.Background())
			}) {
				var blame *comm.RankError
				require.ErrorAs(t, err, &blame)
				require.Equalf(t, 2, blame.Rank, "rank %d over %v: %v", r, transport, err)
				require.ErrorIs(t, err, comm.ErrTimeout)
				require.ErrorContains(t, err, `all-reduce #`)
				require.ErrorContains(t, err, `"h.3"`)
			}
			status, err := comm.Report(t.Context(), gs[2])
			require.NoError(t, err)
			require.EqualValues(t, status[2].Issued+1, status[0].Issued)
			for _, err := range grouptest.PerRank(gs, func(g comm.Group) error { return g.Close() }) {
				require.NoError(t, err)
			}
		})
	}
}

// TestJoinsWithoutFsdprun: a rank that cannot tell fsdprun that it joins says so, and joins.
func TestJoinsWithoutFsdprun(t *testing.T) {
	t.Setenv(launch.Joins, filepath.Join(os.Args[0], "rank-0"))
	var log bytes.Buffer
	g, err := comm.Connect(t.Context(), comm.Config{Size: 1, Rendezvous: "file://" + t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.Contains(t, log.String(), "cannot report to fsdprun that this rank is joining")
}
