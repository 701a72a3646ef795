//go:build linux && cgo

package nccl

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// trial is one collective on known data.
type trial struct {
	kind    Kind
	t       DataType
	op      RedOp
	inPlace bool
	root    int // Send and Recv: how far away the peer is
	count   int
	seed    uint64
}

func (x trial) String() string {
	return fmt.Sprintf("%v %v op %d in place %v root %d count %d", x.kind, x.t, x.op, x.inPlace, x.root, x.count)
}

// expect returns what rank me of n has in its buffers before, and in the receiving one
// afterwards, nil if it has none.
func (x trial) expect(me, n int) (send, want []byte) {
	count := x.count
	if x.kind == ReduceScatter {
		count *= n
	}
	rng := rand.New(rand.NewPCG(x.seed, 0))
	in := make([][]uint64, n)
	for r := range in {
		in[r] = random(rng, x.t, count)
	}
	send = encode(in[me], x.t)
	switch x.kind {
	case AllGather:
		for _, part := range in {
			want = append(want, encode(part, x.t)...)
		}
	case ReduceScatter:
		want = encode(reduced(in, x.t, x.op)[me*x.count:][:x.count], x.t)
	case AllReduce:
		want = encode(reduced(in, x.t, x.op), x.t)
	case Reduce:
		if me == x.root {
			want = encode(reduced(in, x.t, x.op), x.t)
		}
	case Broadcast:
		want = encode(in[x.root], x.t)
	default:
		want = encode(in[((me-x.root)%n+n)%n], x.t)
	}
	return send, want
}

// guard is how many bytes around a buffer are to stay as they are.
const guard = 64

// run makes the collective in memory of three parts, one for each buffer, and compares.
func (x trial) run(r *rank, memory uintptr) error {
	me, n := r.Rank(), r.Size()
	bytesSend, want := x.expect(me, n)
	size := max(len(bytesSend), len(want))
	send, recv := memory+guard, memory+guard
	if !x.inPlace {
		recv += uintptr(size + guard)
	} else if part := uintptr(me * x.count * x.t.Size()); x.kind == AllGather {
		send += part
	} else if x.kind == ReduceScatter {
		recv += part
	}
	total := 3*guard + 2*size
	before := bytes.Repeat([]byte{0xEE}, total)
	copy(before[send-memory:], bytesSend)
	r.put(memory, before)
	check(x.call(r, send, recv))
	after := r.get(memory, total)
	copy(before[recv-memory:], want)
	if !bytes.Equal(before, after) {
		return fmt.Errorf("rank %d of %d: %v: got\n%x, want\n%x", me, n, x, after[:min(total, 300)], before[:min(total, 300)])
	}
	return nil
}

func (x trial) call(r *rank, send, recv uintptr) error {
	s := r.stream.Handle()
	switch x.kind {
	case AllGather:
		return r.AllGather(send, recv, x.count, x.t, s)
	case ReduceScatter:
		return r.ReduceScatter(send, recv, x.count, x.t, x.op, s)
	case AllReduce:
		return r.AllReduce(send, recv, x.count, x.t, x.op, s)
	case Broadcast:
		return r.Broadcast(send, recv, x.count, x.t, x.root, s)
	case Reduce:
		return r.Reduce(send, recv, x.count, x.t, x.op, x.root, s)
	}
	n := r.Size()
	return r.Group([]Op{
		{Kind: Send, Send: send, Count: x.count, Type: x.t, Peer: (r.Rank() + x.root) % n},
		{Kind: Recv, Recv: recv, Count: x.count, Type: x.t, Peer: ((r.Rank()-x.root)%n + n) % n},
	}, s)
}

// trials are every collective, element type and operator, in place and not.
func trials(n int) (list []trial) {
	add := func(x trial) {
		for _, x.inPlace = range []bool{false, true} {
			x.seed = uint64(len(list))
			x.root = len(list) / 2 % n
			if (x.kind == Broadcast && x.inPlace) || x.kind == Send && x.inPlace {
				continue // of the root only, below; of nobody
			}
			list = append(list, x)
		}
	}
	for _, t := range allTypes {
		add(trial{kind: AllGather, t: t, count: 5})
		add(trial{kind: Broadcast, t: t, count: 6})
		add(trial{kind: Send, t: t, count: 7})
		for op := Sum; op <= Avg && t <= BFloat16; op++ {
			add(trial{kind: ReduceScatter, t: t, op: op, count: 3})
			add(trial{kind: AllReduce, t: t, op: op, count: 9})
			add(trial{kind: Reduce, t: t, op: op, count: 4})
		}
	}
	for k := AllGather; k <= Send; k++ { // more than the double moves at once
		add(trial{kind: k, t: Float32, count: 40_001})
	}
	return list
}

