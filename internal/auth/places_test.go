package auth

import (
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// visitor is a connection that only has an address and an end.
type visitor struct {
	net.Conn
	from   string
	closed bool
}

func (v *visitor) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(v.from), Port: 1} }
func (v *visitor) Close() error         { v.closed = true; return nil }

// TestPlacesGoToTheLatest fills all places from one address: whoever comes next gets that of the
// oldest, when that has had its time.
func TestPlacesGoToTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Places
		start := time.Now()
		held := make([]*visitor, 2*MaxUnproven)
		for i := range held {
			held[i] = &visitor{from: "10.0.0.1"}
			require.True(t, p.Take(held[i], nil))
		}
		require.Equal(t, Grace, time.Since(start), "the first ones have had their time, then all go at once")
		for i, v := range held {
			require.Equal(t, i < MaxUnproven, v.closed, i)
		}
		require.ErrorIs(t, p.Leave(held[0], net.ErrClosed), errCrowded)
		require.ErrorContains(t, p.Leave(held[0], nil), "auth: 10.0.0.1:1: the connection had not proved the secret yet")
		require.NoError(t, p.Leave(held[MaxUnproven], nil))
		require.ErrorIs(t, p.Leave(held[MaxUnproven+1], ErrSecret), ErrSecret)
	})
}

// TestPlacesByAddress lets a few from one address in beside a crowd from another.
func TestPlacesByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Places
		slow := &visitor{from: "10.0.0.2"}
		require.True(t, p.Take(slow, nil))
		for range 10 * MaxUnproven {
			require.True(t, p.Take(&visitor{from: "10.0.0.1"}, nil))
		}
		require.False(t, slow.closed)
		require.NoError(t, p.Leave(slow, nil))
	})
}

// TestPlacesWait makes a newcomer wait while all places are taken and young: until one is given
// back, or nobody wants it any more.
func TestPlacesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Places
		held := make([]*visitor, MaxUnproven)
		for i := range held {
			held[i] = &visitor{from: "10.0.0.1"}
			require.True(t, p.Take(held[i], nil))
		}
		start := time.Now()
		time.AfterFunc(Grace/2, func() { _ = p.Leave(held[7], nil) }) // its answer is tested above
		require.True(t, p.Take(&visitor{from: "10.0.0.1"}, nil))
		require.Equal(t, Grace/2, time.Since(start))
		stop := make(chan struct{})
		time.AfterFunc(Grace/4, func() { close(stop) })
		require.False(t, p.Take(&visitor{from: "10.0.0.1"}, stop))
		require.Equal(t, Grace*3/4, time.Since(start))
		require.False(t, slices.ContainsFunc(held, func(v *visitor) bool { return v.closed }))
	})
}

// TestPlacesNeverOverflow takes and leaves at random: there are never more than the limit, and who
// is closed is who has lost the place.
func TestPlacesNeverOverflow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 4*MaxUnproven).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			var p Places
			var all []*visitor
			for i, step := range steps {
				if step == 0 && len(all) > 0 {
					v := all[i*7919%len(all)]
					_ = p.Leave(v, nil) // may have left before
					continue
				}
				v := &visitor{from: []string{"10.0.0.1", "10.0.0.2"}[step%2]}
				all = append(all, v)
				require.True(t, p.Take(v, nil))
				require.False(t, v.closed)
				require.LessOrEqual(t, len(p.taken), MaxUnproven)
			}
			for _, t2 := range p.taken {
				require.False(t, t2.conn.(*visitor).closed)
			}
		})
	})
}
