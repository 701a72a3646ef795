//go:build linux && cgo

package gpu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/nccl"
)

// doubles loads the doubles of the driver and of NCCL. At the end of the test nothing of them
// lives.
func doubles(t testing.TB) (cuda, lib *gpudouble.Control) {
	cuda = double(t)
	path := gpudouble.Build(t).NCCL
	require.NoError(t, nccl.Load(path))
	lib = gpudouble.Open(t, path)
	lib.Clean(t, "communicator")
	return cuda, lib
}

// A member is a rank of a test, with a device of its own. Like everything that fails in the
// goroutine of a rank it panics with an error.
type member struct {
	*Device
	team *ranks.Team
	boot comm.Group
	ctx  context.Context
}

// Errorf implements require.TestingT.
func (m *member) Errorf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }

// FailNow implements require.TestingT. It comes after Errorf.
func (m *member) FailNow() {}

func ok(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](v T, err error) T {
	ok(err)
	return v
}

// caught returns the error that f returns or panics with.
func caught(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = r.(error)
		}
	}()
	return f()
}

// world runs f on n ranks at once, and closes their links. A rank whose f fails ends its team,
// as an engine does. It returns what f returns.
func world(t testing.TB, boots []comm.Group, o Options, f func(m *member) error) []error {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	errs := make([]error, len(boots))
	var all sync.WaitGroup
	for r, g := range boots {
		all.Go(func() {
			errs[r] = caught(func() (err error) {
				dev := must(nccl.OpenDevice(r))
				defer func() { ok(dev.Close()) }()
				m := &member{ctx: ctx, boot: g, team: newTeam(g)}
				defer func() { ok(m.team.Close()) }()
				if m.Device, err = New(dev, o); err != nil {
					return m.team.Fail(err)
				}
				if err = caught(func() error { return f(m) }); err != nil {
					_ = m.team.Fail(err)
					_ = m.fail(err)
				}
				ok(m.settle())
				ok(m.release())
				return err
			})
		})
	}
	all.Wait()
	return errs
}

func newTeam(g comm.Group) *ranks.Team {
	return ranks.NewTeam(g, func(_ int, text string) error { return errors.New(text) })
}

// onDevice runs f with memory of the device that holds these bytes.
func (m *member) onDevice(b []byte, f func(at uintptr)) {
	mem := must(m.gpu.Alloc(max(len(b), 4)))
	host := must(m.gpu.AllocHost(max(len(b), 4)))
	copy(host.Bytes(), b)
	ok(m.wire.CopyToDevice(mem.Addr(), host, 0, len(b)))
	defer func() {
		ok(m.settle())
		ok(host.Free())
		ok(mem.Free())
	}()
	f(mem.Addr())
}

// read returns bytes of the device when all that the wire was given is done.
func (m *member) read(at uintptr, n int) []byte {
	host := must(m.gpu.AllocHost(max(n, 4)))
	defer func() { ok(host.Free()) }()
	ok(m.wire.CopyToHost(host, 0, at, n))
	if err := m.await(m.ctx, m.wire); err != nil {
		ok(m.settle())
		panic(err)
	}
	return slices.Clone(host.Bytes()[:n])
}

// outside is the operation of what is not part of a pass.
var outside engine.Place

func bytesOf[T any](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(*new(T))))
}

func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// meshOf returns a mesh of the members' ranks, which have links.
func (m *member) meshOf(shards int) ranks.Mesh {
	mesh := must(m.team.Mesh(m.ctx, nil, shards, m.team.Size()/shards))
	ok(m.links.connect(m.ctx, []ranks.Mesh{mesh, mesh}))
	return mesh
}

// reduced returns what a reduction over the shards and then over the replicas leaves in this rank's
// range, and after a gather in all, of numbers x whose sums are exact.
func (m *member) reduced(mesh ranks.Mesh, x []float32) (own, all []float32) {
	n := len(x) / mesh.Shard.Size()
	m.onDevice(bytesOf(x), func(full uintptr) {
		s, l := m.links.find(mesh.Shard), &m.links
		at := full
		if s != nil {
			at = s.ownAddress(full, n, comm.Float32)
			ok(l.enqueue(s, s.reduceScatter(full, n, comm.Float32), outside, "g"))
		}
		if r := l.find(mesh.Replica); r != nil {
			ok(l.enqueue(r, r.allReduce(at, n, comm.Float32, nccl.Sum), outside, "g"))
		}
		ok(l.launch())
		own = floats(m.read(at, 4*n))
		if s != nil {
			ok(l.enqueue(s, s.allGather(full, n, comm.Float32), outside, "g"))
		}
		ok(l.launch())
		all = floats(m.read(full, 4*len(x)))
	})
	return own, all
}

