package tcp

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/local"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// routesOf returns what n ranks do in a reduction by halving.
func routesOf(n int) []*route {
	routes := make([]*route, n)
	for r := range routes {
		routes[r] = new(route)
		routes[r].set(n, r)
	}
	return routes
}

// connects returns how many ranks a rank exchanges sums or contributions with.
func (rt *route) connects() int {
	peers := rt.block.Ranks() - 1
	for _, m := range rt.merges {
		peers += len(m.partners)
	}
	return peers
}

// TestRoutes follows every shard from all ranks to its own, and counts connections.
func TestRoutes(t *testing.T) {
	for n, most := range map[int]int{
		16: 15, 17: 16, 31: 18, 32: 16, 33: 32, 37: 18, 48: 17, 64: 17, 100: 19, 136: 23, 256: 19,
	} {
		routes, connects := routesOf(n), 0
		for r, rt := range routes {
			shards := slices.Clone(rt.order)
			slices.Sort(shards)
			require.Len(t, slices.Compact(shards), n)
			require.True(t, slices.Equal(routes[rt.block.Lo].order, rt.order))
			connects = max(connects, rt.connects())
			held := len(rt.mine)
			for level, m := range rt.merges {
				sent := m.kept
				for _, p := range m.partners {
					back := routes[p.rank].merges
					sent += p.hi - p.lo
					i := slices.IndexFunc(back, func(m merge) bool {
						return slices.ContainsFunc(m.partners, func(p partner) bool { return p.rank == r })
					})
					require.GreaterOrEqual(t, i, 0, "%d ranks: %d has partner %d at level %d", n, r, p.rank, level)
					q := back[i].partners[slices.IndexFunc(back[i].partners, func(p partner) bool { return p.rank == r })]
					require.NotEqual(t, m.left, back[i].left)
					var got []uint16
					for _, g := range q.gets {
						got = append(got, routes[p.rank].mine[g[0]:g[1]]...)
					}
					require.True(t, slices.Equal(rt.mine[p.lo:p.hi], got), "%d ranks: from %d to %d", n, r, p.rank)
				}
				require.Equal(t, held, sent)
				held = m.kept
			}
			require.Equal(t, 1, held)
			require.Equal(t, r, int(rt.mine[0]))
		}
		require.Equal(t, most, connects, "%d ranks", n)
	}
}

// setStripe lets gs reduce so many bytes at a time.
func setStripe(gs []transport.Group, bytes int) {
	for _, g := range gs {
		remoteOf(g).stripe = bytes
	}
}

// TestHalvingSameBits compares sums by halving with those of a local group, in one stripe and in
// several. In an all-reduce the last ranks have less or nothing.
func TestHalvingSameBits(t *testing.T) {
	for n, stripe := range map[int]int{halvingRanks: stripeBytes, 72: 128 * 72} {
		gs, local := RemoteGroups(t, n, Wiring{}), local.New(n, limit.Default)
		setStripe(gs, stripe)
		for d, op := range map[transport.DType]transport.Op{transport.Float32: transport.Avg, transport.BFloat16: transport.Avg, transport.Float64: transport.Max, transport.Int64: transport.Sum} {
			elements := smallMessage/d.Size() + 1 // just large enough
			sameBits(t, gs, local, transport.KindReduceScatter, d, op, (elements+n)/n*n)
			sameBits(t, gs, local, transport.KindAllReduce, d, op, elements)
		}
		grouptest.CloseRanks(t, gs)
	}
}

