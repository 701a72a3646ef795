//go:build linux && cgo

package device

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

// TestOnlyEventsOrderStreams holds one stream back: without a wait the other overtakes it, every
// time.
func TestOnlyEventsOrderStreams(t *testing.T) {
	c := cuda(t)
	d := open(t, 0)
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprint("waits=", waits), func(t *testing.T) {
			writer, reader := newStream(t, d), newStream(t, d)
			e := newEvent(t, d)
			m, h := alloc(t, d, 1), allocHost(t, d, 1)
			put(t, d, writer, m.Addr(), []byte{1})

			c.Pause(t, writer.Handle())
			require.NoError(t, writer.Set(m.Addr(), 2, 1))
			require.NoError(t, e.Record(writer))
			if waits {
				require.NoError(t, reader.Wait(e))
			}
			require.NoError(t, reader.CopyToHost(h, 0, m.Addr(), 1))
			if !waits {
				require.NoError(t, reader.Sync())
			}
			for name, query := range map[string]func() (bool, error){"event": e.Query, "writer": writer.Query} {
				done, err := query()
				require.NoError(t, err)
				require.False(t, done, name)
			}
			done, err := reader.Query()
			require.NoError(t, err)
			require.Equal(t, !waits, done)
			c.Resume(t, writer.Handle())
			require.NoError(t, e.Sync())
			require.NoError(t, reader.Sync())
			require.NoError(t, writer.Sync())
			if waits {
				require.Equal(t, []byte{2}, h.Bytes())
			} else {
				require.Equal(t, []byte{1}, h.Bytes())
			}
		})
	}
}

// TestSchedules: what streams do in no order happens in the one that the double is told, and a wait
// that is left out gives none.
func TestSchedules(t *testing.T) {
	c := cuda(t)
	d := open(t, 0)
	for _, v := range []struct {
		schedule gpudouble.Schedule
		omitted  int
		want     byte
	}{
		{gpudouble.UrgentLate, 0, 2}, {gpudouble.UrgentEarly, 0, 2}, {gpudouble.UrgentLate, 1, 1}, {gpudouble.UrgentEarly, 1, 2},
	} {
		t.Run(fmt.Sprint(v), func(t *testing.T) {
			urgent, err := d.NewUrgentStream()
			require.NoError(t, err)
			other, e := newStream(t, d), newEvent(t, d)
			m, h := alloc(t, d, 1), allocHost(t, d, 1)
			put(t, d, other, m.Addr(), []byte{1})
			c.Scheduled(t, v.schedule, func() {
				waits := c.Omit(0, 0, v.omitted)
				require.NoError(t, urgent.Set(m.Addr(), 2, 1))
				require.NoError(t, e.Record(urgent))
				require.NoError(t, other.Wait(e))
				require.Equal(t, waits+1, c.Omit(0, 0, -1))
				require.NoError(t, other.CopyToHost(h, 0, m.Addr(), 1))
				require.NoError(t, other.Sync())
				require.Equal(t, v.want, h.Bytes()[0])
				require.NoError(t, urgent.Sync())
			})
			require.NoError(t, urgent.Close())
			c.Omit(0, 0, 0)
		})
	}
}

// TestWaitIsForThePlaceOfTheLastRecord checks that recording an event again does not move who
// waits for it.
func TestWaitIsForThePlaceOfTheLastRecord(t *testing.T) {
	c := cuda(t)
	d := open(t, 0)
	a, b, waiter := newStream(t, d), newStream(t, d), newStream(t, d)
	e := newEvent(t, d)
	require.NoError(t, e.Record(a))
	require.NoError(t, waiter.Wait(e))
	c.Pause(t, b.Handle())
	require.NoError(t, e.Record(b))
	require.NoError(t, waiter.Sync(), "the record in b is none of its business")
	done, err := e.Query()
	require.NoError(t, err)
	require.False(t, done)
	c.Resume(t, b.Handle())
	require.NoError(t, e.Sync())
}

// TestCopiesHappenWhenTheyRun checks that a copy takes what is in host memory when it runs, not
// when it was asked for.
func TestCopiesHappenWhenTheyRun(t *testing.T) {
	c := cuda(t)
	d := open(t, 0)
	s := newStream(t, d)
	m, h := alloc(t, d, 1), allocHost(t, d, 1)
	h.Bytes()[0] = 1
	c.Pause(t, s.Handle())
	require.NoError(t, s.CopyToDevice(m.Addr(), h, 0, 1))
	h.Bytes()[0] = 2
	c.Resume(t, s.Handle())
	require.Equal(t, []byte{2}, get(t, d, s, m.Addr(), 1))
}

// TestRandomStreams compares random work on several streams and devices, ordered by events where
// it touches the same memory, with the same work done one after the other by the host.
func TestRandomStreams(t *testing.T) {
	c := cuda(t)
	const size, buffers, streams = 64, 4, 3
	d := []*Device{open(t, 0), open(t, 1)}
	mod := []*Module{kernels(t, d[0]), kernels(t, d[1])}
	scale := []*Function{kernel(t, mod[0], "scale_f32"), kernel(t, mod[1], "scale_f32")}
	var s [streams]*Stream
	var done [streams]*Event
	for i := range s {
		s[i], done[i] = newStream(t, d[i%2]), newEvent(t, d[i%2])
	}
	c.Delay(50*time.Microsecond, 1)
	defer c.Delay(0, 0)
	rapid.Check(t, func(r *rapid.T) {
		var m [buffers]*Memory
		want := make([][]float32, buffers)
		for i := range m {
			m[i] = must(d[i%2].Alloc(4 * size))(t)
			want[i] = make([]float32, size)
			for j := range want[i] {
				want[i][j] = float32(10*i + j)
			}
			put(t, d[0], s[0], m[i].Addr(), bytesOf(want[i]))
		}
		var last [buffers]int // the stream that used it last
		use := func(stream, buffer int) {
			if owner := last[buffer]; owner != stream {
				require.NoError(t, done[owner].Record(s[owner]))
				require.NoError(t, s[stream].Wait(done[owner]))
				last[buffer] = stream
			}
		}
		for range rapid.IntRange(1, 30).Draw(r, "operations") {
			on := rapid.IntRange(0, streams-1).Draw(r, "stream")
			to, from := rapid.IntRange(0, buffers-1).Draw(r, "to"), rapid.IntRange(0, buffers-1).Draw(r, "from")
			use(on, to)
			switch kind := rapid.IntRange(0, 2).Draw(r, "kind"); {
			case kind == 0 && to%2 == on%2: // a kernel reaches its own device's memory only
				require.NoError(t, scale[on%2].Launch(s[on], [3]int{1, 1, 1}, [3]int{size, 1, 1}, 0, m[to], float32(0.5), int32(size)))
				for j := range want[to] {
					want[to][j] *= 0.5
				}
			case kind == 1 && to != from:
				use(on, from)
				require.NoError(t, s[on].CopyDevice(m[to].Addr(), m[from].Addr(), 4*size))
				copy(want[to], want[from])
			default:
				require.NoError(t, s[on].Set(m[to].Addr(), 0, 4*size/2))
				clear(want[to][:size/2])
			}
		}
		for i := range m {
			use(0, i)
			require.Equal(t, want[i], floats(get(t, d[0], s[0], m[i].Addr(), 4*size)), "buffer %d", i)
			require.NoError(t, s[last[i]].Sync())
			require.NoError(t, m[i].Free())
		}
	})
}
