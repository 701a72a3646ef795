package comm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/internal/simnet"
	"github.com/gofsdp/gofsdp/internal/store"
)

// simulated runs f on n ranks with hosts of their own.
func simulated(t *testing.T, n int, f func(ctx context.Context, h *simnet.Host, g comm.Group) error) (errs []error) {
	return simulatedOn(t, simnet.New(simnet.Config{Seed: 1, Latency: time.Millisecond}), n, "", f)
}

// simulatedOn is simulated with a network, and with the address of a witness, if there is one.
func simulatedOn(t *testing.T, net *simnet.Net, n int, witness string, f func(ctx context.Context, h *simnet.Host, g comm.Group) error) (errs []error) {
	errs = make([]error, n)
	var all sync.WaitGroup
	for r := range n {
		all.Go(func() {
			host := net.Host(fmt.Sprint("10.0.0.", r))
			ctx := store.WithNetwork(t.Context(), host)
			g, err := comm.Connect(ctx, comm.Config{
				Rank: r, Size: n, Rendezvous: "tcp://10.0.0.0:29500", Job: t.Name(), Secret: secret, Listen: fmt.Sprint("10.0.0.", r),
				Host: fmt.Sprint(r), Transport: comm.TCP, JoinTimeout: time.Minute, Witness: witness, Logger: slog.New(slog.DiscardHandler),
			})
			if err == nil {
				_ = g.Barrier(ctx) // all have the group, then; on some ranks it fails if f is quick on others
				err = f(ctx, host, g)
			}
			errs[r] = err
		})
	}
	all.Wait()
	return errs
}

// TestReconnect kills ranks of a group, rank 0 first, until two of five are left.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5
		sizes := make([][]int, n) // of the groups of a rank
		errs := simulated(t, n, func(ctx context.Context, h *simnet.Host, g comm.Group) (err error) {
			r := g.Rank()
			for {
				sizes[r] = append(sizes[r], g.Size())
				if len(sizes[r]) == r+1 && r < 3 {
					h.Kill()
				}
				former := g
				if err = errors.Join(g.Barrier(ctx), g.Barrier(ctx)); err == nil {
					return g.Close()
				}
				g, err = comm.Reconnect(ctx, former)
				_ = former.Close() // it has failed
				if err != nil {
					return err
				}
			}
		})
		require.Equal(t, [][]int{{5}, {5, 4}, {5, 4, 3}, {5, 4, 3, 2}, {5, 4, 3, 2}}, sizes)
		require.NoError(t, errors.Join(errs[3:]...))
		require.ErrorContains(t, errs[0], "ranks [1 2 3 4] of group 0 do not answer")
	})
}

// TestReconnectPlanned lets three of five ranks leave after a step, rank 0 included, and then one
// of the other two. Their hosts do not answer any more. The others continue at once, without a
// majority.
func TestReconnectPlanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sizes := make([][]int, 5)
		errs := simulated(t, 5, func(ctx context.Context, h *simnet.Host, g comm.Group) error {
			r := g.Rank()
			for {
				sizes[r] = append(sizes[r], g.Size())
				if r < 3 || r == 3 && g.Size() == 2 || g.Size() == 1 {
					err := g.Close()
					h.Isolate(time.Hour)
					return err
				}
				begin := time.Now()
				left := new(comm.RankError)
				if err := errors.Join(g.Barrier(ctx), g.Barrier(ctx)); !errors.As(err, &left) || !errors.Is(err, comm.ErrClosed) {
					return fmt.Errorf("not the error of a rank that has left: %w", err)
				}
				former := g
				var err error
				if g, err = comm.Reconnect(ctx, former); err != nil {
					return err
				}
				_ = former.Close() // it has failed
				if took := time.Since(begin); took > 3*time.Second {
					return fmt.Errorf("the next group took %v", took)
				}
			}
		})
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, [][]int{{5}, {5}, {5}, {5, 2}, {5, 2, 1}}, sizes)
	})
}

// TestReconnectApart cuts rank 0 off from two others, which go on. When it is back, it learns that
// they have.
func TestReconnectApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, away := range []time.Duration{50 * time.Second, time.Hour} {
			errs := simulated(t, 3, func(ctx context.Context, h *simnet.Host, g comm.Group) error {
				if g.Rank() == 0 {
					h.Isolate(away)
				}
				if err := g.Barrier(ctx); err == nil {
					return errors.New("the barrier is complete")
				}
				next, err := comm.Reconnect(ctx, g)
				_ = g.Close() // it has failed
				if err != nil {
					return err
				}
				<-time.After(time.Minute)
				return errors.Join(next.Barrier(ctx), next.Close())
			})
			require.NoError(t, errors.Join(errs[1:]...))
			if away < time.Minute {
				require.ErrorContains(t, errs[0], "the others have continued without this rank: group 1 has 2 ranks")
			} else {
				require.ErrorContains(t, errs[0], "1 of its 3 ranks are left")
			}
		}
	})
}

