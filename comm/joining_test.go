package comm

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/quorum"
)

// TestJoiningSpeaksUp: a rank that waits says so after 5 s and every 30 s, in the default logger if
// there is no other, and gives up after the limit.
func TestJoiningSpeaksUp(t *testing.T) {
	var told bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		cfg, err := Config{Rank: 1, Size: 4, Rendezvous: "tcp://h:1", JoinTimeout: 70 * time.Second}.withDefaults()
		require.NoError(t, err)
		ctx, j, done := startJoining(t.Context(), cfg)
		defer done()
		j.waitsFor("serve the rendezvous", func() []int { return []int{0} })
		j.note(errors.New("refused"))
		time.Sleep(20 * time.Second)
		j.waitsFor("make the group", j.otherRanks)
		time.Sleep(20 * time.Second)
		j.waitsFor("go home", func() []int { return nil })
		<-ctx.Done()
		require.Equal(t, 70*time.Second, time.Since(begin))
	})
	require.Equal(t, `level=WARN msg="comm: rank 1 of 4 waits for ranks [0] to serve the rendezvous" at=tcp://h:1 for=5s FSDP_JOIN_TIMEOUT=1m10s because=refused
level=WARN msg="comm: rank 1 of 4 waits for ranks [0 2 3] to make the group" at=tcp://h:1 for=35s FSDP_JOIN_TIMEOUT=1m10s
`, told.String())
}

// TestJoinAfterUnformed: a process joins and ends before its group has formed, so no group has that
// number. Later processes join nevertheless, also when all ranks of the first group have ended.
func TestJoinAfterUnformed(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	cfg, err := Config{Size: 2, Rendezvous: "file://" + dir, Job: t.Name(), Secret: []byte("known to this test only"),
		JoinTimeout: time.Minute, ReplaceTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)}.withDefaults()
	require.NoError(t, err)
	join := cfg
	join.Join = true
	var ranks sync.WaitGroup
	var a, b, c Group
	ranks.Go(func() { a, _ = Connect(ctx, cfg) })
	second := cfg
	second.Rank = 1
	b, err = Connect(ctx, second)
	require.NoError(t, err)
	ranks.Wait()
	kill := func(g Group) {
		here, _ := places.Load(g)
		p := here.(*place)
		p.over = true // it does not leave as planned
		require.NoError(t, errors.Join(p.node.Close(), g.Close()))
	}
	kill(a)
	again := func(g *Group) {
		former := *g
		if *g, err = Reconnect(ctx, former); err == nil {
			err = former.Close()
		}
	}
	ranks.Go(func() { again(&b) })

	n, nerr := quorum.Open(ctx, join.quorum())
	require.NoError(t, nerr)
	_, j, done := startJoining(ctx, join)
	meet, closed, nerr := rendezvous(ctx, join, j)
	require.NoError(t, nerr)
	value, nerr := meet.Get(ctx, keyMembers(0))
	require.NoError(t, nerr)
	require.NoError(t, closed())
	done()
	var first quorum.Membership
	require.NoError(t, json.Unmarshal(value, &first))
	one, nerr := n.Enter(ctx, first)
	require.NoError(t, nerr)
	require.Equal(t, 1, one.Number)
	require.NoError(t, n.Close())

	c, nerr = Connect(ctx, join)
	require.NoError(t, nerr)
	ranks.Wait()
	require.NoError(t, err)
	kill(b)
	ranks.Go(func() { again(&c) })
	last, nerr := Connect(ctx, join)
	require.NoError(t, nerr)
	ranks.Wait()
	require.NoError(t, err)
	require.Equal(t, 2, last.Size())
	require.NoError(t, errors.Join(c.Close(), last.Close()))
}

// TestLeaveAfterDecision: a rank that has decided on a later membership does not report that it has
// left. It may have let processes in, and these live.
func TestLeaveAfterDecision(t *testing.T) {
	cfg, err := Config{Size: 1, Secret: []byte("known to this test only"), Logger: slog.New(slog.DiscardHandler)}.withDefaults()
	require.NoError(t, err)
	for number := range 2 {
		node, err := quorum.Open(t.Context(), cfg.quorum())
		require.NoError(t, err)
		node.Begin(quorum.Membership{Number: number, Members: []quorum.Member{node.Self()}})
		p := &place{cfg: cfg, node: node} // of group 0
		departs, err := p.leave(nil)
		require.NoError(t, err)
		require.Equal(t, number == 0, departs)
	}
}
