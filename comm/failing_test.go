package comm

import (
	"context"
	"errors"
	"testing"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/stretchr/testify/require"
)

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Who listens hears of a failure, before and after, and not of ranks that leave.
func TestFailing(t *testing.T) {
	for name, fail := range map[string]func(g Group){
		"abort":   func(g Group) { g.Abort(errors.New("enough")) },
		"invalid": func(g Group) { g.Broadcast(Buffer{}, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			gs := Local(2)
			child, err := Local(1)[0].Split(t.Context(), 0, 0)
			require.NoError(t, err)
			early := transport.Failing(gs[1])
			require.False(t, closed(early))
			fail(gs[0])
			require.True(t, closed(early))
			require.True(t, closed(transport.Failing(gs[0])))
			require.Error(t, gs[1].Barrier(t.Context()))
			require.False(t, closed(transport.Failing(child)))
		})
	}
	gs := Local(2)
	require.NoError(t, gs[0].Close())
	require.False(t, closed(transport.Failing(gs[1])), "a rank has left")
	require.Nil(t, transport.Failing(struct{ Group }{gs[0]}), "it cannot tell")
	early := transport.Failing(gs[1])
	require.Equal(t, early, transport.Failing(telling{Group: gs[0], ch: early}), "of another package")
}

// telling is a group that was made elsewhere.
type telling struct {
	Group
	ch <-chan struct{}
}

func (g telling) Failing() <-chan struct{} { return g.ch }

// counting is the backend of a group of one, which knows one address of a device.
type counting struct{ transport.Backend }

func (counting) Run(context.Context, uint64, *transport.Call) error { return nil }
func (counting) Tell(error)                                         {}
func (counting) Stop()                                              {}
func (counting) Leave(uint64) error                                 { return nil }

type reaching struct{ counting }

func (reaching) Reach(b Buffer) error {
	if addr, _ := b.Device(); addr != 0x100 {
		return errors.New("out of reach")
	}
	return nil
}

// Only groups over a DeviceBackend take device memory, as far as it reaches.
func TestDeviceBuffers(t *testing.T) {
	near, far := transport.OnDevice[float32](0x100, 4), transport.OnDevice[float32](0x200, 4)
	for _, g := range []Group{Local(1)[0], transport.NewSerial("host", 0, 1, counting{})} {
		err := g.AllReduce(near, Sum).Wait(t.Context())
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "device memory")
		require.NoError(t, g.Close())
	}
	s := transport.NewSerial("device", 0, 1, reaching{})
	other := transport.NewSerial("other", 0, 1, reaching{})
	w := s.AllReduce(near, Sum)
	require.NoError(t, w.Wait(t.Context()))
	require.NoError(t, s.Broadcast(Of([]int32{1}), 0).Wait(t.Context()), "host memory is never out of reach")
	seq, ok := s.Seq(w)
	require.True(t, ok)
	require.EqualValues(t, 1, seq)
	_, ok = other.Seq(w)
	require.False(t, ok)
	require.False(t, closed(transport.Failing(s)))
	err := s.AllGather(near, far).Wait(t.Context())
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "out of reach")
	_, ok = s.Seq(s.AllReduce(near, Sum))
	require.False(t, ok)
	require.True(t, closed(transport.Failing(s)))
	require.NoError(t, errors.Join(s.Close(), other.Close()))
}
