package comm

import (
	"context"
	"errors"
	"testing"

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
			early := Failing(gs[1])
			require.False(t, closed(early))
			fail(gs[0])
			require.True(t, closed(early))
			require.True(t, closed(Failing(gs[0])))
			require.Error(t, gs[1].Barrier(t.Context()))
			require.False(t, closed(Failing(child)))
		})
	}
	gs := Local(2)
	require.NoError(t, gs[0].Close())
	require.False(t, closed(Failing(gs[1])), "a rank has left")
	require.Nil(t, Failing(struct{ Group }{gs[0]}), "it cannot tell")
	early := Failing(gs[1])
	require.Equal(t, early, Failing(telling{Group: gs[0], ch: early}), "of another package")
}

// telling is a group that was made elsewhere.
type telling struct {
	Group
	ch <-chan struct{}
}

func (g telling) Failing() <-chan struct{} { return g.ch }

// counting is the backend of a group of one, which knows one address of a device.
type counting struct{ Backend }

func (counting) Run(context.Context, uint64, *Call) error { return nil }
func (counting) Tell(error)                               {}
func (counting) Stop()                                    {}
func (counting) Leave(uint64) error                       { return nil }

type reaching struct{ counting }

func (reaching) Reach(b Buffer) error {
	if addr, _ := b.Device(); addr != 0x100 {
		return errors.New("out of reach")
	}
	return nil
}

// Only groups over a DeviceBackend take device memory, as far as it reaches.
func TestDeviceBuffers(t *testing.T) {
	near, far := OnDevice[float32](0x100, 4), OnDevice[float32](0x200, 4)
	for _, g := range []Group{Local(1)[0], NewSerial("host", 0, 1, counting{})} {
		err := g.AllReduce(near, Sum).Wait(t.Context())
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "device memory")
		require.NoError(t, g.Close())
	}
	s := NewSerial("device", 0, 1, reaching{})
	other := NewSerial("other", 0, 1, reaching{})
	w := s.AllReduce(near, Sum)
	require.NoError(t, w.Wait(t.Context()))
	require.NoError(t, s.Broadcast(Of([]int32{1}), 0).Wait(t.Context()), "host memory is never out of reach")
	seq, ok := s.Seq(w)
	require.True(t, ok)
	require.EqualValues(t, 1, seq)
	_, ok = other.Seq(w)
	require.False(t, ok)
	require.False(t, closed(Failing(s)))
	err := s.AllGather(near, far).Wait(t.Context())
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "out of reach")
	_, ok = s.Seq(s.AllReduce(near, Sum))
	require.False(t, ok)
	require.True(t, closed(Failing(s)))
	require.NoError(t, errors.Join(s.Close(), other.Close()))
}

func TestOnDevice(t *testing.T) {
	b := OnDevice[BF16](0x1000, 8).Named("x")
	require.Equal(t, `bfloat16[8] "x"`, b.String())
	require.Nil(t, b.Bytes())
	_, err := Slice[BF16](b)
	require.ErrorContains(t, err, "device memory")
	part := b.Slice(3, 5)
	addr, ok := part.Device()
	require.True(t, ok)
	require.EqualValues(t, 0x1006, addr)
	require.Equal(t, 2, part.Len())
	_, ok = Of([]float32{1}).Device()
	require.False(t, ok)
	require.False(t, OnDevice[uint8](0x1000, -1).DType().valid())
	require.True(t, overlap(b, part))
	require.False(t, overlap(b.Slice(0, 3), part))
	require.False(t, overlap(b, Of([]BF16{0})), "memories of two kinds")
	inPlace := Call{Kind: KindAllGather, Dst: b, Src: b.Slice(4, 8)}
	require.NoError(t, inPlace.checkAnywhere(1, 2))
	require.ErrorIs(t, inPlace.checkAnywhere(0, 2), ErrInvalid)
}