// TestHalvingFew compares sums of few ranks with direct ones: with short blocks, of nothing,
// of what is put together for others or not, and in place.
func TestHalvingFew(t *testing.T) {
	ctx := context.Background()
	for _, n := range []int{2, 17, 33, 37} {
		gs := RemoteGroups(t, n, Wiring{Portable: n == 17, Unsummed: n == 33})
		for _, share := range []int{0, 177, straight + 7} {
			d, op := []transport.DType{transport.Float32, transport.BFloat16, transport.Float16, transport.Float64}[(n+share)%4], []transport.Op{transport.Sum, transport.Avg, transport.Max}[(n+share)%3]
			stripe := 128
			if share > straight/2 {
				d, stripe = transport.BFloat16, straight+64 // in two stripes
				if n != 37 {
					continue
				}
			}
			setStripe(gs, stripe*n)
			everyRank(t, gs, func(r *remote) error {
				src := bufferOf(noise(r.rank, n*share*d.Size()), d)
				finite(src)
				want := bufferOf(make([]byte, share*d.Size()), d)
				if err := r.scatter(ctx, want, src, share, op); err != nil {
					return err
				}
				own := transport.Share(src, r.rank, share)
				if err := r.halve(ctx, own, src, share, op); err != nil {
					return err
				}
				if !bytes.Equal(want.Bytes(), own.Bytes()) {
					return fmt.Errorf("%v of %d %v on rank %d of %d differs", op, share, d, r.rank, n)
				}
				return nil
			})
		}
		grouptest.CloseRanks(t, gs)
	}
}

// finite clears the top bits of the exponents of floats, so that none of their sums is infinite.
func finite(b transport.Buffer) {
	x := b.Bytes()
	for i := b.DType().Size() - 1; i < len(x); i += b.DType().Size() {
		x[i] &^= 0x40
	}
}

// TestHalvingCounts counts connections, bytes sent and bytes staged.
func TestHalvingCounts(t *testing.T) {
	const n, share = halvingRanks + 4, 300 // the last block has 4 ranks
	ctx := context.Background()
	var sent atomic.Int64
	count := func(_, _, bytes int) { sent.Add(int64(bytes)) }
	gs, routes := RemoteGroups(t, n, Wiring{Portable: true, Unsummed: true, Sent: count}), routesOf(n)
	for d, stripe := range map[transport.DType]int{transport.Float32: 256 * n, transport.BFloat16: stripeBytes} {
		stripes := (share*d.Size()*n + stripe - 1) / stripe
		setStripe(gs, stripe)
		sent.Store(0)
		everyRank(t, gs, func(r *remote) error {
			r.stage = nil
			src, dst := bufferOf(make([]byte, n*share*d.Size()), d), bufferOf(make([]byte, share*d.Size()), d)
			return gs[r.rank].ReduceScatter(dst, src, transport.Avg).Wait(ctx)
		})
		// A contribution of every rank but one of a block, and a sum of every block but one.
		want := n*share*((n-5)*d.Size()+4*4) + n*frameSize
		for _, rt := range routes {
			want += stripes * rt.connects() * frameSize
		}
		require.Equal(t, want, int(sent.Load()), "%d stripes of %v", stripes, d)
		everyRank(t, gs, func(r *remote) error {
			if err := gs[r.rank].AllReduce(bufferOf(make([]byte, n*share*d.Size()), d), transport.Sum).Wait(ctx); err != nil {
				return err
			}
			if said := gs[r.rank].(transport.Stager).Staging(d, share); said != len(r.stage) || said > 4*stripe {
				return fmt.Errorf("%d stripes of %v: %d bytes staged, said %d", stripes, d, len(r.stage), said)
			}
			return nil
		})
	}
	for r, g := range gs {
		others := map[int]bool{}
		for k := 1; k < n; k *= 2 { // what every rank connects to for barriers and small sums
			others[remoteOf(g).left(k)], others[remoteOf(g).right(k)] = true, true
		}
		require.LessOrEqual(t, len(remoteOf(g).used), routes[r].connects()+len(others))
	}
	grouptest.CloseRanks(t, gs)
}

// TestHalvingMismatch has one rank call something else than a large sum of many: the last one of a
// block, or one within it. All hear which two ranks differ.
func TestHalvingMismatch(t *testing.T) {
	const n, elements = halvingRanks, 5000
	ctx := context.Background()
	for other, call := range map[int]func(g transport.Group) error{
		5: func(g transport.Group) error { return g.Barrier(ctx) },
		15: func(g transport.Group) error {
			return g.AllReduce(transport.Of(make([]int32, elements+1)), transport.Sum).Wait(ctx)
		},
		n - 1: func(g transport.Group) error { return g.Broadcast(transport.Of(make([]int32, elements)), 0).Wait(ctx) },
	} {
		differ(t, n, elements, other, call)
	}
}
