package mesh

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/simnet"
	"github.com/gofsdp/gofsdp/internal/store"
)

// many is a size at which a rank has control connections to ten others.
const many = 20

// TestNeighbours checks the overlay of every size: both ends know of a connection, there are at
// most 2 log2 N of them, parents are among them, and every route gets nearer.
func TestNeighbours(t *testing.T) {
	for size := 1; size <= 130; size++ {
		most := size - 1
		if size > fullSize {
			for most = 0; 1<<most < size; most++ {
			}
			most *= 2
		}
		for rank := range size {
			near := neighbours(rank, size)
			require.LessOrEqual(t, len(near), most)
			require.NotContains(t, near, rank)
			if rank > 0 {
				require.Contains(t, near, parent(rank))
			}
			for _, r := range near {
				require.Contains(t, neighbours(r, size), rank)
			}
			for to := range size {
				nearer := func(r int) bool { return distance(r, to, size) < distance(rank, to, size) }
				require.True(t, to == rank || slices.ContainsFunc(near, nearer))
			}
		}
	}
}

// TestNews writes news and reads them again.
func TestNews(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 40
		ranks := rapid.SliceOfNDistinct(rapid.IntRange(0, size-1), 0, size, rapid.ID).Draw(t, "ranks")
		slices.Sort(ranks)
		n := news{
			origin: rapid.IntRange(0, size-1).Draw(t, "origin"), number: rapid.Uint64().Draw(t, "number"),
			kind:  newsKind(rapid.IntRange(int(newsMessage), int(newsLost)).Draw(t, "kind")),
			about: rapid.IntRange(0, size-1).Draw(t, "about"), to: spans(ranks), text: []byte(rapid.String().Draw(t, "text")),
		}
		b := n.encode()
		got, err := decodeNews(b, size)
		require.NoError(t, err)
		require.Equal(t, b, got.encode())
		for r := range size {
			require.Equal(t, slices.Contains(ranks, r), got.concerns(r))
		}
		_, err = decodeNews(b[:rapid.IntRange(0, newsHeader+spanSize*len(n.to)-1).Draw(t, "cut")], size)
		require.Error(t, err)
	})
}

