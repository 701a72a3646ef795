package quorum

import (
	"fmt"
	"log/slog"
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

// TestOneValue lets members propose in any order, each over a part of the members and perhaps the
// witness. No two values are decided.
func TestOneValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := membership(rapid.IntRange(1, 6).Draw(t, "members"))
		m.Witness = Member{ID: "w"}
		n := len(m.Members)
		acceptors := make([]acceptor, n+1) // the last one is the witness
		none := func(int) bool { return false }
		type attempt struct {
			b     Ballot
			value *Membership
		}
		prepared, decided := []attempt(nil), ""
		phase := func(what ask, b Ballot, v *Membership, yes func(reply)) bool {
			agree := make([]bool, n+1)
			for i, ok := range rapid.SliceOfN(rapid.Bool(), n+1, n+1).Draw(t, "answer") {
				if ok || i == b.Proposer {
					r := acceptors[i].answer(&request{What: what, Ballot: b, Value: v})
					if agree[i] = r.OK; r.OK {
						yes(r)
					}
				}
			}
			return m.suffices(func(i int) bool { return agree[i] }, none, agree[n])
		}
		for round := range 20 {
			if len(prepared) > 0 && rapid.Bool().Draw(t, "accept") {
				a := rapid.SampledFrom(prepared).Draw(t, "attempt")
				if phase(askAccept, a.b, a.value, func(reply) {}) {
					value := a.value.Members[0].ID
					require.Contains(t, []string{"", value}, decided)
					decided = value
				}
				continue
			}
			a := attempt{b: Ballot{round, rapid.IntRange(0, n-1).Draw(t, "proposer")}, value: &Membership{Members: []Member{{ID: fmt.Sprint(round)}}}}
			if phase(askPrepare, a.b, nil, func(r reply) {
				if r.Value != nil && a.value.Ballot.less(r.Value.Ballot) {
					a.value = r.Value
				}
			}) {
				value := *a.value
				value.Ballot, a.value = a.b, &value
				prepared = append(prepared, a)
			}
		}
	})
}

// meeting is ranks on hosts of their own, with a witness.
type meeting struct {
	net     *simnet.Net
	hosts   []*simnet.Host
	nodes   []*Node
	witness *Witness
	at      string
	late    time.Duration // of the first half
}

func meet(t *testing.T, size int) *meeting {
	m := &meeting{net: simnet.New(simnet.Config{Seed: 1, Latency: time.Millisecond}), at: "10.0.1.0:29600"}
	m.serve(t)
	var first Membership
	for r := range size {
		ip := fmt.Sprint("10.0.0.", r)
		m.hosts = append(m.hosts, m.net.Host(ip))
		n, err := Open(store.WithNetwork(t.Context(), m.hosts[r]), Config{
			Rank: r, Job: t.Name(), Secret: []byte("known to this test only"), Listen: ip, Limit: time.Minute, Log: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		m.nodes, first.Members = append(m.nodes, n), append(first.Members, n.Self())
	}
	var err error
	first.Witness, err = m.nodes[0].Find(t.Context(), m.at)
	require.NoError(t, err)
	for _, n := range m.nodes {
		n.Begin(first)
	}
	return m
}

// serve starts the witness.
func (m *meeting) serve(t *testing.T) {
	var err error
	m.witness, err = Serve(store.WithNetwork(t.Context(), m.net.Host("10.0.1.0")), m.at, store.Config{Secret: []byte("known to this test only")})
	require.NoError(t, err)
}

// next calls Next on some ranks, together.
func (m *meeting) next(t *testing.T, number int, ranks ...int) (sizes []int, errs []error) {
	sizes, errs = make([]int, len(ranks)), make([]error, len(ranks))
	var all sync.WaitGroup
	for i, r := range ranks {
		all.Go(func() {
			if r < len(m.nodes)/2 {
				<-time.After(m.late)
			}
			var next Membership
			next, errs[i] = m.nodes[r].Next(t.Context(), number)
			if sizes[i] = len(next.Members); errs[i] != nil {
				_ = m.nodes[r].Close() // it takes part no more
			}
		})
	}
	all.Wait()
	return sizes, errs
}

func (m *meeting) kill(ranks ...int) {
	for _, r := range ranks {
		m.hosts[r].Kill()
	}
}

func (m *meeting) close() {
	for _, n := range m.nodes {
		_ = n.Close() // the hosts of some are gone
	}
	_ = m.witness.Close()
}

// TestWitness loses the half with rank 0, while the witness is cut off: the other half continues
// when the witness is back. A witness that has been started again votes when the ranks have agreed
// once without it.
func TestWitness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meet(t, 8)
		defer m.close()
		m.kill(0, 1, 2, 3)
		m.net.Host("10.0.1.0").Isolate(20 * time.Second)
		sizes, errs := m.next(t, 1, 4, 5, 6, 7)
		require.Equal(t, []int{4, 4, 4, 4}, sizes, "%v", errs)

		require.NoError(t, m.witness.Close())
		m.serve(t)
		m.kill(4)
		sizes, _ = m.next(t, 2, 5, 6, 7)
		require.Equal(t, []int{3, 3, 3}, sizes)
		m.kill(5)
		sizes, _ = m.next(t, 3, 6, 7)
		require.Equal(t, []int{2, 2}, sizes)
		m.kill(6)
		sizes, _ = m.next(t, 4, 7)
		require.Equal(t, []int{1}, sizes)
	})
}

