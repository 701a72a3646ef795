package tcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// TestGiversAreAhead has ranks give in broadcasts and gathers before any other rank has called
// them: they are done, as far as they may be ahead, and the others get what they gave.
func TestGiversAreAhead(t *testing.T) {
	for _, w := range []Wiring{{}, {Portable: true}, {Crowded: true}} {
		for _, n := range []int{2, 3, 4, 6} {
			gs := RemoteGroups(t, n, w)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			for range latestAnswer / 2 {
				require.NoError(t, gs[0].Broadcast(transport.Of([]int32{7}), 0).Wait(ctx))
			}
			counts := slices.Repeat([]int{1}, n)
			giver := 1 % n
			if n > fewRanks || w.Crowded { // in a tree others give through it
				giver = n - 1
			}
			everyRank(t, gs[1:], func(r *remote) error {
				for range latestAnswer / 2 {
					x := []int32{0}
					if err := gs[r.rank].Broadcast(transport.Of(x), 0).Wait(ctx); err != nil {
						return err
					}
					require.Equal(t, int32(7), x[0])
				}
				return nil
			})
			require.NoError(t, gs[giver].Gather(transport.Buffer{}, transport.Of([]int32{int32(giver)}), counts, 0).Wait(ctx))
			all := make([]int32, n)
			everyRank(t, gs, func(r *remote) error {
				if r.rank == giver {
					return nil
				}
				return gs[r.rank].Gather(transport.Of(all[:n*max(0, 1-r.rank)]), transport.Of([]int32{int32(r.rank)}), counts, 0).Wait(ctx)
			})
			for rank, x := range all {
				require.Equal(t, int32(rank), x)
			}
			grouptest.CloseRanks(t, gs)
			cancel()
		}
	}
}

// TestNobodyIsFarAhead: a root waits for the answers to what was latestAnswer broadcasts ago.
func TestNobodyIsFarAhead(t *testing.T) {
	gs := RemoteGroups(t, 2, Wiring{})
	ctx := context.Background()
	x := transport.Of([]int32{7})
	for range latestAnswer {
		require.NoError(t, gs[0].Broadcast(x, 0).Wait(ctx))
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	err := gs[0].Broadcast(x, 0).Wait(over)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "waiting for ranks [1] in broadcast #33")
	grouptest.CloseRanks(t, gs)

	gs = RemoteGroups(t, 2, Wiring{})
	everyRank(t, gs, func(r *remote) error {
		for range 5 * latestAnswer {
			if err := gs[r.rank].Broadcast(transport.Of([]int32{7}), 0).Wait(ctx); err != nil {
				return err
			}
			require.Less(t, len(remoteOf(gs[r.rank]).port(1-r.rank).out.pieces), lateAnswer+1)
			require.Less(t, len(remoteOf(gs[r.rank]).port(1-r.rank).in.pieces), latestAnswer+1)
		}
		return nil
	})
	grouptest.CloseRanks(t, gs)
}

// TestLateMismatch has ranks differ in a call that is complete on one of them or on both.
func TestLateMismatch(t *testing.T) {
	ctx := context.Background()
	differs := func(err error) {
		t.Helper()
		var mismatch *transport.MismatchError
		require.ErrorAs(t, err, &mismatch)
		require.EqualValues(t, 1, mismatch.Seq)
		require.Equal(t, [2]int{0, 1}, mismatch.Ranks)
	}
	for _, w := range []Wiring{{}, {Portable: true}} {
		broadcast := func(g transport.Group, root int) transport.Work {
			return g.Broadcast(transport.Of([]int32{7}).Named("x"), root)
		}
		// Two roots, which are both done: the next call of each of them knows.
		gs := RemoteGroups(t, 2, w)
		for r, g := range gs {
			require.NoError(t, broadcast(g, r).Wait(ctx))
		}
		for _, err := range sumOn(gs, 0, 1) {
			differs(err)
		}
		grouptest.CloseRanks(t, gs)

		// Where none follows, Close does.
		gs = RemoteGroups(t, 2, w)
		for r, g := range gs {
			require.NoError(t, broadcast(g, r).Wait(ctx))
		}
		closed := make(chan error)
		for _, g := range gs {
			go func() { closed <- g.Close() }()
		}
		differs(<-closed)
		differs(<-closed)

		// Two that wait for each other.
		gs = RemoteGroups(t, 2, w)
		other := broadcast(gs[1], 0)
		go func() { closed <- broadcast(gs[0], 1).Wait(ctx) }()
		differs(other.Wait(ctx))
		differs(<-closed)
		grouptest.CloseRanks(t, gs)

		// One that waits for a rank that waits for nobody.
		gs = RemoteGroups(t, 2, w)
		require.NoError(t, gs[0].Gather(transport.Buffer{}, transport.Of([]int32{7}), []int{1, 1}, 1).Wait(ctx))
		differs(broadcast(gs[1], 0).Wait(ctx))
		differs(gs[0].Close()) // which says what no call has
		require.NoError(t, gs[1].Close())
	}
}

