//go:build linux && cgo

package nccl

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/comm/transport"
)

func init() { grace = 20 * time.Millisecond } // ranks that close alone wait for it

// where says which buffers of a rank are put on its device.
type where func(rank int, src bool) bool

var (
	onHosts   where = func(int, bool) bool { return false }
	onDevices where = func(int, bool) bool { return true }
	mixed     where = func(rank int, src bool) bool { return rank%2 == 0 == src }
)

// placed is a group whose callers have host buffers, some of which it replaces by device
// memory for the time of an operation.
type placed struct {
	*Group
	where where
}

// open returns a function that makes groups of n ranks, for a contract.
func openGroups(t *testing.T, cfg GroupConfig, w where, device func(rank int) int) func(t testing.TB, n int) []comm.Group {
	var devices [4]*Device
	for r := range devices {
		d, err := OpenDevice(device(r))
		require.NoError(t, err)
		t.Cleanup(func() {
			scratches.clear(d)
			require.NoError(t, d.Close())
		})
		devices[r] = d
	}
	return func(t testing.TB, n int) []comm.Group {
		gs := comm.Local(n)
		for r, err := range each(n, func(r int) error {
			g, err := New(t.Context(), gs[r], devices[r], cfg)
			if err == nil {
				gs[r] = &placed{g, w}
			}
			return err
		}) {
			require.NoError(t, err, "rank %d", r)
		}
		return gs
	}
}

func own(rank int) int { return rank }

// Split implements comm.Group.
func (p *placed) Split(ctx context.Context, color, key int) (comm.Group, error) {
	g, err := p.Group.Split(ctx, color, key)
	if g == nil || err != nil {
		return nil, err
	}
	return &placed{g.(*Group), p.where}, nil
}

func (p *placed) AllGather(dst, src comm.Buffer) comm.Work {
	return p.issue(dst, src, p.Group.AllGather)
}

func (p *placed) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return p.issue(dst, src, func(dst, src comm.Buffer) comm.Work { return p.Group.ReduceScatter(dst, src, op) })
}

func (p *placed) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return p.issue(buf, buf, func(buf, _ comm.Buffer) comm.Work { return p.Group.AllReduce(buf, op) })
}

func (p *placed) Broadcast(buf comm.Buffer, root int) comm.Work {
	return p.issue(buf, buf, func(buf, _ comm.Buffer) comm.Work { return p.Group.Broadcast(buf, root) })
}

func (p *placed) Gather(dst, src comm.Buffer, counts []int, root int) comm.Work {
	return p.issue(dst, src, func(dst, src comm.Buffer) comm.Work { return p.Group.Gather(dst, src, counts, root) })
}

func (p *placed) AllToAll(dst, src comm.Buffer) comm.Work {
	return p.issue(dst, src, p.Group.AllToAll)
}

// issue issues an operation on copies of those buffers that belong on the device.
func (p *placed) issue(dst, src comm.Buffer, call func(dst, src comm.Buffer) comm.Work) comm.Work {
	w := &placedWork{p: p, dst: dst, src: src}
	d, s := dst, src
	inDst, small := within(dst, src)
	inSrc, large := within(src, dst)
	device := [2]bool{p.where(p.Rank(), false), p.where(p.Rank(), true)}
	switch {
	case (small || large) && !device[0]: // in one place, or they would not overlap any more
	case small:
		d = w.copyIn(dst)
		s = d.Slice(inDst, inDst+src.Len())
	case large:
		s = w.copyIn(src)
		d = s.Slice(inSrc, inSrc+dst.Len())
	default:
		if device[0] {
			d = w.copyIn(dst)
		}
		if device[1] {
			s = w.copyIn(src)
		}
	}
	w.Work = call(d.Named(dst.Label()), s.Named(src.Label()))
	return w
}

// within reports whether b is a range of a, and which.
func within(a, b comm.Buffer) (offset int, ok bool) {
	size := a.DType().Size()
	if a.Len() == 0 || b.Len() == 0 || size != b.DType().Size() {
		return 0, false
	}
	distance := int(uintptr(unsafe.Pointer(&b.Bytes()[0])) - uintptr(unsafe.Pointer(&a.Bytes()[0])))
	offset = distance / size
	return offset, distance >= 0 && distance%size == 0 && offset+b.Len() <= a.Len()
}

// placedWork copies back what was on the device.
type placedWork struct {
	comm.Work
	p        *placed
	dst, src comm.Buffer
	once     sync.Once
	scratch  []*scratch
	back     []func()
}

// deviceBuffer is transport.OnDevice for a type that is known at run time.
func deviceBuffer(t comm.DType, addr uintptr, n int) comm.Buffer {
	switch t {
	case comm.Float32:
		return transport.OnDevice[float32](addr, n)
	case comm.Float64:
		return transport.OnDevice[float64](addr, n)
	case comm.Int32:
		return transport.OnDevice[int32](addr, n)
	case comm.Int64:
		return transport.OnDevice[int64](addr, n)
	case comm.BFloat16:
		return transport.OnDevice[comm.BF16](addr, n)
	case comm.Float16:
		return transport.OnDevice[comm.F16](addr, n)
	}
	return transport.OnDevice[uint8](addr, n)
}