func TestCollectives(t *testing.T) {
	for n := 1; n <= 4; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) { testCollectives(t, Config{Name: "test"}, n, trials(n)) })
	}
	list := trials(2)
	t.Run("non-blocking", func(t *testing.T) { testCollectives(t, Config{NonBlocking: true}, 2, list[len(list)-40:]) })
}

func testCollectives(t *testing.T, cfg Config, n int, list []trial) {
	doubles(t)
	inWorld(t, n, cfg, func(r *rank) error {
		r.alloc(3*guard+8*40_001*n, func(memory uintptr) {
			for _, x := range list {
				check(x.run(r, memory))
			}
		})
		return nil
	})
}

// In place means one buffer on all ranks, of a broadcast as well.
func TestBroadcastInPlace(t *testing.T) {
	doubles(t)
	inWorld(t, 3, Config{}, func(r *rank) error {
		r.alloc(8, func(p uintptr) {
			r.put(p, bytes.Repeat([]byte{byte(r.Rank() + 1)}, 8))
			check(r.Broadcast(p, p, 8, Uint8, 1, r.stream.Handle()))
			if got := r.get(p, 8); !bytes.Equal(got, bytes.Repeat([]byte{2}, 8)) {
				panic(fmt.Errorf("rank %d has %v", r.Rank(), got))
			}
		})
		return nil
	})
}

// A group of collectives and transfers keeps their order, and transfers do not wait for
// each other.
func TestGroup(t *testing.T) {
	doubles(t)
	inWorld(t, 3, Config{}, func(r *rank) error {
		const part = 100_000
		n, me := r.Size(), r.Rank()
		r.alloc(2*n*part, func(p uintptr) {
			q := p + uintptr(n*part)
			for i := range n {
				r.put(p+uintptr(i*part), bytes.Repeat([]byte{byte(10*me + i)}, part))
			}
			var ops []Op
			for i := range n {
				ops = append(ops, Op{Kind: Send, Send: p + uintptr(i*part), Count: part, Type: Int8, Peer: i})
			}
			for i := range n {
				ops = append(ops, Op{Kind: Recv, Recv: q + uintptr(i*part), Count: part, Type: Int8, Peer: i})
			}
			check(r.Group(ops, r.stream.Handle()))
			for i := range n {
				want := byte(10*i + me)
				if got := r.get(q+uintptr(i*part), part); got[1] != want || got[part-1] != want {
					panic(fmt.Errorf("rank %d has %d from rank %d", me, got[1], i))
				}
			}
			check(r.Group([]Op{ // 0+1+2, then that times 3
				{Kind: AllReduce, Send: q, Recv: q, Count: 1, Type: Int8, Reduce: Sum},
				{Kind: AllReduce, Send: q, Recv: q, Count: 1, Type: Int8, Reduce: Sum},
			}, r.stream.Handle()))
			if got := r.get(q, 1)[0]; got != 9 {
				panic(fmt.Errorf("rank %d has %d", me, got))
			}
		})
		return r.Group(nil, r.stream.Handle())
	})
}

// Many goroutines may use a communicator, and move between threads meanwhile. The double
// finds calls that are made at once, and its calls take their time here.
func TestConcurrentUse(t *testing.T) {
	doubles(t)
	t.Setenv("FSDP_DOUBLE_NCCL_CONNECT", "1")
	inWorld(t, 2, Config{}, func(r *rank) error {
		r.alloc(4, func(p uintptr) {
			r.put(p, []byte{0, 0, 0, byte(r.Rank())})
			errs := each(8, func(int) error {
				for range 20 {
					check(r.AllReduce(p, p, 4, Uint8, Max, r.stream.Handle()))
					runtime.Gosched()
					check(r.AsyncError())
				}
				return nil
			})
			for _, err := range errs {
				check(err)
			}
			if got := r.get(p, 4); got[3] != 1 {
				panic(fmt.Errorf("got %v", got))
			}
		})
		return nil
	})
}
