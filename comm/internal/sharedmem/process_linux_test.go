package sharedmem

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/mesh"
)

// pair is a network of two processes over a socket that passes files: the one
// that started the other is rank 0.
type pair struct {
	rank  int
	conn  *net.UnixConn
	heard *session.Session
	files chan *os.File
	write sync.Mutex
	over  chan struct{} // closed when the other process has ended
}

func (p *pair) SameHost(int) bool { return true }
func (p *pair) Host(int) string   { return "here" }

func (p *pair) Connect(context.Context, int, uint64) ([]mesh.Lane, error) {
	return nil, errors.New("no connections here")
}
func (p *pair) Relays() bool               { return false }
func (p *pair) Tell(_ []int, msg []byte)   { _ = p.Send(1-p.rank, msg) }
func (p *pair) Forget(uint64)              {}
func (p *pair) Plain(context.Context) bool { return true }
func (p *pair) Modelled() bool             { return false }

// A message is its length, its bytes, and perhaps a file.
func (p *pair) send(msg, rights []byte) error {
	p.write.Lock()
	defer p.write.Unlock()
	_, _, err := p.conn.WriteMsgUnix(append(binary.LittleEndian.AppendUint32(nil, uint32(len(msg))), msg...), rights, nil)
	return err
}

func (p *pair) Send(_ int, msg []byte) error { return p.send(msg, nil) }

func (p *pair) SendFile(_ int, _ uint64, f *os.File) error {
	return p.send(nil, syscall.UnixRights(int(f.Fd())))
}