// TestWitnessLost loses half of the ranks, and the witness: no half continues. If the witness has
// been started again, it does not vote.
func TestWitnessLost(t *testing.T) {
	for again, text := range map[bool]string{
		false: "the witness 10.0.1.0:29600 does not answer (",
		true:  "the witness 10.0.1.0:29600 has been started again and votes from the next group on: 2 of its 4 ranks are left, and more than half, or half with the witness, must be",
	} {
		synctest.Test(t, func(t *testing.T) {
			m := meet(t, 4)
			defer m.close()
			require.NoError(t, m.witness.Close())
			if again {
				m.serve(t)
			}
			m.kill(2, 3)
			begin := time.Now()
			_, errs := m.next(t, 1, 0, 1)
			require.ErrorContains(t, errs[0], text)
			require.Less(t, time.Since(begin), time.Minute/2)
		})
	}
}

// TestWitnessBetween cuts two halves that both reach the witness: one of them continues, and the
// other one learns so.
func TestWitnessBetween(t *testing.T) {
	for _, late := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m := meet(t, 4)
			defer m.close()
			m.net.Part(m.hosts[:2], time.Hour, m.net.Host("10.0.1.0"))
			m.late = late
			_, errs := m.next(t, 1, 0, 1, 2, 3)
			won := errs[0] == nil
			for r, err := range errs {
				if (r < 2) == won {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, ErrExcluded)
				}
			}
		})
	}
}

// TestWitnessOnOneSide cuts two halves, one of which reaches the witness: it continues. A rank of
// the other half that follows another one does not count the ranks that are left.
func TestWitnessOnOneSide(t *testing.T) {
	for side := range 2 {
		synctest.Test(t, func(t *testing.T) {
			m := meet(t, 4)
			defer m.close()
			m.net.Part(slices.Concat(m.hosts[2*side:2*side+2], []*simnet.Host{m.net.Host("10.0.1.0")}), time.Hour)
			_, errs := m.next(t, 1, 0, 1, 2, 3)
			for r, err := range errs {
				switch {
				case r/2 == side:
					require.NoError(t, err)
				case r%2 == 0:
					require.ErrorContains(t, err, ", and the witness 10.0.1.0:29600 does not answer (context deadline exceeded): 2 of its 4 ranks are left, and more than half, or half with the witness, must be")
				case side == 0: // rank 3 follows rank 2
					require.ErrorContains(t, err, "ranks [0 1] of group 0 do not answer (rank 0: context deadline exceeded), and rank 2 has not decided without them: see its error")
				default: // rank 1 follows rank 0
					require.ErrorContains(t, err, "the 4 ranks of group 0 have not agreed on the next group")
				}
			}
		})
	}
}

// TestOtherWitness asks addresses at which no witness answers.
func TestOtherWitness(t *testing.T) {
	nodes, _ := open(t, 2, 0)
	_, err := nodes[0].Find(t.Context(), nodes[1].Self().Address)
	require.ErrorContains(t, err, "refused by the other side")
	w, err := Serve(t.Context(), "127.0.0.1:0", store.Config{Secret: []byte("another one than theirs")})
	require.NoError(t, err)
	_, err = nodes[0].Find(t.Context(), w.Addr().String())
	require.ErrorContains(t, err, "the other side has a different secret")
	require.NoError(t, w.Close())
	for _, n := range nodes {
		require.NoError(t, n.Close())
	}
}