// TestLinks: sums over shards and replicas arrive in all strategies, however late the ranks are.
func TestLinks(t *testing.T) {
	cuda, lib := doubles(t)
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.SampledFrom([]int{1, 2, 4}).Draw(rt, "ranks")
		shards := rapid.SampledFrom([]int{1, n, max(n/2, 1)}).Draw(rt, "shards")
		part := rapid.IntRange(1, 40).Draw(rt, "part")
		cuda.Delay(time.Duration(rapid.IntRange(0, 300).Draw(rt, "delay"))*time.Microsecond, rapid.Int().Draw(rt, "seed"))
		defer cuda.Delay(0, 0)
		inits := lib.Calls("ncclCommInitRankConfig")
		for r, err := range world(t, comm.Local(n), Options{}, func(m *member) error {
			mesh := m.meshOf(shards)
			require.NoError(m, m.links.connect(m.ctx, []ranks.Mesh{mesh}), "again")
			me, x := m.team.Rank(), make([]float32, part*shards)
			for i := range x {
				x[i] = float32(i + 1<<me)
			}
			own, all := m.reduced(mesh, x)
			for i, v := range all {
				require.Equal(m, float32(i*n+1<<n-1), v, "element %d", i)
			}
			place := me % shards
			require.Equal(m, all[place*part:(place+1)*part], own)
			return nil
		}) {
			require.NoError(rt, err, "rank %d", r)
		}
		groups := 0
		switch {
		case n > 1 && (shards == 1 || shards == n):
			groups = 1
		case n > 1:
			groups = 3
		}
		require.Equal(rt, groups*n, lib.Calls("ncclCommInitRankConfig")-inits)
	})
}

// fill is 4 floats of a rank.
func (m *member) fill() []byte {
	x := make([]float32, 4*m.team.Size())
	for i := range x {
		x[i] = float32(m.team.Rank() + 1)
	}
	return bytesOf(x)
}

var threeGroups = &program.Program{Model: &program.Model{Groups: []program.Group{{Name: "a"}, {Name: "b"}, {Name: "c"}}}}

// opOf is the operation of pass 7 on the number-th flat group.
func opOf(kind program.Kind, number int) engine.Place {
	return engine.Place{Pass: 7, Program: threeGroups, Op: program.Op{Kind: kind, Group: number, Call: -1}}
}