// copyIn returns a copy of buf on the device. What is no valid buffer stays what it is.
func (w *placedWork) copyIn(buf comm.Buffer) comm.Buffer {
	if buf.DType().Size() == 0 {
		return buf
	}
	n, s := len(buf.Bytes()), scratches.get(w.p.backend.dev, len(buf.Bytes()))
	w.scratch = append(w.scratch, s)
	copy(s.host.Bytes(), buf.Bytes())
	check(s.stream.CopyToDevice(s.dev.Addr(), s.host, 0, n))
	check(s.stream.Sync())
	w.back = append(w.back, func() {
		check(s.stream.CopyToHost(s.host, 0, s.dev.Addr(), n))
		check(s.stream.Sync())
		copy(buf.Bytes(), s.host.Bytes())
	})
	return deviceBuffer(buf.DType(), s.dev.Addr(), buf.Len())
}

// scratches are pieces of device memory, for reuse.
var scratches = scratchPool{free: map[*Device][]*scratch{}, streams: map[*Device]*Stream{}}

type scratchPool struct {
	sync.Mutex
	free    map[*Device][]*scratch
	streams map[*Device]*Stream
}

type scratch struct {
	stream *Stream
	host   *HostMemory
	dev    *Memory
}

func (p *scratchPool) get(d *Device, n int) *scratch {
	p.Lock()
	defer p.Unlock()
	for i, s := range p.free[d] {
		if s.dev.Len() >= n && s.dev.Len() <= 4*n+4096 {
			p.free[d] = slices.Delete(p.free[d], i, i+1)
			return s
		}
	}
	if p.streams[d] == nil {
		p.streams[d] = must(d.NewStream())
	}
	return &scratch{p.streams[d], must(d.AllocHost(n)), must(d.Alloc(n))}
}

func (p *scratchPool) put(d *Device, s ...*scratch) {
	p.Lock()
	defer p.Unlock()
	p.free[d] = append(p.free[d], s...)
}

// clear frees what is there of a device.
func (p *scratchPool) clear(d *Device) {
	for _, s := range p.free[d] {
		check(errors.Join(s.host.Free(), s.dev.Free()))
	}
	if s := p.streams[d]; s != nil {
		check(s.Close())
	}
	delete(p.free, d)
	delete(p.streams, d)
}

func (w *placedWork) Wait(ctx context.Context) error {
	err := w.Work.Wait(ctx)
	w.once.Do(func() {
		for _, f := range w.back {
			f()
		}
		scratches.put(w.p.backend.dev, w.scratch...)
	})
	return err
}

// pieces makes host buffers travel in many pieces.
var pieces = GroupConfig{Staging: 4 << 10}

func TestGroupContract(t *testing.T) {
	nonBlocking := GroupConfig{Communicator: Config{NonBlocking: true}}
	for name, c := range map[string]struct {
		where where
		cfg   GroupConfig
		sizes []int
	}{
		"devices":      {onDevices, GroupConfig{}, []int{1, 2, 3, 4}},
		"hosts":        {onHosts, GroupConfig{}, []int{1, 3}},
		"mixed":        {mixed, pieces, []int{1, 2, 4}},
		"non-blocking": {onDevices, nonBlocking, []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			doubles(t)
			commtest.Contract{Sizes: c.sizes, Rounded: true}.Test(t, openGroups(t, c.cfg, c.where, own))
		})
	}
}

// All ranks may share one device, if NCCL is told so.
func TestGroupSharesDevice(t *testing.T) {
	t.Setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
	doubles(t)
	open := openGroups(t, GroupConfig{}, onHosts, func(int) int { return 0 })
	commtest.Contract{Sizes: []int{2}, Rounded: true}.Test(t, open)
}

// A group of a group uses NCCL for data only. What its communicator is given directly ends with an
// abort, and the group tells of failures of the one that it was made over.
func TestGroupOverAGroup(t *testing.T) {
	_, lib := doubles(t)
	cause := errors.New("enough")
	var looked sync.WaitGroup // all ranks have seen their groups well
	looked.Add(2)
	for r, err := range groupOf(t, 2, GroupConfig{}, func(m *member) error {
		g := must(New(m.me.ctx, m.Group, m.me.dev, GroupConfig{}))
		check(g.Barrier(m.me.ctx))
		before := lib.Calls("ncclAllGather")
		m.me.alloc(8, func(x uintptr) {
			m.me.put(x, []byte{1, 1, 1, 1, 1, 1, 1, 1})
			check(g.Communicator().AllReduce(x, x, 8, Uint8, Sum, m.me.stream.Handle()))
			require.Equal(m.me, []byte{2, 2, 2, 2, 2, 2, 2, 2}, m.me.get(x, 8))
		})
		check(g.Barrier(m.me.ctx))
		that(nil, "no data of meetings", lib.Calls("ncclAllGather") == before)
		that(nil, "well", !closed(transport.Failing(g)))
		looked.Done()
		if m.Rank() == 1 {
			looked.Wait()
			m.Abort(cause)
		}
		<-transport.Failing(g)
		err := g.Barrier(m.me.ctx)
		check(g.Close())
		return err
	}) {
		require.ErrorIs(t, err, cause, "rank %d", r)
	}
}
