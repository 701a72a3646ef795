package state

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// far is a vector whose memory only Read and Write reach.
type far struct{ optim.Host }

func (f far) Slice(from, to int) optim.Vec { return far{f.Host.Slice(from, to).(optim.Host)} }

// memory is that of a layout whose shards are far, or on the host.
type memory struct {
	values []optim.Vec
	taken  int // pieces of scratch that are not given back
}

func newMemory(l *layout.Layout) *memory {
	m := &memory{}
	for i := range l.Groups {
		m.values = append(m.values, NewHost(l.Groups[i].Compute, l.Groups[i].Flat.ShardLen()))
	}
	return m
}

// away moves the shards out of reach.
func (m *memory) away() *memory {
	for i, v := range m.values {
		m.values[i] = far{v.(optim.Host)}
	}
	return m
}

func (m *memory) Value(group int) optim.Vec { return m.values[group] }
func (m *memory) Grad(int) optim.Vec        { return nil }

func (m *memory) Scratch(n int) ([]byte, func(), error) {
	m.taken++
	return make([]byte, n), func() { m.taken-- }, nil
}

func (m *memory) Snapshot(n int) ([]byte, error) { return make([]byte, n), nil }
func (m *memory) Forget()                        {}
func (m *memory) Lend(f func() error) error      { return f() }

// adam is an optimizer of what a store has.
func adam(t *testing.T, s *Store) optim.Optimizer {
	var params []optim.Param
	for _, p := range s.shares(s.Memory.Value) {
		q := optim.Param{Name: p.Param, Shape: p.Shape, Offset: p.Offset, Value: p.Vec, Grad: p.Vec}
		if _, out := p.Vec.(far); out {
			q.Alloc = func(n int) (optim.Vec, error) { return far{NewHost(s.Compute, n)}, nil }
		}
		params = append(params, q)
	}
	opt, err := optim.AdamW{}.New(params)
	require.NoError(t, err)
	return opt
}

// TestFarVectors reads and replaces elements that lie out of reach, and those that do not, in
// place.
func TestFarVectors(t *testing.T) {
	near := optim.Host{F32: []float32{1, 2, 3, 4}}
	for name, v := range map[string]optim.Vec{"near": near, "far": far{near}} {
		b, err := contents(v)
		require.NoError(t, err)
		require.Equal(t, BytesOf(near), b)
		b[0]++
		require.Equal(t, name == "near", bytes.Equal(BytesOf(near), b), "the same memory")
		b[0]--
		require.NoError(t, replace(v, func(to []byte) error {
			copy(elements[float32](to), []float32{5, 6, 7, 8})
			return nil
		}))
		require.Equal(t, []float32{5, 6, 7, 8}, near.F32)
		failed := errors.New("no disk")
		require.ErrorIs(t, replace(v, func([]byte) error { return failed }), failed)
		p := Piece{Tensor: shared(0, "w", "", 6), Offset: 1, Vec: v}
		require.NoError(t, p.put(comm.Float32, BytesOf(optim.Host{F32: []float32{0, 1, 2, 3, 4, 5}})))
		require.Equal(t, []float32{1, 2, 3, 4}, near.F32)
	}
}

// TestFarPart writes a part of a checkpoint that is not in memory, in portions.
func TestFarPart(t *testing.T) {
	n := checkpoint.ChunkBytes/8*2 + 3
	near := NewHost(comm.Float64, n)
	for i := range near.F64 {
		near.F64[i] = float64(i)
	}
	p := partOf(comm.Float64, &Piece{Tensor: shared(0, "w", "", n), Vec: far{near}})
	require.Equal(t, n, p.Len)
	var out bytes.Buffer
	require.NoError(t, p.Write(t.Context(), &out))
	require.Equal(t, BytesOf(near), out.Bytes())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Write(ctx, &out), context.Canceled)
	require.Equal(t, BytesOf(near), partOf(comm.Float64, &Piece{Tensor: shared(0, "w", "", n), Vec: near}).Data)
}

// TestRing gives room in turn, and all of it back.
func TestRing(t *testing.T) {
	m := &memory{}
	s := &Store{Memory: m, Compute: comm.Float32}
	r, err := s.newRing([]Tensor{shared(0, "a", "", 1), shared(1, "b", "", 2)})
	require.NoError(t, err)
	a, b, c := r.room(8), r.room(4), r.room(8)
	require.Same(t, &a[0], &c[0])
	require.NotSame(t, &a[0], &b[0])
	require.Len(t, b, 4)
	require.Equal(t, 2, m.taken)
	r.close()
	r.close()
	require.Zero(t, m.taken)
	require.NotPanics(t, (*ring)(nil).close)
}

// TestConvert keeps what is in the wanted type where it is.
func TestConvert(t *testing.T) {
	to := make([]byte, 16)
	f32, f64 := optim.Host{F32: []float32{1.5, -2}}, optim.Host{F64: []float64{1.5, -2}}
	require.Equal(t, f64.F64, slices.Clone(elements[float64](convert(to, comm.Float64, f32))))
	require.Equal(t, f32.F32, slices.Clone(elements[float32](convert(to[:8], comm.Float32, f64))))
	require.Same(t, &BytesOf(f32)[0], &convert(to, comm.Float32, f32)[0])
}
