package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/mesh"
)

// sumOn all-reduces as the given ranks of gs and returns their errors. All have begun before any
// waits.
func sumOn(gs []transport.Group, ranks ...int) []error {
	errs, works := make([]error, len(ranks)), make([]transport.Work, len(ranks))
	for i, r := range ranks {
		works[i] = gs[r].AllReduce(transport.Of([]float32{1}).Named("h.3"), transport.Sum)
	}
	var all sync.WaitGroup
	for i, w := range works {
		all.Go(func() { errs[i] = w.Wait(context.Background()) })
	}
	all.Wait()
	return errs
}

// TestConnectionEnds ends the connections of a rank of which nothing else is heard.
func TestConnectionEnds(t *testing.T) {
	for _, portable := range []bool{false, true} {
		t.Run(fmt.Sprint("portable ", portable), func(t *testing.T) {
			t.Parallel()
			gs := RemoteGroups(t, 3, Wiring{Portable: portable, Timeout: 4 * time.Second}) // see patience
			remoteOf(gs[1]).pump.stop()
			for _, err := range sumOn(gs, 0, 2) {
				var blame *transport.RankError
				require.ErrorAs(t, err, &blame)
				require.ErrorIs(t, err, transport.ErrLost)
				require.Equal(t, 1, blame.Rank)
			}
			grouptest.CloseRanks(t, gs)
		})
	}
}

// TestSilentRank has a rank that does not come.
func TestSilentRank(t *testing.T) {
	for name, w := range map[string]Wiring{"plain": {}, "portable": {Portable: true}, "two hosts": {Hosts: []int{2, 2}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w.Timeout = 2 * time.Second // a second may pass for a machine that is busy with something else
			gs := RemoteGroups(t, 4, w)
			for _, err := range sumOn(gs, 0, 1, 3) {
				require.ErrorIs(t, err, transport.ErrTimeout)
				require.ErrorContains(t, err, "waited for ranks [2] in all-reduce #1")
			}
			grouptest.CloseRanks(t, gs)
		})
	}
}

// TestSlowRank has one that comes late, but moves bytes all the time.
func TestSlowRank(t *testing.T) {
	t.Parallel()
	const length, parts, timeout = 64 << 10, 30, 2 * time.Second
	r, conn := rawPeer(t, timeout)
	c := transport.Call{Kind: transport.KindAllGather, Dst: transport.Of(make([]byte, 2*length)), Src: transport.Of(make([]byte, length))}
	message := message(r, &c, 1, length)
	var peer sync.WaitGroup
	peer.Go(func() { _, _ = io.Copy(io.Discard, conn) })
	peer.Go(func() {
		tick := time.NewTicker(timeout * 3 / 2 / parts) // in all more than the timeout
		defer tick.Stop()
		for size := len(message)/parts + 1; len(message) > 0; message = message[min(size, len(message)):] {
			<-tick.C
			if _, err := conn.Write(message[:min(size, len(message))]); err != nil {
				return
			}
		}
	})
	require.NoError(t, r.Run(context.Background(), 1, &c))
	r.Stop()
	require.NoError(t, conn.Close())
	r.pump.close(time.Now())
	peer.Wait()
}

