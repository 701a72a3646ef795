package sharedmem

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/local"
	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/transport"
)

func TestMain(m *testing.M) {
	MaxDomain = 1 << 30
	goleak.VerifyTestMain(m)
}

// host is a network of sessions in this process that can pass files.
type host struct {
	grouptest.Wires
	files *sync.Map // chan *os.File by [3]int{from, to, tag}
}

func (h host) box(from, to int, tag uint64) chan *os.File {
	ch, _ := h.files.LoadOrStore([3]int{from, to, int(tag)}, make(chan *os.File, 1))
	return ch.(chan *os.File)
}

func (h host) SendFile(to int, tag uint64, f *os.File) error {
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return err
	}
	h.box(h.Rank, to, tag) <- os.NewFile(uintptr(fd), f.Name())
	return nil
}

func (h host) File(ctx context.Context, from int, tag uint64) (*os.File, error) {
	select {
	case f := <-h.box(from, h.Rank, tag):
		return f, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// housed returns n sessions in this process that share memory, each through mappings of its own.
func housed(n int) []*session.Session {
	files := new(sync.Map)
	return grouptest.Wired(n, func(w grouptest.Wires) *session.Session {
		s := session.New(session.Config{Rank: w.Rank, Size: n})
		s.Mesh = host{w, files}
		s.NewGroup = func(ctx context.Context, l *session.Link) (transport.Group, error) { return s.Memory.Group(ctx, l) }
		return s
	})
}

// SharedGroups returns a group of n ranks in this process that share memory.
func SharedGroups(t testing.TB, n int) []transport.Group {
	sessions, gs := housed(n), make([]transport.Group, n)
	errs := make([]error, n)
	var ranks sync.WaitGroup
	for r, s := range sessions {
		ranks.Go(func() {
			d, err := New(context.Background(), s)
			errs[r] = err
			if err == nil {
				s.Memory = d
				gs[r], errs[r] = newShared(context.Background(), s.World(), d)
			}
		})
	}
	ranks.Wait()
	require.NoError(t, errors.Join(errs...))
	return gs
}

// allocated is a Group that lets another one work on memory of its allocator, or
// on some such memory: collective k of a rank takes the place of dst if bit 0 of
// mix>>(2·k) is set, and of src if bit 1 is.
type allocated struct {
	transport.Group
	mix func(rank int) uint32
}

func (a *allocated) Watch(f func(transport.Flight)) (stop func()) {
	return a.Group.(transport.Watcher).Watch(f)
}

// AllocatedGroups is SharedGroups for groups that use allocated memory only.
func AllocatedGroups(t testing.TB, n int) []transport.Group {
	return wrap(SharedGroups(t, n), func(int) uint32 { return 3 })
}

// MixedGroups is SharedGroups for groups that use all kinds of memory by turns.
func MixedGroups(t testing.TB, n int) []transport.Group {
	var next atomic.Uint32
	return wrap(SharedGroups(t, n), func(rank int) uint32 { return hash(next.Add(1) * uint32(2*rank+1)) })
}

func hash(x uint32) uint32 { return x * 2654435761 >> 13 }

func wrap(gs []transport.Group, mix func(int) uint32) []transport.Group {
	for r, g := range gs {
		gs[r] = &allocated{g, mix}
	}
	return gs
}

// replace returns a copy of b in allocated memory.
func (g *allocated) replace(b transport.Buffer) transport.Buffer {
	if b.DType().Size() == 0 {
		return b
	}
	mem, err := g.Group.(transport.Allocator).Alloc(len(b.Bytes()))
	if err != nil { // the group is closed
		return b
	}
	copy(mem, b.Bytes())
	b = b.At(unsafe.Pointer(unsafe.SliceData(mem)))
	return b
}

// overlaps reports whether a and b share memory.
func overlaps(a, b transport.Buffer) bool {
	x, y := uintptr(a.Pointer()), uintptr(b.Pointer())
	return a.Len() > 0 && b.Len() > 0 && x < y+uintptr(len(b.Bytes())) && y < x+uintptr(len(a.Bytes()))
}

// both replaces two buffers, one of which may be a part of the other.
func (g *allocated) both(large, small transport.Buffer) (l, s transport.Buffer) {
	mix := g.mix(g.Rank())
	if overlaps(large, small) {
		l = g.replace(large)
		small = small.At(unsafe.Add(l.Pointer(), uintptr(small.Pointer())-uintptr(large.Pointer())))
		return l, small
	}
	l, s = large, small
	if mix&1 != 0 {
		l = g.replace(large)
	}
	if mix&2 != 0 {
		s = g.replace(small)
	}
	return l, s
}

func (g *allocated) AllGather(dst, src transport.Buffer) transport.Work {
	d, s := g.both(dst, src)
	return g.work(g.Group.AllGather(d, s), dst, d, s, src)
}

func (g *allocated) ReduceScatter(dst, src transport.Buffer, op transport.Op) transport.Work {
	s, d := g.both(src, dst)
	return g.work(g.Group.ReduceScatter(d, s, op), dst, d, s, src)
}

func (g *allocated) AllReduce(buf transport.Buffer, op transport.Op) transport.Work {
	b, _ := g.both(buf, transport.Buffer{})
	return g.work(g.Group.AllReduce(b, op), buf, b, b, buf)
}

func (g *allocated) Broadcast(buf transport.Buffer, root int) transport.Work {
	b, _ := g.both(buf, transport.Buffer{})
	return g.work(g.Group.Broadcast(b, root), buf, b, b, buf)
}

func (g *allocated) Gather(dst, src transport.Buffer, counts []int, root int) transport.Work {
	d, s := g.both(dst, src)
	return g.work(g.Group.Gather(d, s, counts, root), dst, d, s, src)
}

func (g *allocated) AllToAll(dst, src transport.Buffer) transport.Work {
	d, s := g.both(dst, src)
	return g.work(g.Group.AllToAll(d, s), dst, d, s, src)
}

func (g *allocated) Split(ctx context.Context, color, key int) (transport.Group, error) {
	sub, err := g.Group.Split(ctx, color, key)
	if sub == nil || err != nil {
		return nil, err
	}
	return &allocated{sub, g.mix}, nil
}

func (g *allocated) work(w transport.Work, dst, at, src, from transport.Buffer) transport.Work {
	return &copyBack{Work: w, g: g, dst: dst, at: at, src: src, from: from}
}

// copyBack brings the result to where it was asked for.
type copyBack struct {
	transport.Work
	g                  *allocated
	dst, at, src, from transport.Buffer
	once               sync.Once
}

func (c *copyBack) Wait(ctx context.Context) error {
	err := c.Work.Wait(ctx)
	c.once.Do(func() {
		if err == nil && c.dst.Pointer() != c.at.Pointer() {
			copy(c.dst.Bytes(), c.at.Bytes())
		}
		a, disjoint := c.g.Group.(transport.Allocator), !overlaps(c.at, c.src) && c.at.Pointer() != c.src.Pointer()
		if disjoint && c.src.Pointer() != c.from.Pointer() {
			clear(c.src.Bytes()) // nobody may need it any more
			err = errors.Join(err, a.Free(c.src.Bytes()))
		}
		if c.dst.Pointer() != c.at.Pointer() {
			freed := a.Free(c.at.Bytes())
			if !disjoint && freed != nil { // dst is a part of src
				freed = a.Free(c.src.Bytes())
			}
			err = errors.Join(err, freed)
		}
	})
	return err
}

// More operations than the board has slots wait in line, in any order.
func TestSharedRunAhead(t *testing.T) {
	const ahead = 5 * boardSlots
	gs := SharedGroups(t, 3)
	for _, err := range grouptest.PerRank(gs, func(g transport.Group) error {
		x, works := make([]int32, ahead), make([]transport.Work, ahead)
		for i := range x {
			x[i] = int32(i)
			works[i] = g.AllReduce(transport.Of(x[i:i+1]), transport.Sum)
		}
		for i := range works {
			if err := works[ahead-1-i].Wait(context.Background()); err != nil {
				return err
			}
		}
		for i := range x {
			if x[i] != int32(3*i) {
				return errors.New("wrong sum")
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	grouptest.CloseRanks(t, gs)
}

// TestSharedSmall compares collectives with a local group, of the sizes at which a source
// is elsewhere: nowhere, in the post, in the page, or where all ranks execute parts.
func TestSharedSmall(t *testing.T) {
	for n := 1; n <= 4; n++ {
		gs, local := SharedGroups(t, n), local.New(n, limit.Default)
		for _, bytes := range []int{0, 4, inlineBytes, inlineBytes + 4, smallTensor / n, smallTensor, smallTensor + 4} {
			elements := bytes / 4
			for _, op := range []transport.Op{transport.Sum, transport.Avg, transport.Max, transport.Min} {
				grouptest.SameBits(t, gs, local, transport.KindAllReduce, transport.Float32, op, elements)
				grouptest.SameBits(t, gs, local, transport.KindReduceScatter, transport.Float32, op, n*elements)
			}
			grouptest.SameBits(t, gs, local, transport.KindBroadcast, transport.Float32, transport.Sum, elements)
			grouptest.SameBits(t, gs, local, transport.KindAllGather, transport.Float32, transport.Sum, n*elements)
		}
		grouptest.CloseRanks(t, gs)
	}
}

// A rank that waits gets its result and its source back although the other, whose
// destination nobody else can reach, computes on; that one still reads what was
// gathered when it comes.
func TestSharedSourceMoves(t *testing.T) {
	const n = 1 << 16
	gs := SharedGroups(t, 2)
	mem, err := gs[0].(transport.Allocator).Alloc(4 * n)
	require.NoError(t, err)
	src, dst := transport.Of(mem), [2]transport.Buffer{transport.Of(make([]byte, 8*n)), transport.Of(make([]byte, 8*n))}
	mem[5] = 7
	w0 := gs[0].AllGather(dst[0], src)
	w1 := gs[1].AllGather(dst[1], transport.Of(make([]byte, 4*n)))
	require.NoError(t, w0.Wait(t.Context()))
	mem[5] = 8 // the source is this rank's again
	require.NoError(t, w1.Wait(t.Context()))
	require.Equal(t, byte(7), dst[0].Bytes()[5])
	require.Equal(t, byte(7), dst[1].Bytes()[5])
	require.NoError(t, gs[0].(transport.Allocator).Free(mem))
	grouptest.CloseRanks(t, gs)
}

// A source that was moved is freed although the collective fails: here because rank 2
// dies with parts in its hands, while rank 1 has still to read what rank 0 has moved.
func TestSharedMovedSourceIsFreed(t *testing.T) {
	const n, seq, parts = 1 << 16, 1, 3
	gs := SharedGroups(t, 3)
	src, err := gs[0].(transport.Allocator).Alloc(n)
	require.NoError(t, err)
	src[5] = 7
	works, dst := make([]transport.Work, 3), make([][]byte, 3)
	for r, g := range gs {
		dst[r] = make([]byte, 3*n)
		own := make([]byte, n)
		if r == 0 {
			own = src
		}
		works[r] = g.AllGather(transport.Of(dst[r]), transport.Of(own))
	}
	board := gs[2].(*shared).board
	for range parts {
		_, ok := board.claim(seq, 2, parts)
		require.True(t, ok)
	}
	gs[0].(*shared).link.Session.Lost(2, transport.ErrLost)
	require.ErrorIs(t, works[0].Wait(t.Context()), transport.ErrLost)
	src[5] = 8 // the source is this rank's again
	require.NoError(t, works[1].Wait(t.Context()))
	require.Equal(t, byte(7), dst[1][5])
	for range parts { // so that rank 2 can close
		board.finish(seq, 2, parts)
	}
	require.NoError(t, gs[0].(transport.Allocator).Free(src))
	grouptest.CloseRanks(t, gs)
	live, _ := gs[0].(*shared).domain.own.Live()
	require.Zero(t, live)
}

// Two ranks that wait for a part of a dead rank do not wait for each other, too. Nor do they if
// their group has failed before for another reason, as a group does that was split from one.
func TestSharedDeathOfOneOfThree(t *testing.T) {
	const seq = 1
	for _, before := range []error{nil, &transport.RankError{Group: "another", Rank: 3, Err: transport.ErrLost}} {
		gs := SharedGroups(t, 3)
		works := make([]transport.Work, 3)
		for r, g := range gs {
			works[r] = g.AllReduce(grouptest.Floats(1<<18), transport.Sum)
		}
		board := gs[2].(*shared).board
		board.line(2).busy.Store(seq)
		_, ok := board.claim(seq, 2, 1)
		require.True(t, ok)
		for _, err := range grouptest.PerRank(gs[:2], func(g transport.Group) error {
			link := g.(*shared).link
			if before != nil {
				link.Fail(before)
			}
			link.Session.Lost(2, transport.ErrLost)
			return works[g.Rank()].Wait(t.Context())
		}) {
			require.ErrorIs(t, err, transport.ErrLost)
		}
		board.finish(seq, 2, 1) // so that rank 2 can close
		grouptest.CloseRanks(t, gs)
	}
}

// A rank that waits early does the work of a rank that computes, if it can.
func TestSharedEarlyWaiter(t *testing.T) {
	gs := SharedGroups(t, 2)
	var dst, src [2][]byte
	for r, g := range gs {
		var err error
		dst[r], err = g.(transport.Allocator).Alloc(1 << 20)
		require.NoError(t, err)
		src[r], err = g.(transport.Allocator).Alloc(1 << 19)
		require.NoError(t, err)
		src[r][3] = byte(r + 1)
	}
	w0, w1 := gs[0].AllGather(transport.Of(dst[0]), transport.Of(src[0])), gs[1].AllGather(transport.Of(dst[1]), transport.Of(src[1]))
	require.NoError(t, w0.Wait(t.Context()))
	require.Equal(t, byte(2), dst[1][3+1<<19]) // rank 1 has not waited yet
	require.NoError(t, w1.Wait(t.Context()))
	grouptest.CloseRanks(t, gs)
}

// In steady state a collective allocates nothing but its handle, and its copies
// are freed; closed groups leave no shared memory behind.
func TestSharedAllocations(t *testing.T) {
	const warm, runs, n = 20, 100, 2 // the segments grow to what is in flight at most
	gs := SharedGroups(t, n)
	program := func(g transport.Group) func() {
		whole, shard, counts := grouptest.Floats(n*3000), grouptest.Floats(3000), []int{3000, 3000}
		return func() {
			ws := [...]transport.Work{
				g.AllGather(whole, shard), g.ReduceScatter(shard, whole, transport.Avg),
				g.AllReduce(whole, transport.Sum), g.Broadcast(shard, n-1), g.Gather(whole, shard, counts, 0), g.Gather(whole, shard, counts, 1),
			}
			for _, w := range ws {
				if err := w.Wait(context.Background()); err != nil {
					panic(err)
				}
			}
			if err := g.Barrier(context.Background()); err != nil {
				panic(err)
			}
		}
	}
	var other sync.WaitGroup
	other.Go(func() {
		f := program(gs[1])
		for range warm + runs + 1 { // AllocsPerRun runs it once more
			f()
		}
	})
	f := program(gs[0])
	for range warm {
		f()
	}
	allocs := testing.AllocsPerRun(runs, f)
	other.Wait()
	require.LessOrEqual(t, allocs, float64(4*n))
	grouptest.CloseRanks(t, gs)
	for _, g := range gs {
		allocated, _ := g.(*shared).domain.own.Live()
		require.Zero(t, allocated)
	}
}

// TestSharedGatherCopies checks what a gather takes of the segments: a copy of a private
// source and nothing else, on no rank but that of the source.
func TestSharedGatherCopies(t *testing.T) {
	const n, length, bytes = 3, 1 << 16, 4 << 16
	for name, private := range map[string]struct{ dst, src bool }{
		"allocated": {false, false}, "private source": {false, true}, "private destination": {true, false}, "private": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			gs, counts := SharedGroups(t, n), []int{length, length, length}
			live := func(r int) int {
				held, _ := gs[r].(*shared).domain.own.Live()
				return held
			}
			alloc := func(r, elements int, private bool) transport.Buffer {
				if private {
					return grouptest.Floats(elements)
				}
				mem, err := gs[r].(transport.Allocator).Alloc(4 * elements)
				require.NoError(t, err)
				return transport.HostMemory(unsafe.Pointer(&mem[0]), elements, transport.Float32)
			}
			dst, works := alloc(1, n*length, private.dst), make([]transport.Work, n)
			for r, g := range gs {
				src := alloc(r, length, private.src)
				for i, x := 0, transport.View[float32](src); i < length; i++ {
					x[i] = float32(r*length + i)
				}
				before, want := live(r), 0
				if private.src && !(r == 1 && private.dst) { // then nobody else reads it
					want = bytes
				}
				works[r] = g.Gather(dst, src, counts, 1)
				require.Equal(t, want, live(r)-before, "rank %d", r)
			}
			for _, r := range []int{0, 2, 1} { // a source that is copied waits for nobody
				if r == 1 || private.src {
					require.NoError(t, works[r].Wait(t.Context()))
				}
			}
			for i, x := range transport.View[float32](dst) {
				require.Equal(t, float32(i), x)
			}
			for _, w := range works {
				require.NoError(t, w.Wait(t.Context()))
			}
			grouptest.CloseRanks(t, gs)
		})
	}
}

// Buffers that a rank cannot have posted are an error, not a fault.
func TestSharedAstray(t *testing.T) {
	gs := SharedGroups(t, 2)
	mem, err := gs[1].(transport.Allocator).Alloc(1 << 16)
	require.NoError(t, err)
	x := grouptest.Floats(1 << 14)
	gs[1].AllReduce(transport.Of(mem), transport.Sum)
	liar := gs[1].(*shared)
	liar.board.post(1, 1).dst = 1 << 62
	err = gs[0].AllReduce(transport.Of(x.Bytes()), transport.Sum).Wait(t.Context())
	require.EqualError(t, err, `comm: rank 1 of group "world": posted a buffer outside of its memory for all-reduce #1`)
	grouptest.CloseRanks(t, gs)
}

// TestSharedMissing makes a group to which one rank does not come.
func TestSharedMissing(t *testing.T) {
	gs := SharedGroups(t, 3)
	errs := make([]error, 2)
	var ranks sync.WaitGroup
	for r := range errs {
		g := gs[r].(*shared)
		g.link.Session.Config.Timeout = 2 * time.Second
		ranks.Go(func() {
			_, err := newShared(context.Background(), g.link.Derive(transport.ChildName(g.Name(), 0), 9, []int{1, 2, 0}), g.domain)
			errs[r] = transport.SplitError(transport.WorldName, r, 1, 0, []int{1, 2, 0}, err)
		})
	}
	ranks.Wait()
	for _, err := range errs {
		var blame *transport.RankError
		require.ErrorAs(t, err, &blame)
		require.Equal(t, 2, blame.Rank)
		require.ErrorIs(t, err, transport.ErrTimeout)
		require.ErrorContains(t, err, "making the group: 2 of 3 ranks have joined: no progress for 2s (the limit is FSDP_TIMEOUT, or Config.Timeout); rank 1: has not made the group yet")
	}
	grouptest.CloseRanks(t, gs)
}

// TestSharedCloseWhileMeeting closes a group of which another one is being made.
func TestSharedCloseWhileMeeting(t *testing.T) {
	gs := SharedGroups(t, 2)
	g := gs[0].(*shared)
	ended := make(chan error, 1)
	child := g.link.Derive(transport.ChildName(g.Name(), 0), 9, []int{0, 1})
	go func() {
		_, err := newShared(context.Background(), child, g.domain)
		ended <- err
	}()
	for there := false; !there; runtime.Gosched() {
		_, _, _, there = g.domain.own.Lookup(child.ID)
	}
	grouptest.CloseRanks(t, gs)
	require.ErrorIs(t, <-ended, transport.ErrClosed)
}
