package quorum

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/simnet"
	"github.com/gofsdp/gofsdp/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func membership(n int) (m Membership) {
	for i := range n {
		m.Members = append(m.Members, Member{ID: fmt.Sprint(i), Rank: i})
	}
	return m
}

// TestSuffices draws two sets of members that do not have a member in common: they do not both
// suffice, unless all of one of them are dead.
func TestSuffices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := membership(rapid.IntRange(1, 9).Draw(t, "members"))
		set := rapid.SliceOfN(rapid.IntRange(0, 3), len(m.Members), len(m.Members)).Draw(t, "sets") // neither, one, the other; dead
		in := func(k int) func(int) bool { return func(i int) bool { return set[i] == k } }
		one, other := slices.Contains(set, 1), slices.Contains(set, 2)
		witness := rapid.IntRange(0, 2).Draw(t, "witness") // none, or of the set
		if witness > 0 {
			m.Witness.ID = "w"
		}
		if m.suffices(in(1), in(3), witness == 1) && m.suffices(in(2), in(3), witness == 2) {
			t.Fatalf("%v and %v", one, other)
		}
	})
	m := membership(4)
	some := func(list ...int) func(int) bool { return func(i int) bool { return slices.Contains(list, i) } }
	require.True(t, m.suffices(some(0, 3), some(), false))
	require.False(t, m.suffices(some(2, 3), some(), false))
	require.False(t, m.suffices(some(3), some(0, 1), false))
	require.True(t, m.suffices(some(3), some(0, 1, 2), false))
	require.False(t, m.suffices(some(), some(0, 1, 2, 3), false))
	m.Witness.ID = "w"
	require.False(t, m.suffices(some(0, 3), some(), false))
	require.True(t, m.suffices(some(2, 3), some(), true))
	require.False(t, m.suffices(some(3), some(0, 1), true))
	require.True(t, m.suffices(some(1, 2, 3), some(), false))
}

// TestNextMembership keeps the order of members, and fills the places of lost ones.
func TestNextMembership(t *testing.T) {
	m := membership(4)
	ids := func(joining ...Member) (list []string) {
		next := m.next(func(i int) bool { return i%2 == 0 }, joining)
		require.Equal(t, 1, next.Number)
		for _, o := range next.Members {
			list = append(list, o.ID)
		}
		return list
	}
	a, b, c := Member{ID: "a", Rank: 3}, Member{ID: "b", Rank: 1}, Member{ID: "c", Rank: 3}
	require.Equal(t, []string{"0", "2"}, ids())
	require.Equal(t, []string{"0", "a", "2"}, ids(a))
	require.Equal(t, []string{"0", "b", "2", "a"}, ids(a, b))
	require.Equal(t, []string{"0", "b", "2", "a", "c"}, ids(c, a, b))
}

// TestPromise refuses a lower ballot, and a decision that may come from a dead process.
func TestPromise(t *testing.T) {
	n := &Node{changed: make(chan struct{}), current: membership(3)}
	value := membership(2)
	value.Number, value.Ballot = 1, Ballot{1, 2}
	ask := func(q request) reply { r, _ := n.answer(&q); return r }
	require.True(t, ask(request{What: askPrepare, Number: 1, Ballot: Ballot{1, 2}}).OK)
	require.True(t, ask(request{What: askAccept, Number: 1, Value: &value}).OK)
	r := ask(request{What: askPrepare, Number: 1, Ballot: Ballot{2, 0}})
	require.True(t, r.OK)
	require.Equal(t, &value, r.Value)
	require.Equal(t, reply{Done: true, Ballot: Ballot{2, 0}}, ask(request{What: askAccept, Number: 1, Value: &value}))
	require.False(t, ask(request{What: askPrepare, Number: 1, Ballot: Ballot{1, 9}}).OK)

	require.False(t, ask(request{What: askFollow, Number: 1, Base: 1, Latest: &value}).Done)
	n.learn(&value, Ballot{1, 2})
	require.Zero(t, n.current.Number, "asked before the promise")
	n.learn(&value, Ballot{2, 0})
	require.Equal(t, 1, n.current.Number, "asked after it")
	r = ask(request{What: askPrepare, Number: 1, Ballot: Ballot{3, 0}})
	require.Equal(t, &value, r.Decided)
}