// TestReconnectHere makes a group of ranks of one host smaller: a rank leaves, and the others
// connect again, over each transport. The second time only one is left.
func TestReconnectHere(t *testing.T) {
	for name, change := range map[string]func(*comm.Config){
		"shared memory": func(c *comm.Config) { c.Transport = comm.SharedMemory },
		"tls":           func(c *comm.Config) { c.Transport, c.TLS = comm.TCP, true },
	} {
		t.Run(name, func(t *testing.T) {
			gs, errs := connect(t, 3, change)
			require.NoError(t, errors.Join(errs...))
			for _, err := range grouptest.PerRank(gs, func(g comm.Group) error {
				rank := g.Rank()
				for _, left := range []int{1, 0} { // the rank of each group that leaves
					if err := g.Barrier(t.Context()); err != nil {
						return err
					}
					if g.Rank() == left {
						return g.Close()
					}
					if err := g.Barrier(t.Context()); err == nil {
						return errors.New("the barrier is complete")
					}
					next, err := comm.Reconnect(t.Context(), g)
					if err != nil {
						return err
					}
					if err := g.Close(); err != nil {
						return err
					}
					if _, err = comm.Reconnect(t.Context(), g); err == nil {
						return errors.New("a closed group connects again")
					}
					g = next
				}
				if rank != 2 || g.Size() != 1 {
					return fmt.Errorf("rank %d has a group of %d", rank, g.Size())
				}
				return g.Close()
			}) {
				require.NoError(t, err)
			}
		})
	}
	_, err := comm.Reconnect(t.Context(), comm.Local(1)[0])
	require.ErrorContains(t, err, "ranks that are goroutines end together")
}

// TestListenNowhere: a rank that cannot listen ends the other one, too, at once.
func TestListenNowhere(t *testing.T) {
	_, errs := connect(t, 2, func(c *comm.Config) {
		if c.Listen = "127.0.0.1"; c.Rank == 1 {
			c.Listen = "nowhere0"
		}
	})
	for _, err := range errs {
		require.ErrorContains(t, err, `listen on "nowhere0": not an address or interface of this host`)
	}
}

// TestReplace lets a rank leave: another process takes its place. Then one more joins without a
// loss.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	config := func(rank int, join bool) comm.Config {
		return comm.Config{Rank: rank, Size: 3, Rendezvous: "file://" + dir, Job: t.Name(), Secret: secret, JoinTimeout: time.Minute, ReplaceTimeout: time.Minute, Join: join}
	}
	ctx := t.Context()
	var all sync.WaitGroup
	ranks := make([][]int, 5) // by process: the rank and size in each group
	live := func(process int, cfg comm.Config) {
		all.Go(func() {
			g, err := comm.Connect(ctx, cfg)
			for err == nil {
				ranks[process] = append(ranks[process], g.Rank(), g.Size())
				former := g
				if err = g.Barrier(ctx); err != nil || process == 1 || g.Size() == 4 {
					err = errors.Join(err, g.Close())
					break
				}
				if g, err = comm.Reconnect(ctx, former); err == nil {
					err = former.Close()
				}
			}
			if err != nil {
				t.Errorf("process %d: %v", process, err)
			}
		})
	}
	for r := range 3 {
		live(r, config(r, false))
	}
	live(3, config(1, true))
	live(4, config(0, true))
	all.Wait()
	for process, first := range [][]int{{0, 3}, {1, 3}, {2, 3}} {
		require.Equal(t, first, ranks[process][:2])
	}
	for process := range ranks {
		if process != 1 {
			require.Equal(t, 4, ranks[process][len(ranks[process])-1])
		}
	}
	_, err := comm.Connect(ctx, comm.Config{Rank: 0, Size: 1, Rendezvous: "tcp://127.0.0.1:1", Join: true})
	require.ErrorContains(t, err, "Config.Join needs a directory in which the process finds the job: set Config.Members")
	_, err = comm.Connect(ctx, comm.Config{Rank: 0, Size: 1, Rendezvous: "tcp://127.0.0.1:1", Members: "here"})
	require.ErrorContains(t, err, `Config.Members is "here", want an absolute path`)
}