// TestDamagedInARelay changes a byte in the memory of a rank before it passes it on: checksums are
// those of whoever sent it first, so the next rank notices.
func TestDamagedInARelay(t *testing.T) {
	const size = 2*block + 5
	for name, run := range map[string]func(r *remote) error{
		"chain": func(r *remote) error { return r.broadcastChain(t.Context(), noise(0, size), 0) },
		"ring": func(r *remote) error {
			return r.gatherRing(t.Context(), transport.Of(make([]byte, 3*size)), transport.Of(noise(r.rank, size)), size)
		},
	} {
		for at := range 3 { // of the blocks
			t.Run(fmt.Sprintf("%s, block %d", name, at), func(t *testing.T) {
				t.Parallel()
				gs := RemoteGroups(t, 3, Wiring{})
				damage := &damaging{pump: remoteOf(gs[1]).pump, r: remoteOf(gs[1]), sum: crc32.ChecksumIEEE(noise(0, size)[:min((at+1)*block, size)])}
				remoteOf(gs[1]).pump = damage
				errs := make([]error, len(gs))
				var ranks sync.WaitGroup
				for rank, g := range gs {
					ranks.Go(func() {
						if errs[rank] = run(remoteOf(g)); errs[rank] != nil {
							g.Abort(errs[rank])
						}
					})
				}
				ranks.Wait()
				require.True(t, damage.done)
				require.ErrorIs(t, errs[2], transport.ErrDamaged)
				require.ErrorContains(t, errs[2], "rank 1")
				for _, g := range gs {
					_ = g.Close() // it has failed
				}
			})
		}
	}
}

// damaging changes a byte of a block for rank 2, which it knows by its checksum, before it is sent.
type damaging struct {
	pump
	r    *remote
	sum  uint32
	done bool
}

func (d *damaging) push(arrived func(*port) error) (bool, error) {
	out := &d.r.port(2).out
	for _, p := range out.pieces[out.next:] {
		if p.known && p.sum == d.sum && !d.done {
			p.body[len(p.body)-1] ^= 1
			d.done = true
		}
	}
	return d.pump.push(arrived)
}

// rawPeer returns rank 0 of two, and the other end of its connection.
func rawPeer(t testing.TB, timeout time.Duration) (*remote, net.Conn) {
	a, b, err := Wiring{}.pair()
	require.NoError(t, err)
	r := newRank(transport.WorldName, worldID, 0, 2, timeout, true)
	r.halt = r.interrupt
	r.wires.connect = func(int) ([]mesh.Lane, error) { return []mesh.Lane{{Conn: a}}, nil }
	r.pump, err = newPump(true)
	require.NoError(t, err)
	r.port(1)
	return r, b
}

// message returns what the other rank would send in collective seq, c: a frame, so
// many zeros and their checksum.
func message(r *remote, c *transport.Call, seq uint64, length int) []byte {
	f := frame{group: r.frame.group, seq: seq, length: length, round: roundGather, summed: true}
	c.Signature().Put(f.call[:])
	var head [frameSize]byte
	f.put(&head)
	return summed(head[:], make([]byte, length))
}

// summed appends a payload and its checksum to b.
func summed(b, payload []byte) []byte {
	return binary.LittleEndian.AppendUint32(append(b, payload...), crc32.ChecksumIEEE(payload))
}

// gatherOf is an all-gather of 8 bytes by two ranks.
func gatherOf(label string) *transport.Call {
	return &transport.Call{Kind: transport.KindAllGather, Dst: transport.Of(make([]byte, 16)).Named(label), Src: transport.Of(make([]byte, 8))}
}

// TestFrames sends one wrong frame after another.
func TestFrames(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *frame)
		want   string
	}{
		"group":  {func(f *frame) { f.group++ }, "rank 1 of group \"world\": broken stream to rank 0: frame of group 2, want 1"},
		"old":    {func(f *frame) { f.seq-- }, "frame of collective #4, want #5"},
		"length": {func(f *frame) { f.length = 1 << 30 }, "1073741824 bytes in round 1, want 8"},
		"round":  {func(f *frame) { f.round = 9 }, "8 bytes in round 9, want 8 in round 1"},
		"call":   {func(f *frame) { f.call[0] = 200 }, "invalid signature: kind 200"},
		"label":  {func(f *frame) { gatherOf("h.4").Signature().Put(f.call[:]) }, `, all-gather uint8[16]: rank 0 gave "h.3", rank 1 gave "h.4"`},
		"sums": {func(f *frame) { f.summed = false },
			`rank 1 of group "world": sends payloads without checksums, rank 0 with: Config.Checksums, or FSDP_CHECKSUMS, must be the same on all ranks`},
		"later": {func(f *frame) { f.seq++ }, `rank 1 calls another collective (its #6 is all-gather uint8[16] "h.3")`},
	} {
		t.Run(name, func(t *testing.T) {
			r, conn := rawPeer(t, 0)
			call := gatherOf("h.3")
			f := frame{group: worldID, seq: 5, length: 8, round: roundGather, summed: true}
			call.Signature().Put(f.call[:])
			c.change(&f)
			var head [frameSize]byte
			f.put(&head)
			_, err := conn.Write(head[:])
			require.NoError(t, err)
			err = r.Run(context.Background(), 5, call)
			require.ErrorContains(t, err, c.want)
			require.Equal(t, err, r.Run(context.Background(), 6, call))
			require.NoError(t, conn.Close())
			r.pump.close(time.Now())
		})
	}
}