// TestMismatchInAChain has one of four ranks take another root, or another length, for a tensor
// that goes along a chain, as long as connections take and longer. All hear of it, at the latest
// from the next call.
func TestMismatchInAChain(t *testing.T) {
	const n = 4
	for odd := range n {
		for name, other := range map[string]struct{ length, root, more int }{
			"length": {1 << 18, 0, 1}, "root": {1 << 18, 2, 0}, "root, longer": {32 << 20, 2, 0},
		} {
			t.Run(fmt.Sprint(name, " of rank ", odd), func(t *testing.T) {
				t.Parallel()
				gs := RemoteGroups(t, n, Wiring{Timeout: time.Minute})
				everyRank(t, gs, func(r *remote) error {
					length, root := other.length, 0
					if r.rank == odd {
						length, root = length+other.more, other.root
					}
					g := gs[r.rank]
					err := g.Broadcast(transport.Of(make([]byte, length)), root).Wait(t.Context())
					if err == nil {
						err = g.Barrier(t.Context())
					}
					var differs *transport.MismatchError
					if !errors.As(err, &differs) || differs.Seq != 1 || !slices.Contains(differs.Ranks[:], odd) {
						return fmt.Errorf("rank %d: %v", r.rank, err)
					}
					return nil
				})
				grouptest.CloseRanks(t, gs)
			})
		}
	}
}

// TestTwoRootsInAChain has halves of a group take a root each for more than connections take. Each
// last rank sends to the root of the other half, which must not be done with the call, and wait for
// its own half elsewhere: in another group, or in the next calls.
func TestTwoRootsInAChain(t *testing.T) {
	const n = 6
	for _, portable := range []bool{false, true} {
		for name, next := range map[string]func(ctx context.Context, g, half transport.Group) error{
			"another group": func(ctx context.Context, _, half transport.Group) error { return half.Barrier(ctx) },
			"next calls": func(ctx context.Context, g, _ transport.Group) error {
				if err := g.Broadcast(transport.Of(make([]byte, 100)), 1).Wait(ctx); err != nil {
					return err
				}
				return g.Broadcast(transport.Of(make([]byte, 100)), 0).Wait(ctx)
			},
		} {
			t.Run(fmt.Sprint(name, ", portable ", portable), func(t *testing.T) {
				t.Parallel()
				gs, halves := RemoteGroups(t, n, Wiring{Timeout: time.Minute, Portable: portable}), make([]transport.Group, n)
				everyRank(t, gs, func(r *remote) (err error) {
					halves[r.rank], err = gs[r.rank].Split(t.Context(), r.rank/3, r.rank)
					return err
				})
				everyRank(t, gs, func(r *remote) error {
					g := gs[r.rank]
					err := g.Broadcast(transport.Of(make([]byte, 32<<20)), r.rank/3*3).Wait(t.Context())
					if err == nil {
						err = next(t.Context(), g, halves[r.rank])
					}
					var differs *transport.MismatchError
					if !errors.As(err, &differs) {
						return fmt.Errorf("rank %d: %v", r.rank, err)
					}
					return nil
				})
				for _, g := range gs { // of which those say so that no call has told
					var differs *transport.MismatchError
					if err := g.Close(); err != nil && !errors.As(err, &differs) {
						require.NoError(t, err)
					}
				}
			})
		}
	}
}

// TestRootOfAChainHears: a root may be done while a rank has not called, and hears when it closes
// the group that this one calls something else.
func TestRootOfAChainHears(t *testing.T) {
	for _, w := range []Wiring{{}, {Portable: true}} {
		gs := RemoteGroups(t, 3, w)
		x := make([]byte, 2*smallMessage)
		last := gs[2].Broadcast(transport.Of(x), 0)
		require.NoError(t, gs[0].Broadcast(transport.Of(slices.Clone(x)), 0).Wait(t.Context()))
		require.Len(t, remoteOf(gs[0]).port(2).in.pieces, 1, "the answer")
		closed := make(chan error)
		go func() { closed <- gs[0].Close() }()
		for _, err := range []error{gs[1].Barrier(t.Context()), last.Wait(t.Context()), <-closed} {
			var differs *transport.MismatchError
			require.ErrorAs(t, err, &differs)
			require.EqualValues(t, 1, differs.Seq)
		}
		grouptest.CloseRanks(t, gs[1:])
	}
}