// TestLaunchTogether: the groups of a unit are one launch.
func TestLaunchTogether(t *testing.T) {
	_, lib := doubles(t)
	const runs = 20
	before := lib.Calls("ncclGroupStart")
	for r, err := range world(t, comm.Local(2), Options{}, func(m *member) error {
		k := m.links.find(m.meshOf(2).Shard)
		m.onDevice(m.fill(), func(at uintptr) {
			for range runs {
				for i := range 2 {
					ok(m.links.enqueue(k, k.allGather(at, 4, comm.Float32), opOf(program.Gather, i), "g"))
				}
				ok(m.links.launch())
				ok(m.await(m.ctx, m.wire))
			}
			require.Equal(m, []float32{1, 1, 1, 1, 2, 2, 2, 2}, floats(m.read(at, 32)))
		})
		return nil
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	require.Equal(t, 2*runs, lib.Calls("ncclGroupStart")-before)
}

// TestLaunchAllocatesNothing once as much has been in flight before.
func TestLaunchAllocatesNothing(t *testing.T) {
	cuda, _ := doubles(t)
	errs := world(t, comm.Local(1), Options{}, func(m *member) error {
		g := must(comm.Local(1)[0].Split(m.ctx, 0, 0))
		k := &link{group: g, role: "alone"}
		ok(m.links.join(m.ctx, k))
		m.onDevice(make([]byte, 16), func(at uintptr) {
			launch := func() {
				ok(m.links.enqueue(k, k.allGather(at, 4, comm.Float32), opOf(program.Gather, 0), "g"))
				ok(m.links.launch())
			}
			cuda.Pause(t, m.wire.Handle()) // all are in flight at once, and more than below
			for range 100 {
				launch()
			}
			cuda.Resume(t, m.wire.Handle())
			for flying := 1; flying > 0; runtime.Gosched() { // until the watch has seen the end of all
				m.links.mu.Lock()
				flying = len(m.links.queues[onWire].flights)
				m.links.mu.Unlock()
			}
			require.Zero(m, testing.AllocsPerRun(50, launch))
		})
		return nil
	})
	require.NoError(t, errs[0])
}

// gathers has each rank gather three times, with an await behind the last.
func gathers(m *member) error {
	return gathersAround(m, func(launch func() error) error { return launch() })
}

// gathersAround is gathers, with something around the three launches.
func gathersAround(m *member, around func(launch func() error) error) (err error) {
	k := m.links.find(m.meshOf(m.team.Size()).Shard)
	m.onDevice(m.fill(), func(at uintptr) {
		err = around(func() (err error) {
			for i := 0; i < 3 && err == nil; i++ {
				if err = m.links.enqueue(k, k.allGather(at, 4, comm.Float32), opOf(program.Gather, i), fmt.Sprint("unit ", i)); err == nil {
					err = m.links.launch()
				}
			}
			return err
		})
		if err == nil {
			err = m.await(m.ctx, m.wire)
		}
	})
	return err
}

// TestEachCallFails: a call of NCCL or of the driver that fails once ends all ranks, but those that
// are through, and leaves nothing.
func TestEachCallFails(t *testing.T) {
	cuda, lib := doubles(t)
	// All launches are in flight at once. Else a late one takes the event of one that is over.
	atOnce := func(m *member) error {
		return gathersAround(m, func(launch func() error) error {
			cuda.Pause(t, m.wire.Handle())
			defer cuda.Resume(t, m.wire.Handle())
			return launch()
		})
	}
	for _, x := range []struct {
		double     *gpudouble.Control
		call       string
		code       int
		nth        []int
		everywhere bool // nobody can be through
	}{
		{lib, "ncclGetUniqueId", 3, []int{1}, true},
		{lib, "ncclCommInitRankConfig", 2, []int{1, 2}, true},
		{lib, "ncclAllGather", 1, []int{1, 2, 3, 4, 5, 6}, true},
		{lib, "ncclCommGetAsyncError", 6, []int{1}, false},
		{cuda, "cuEventCreate", 2, []int{1, 5, 9, 10, 11, 12, 13, 14}, false},
		{cuda, "cuEventRecord", 719, []int{1, 2, 3, 4, 5, 6}, false},
		{cuda, "cuStreamQuery", 719, []int{1}, false},
	} {
		for _, nth := range x.nth {
			x.double.Fail(x.call, nth, x.code)
			errs := world(t, comm.Local(2), Options{}, atOnce)
			require.ErrorContains(t, errors.Join(errs...), x.call)
			for r, err := range errs {
				if err != nil || x.everywhere {
					require.ErrorContains(t, err, x.call, "rank %d, call %d", r, nth)
				}
			}
		}
	}
	for r, err := range world(t, comm.Local(2), Options{}, gathers) {
		require.NoError(t, err, "rank %d", r)
	}
}

// TestHung: a rank that launches nothing lets the others end in time, who say what they waited for.
func TestHung(t *testing.T) {
	for name, connect := range map[string]string{"in the stream": "", "in a call": "1"} {
		t.Run(name, func(t *testing.T) {
			if connect != "" {
				t.Setenv("FSDP_DOUBLE_NCCL_CONNECT", connect)
			}
			doubles(t)
			errs := world(t, comm.Local(4), Options{}, func(m *member) error {
				k := m.links.find(m.meshOf(4).Shard)
				ok(m.boot.Barrier(m.ctx)) // all are connected, which may take longer
				m.o.Timeout = 100 * time.Millisecond
				if m.team.Rank() != 2 {
					return gathers(m)
				}
				<-transport.Failing(k.over)
				return k.reason()
			})
			for r, err := range errs {
				require.ErrorIs(t, err, comm.ErrTimeout, "rank %d", r)
				require.Regexp(t, `rank \d of group "shards"`, err)
				var op *engine.OpError
				if r != 2 {
					require.ErrorAs(t, err, &op, "rank %d", r)
					require.Equal(t, opOf(program.Gather, 0), op.Place)
					require.ErrorContains(t, err, "pass 7: gather a: ")
				}
			}
		})
	}
}

// TestFailedElsewhere: ranks that wait for one whose pass has failed get its error. So do those
// that wait for these in other groups.
func TestFailedElsewhere(t *testing.T) {
	doubles(t)
	cause := errors.New("out of coffee")
	for _, shards := range []int{1, 2, 4} {
		for r, err := range world(t, comm.Local(4), Options{}, func(m *member) error {
			mesh := m.meshOf(shards)
			if m.team.Rank() == 3 {
				return m.team.Fail(fmt.Errorf("pass 1: forward: %w", cause))
			}
			m.reduced(mesh, make([]float32, 4))
			return nil
		}) {
			require.ErrorIs(t, err, cause, "rank %d of %d", r, shards)
		}
	}
}

// TestCancelled: a wait ends with its context, and ends nothing but itself.
func TestCancelled(t *testing.T) {
	cuda, _ := doubles(t)
	late := errors.New("late")
	for r, err := range world(t, comm.Local(1), Options{}, func(m *member) error {
		cuda.Pause(t, m.work.Handle())
		m.onDevice(make([]byte, 4), func(at uintptr) {
			ok(m.work.Set(at, 1, 4))
			ctx, cancel := context.WithTimeoutCause(m.ctx, time.Millisecond, late)
			defer cancel()
			require.ErrorIs(m, m.await(ctx, m.work), late)
			cuda.Resume(t, m.work.Handle())
			require.NoError(m, m.wait(m.work))
		})
		return nil
	}) {
		require.NoError(t, err, "rank %d", r)
	}
}

// TestOneCannotJoin: every rank gets the error of the one that has no communicator, and the group
// that it was to be for goes on.
func TestOneCannotJoin(t *testing.T) {
	_, lib := doubles(t)
	boots := comm.Local(4)
	lib.Fail("ncclCommInitRankConfig", 3, 2)
	for r, err := range world(t, boots, Options{}, func(m *member) error {
		return m.links.connect(m.ctx, []ranks.Mesh{must(m.team.Mesh(m.ctx, nil, 4, 1))})
	}) {
		require.Regexp(t, `the communicator of shards: .*rank \d.*ncclCommInitRankConfig`, err, "rank %d", r)
	}
}

// TestOverGroups: the group of a model may be one over NCCL itself.
func TestOverGroups(t *testing.T) {
	doubles(t)
	for r, err := range world(t, comm.Local(2), Options{}, func(m *member) error {
		g := must(nccl.New(m.ctx, m.boot, m.gpu, nccl.GroupConfig{}))
		mesh := ranks.Mesh{Shard: g, Peers: g}
		ok(m.links.connect(m.ctx, []ranks.Mesh{mesh}))
		_, all := m.reduced(mesh, []float32{1, 2, 3, 4})
		require.Equal(m, []float32{2, 4, 6, 8}, all)
		ok(m.settle())
		ok(m.links.close())
		return g.Close()
	}) {
		require.NoError(t, err, "rank %d", r)
	}
}

// TestClosedAtOnce: a device that has failed aborts its communicators, however soon it is closed.
func TestClosedAtOnce(t *testing.T) {
	_, lib := doubles(t)
	for range 12 { // a watch that finds both takes any
		before := lib.Calls("ncclCommAbort")
		errs := world(t, comm.Local(1), Options{}, func(m *member) error {
			l := &m.links
			ok(l.join(m.ctx, &link{group: must(comm.Local(1)[0].Split(m.ctx, 0, 0)), role: "alone"}))
			close(l.quit)
			l.watch.Wait()
			l.quit = make(chan struct{})
			failed := m.fail(errors.New("failed"))
			close(l.quit)
			l.look()
			l.quit = make(chan struct{}) // for close
			return failed
		})
		require.ErrorContains(t, errs[0], "failed")
		require.Equal(t, 1, lib.Calls("ncclCommAbort")-before)
	}
}

// TestTurns: a Device gives a collective to NCCL after the collectives that another Device of the
// same GPU has given before, but does not wait for a Device that is closed.
func TestTurns(t *testing.T) {
	cuda, _ := doubles(t)
	turns := make([]Turns, 2) // by rank
	for r, err := range world(t, comm.Local(2), Options{}, func(m *member) error {
		rank := m.boot.Rank()
		m.o.Turns = &turns[rank]
		first := m.links.find(m.meshOf(2).Shard)
		boot := must(m.boot.Split(m.ctx, 0, rank))
		team := newTeam(boot)
		other := must(New(m.gpu, Options{Turns: &turns[rank]}))
		mesh := must(team.Mesh(m.ctx, nil, 2, 1))
		ok(other.links.connect(m.ctx, []ranks.Mesh{mesh}))
		send := func(d *Device, k *link, at uintptr) {
			ok(d.links.enqueue(k, k.allGather(at, 4, comm.Float32), outside, "g"))
			ok(d.links.launch())
		}
		m.onDevice(m.fill(), func(at uintptr) {
			send(m.Device, first, at)
			ok(m.await(m.ctx, m.wire))
			cuda.Pause(t, m.wire.Handle())
			defer cuda.Resume(t, m.wire.Handle())
			send(m.Device, first, at)
			ok(m.boot.Barrier(m.ctx))
			send(other, other.links.find(mesh.Shard), at)
			for range 100 {
				done, err := other.wire.Query()
				require.NoError(m, err)
				require.False(m, done, "it has not waited for its turn")
			}
			ok(m.boot.Barrier(m.ctx))
			cuda.Resume(t, m.wire.Handle())
			ok(other.await(m.ctx, other.wire))
			send(m.Device, first, at)
			ok(m.await(m.ctx, m.wire))
		})
		ok(other.Close())
		m.onDevice(m.fill(), func(at uintptr) {
			send(m.Device, first, at)
			ok(m.await(m.ctx, m.wire))
		})
		return errors.Join(team.Close(), boot.Close())
	}) {
		require.NoError(t, err, "rank %d", r)
	}
}