func FuzzFrame(f *testing.F) {
	r := &remote{exchange: exchange{frame: new(frame)}}
	f.Add(message(r, gatherOf("h.3"), 1, 8))
	f.Fuzz(func(t *testing.T, b []byte) {
		var head, again [frameSize]byte
		copy(head[:], b)
		var got frame
		if got.parse(&head) == nil {
			got.put(&again)
			require.Equal(t, head, again)
			_ = (&frame{seq: 1}).compare(&got, transport.WorldName, 0, 1)
		}
		// Any change is noticed.
		whole := frame{group: 7, seq: 9, length: len(b), round: 3, summed: len(b)%2 == 0}
		whole.put(&head)
		if len(b) > 1 {
			head[int(b[0])%frameSize] ^= b[1] | 1
			require.Error(t, got.parse(&head))
		}
	})
}

// TestOlderVersion has a peer whose frames are those of another version.
func TestOlderVersion(t *testing.T) {
	for magic, want := range map[string]string{
		"COP2": "broken stream to rank 0: protocol version 2, want 5: build all ranks with the same version of this library",
		"COPY": "broken stream to rank 0: the data is not a frame of this protocol",
	} {
		r, conn := rawPeer(t, 0)
		b := message(r, gatherOf("h.3"), 1, 8)
		copy(b, magic)
		_, err := conn.Write(b)
		require.NoError(t, err)
		require.ErrorContains(t, r.Run(context.Background(), 1, gatherOf("h.3")), want)
		require.NoError(t, conn.Close())
		r.pump.close(time.Now())
	}
}

// FuzzStream has a peer that sends anything and ends.
func FuzzStream(f *testing.F) {
	call := gatherOf("h.3")
	good := message(&remote{exchange: exchange{frame: &frame{group: worldID}}}, call, 1, 8)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(append(good, good...))
	f.Add(summed(good[:frameSize:frameSize], []byte("payload.")))
	damaged := bytes.Clone(good)
	damaged[frameSize+5] ^= 1 << 3
	f.Add(damaged)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, conn := rawPeer(t, time.Minute)
		var peer sync.WaitGroup
		peer.Go(func() {
			_, _ = conn.Write(b) // the rank may refuse it
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
		})
		err := r.Run(context.Background(), 1, call)
		isGood := len(b) >= len(good) && string(b[:frameSize]) == string(good[:frameSize])
		switch {
		case isGood && !bytes.HasPrefix(b, summed(b[:frameSize:frameSize], b[frameSize:][:8])):
			require.ErrorContains(t, err, `comm: rank 1 of group "world": payload to rank 0 in collective #1, all-gather uint8[16] "h.3", was damaged`)
		case isGood:
			require.NoError(t, err)
			require.Equal(t, b[frameSize:frameSize+8], call.Dst.Bytes()[8:])
		default:
			require.Error(t, err)
			require.Contains(t, fmt.Sprint(err), "rank 1")
		}
		r.Stop()
		r.pump.close(time.Now())
		peer.Wait()
		require.NoError(t, conn.Close())
	})
}