func (p *pair) File(ctx context.Context, _ int, _ uint64) (*os.File, error) {
	select {
	case f := <-p.files:
		return f, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p *pair) Close() error {
	err := p.conn.CloseWrite()
	<-p.over
	return errors.Join(err, p.conn.Close())
}

// Read implements io.Reader and catches the files that come along.
func (p *pair) Read(b []byte) (int, error) {
	rights := make([]byte, 64)
	n, r, _, _, err := p.conn.ReadMsgUnix(b, rights)
	if msgs, _ := syscall.ParseSocketControlMessage(rights[:r]); len(msgs) > 0 {
		if fds, _ := syscall.ParseUnixRights(&msgs[0]); len(fds) > 0 {
			p.files <- os.NewFile(uintptr(fds[0]), "segment")
		}
	}
	if n <= 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}

// listen hears the other process until it ends.
func (p *pair) listen() {
	defer close(p.over)
	in := bufio.NewReader(p)
	for {
		var size uint32
		if err := binary.Read(in, binary.LittleEndian, &size); err != nil {
			p.heard.Lost(1-p.rank, errors.New("connection ended"))
			return
		}
		msg := make([]byte, size)
		if _, err := io.ReadFull(in, msg); err != nil {
			return
		}
		p.heard.Message(1-p.rank, msg)
	}
}

// joinPair returns this process's handle of the group of a pair.
func joinPair(t testing.TB, rank int, file *os.File, timeout time.Duration) transport.Group {
	conn, err := net.FileConn(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	s := session.New(session.Config{Rank: rank, Size: 2, Timeout: timeout})
	p := &pair{rank: rank, conn: conn.(*net.UnixConn), heard: s, files: make(chan *os.File, 1), over: make(chan struct{})}
	s.Mesh = p
	go p.listen()
	d, err := New(context.Background(), s)
	require.NoError(t, err)
	s.Memory = d
	g, err := newShared(context.Background(), s.World(), d)
	require.NoError(t, err)
	return g
}

// fork starts this test binary as rank 1, playing a role, and returns the handle
// of rank 0.
func fork(t testing.TB, role string, timeout time.Duration) (transport.Group, *exec.Cmd) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	theirs := os.NewFile(uintptr(fds[1]), "theirs")
	child := exec.Command(os.Args[0], "-test.run=^TestSharedChild$")
	child.Env = append(os.Environ(), "COMM_TEST_ROLE="+role)
	child.ExtraFiles = []*os.File{theirs}
	child.Stderr = os.Stderr
	require.NoError(t, child.Start())
	require.NoError(t, theirs.Close())
	return joinPair(t, 0, os.NewFile(uintptr(fds[0]), "ours"), timeout), child
}

// roles are what rank 1 does.
var roles = map[string]func(t *testing.T, g transport.Group){
	"collectives": func(t *testing.T, g transport.Group) { everyKind(t, g) },
	"die": func(t *testing.T, g transport.Group) {
		require.NoError(t, g.Barrier(t.Context()))
		die()
	},
	// Claims a part of the first collective, arrives, and dies with it.
	"die at work": func(t *testing.T, g transport.Group) {
		s, x := g.(*shared), grouptest.Floats(1<<20)
		s.mu.Lock()
		c, seq := transport.Call{Kind: transport.KindAllReduce, Dst: x, Src: x}, s.published+1
		call := c.Signature()
		require.NoError(t, s.offer(seq, &task{call: c}, &call))
		s.board.line(1).busy.Store(seq)
		s.board.claim(seq, 1, 1)
		s.board.arrive(seq)
		die()
	},
	"flags": func(t *testing.T, g transport.Group) { flags(t, g) },
	"hang": func(t *testing.T, g transport.Group) {
		require.NoError(t, g.Barrier(t.Context()))
		<-g.(*shared).link.Session.Mesh.(*pair).over
	},
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func TestSharedChild(t *testing.T) {
	if role := roles[os.Getenv("COMM_TEST_ROLE")]; role != nil {
		g := joinPair(t, 1, os.NewFile(3, "ours"), 0)
		role(t, g)
		require.NoError(t, g.Close())
	}
}

// everyKind runs all collectives, on all kinds of memory and in several sizes.
func everyKind(t testing.TB, g transport.Group) {
	n, r := g.Size(), g.Rank()
	for _, size := range []int{1, 500, 1 << 16} {
		for kind := range 4 {
			whole, shard := make([]float32, n*size), make([]float32, size)
			if kind&1 != 0 {
				whole = alloc(t, g, n*size)
			}
			if kind&2 != 0 {
				shard = alloc(t, g, size)
			}
			for i := range shard {
				shard[i] = float32(r*size + i)
			}
			require.NoError(t, g.AllGather(transport.Of(whole), transport.Of(shard)).Wait(t.Context()))
			for i := range whole {
				require.Equal(t, float32(i), whole[i])
			}
			require.NoError(t, g.ReduceScatter(transport.Of(shard), transport.Of(whole), transport.Sum).Wait(t.Context()))
			for i := range shard {
				require.Equal(t, float32(n*(r*size+i)), shard[i])
			}
			require.NoError(t, g.AllReduce(transport.Of(whole), transport.Avg).Wait(t.Context()))
			require.Equal(t, float32(n*size-1), whole[n*size-1])
			whole[0] = float32(r + 7)
			require.NoError(t, g.Broadcast(transport.Of(whole), 1).Wait(t.Context()))
			require.Equal(t, float32(8), whole[0])
		}
	}
}

func alloc(t testing.TB, g transport.Group, n int) []float32 {
	b, err := g.(transport.Allocator).Alloc(4 * n)
	require.NoError(t, err)
	return transport.View[float32](transport.HostMemory(transport.Of(b).Pointer(), n, transport.Float32))
}

func TestSharedProcesses(t *testing.T) {
	g, child := fork(t, "collectives", 0)
	everyKind(t, g)
	require.NoError(t, g.Close())
	require.NoError(t, child.Wait())
}

func TestSharedDeath(t *testing.T) {
	for _, role := range []string{"die", "die at work"} {
		t.Run(role, func(t *testing.T) {
			g, child := fork(t, role, 0)
			if role == "die" {
				require.NoError(t, g.Barrier(t.Context()))
			}
			err := g.AllReduce(grouptest.Floats(1<<20), transport.Sum).Wait(t.Context())
			require.ErrorIs(t, err, transport.ErrLost)
			var re *transport.RankError
			require.ErrorAs(t, err, &re)
			require.Equal(t, 1, re.Rank)
			require.Error(t, child.Wait())
			require.NoError(t, g.Close())
		})
	}
}

func TestSharedTimeout(t *testing.T) {
	g, child := fork(t, "hang", 2*time.Second)
	require.NoError(t, g.Barrier(t.Context()))
	err := g.AllGather(grouptest.Floats(8), grouptest.Floats(4)).Wait(t.Context())
	require.ErrorIs(t, err, transport.ErrTimeout)
	require.ErrorContains(t, err, `comm: rank 1 of group "world": rank 0 waited for ranks [1] in all-gather #2 "h.3": no progress for 2s (the limit is FSDP_TIMEOUT, or Config.Timeout); `+
		`rank 1: 1 of 1 collectives complete, last barrier #1 complete`)
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.NoError(t, g.Close())
}

const flagRounds = 20000

// flags times five batches of 4-byte all-reduces and returns the median of the
// microseconds that one takes.
func flags(t testing.TB, g transport.Group) float64 {
	x, times := []int32{1}, []float64{}
	for range 5 {
		require.NoError(t, g.Barrier(context.Background()))
		start := time.Now()
		for range flagRounds {
			if err := g.AllReduce(transport.Of(x), transport.Max).Wait(context.Background()); err != nil {
				require.NoError(t, err)
			}
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/1e3/flagRounds)
	}
	slices.Sort(times)
	return times[2]
}

// BenchmarkSharedProcesses prints the time of a 4-byte all-reduce of two processes.
func BenchmarkSharedProcesses(b *testing.B) {
	best := math.Inf(1)
	for b.Loop() {
		g, child := fork(b, "flags", 0)
		best = min(best, flags(b, g))
		require.NoError(b, g.Close())
		require.NoError(b, child.Wait())
	}
	b.ReportMetric(best, "us/flag")
	b.ReportMetric(0, "ns/op")
}