// TestReconnectAfterAll stops rank 2 of one host. The others go on, let a process in, and die. That
// process goes on alone, so rank 2 must not, though all ranks of its group are certainly dead. If
// the ranks have no directory in common, neither of the two goes on.
func TestReconnectAfterAll(t *testing.T) {
	for _, apart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			net, dirs := simnet.New(simnet.Config{Seed: 1, Latency: time.Millisecond}), []string{t.TempDir(), t.TempDir(), t.TempDir()}
			sizes, errs := make([][]int, 4), make([]error, 4)
			var all sync.WaitGroup
			for process, rank := range []int{0, 1, 2, 2} {
				all.Go(func() {
					ip := fmt.Sprint("127.0.0.", 10+process)
					host := net.Host(ip)
					ctx := store.WithNetwork(t.Context(), host)
					cfg := comm.Config{
						Rank: rank, Size: 3, Rendezvous: "file://" + dirs[0], Job: t.Name(), Secret: secret, Listen: ip, Host: fmt.Sprint(process), Transport: comm.TCP,
						Timeout: 10 * time.Second, JoinTimeout: time.Minute, Join: process == 3, Logger: slog.New(slog.DiscardHandler),
					}
					if apart {
						cfg.Rendezvous, cfg.Members = "tcp://127.0.0.10:29500", dirs[process%3]
					}
					g, err := comm.Connect(ctx, cfg)
					for err == nil {
						if sizes[process] = append(sizes[process], g.Size()); g.Size() == 1 {
							err = g.Close()
							break
						}
						_ = g.Barrier(ctx)
						switch {
						case process == 2:
							host.Stall(3 * time.Minute)
							<-time.After(3 * time.Minute)
						case process < 2 && len(sizes[process]) == 2:
							host.Kill()
						}
						former := g
						if err = errors.Join(g.Barrier(ctx), g.Barrier(ctx)); err == nil {
							err = errors.New("the barrier is complete")
							break
						}
						g, err = comm.Reconnect(ctx, former)
						_ = former.Close() // it has failed
					}
					errs[process] = err
				})
			}
			all.Wait()
			if apart {
				require.Equal(t, [][]int{{3}, {3}}, sizes[2:])
				require.ErrorContains(t, errs[2], "1 of its 3 ranks are left")
				require.ErrorContains(t, errs[3], "1 of its 3 ranks are left")
				return
			}
			require.Equal(t, [][]int{{3}, {3, 1}}, sizes[2:])
			require.NoError(t, errs[3])
			require.ErrorContains(t, errs[2], "the others have continued without this rank: "+dirs[0]+" has another group 1")
		})
	}
}

// TestReplaceApart replaces ranks of hosts that have no directory in common. The host of rank 1
// dies: another process with its directory takes the place. Then rank 0 dies for good, and the
// process of its host that joins later takes a place behind the others.
func TestReplaceApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, dirs := simnet.New(simnet.Config{Seed: 1, Latency: time.Millisecond}), []string{t.TempDir(), t.TempDir(), t.TempDir()}
		sizes, errs := make([][]int, 5), make([]error, 5)
		var all sync.WaitGroup
		two, last := make(chan bool), []int{0, 0, 4, 3, 1} // number of groups of a process that ends well
		for process, rank := range []int{0, 1, 2, 1, 0} {
			all.Go(func() {
				ip := fmt.Sprint("10.0.0.", process)
				host := net.Host(ip)
				ctx := store.WithNetwork(t.Context(), host)
				if process == 4 {
					<-two
				}
				g, err := comm.Connect(ctx, comm.Config{
					Rank: rank, Size: 3, Rendezvous: "tcp://10.0.0.0:29500", Members: dirs[rank], Job: t.Name(), Secret: secret, Listen: ip, Host: ip, Transport: comm.TCP,
					Timeout: 10 * time.Second, JoinTimeout: 2 * time.Minute, ReplaceTimeout: time.Second, Join: process > 2, Logger: slog.New(slog.DiscardHandler),
				})
				for err == nil {
					sizes[process] = append(sizes[process], g.Rank(), g.Size())
					_ = g.Barrier(ctx) // all have the group
					groups := len(sizes[process]) / 2
					switch {
					case groups == 1 && process == 1 || groups == 2 && process == 0:
						host.Kill()
					case g.Size() == 2 && g.Rank() == 1:
						require.Zero(t, comm.Joining(g))
						for close(two); comm.Joining(g) == 0; {
							<-time.After(time.Millisecond)
						}
					}
					former := g
					err = g.Barrier(ctx)
					if groups == last[process] && err == nil {
						err = g.Close()
						break
					}
					g, err = comm.Reconnect(ctx, former)
					_ = former.Close() // it has failed, or all have called Reconnect
				}
				errs[process] = err
			})
		}
		all.Wait()
		require.NoError(t, errors.Join(errs[2:]...))
		begin := time.Now()
		late := comm.Config{Rank: 1, Size: 3, Members: dirs[1], Job: t.Name(), Secret: secret, Listen: "10.0.0.9", JoinTimeout: time.Hour, Join: true}
		_, err := comm.Connect(store.WithNetwork(t.Context(), net.Host(late.Listen)), late)
		require.ErrorContains(t, err, "all of them have ended", "none lives")
		require.Less(t, time.Since(begin), time.Minute)
		require.Equal(t, [][]int{{0, 3, 0, 3}, {1, 3}, {2, 3, 2, 3, 1, 2, 1, 3}, {1, 3, 0, 2, 0, 3}, {2, 3}}, sizes)
	})
}