// process opens a process of this host.
func process(t *testing.T, rank int, replace time.Duration) *Node {
	n, err := Open(t.Context(), Config{
		Rank: rank, Job: t.Name(), Secret: []byte("known to this test only"), Limit: time.Minute, Replace: replace, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return n
}

// open opens the processes of a group.
func open(t *testing.T, size int, replace time.Duration) (nodes []*Node, m Membership) {
	for r := range size {
		n := process(t, r, replace)
		nodes = append(nodes, n)
		m.Members = append(m.Members, n.Self())
	}
	for _, n := range nodes {
		n.Begin(m)
	}
	return nodes, m
}

// TestKilledWhileItWaits kills a process that waits, 10 ms before the last one waits, too. It is in
// no membership then, though its death is certain only when its address has refused a connection.
func TestKilledWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := simnet.New(simnet.Config{Seed: 1, Latency: time.Millisecond})
		var hosts []*simnet.Host
		var nodes []*Node
		var m Membership
		for r := range 4 {
			ip := fmt.Sprint("127.0.0.", 10+r)
			hosts = append(hosts, network.Host(ip))
			n, err := Open(store.WithNetwork(t.Context(), hosts[r]), Config{
				Rank: r, Job: t.Name(), Secret: []byte("known to this test only"), Listen: ip, Limit: time.Minute, Log: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			nodes, m.Members = append(nodes, n), append(m.Members, n.Self())
		}
		var all sync.WaitGroup
		var next [4]Membership
		for r, n := range nodes {
			n.Begin(m)
			all.Go(func() {
				if r == 3 {
					time.Sleep(time.Second)
					hosts[2].Kill()
					time.Sleep(10 * time.Millisecond)
				}
				next[r], _ = n.Next(t.Context(), 1)
			})
		}
		all.Wait()
		require.Equal(t, []Member{nodes[0].Self(), nodes[1].Self(), nodes[3].Self()}, next[0].Members)
		for _, n := range nodes {
			_ = n.Close() // the host of one of them is gone
		}
	})
}

// TestOneHost ends two of three processes that listen on loopback: the third goes on alone, and
// learns that a process with the address of an ended one is another one.
func TestOneHost(t *testing.T) {
	nodes, _ := open(t, 3, 0)
	require.NoError(t, nodes[0].Close())
	require.NoError(t, nodes[1].Close())
	next, err := nodes[2].Next(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, []Member{nodes[2].Self()}, next.Members)

	former := nodes[2].Self()
	former.ID = "another"
	_, err = nodes[2].call(t.Context(), former, request{What: askAwait, Number: 1}, nil)
	require.ErrorContains(t, err, "the process that had this address has ended")
	require.True(t, ended(err))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = nodes[2].Next(ctx, 3)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, nodes[2].Close())
}

// TestDeathAfterWaiting ends a process that has waited in Next, as the first one is dead already:
// two of four remain. They are enough, as the others are certainly dead.
func TestDeathAfterWaiting(t *testing.T) {
	nodes, m := open(t, 4, 0)
	require.NoError(t, nodes[0].Close())
	var all sync.WaitGroup
	next := make([]Membership, 4)
	errs := make([]error, 4)
	begin := func(rank int) {
		all.Go(func() { next[rank], errs[rank] = nodes[rank].Next(t.Context(), 1) })
	}
	begin(3)
	begin(1)
	require.Eventually(t, func() bool { return slices.Equal(nodes[1].Missing(), []int{0, 2}) }, time.Minute, time.Millisecond)
	require.NoError(t, nodes[3].Close())
	begin(2)
	all.Wait()
	require.ErrorContains(t, errs[3], "this rank has closed its group")
	for _, rank := range []int{1, 2} {
		require.NoError(t, errs[rank])
		require.Equal(t, m.Members[1:3], next[rank].Members)
		require.NoError(t, nodes[rank].Close())
	}
}

// TestEnter has two processes ask a rank that does not propose to let them in, while the others
// wait for one. The first of them ends again, the second one gets the place.
func TestEnter(t *testing.T) {
	nodes, m := open(t, 3, time.Minute)
	later := []*Node{process(t, 0, 0), process(t, 0, 0)}
	_, err := later[0].Enter(t.Context(), Membership{Number: 4}) // as a file may say
	require.ErrorContains(t, err, "group 4 has no members")
	require.NoError(t, nodes[0].Close())
	waiting := func(n int) func() bool {
		return func() bool {
			nodes[2].mu.Lock()
			defer nodes[2].mu.Unlock()
			return len(nodes[2].joining) == n
		}
	}
	alone := Membership{Members: m.Members[2:]}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _, _ = later[0].Enter(ctx, alone) })
	require.Eventually(t, waiting(1), time.Minute, time.Millisecond)
	cancel()
	require.Eventually(t, waiting(0), time.Minute, time.Millisecond)

	next := make([]Membership, 3)
	errs := make([]error, 3)
	for _, rank := range []int{1, 2} {
		all.Go(func() { next[rank], errs[rank] = nodes[rank].Next(t.Context(), 1) })
	}
	require.Eventually(t, func() bool { return slices.Equal(nodes[1].Missing(), []int{0}) }, time.Minute, time.Millisecond)
	begin := time.Now()
	all.Go(func() { next[0], errs[0] = later[1].Enter(t.Context(), alone) })
	all.Wait()
	require.Less(t, time.Since(begin), time.Minute/2)
	want := []Member{later[1].Self(), m.Members[1], m.Members[2]}
	for rank := range 3 {
		require.NoError(t, errs[rank])
		require.Equal(t, want, next[rank].Members)
	}
	for _, n := range append(nodes[1:], later...) {
		require.NoError(t, n.Close())
	}
}