// TestMany has more ranks join than are all connected: they know of each other, and reach each
// other by messages, files and connections.
func TestMany(t *testing.T) {
	for name, change := range map[string]func(*Config){"host": nil, "tls": encryptedApart} {
		t.Run(name, func(t *testing.T) {
			ranks := newJob(t, many, change).open(t)
			all := make([]int, many)
			for r, m := range ranks {
				all[r] = r
				require.LessOrEqual(t, len(m.near), 10)
				for other := range ranks {
					require.Equal(t, ranks[other].self.Host, m.Host(other))
					require.Equal(t, fmt.Sprint("note ", other), m.Note(other))
					require.Equal(t, name == "host" || other == r, m.SameHost(other))
				}
			}
			for r, m := range ranks {
				for to := range ranks {
					if to != r {
						require.NoError(t, m.Send(to, fmt.Appendf(nil, "%d to %d", r, to)))
					}
				}
			}
			for r, m := range ranks {
				for from := range ranks {
					if from != r {
						require.Equal(t, fmt.Sprintf("%d to %d", from, r), m.ear.first(t, from, 1)[0].text)
					}
				}
			}
			ranks[3].Tell(all, []byte("all"))
			ranks[3].Tell([]int{4, 8, 12}, []byte("some"))
			for r, m := range ranks {
				switch {
				case r == 3:
				case r == 4 || r == 8 || r == 12:
					require.Equal(t, "some", m.ear.first(t, 3, 3)[2].text)
				default:
					require.Equal(t, "all", m.ear.first(t, 3, 2)[1].text)
				}
			}
			require.True(t, ranks[0].indirect(7))
			ctx := timeout(t, patience)
			var ends sync.WaitGroup
			for _, end := range [][2]int{{0, 7}, {7, 0}} {
				ends.Go(func() {
					conn, err := ranks[end[0]].one(ctx, end[1], 5)
					if err == nil {
						err = conn.Close()
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			ends.Wait()
			file, err := os.Open(os.DevNull)
			require.NoError(t, err)
			defer file.Close()
			err = ranks[0].SendFile(7, 1, file)
			if name != "host" {
				require.ErrorContains(t, err, "cannot pass a file to rank 7")
				return
			}
			require.NoError(t, err)
			got, err := ranks[7].File(ctx, 0, 1)
			require.NoError(t, err)
			require.NoError(t, got.Close())
		})
	}
}

// TestManyEnd lets ranks of many leave and die, also such that others talk through: all that are
// left hear of each end once, after what the rank had said, and still reach each other.
func TestManyEnd(t *testing.T) {
	ranks := newJob(t, many, nil).open(t)
	all := make([]int, many)
	for r := range all {
		all[r] = r
	}
	ranks[4].Tell(all, []byte("before"))
	require.NoError(t, ranks[4].Close())
	ranks[8].relay.mu.Lock() // as if it had died: it says nothing
	for _, p := range ranks[8].peers {
		if p != nil {
			_ = p.conn.Close()
		}
	}
	ranks[8].relay.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(all), func(r int) bool { return r == 4 || r == 8 })
	for _, r := range left {
		e := ranks[r].ear
		require.Equal(t, []heard{{"message", 4, "before"}, {"gone", 4, ""}}, e.first(t, 4, 2))
		lost := e.first(t, 8, 1)[0]
		require.Equal(t, "lost", lost.what)
		require.Regexp(t, `^rank 8 on host \S+ pid \d+: `, lost.text)
		require.ErrorIs(t, ranks[r].Send(4, nil), ErrGone)
		require.Error(t, ranks[r].Send(8, nil))
		_, err := ranks[r].one(context.Background(), 4, 9)
		require.ErrorIs(t, err, ErrGone)
	}
	for _, r := range left {
		for _, to := range left {
			if r != to {
				require.NoError(t, ranks[r].Send(to, []byte("still here")))
			}
		}
	}
	for _, r := range left {
		for _, from := range left {
			if r != from {
				require.Equal(t, "still here", ranks[r].ear.first(t, from, 1)[0].text)
			}
		}
	}
}

// TestManyMiss has one of many ranks not come, and one of them give up: all hear why.
func TestManyMiss(t *testing.T) {
	j := newJob(t, many, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	var all sync.WaitGroup
	errs := make([]error, many)
	for r := range many {
		if r == 13 {
			continue
		}
		all.Go(func() {
			own := context.Background()
			if r == 5 {
				own = ctx
			}
			_, _, errs[r] = j.join(own, r)
		})
	}
	cancel(errLate)
	all.Wait()
	for r, err := range errs {
		if r != 13 {
			require.ErrorContains(t, err, errLate.Error())
		}
	}
}

// TestRollByAnotherWay stops the process above another one in the tree when the root sends the list
// of ranks: the other one has it from a neighbour, and only the one that is stopped is missing.
func TestRollByAnotherWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(simnet.Config{Latency: time.Millisecond})
		host := func(rank int) *simnet.Host { return net.Host(fmt.Sprint("10.0.0.", 1+rank)) }
		j := newJob(t, many, func(c *Config) { apart(c); c.Listen = fmt.Sprint("10.0.0.", 1+c.Rank) })
		j.limit = 5 * time.Second
		list := make([]joined, many)
		var all sync.WaitGroup
		for r := range many {
			all.Go(func() {
				begin := time.Now()
				m, _, err := j.join(store.WithNetwork(context.Background(), host(r)), r)
				if list[r] = (joined{Mesh: m, err: err, took: time.Since(begin)}); r == 0 {
					host(parent(3)).Stall(time.Minute)
				}
			})
		}
		all.Wait()
		for r, m := range list {
			if r == parent(3) {
				require.ErrorIs(t, m.err, errLate)
				continue
			}
			require.NoError(t, m.err)
			require.Equal(t, r == 3, m.took > linger)
			require.Equal(t, "host-13", m.Host(13))
		}
		closeAll(list)
	})
}

// TestBlamesWhoPassesOn has heard of all ranks but two, which say so by a third: it may be the one
// that is stuck.
func TestBlamesWhoPassesOn(t *testing.T) {
	m := newMesh(Config{Rank: 0, Size: 32})
	for _, r := range m.near {
		m.peers[r] = new(peer)
	}
	for r := range 30 {
		m.heard[r] = record{Rank: r, Size: 32, TCP: "10.0.0.1:1"}
	}
	require.EqualError(t, m.lacking(errLate),
		"ranks [30 31] of 32 have not connected to all others, or ranks [28] have not forwarded their reports: "+errLate.Error())
	delete(m.heard, 28)
	require.EqualError(t, m.lacking(errLate),
		"ranks [28 30 31] of 32 have not connected to all others, or ranks [24] have not forwarded their reports: "+errLate.Error())
}