// TestTwoGivers has ranks that both give, and neither of which would read, as it needs nothing:
// more than connections take.
func TestTwoGivers(t *testing.T) {
	const length = 32 << 20
	for _, w := range []Wiring{{Timeout: time.Minute}, {Portable: true, Timeout: time.Minute}} {
		for name, call := range map[string]func(g transport.Group, b transport.Buffer) transport.Work{
			"broadcast": func(g transport.Group, b transport.Buffer) transport.Work { return g.Broadcast(b, g.Rank()) },
			"gather": func(g transport.Group, b transport.Buffer) transport.Work {
				return g.Gather(transport.Buffer{}, b, []int{length, length}, 1-g.Rank())
			},
		} {
			t.Run(fmt.Sprint(name, " portable ", w.Portable), func(t *testing.T) {
				t.Parallel()
				gs := RemoteGroups(t, 2, w)
				works := make([]transport.Work, 2)
				for r, g := range gs {
					works[r] = call(g, transport.Of(make([]byte, length)))
				}
				everyRank(t, gs, func(r *remote) error {
					var differs *transport.MismatchError
					err := works[r.rank].Wait(t.Context())
					if !errors.As(err, &differs) {
						return fmt.Errorf("rank %d: %v", r.rank, err)
					}
					return nil
				})
				grouptest.CloseRanks(t, gs)
				for r, g := range gs { // which keep nothing of the caller's memory
					p := remoteOf(g).port(1 - r)
					require.Empty(t, p.in.pieces)
					require.Empty(t, p.out.pieces)
				}
			})
		}
	}
}

// TestBegunOnly has a rank begin a call, and do nothing else: the others learn all the same that it
// is another one.
func TestBegunOnly(t *testing.T) {
	for _, w := range []Wiring{{}, {Portable: true}} {
		gs := RemoteGroups(t, 2, w)
		begun := gs[1].Broadcast(transport.Of(make([]byte, 20)), 0)
		err := gs[0].Broadcast(transport.Of(make([]byte, 10)), 0).Wait(t.Context())
		var differs *transport.MismatchError
		require.ErrorAs(t, errors.Join(err, gs[0].Close()), &differs)
		require.ErrorAs(t, begun.Wait(t.Context()), &differs)
		require.NoError(t, gs[1].Close())
	}
}

// TestBothHear: of two ranks that differ in their last call, which one of them can complete, both
// say so, though the first to know ends its connections.
func TestBothHear(t *testing.T) {
	for i := range 200 {
		gs := RemoteGroups(t, 2, Wiring{Portable: i%2 == 0})
		everyRank(t, gs, func(r *remote) error {
			g := gs[r.rank]
			err := errors.Join(g.Broadcast(transport.Of(make([]byte, 100+r.rank)), i/2%2).Wait(t.Context()), g.Close())
			var differs *transport.MismatchError
			if !errors.As(err, &differs) {
				return fmt.Errorf("job %d, rank %d: %v", i, r.rank, err)
			}
			return nil
		})
	}
}

// TestQueue sends random pieces in random portions: what is late goes with what follows, and the
// bytes are those of all pieces in their order.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &port{out: queue{summed: rapid.Bool().Draw(t, "summed")}}
		frames := make([]frame, 40)
		var want, got []byte
		for i := range frames {
			frames[i] = frame{group: worldID, seq: uint64(i), round: uint16(i), summed: p.out.summed}
			f := &frames[i]
			late := rapid.Bool().Draw(t, "late")
			body := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "body")
			if late {
				body = nil
			}
			p.out.add(piece{of: f, late: late, round: f.round, length: len(body), body: body})
			f.length = len(body)
			var head [frameSize]byte
			f.put(&head)
			want = append(want, head[:]...)
			if p.out.summed && len(body) > 0 {
				want = summed(want, body)
			} else {
				want = append(want, body...)
			}
			for !p.out.done() {
				head, body, tail := p.outgoing(rapid.IntRange(1, 30).Draw(t, "most"))
				all := slices.Concat(head, body, tail)
				n := rapid.IntRange(1, len(all)).Draw(t, "sent")
				got = append(got, all[:n]...)
				p.sent(n)
			}
			if !late {
				require.Equal(t, want, got)
			}
			if rapid.Bool().Draw(t, "settled") {
				p.out.reset()
			}
		}
	})
}