// someMembership draws a membership with a number.
func someMembership(t *rapid.T, number int) *Membership {
	m := &Membership{Number: number, Ballot: Ballot{rapid.IntRange(0, 1<<30).Draw(t, "round"), rapid.IntRange(0, 9).Draw(t, "proposer")}, Witness: Member{ID: rapid.String().Draw(t, "witness")}}
	for range rapid.IntRange(1, 4).Draw(t, "members") {
		m.Members = append(m.Members, Member{ID: rapid.String().Draw(t, "id"), Address: rapid.String().Draw(t, "address"), Rank: rapid.IntRange(-1, 1000).Draw(t, "rank")})
	}
	return m
}

// TestMessages encodes and parses requests and replies.
func TestMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.IntRange(-1, 1<<30).Draw(t, "number")
		q := request{What: ask(rapid.IntRange(0, int(asks)-1).Draw(t, "what")), Number: number, Base: number - 1, Ballot: Ballot{3, 1}}
		r := reply{Done: rapid.Bool().Draw(t, "done"), OK: rapid.Bool().Draw(t, "ok"), Unknown: rapid.Bool().Draw(t, "unknown"), Address: rapid.String().Draw(t, "store")}
		if q.What == askAccept {
			q.Value = someMembership(t, number)
		}
		if q.What == askEnter {
			q.Member = &Member{ID: "a", Address: "b:1", Rank: 3}
			r.Joining = append(r.Joining, *q.Member)
		}
		if rapid.Bool().Draw(t, "latest") {
			q.Latest, r.Value, r.Decided = someMembership(t, q.Base), someMembership(t, number), someMembership(t, number+1)
		}
		var parsed request
		require.NoError(t, parsed.parse(q.append(nil)))
		require.Equal(t, q, parsed)
		var answer reply
		require.NoError(t, answer.parse(r.append(nil)))
		require.Equal(t, r, answer)
	})
	large := membership(1000)
	for i := range large.Members {
		large.Members[i] = Member{ID: "ABCDEFGHIJKLMNOP", Address: "10.100.100.100:65535", Rank: i}
	}
	text, err := encode(&request{What: askAccept, Value: &large})
	require.NoError(t, err)
	require.Less(t, len(text), 41<<10)
	require.ErrorIs(t, receive(bytes.NewReader([]byte{255, 0, 0, 0, 0}), &request{}), errMessage)
	require.ErrorIs(t, receive(bytes.NewReader(text[:len(text)-1]), &request{}), io.EOF)
}

// fuzz parses bytes as a message that is parsed again, the same, from its encoding.
func fuzz[M any, P interface {
	*M
	append(b []byte) []byte
	parse(b []byte) error
}](f *testing.F, seeds ...M) {
	for _, m := range seeds {
		f.Add(P(&m).append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again M
		if P(&m).parse(b) != nil {
			return
		}
		require.NoError(t, P(&again).parse(P(&m).append(nil)))
		require.Equal(t, m, again)
	})
}

func FuzzRequest(f *testing.F) {
	m := membership(3)
	fuzz[request](f, request{}, request{What: askPrepare, Number: 1, Ballot: Ballot{1, 2}}, request{What: askAccept, Value: &m},
		request{What: askEnter, Number: 0, Base: -1, Member: &m.Members[1]}, request{What: askFollow, Number: 1, Latest: &m}, request{What: asks})
}

func FuzzReply(f *testing.F) {
	m := membership(3)
	fuzz[reply](f, reply{}, reply{Done: true, OK: true, Ballot: Ballot{1, 2}, Value: &m}, reply{Waits: true, Joining: m.Members},
		reply{Unknown: true}, reply{Done: true, Decided: &m}, reply{Done: true, Address: "10.0.0.1:29500"})
}

// TestUnknown brings a process up to date that has missed a membership: it asks for it.
func TestUnknown(t *testing.T) {
	nodes, m := open(t, 3, 0)
	next := Membership{Number: 1, Members: m.Members[:2]}
	nodes[0].Begin(next)
	nodes[1].Begin(next)
	calling, cancel := context.WithCancel(t.Context())
	_, err := nodes[0].call(calling, m.Members[2], request{What: askAwait, Number: 2}, func(reply) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
	now, _ := nodes[2].state()
	require.Equal(t, next, now)
	_, err = nodes[2].Next(t.Context(), 1)
	require.ErrorIs(t, err, ErrExcluded)
	for _, n := range nodes {
		require.NoError(t, n.Close())
	}
}
