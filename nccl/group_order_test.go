//go:build linux && cgo

package nccl

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// A member is one rank of a group of a test.
type member struct {
	*Group
	me *rank // without a communicator
}

// groupOf runs f on n ranks of a new group, each on a device of its own, and closes
// everything. It returns what f returns, or New or Close.
func groupOf(t testing.TB, n int, cfg GroupConfig, f func(m *member) error) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	boot := comm.Local(n)
	return each(n, func(i int) (err error) {
		m := &member{me: &rank{ctx: ctx}}
		m.me.dev = must(OpenDevice(i))
		defer func() { err = errors.Join(err, boot[i].Close(), m.me.dev.Close()) }()
		if m.Group, err = New(ctx, boot[i], m.me.dev, cfg); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		stream, err := m.me.dev.NewStream()
		if err != nil {
			m.Abort(err)
			return err
		}
		m.me.stream = stream
		defer func() { err = errors.Join(err, m.me.stream.Close()) }()
		return caught(func() error { return f(m) })
	})
}

func inGroup(t testing.TB, n int, cfg GroupConfig, f func(m *member) error) {
	t.Helper()
	for r, err := range groupOf(t, n, cfg, f) {
		require.NoError(t, err, "rank %d", r)
	}
}

func f32s(addr uintptr, n int) comm.Buffer { return transport.OnDevice[float32](addr, n).Named("x") }

// A collective comes after what streams were given before the fence, and a stream after
// the collective, without a host that waits.
func TestGroupOrder(t *testing.T) {
	cuda, _ := doubles(t)
	const n = 2
	inGroup(t, n, GroupConfig{}, func(m *member) error {
		unfenced := must(m.Split(m.me.ctx, 0, m.Rank()))
		m.me.alloc(4, func(x uintptr) {
			check(m.me.stream.Set(x, 0, 4))
			check(m.me.stream.Sync())
			cuda.Pause(t, m.me.stream.Handle())
			check(m.me.stream.Set(x, 1, 4))
			check(m.Fence(m.me.stream))
			w := m.AllReduce(transport.OnDevice[uint8](x, 4), comm.Sum)
			after := must(m.me.dev.NewStream())
			check(m.WaitOn(m.me.ctx, after, w)) // launched on this rank, and cannot have run
			h := must(m.me.dev.AllocHost(4))
			check(after.CopyToHost(h, 0, x, 4))
			for range 5 { // all ranks have launched it, and have time to do others
				check(unfenced.AllReduce(comm.Of([]float32{1}), comm.Sum).Wait(m.me.ctx))
			}
			that(nil, "a collective before its fence", !must(after.Query()))
			cuda.Resume(t, m.me.stream.Handle())
			check(after.Sync())
			require.Equal(m.me, []byte{n, n, n, n}, h.Bytes())
			check(w.Wait(m.me.ctx))
			check(m.WaitOn(m.me.ctx, after, w)) // there is nothing to wait for any more
			check(errors.Join(after.Close(), h.Free()))
		})
		return nil
	})
}

func TestWaitOnOthers(t *testing.T) {
	doubles(t)
	inGroup(t, 1, GroupConfig{}, func(m *member) error {
		alone := comm.Local(1)[0]
		w := alone.AllReduce(comm.Of([]float32{1}), comm.Sum)
		require.ErrorContains(m.me, m.WaitOn(m.me.ctx, m.me.stream, w), "another group")
		require.ErrorContains(m.me, m.Fence(nil), `rank 0 of group "nccl": Fence: the stream is nil`)
		x := []float32{1}
		require.NoError(m.me, m.WaitOn(m.me.ctx, m.me.stream, m.AllReduce(comm.Of(x), comm.Sum)), "host buffers are complete")
		bad := m.AllReduce(f32s(0, 4), comm.Sum)
		require.ErrorIs(m.me, m.WaitOn(m.me.ctx, m.me.stream, bad), comm.ErrInvalid)
		return nil
	})
}

// WaitOn of what is never launched ends with its context, or with the group.
func TestWaitOnEnds(t *testing.T) {
	doubles(t)
	cause := errors.New("enough")
	inGroup(t, 2, GroupConfig{}, func(m *member) error {
		if m.Rank() == 1 {
			<-m.backend.halt // told by rank 0
			return nil
		}
		defer m.Abort(cause)
		w := m.AllReduce(comm.Of([]float32{1}), comm.Sum)
		ctx, cancel := context.WithCancelCause(m.me.ctx)
		cancel(cause)
		err := m.WaitOn(ctx, m.me.stream, w)
		require.ErrorIs(m.me, err, cause)
		require.ErrorContains(m.me, err, `rank 0 of group "nccl": WaitOn of collective #1: `)
		time.AfterFunc(time.Millisecond, func() { m.Abort(cause) })
		require.ErrorIs(m.me, m.WaitOn(m.me.ctx, m.me.stream, w), cause)
		return nil
	})
}

// Neither device nor host buffers cost an allocation once all is in place.
func TestGroupAllocates(t *testing.T) {
	doubles(t)
	for _, n := range []int{1, 2} {
		inGroup(t, n, pieces, func(m *member) error {
			const runs = 200
			host := make([]float32, 3000)
			m.me.alloc(4*1024*n, func(x uintptr) {
				shard := f32s(x+uintptr(4*1024*m.Rank()), 1024)
				step := func() {
					check(m.AllGather(f32s(x, 1024*n), shard).Wait(m.me.ctx))
					check(m.ReduceScatter(shard, f32s(x, 1024*n), comm.Sum).Wait(m.me.ctx))
					check(m.AllReduce(comm.Of(host), comm.Avg).Wait(m.me.ctx))
				}
				for range 20 {
					step()
				}
				if m.Rank() > 0 {
					for range runs + 1 {
						step()
					}
					return
				}
				require.Zero(m.me, testing.AllocsPerRun(runs, step))
			})
			return nil
		})
	}
}

// Buffers of a device are refused where they cannot be meant.
func TestGroupReach(t *testing.T) {
	cuda, _ := doubles(t)
	for text, buf := range map[string]comm.Buffer{
		"has address 0": f32s(0, 1), "not a multiple of the element size 4": f32s(4097, 1), "no element type": transport.OnDevice[float32](4096, -1),
	} {
		inGroup(t, 1, GroupConfig{}, func(m *member) error {
			err := m.AllReduce(buf, comm.Sum).Wait(m.me.ctx)
			require.ErrorIs(m.me, err, comm.ErrInvalid)
			require.ErrorContains(m.me, err, text)
			return nil
		})
	}
	// What is not memory of the device NCCL finds.
	for _, err := range groupOf(t, 1, GroupConfig{}, func(m *member) error {
		return m.AllReduce(f32s(1<<40, 4), comm.Sum).Wait(m.me.ctx)
	}) {
		require.ErrorIs(t, err, InvalidArgument)
		require.ErrorContains(t, err, `rank 0 of group "nccl": all-reduce #1 "x"`)
	}
	drain(t, cuda, "0x10000000000")
}