// TestLeaveDelivers has a rank leave at once, with much on its way and something
// unread, which would reset the connection.
func TestLeaveDelivers(t *testing.T) {
	for _, portable := range []bool{false, true} {
		gs := RemoteGroups(t, 2, Wiring{Portable: portable})
		var ranks sync.WaitGroup
		errs := make([]error, 2)
		for r, g := range gs {
			ranks.Go(func() {
				x := transport.Of(make([]byte, 2<<20))
				w := g.Broadcast(x, 0)
				if r == 1 {
					g.AllReduce(transport.Of([]float32{1}), transport.Sum) // never issued by rank 0
				}
				if errs[r] = w.Wait(context.Background()); r == 0 {
					errs[r] = g.Close()
				}
			})
		}
		ranks.Wait()
		require.NoError(t, errs[0])
		require.NoError(t, errs[1])
		grouptest.CloseRanks(t, gs)
	}
}

// drowsy is a pump whose process is stopped, for a night, in the middle of its first wait. All
// has come after so many waits.
type drowsy struct {
	pump
	waits, left int
	port        *port
}

func (d *drowsy) push(func(*port) error) (bool, error) {
	if d.left == 0 && !d.port.in.idle() {
		d.port.in.next = len(d.port.in.pieces)
		return true, nil
	}
	return false, nil
}

func (d *drowsy) wait(nap time.Duration) (bool, error) {
	if d.waits++; d.waits == 1 {
		nap += 12 * time.Hour
	}
	<-time.After(nap)
	d.left--
	return false, nil
}

// TestTimeoutWhileStopped: the limit is of time in which the rank ran.
func TestTimeoutWhileStopped(t *testing.T) {
	const naps = int((10*time.Second - time.Second) / slice)
	for left, want := range map[int]error{naps - 1: nil, naps + 2: transport.ErrTimeout} {
		synctest.Test(t, func(t *testing.T) {
			p := &port{peer: 1}
			x := exchange{ports: []*[portsPage]*port{{1: p}}, used: []*port{p}, pump: &drowsy{left: left, port: p}, timeout: 10 * time.Second}
			x.receive(1, 0, 4, make([]byte, 4))
			err := x.settle(t.Context())
			require.ErrorIs(t, err, want)
			if want != nil {
				require.EqualError(t, err, "no progress for 10s (the limit is FSDP_TIMEOUT, or Config.Timeout)")
			}
		})
	}
}

// TestManyMismatch has one of many ranks call something else than a sum that goes in steps: all
// hear which two ranks differ, and how.
func TestManyMismatch(t *testing.T) {
	ctx := context.Background()
	for name, call := range map[string]func(g transport.Group) error{
		"barrier": func(g transport.Group) error { return g.Barrier(ctx) },
		"all-reduce": func(g transport.Group) error {
			return g.AllReduce(transport.Of(make([]int32, 3)), transport.Sum).Wait(ctx)
		},
	} {
		for _, err := range differ(t, manyRanks+1, 2, 5, call) {
			require.ErrorContains(t, err, name)
		}
	}
}

// differ has one of n ranks make a call and the others sum so many elements, and returns the
// errors, all of which are about that rank.
func differ(t *testing.T, n, elements, other int, call func(g transport.Group) error) []error {
	gs, errs := RemoteGroups(t, n, Wiring{}), make([]error, n)
	var ranks sync.WaitGroup
	for r, g := range gs {
		ranks.Go(func() {
			if r == other {
				errs[r] = call(g)
			} else {
				errs[r] = g.AllReduce(transport.Of(make([]int32, elements)), transport.Sum).Wait(context.Background())
			}
		})
	}
	ranks.Wait()
	for _, err := range errs {
		var mismatch *transport.MismatchError
		require.ErrorAs(t, err, &mismatch)
		require.Contains(t, mismatch.Ranks, other)
	}
	grouptest.CloseRanks(t, gs)
	return errs
}
