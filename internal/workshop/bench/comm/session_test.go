package comm

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// connected returns a session whose ranks are played by the given functions, and what ends it.
func connected(t *testing.T, name string, ranks ...func(net.Conn) error) *session {
	s := &session{candidate: candidate{name: name}}
	var played sync.WaitGroup
	for _, play := range ranks {
		here, there := net.Pipe()
		s.ranks = append(s.ranks, &peer{conn: here, lines: bufio.NewReader(here)})
		played.Go(func() {
			defer there.Close()
			play(there)
		})
	}
	t.Cleanup(func() {
		for _, p := range s.ranks {
			p.conn.Close()
		}
		played.Wait()
	})
	return s
}

// ours returns a session of goroutine ranks behind the real protocol.
func ours(t *testing.T, n, bytes int) *session {
	var ranks []func(net.Conn) error
	for _, g := range comm.Local(n) {
		ranks = append(ranks, func(c net.Conn) error { return serveRank(c, g, tensor(bytes), tensor(bytes/n)) })
	}
	s := connected(t, "local", ranks...)
	for r, p := range s.ranks {
		line, err := p.lines.ReadString('\n')
		require.NoError(t, err)
		rank, _, err := parseHello(line)
		require.NoError(t, err)
		require.Equal(t, r, rank)
	}
	return s
}

// answers plays a rank that gives these answers, one a command, and hangs up.
func answers(lines ...string) func(net.Conn) error {
	return func(c net.Conn) error {
		in := bufio.NewReader(c)
		for _, line := range lines {
			if _, err := in.ReadString('\n'); err != nil {
				return err
			}
			if _, err := fmt.Fprintln(c, line); err != nil {
				return err
			}
		}
		_, err := in.ReadString('\n')
		return err
	}
}

func TestOurRanksComputeAllOperations(t *testing.T) {
	for n := range 4 {
		s := ours(t, n+1, 12<<10)
		for _, op := range operations {
			bytes := 12 << 10
			if op == "flag" || op == "barrier" {
				bytes = elementSize
			}
			_, err := s.do(t.Context(), command{check: true, op: op, bytes: bytes})
			require.NoError(t, err, op)
			seconds, err := s.do(t.Context(), command{op: op, bytes: bytes, iterations: 3})
			require.NoError(t, err, op)
			require.Positive(t, seconds)
		}
	}
}

func TestWrongOperationIsRefused(t *testing.T) {
	s := ours(t, 2, 4<<10)
	_, err := s.do(t.Context(), command{op: "scatter", bytes: 4, iterations: 1})
	require.EqualError(t, err, "local: rank 0: run scatter 4 1: no such operation")
	require.True(t, refused(err))
	_, err = s.do(t.Context(), command{op: "flag", bytes: 8 << 10, iterations: 1})
	require.True(t, refused(err), "a tensor that is too large")
	_, err = s.do(t.Context(), command{op: "flag", bytes: 4, iterations: 1})
	require.NoError(t, err, "the session goes on")
}

func TestVerifyFindsWrongElement(t *testing.T) {
	s := make([]float32, 200)
	fill(s, 10, 3)
	require.NoError(t, verify(s, 10, 3))
	require.Error(t, verify(s, 11, 3), "shifted by one")
	require.Error(t, verify(s, 10, 6), "one rank too many")
	s[199]++
	require.EqualError(t, verify(s, 10, 3), "element 209 is 82, want 81")
}

func TestSlowestRankCounts(t *testing.T) {
	s := connected(t, "x", answers("ok 0.25"), answers("ok 0.75"), answers("ok 0.5"))
	seconds, err := s.do(t.Context(), command{op: "flag", bytes: 4, iterations: 1})
	require.NoError(t, err)
	require.Equal(t, 0.75, seconds)
}

func TestRefusalOfOneRankKeepsAllInStep(t *testing.T) {
	s := connected(t, "x", answers("ok 0.25", "ok 1"), answers("error element 3", "ok 2"))
	_, err := s.do(t.Context(), command{check: true, op: "flag", bytes: 4})
	require.EqualError(t, err, "x: rank 1: check flag 4: element 3")
	require.True(t, refused(err))
	seconds, err := s.do(t.Context(), command{op: "flag", bytes: 4, iterations: 1})
	require.NoError(t, err)
	require.Equal(t, 2.0, seconds)
}

func TestLostRank(t *testing.T) {
	s := connected(t, "x", answers("ok 1"), answers())
	_, err := s.do(t.Context(), command{op: "flag", bytes: 4, iterations: 1})
	require.EqualError(t, err, "x: rank 1: run flag 4 1: hung up")
	require.False(t, refused(err))
}

func TestInterruptEndsWaiting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	silent := func(c net.Conn) error {
		bufio.NewReader(c).ReadString('\n')
		cancel() // the driver is waiting for the answer, or about to
		_, err := io.ReadAll(c)
		return err
	}
	s := connected(t, "x", silent)
	_, err := s.do(ctx, command{op: "flag", bytes: 4, iterations: 1})
	require.ErrorIs(t, err, context.Canceled)
}

func TestCalibration(t *testing.T) {
	require.Equal(t, 16, iterations(1, 1e-6), "times of few are not trusted")
	require.Equal(t, 400, iterations(100, 0.01))
	require.Equal(t, 1, iterations(1, 3))
	require.Equal(t, 16, iterations(1, 0))
	require.Equal(t, maxIterations, iterations(maxIterations, 1e-9))

	// The ring takes 20 ms, the cube 5, and the third is wrong.
	s := connected(t, "gloo", answers("ok 0", "ok 0.02", "ok 0", "ok 0.005", "ok 0.02", "error element 0"))
	s.variants = glooVariants
	batch, err := s.calibrate(t.Context(), cell{2, "all-reduce", 4096})
	require.NoError(t, err)
	require.Equal(t, command{op: "all-reduce/bcube", bytes: 4096, iterations: 16}, batch)

	s = connected(t, "memcpy")
	s.variants = onlyAllGather
	batch, err = s.calibrate(t.Context(), cell{2, "flag", 4})
	require.NoError(t, err)
	require.Zero(t, batch.iterations, "it has no flag")
}

func TestMeasureGoesOnWithoutTheLost(t *testing.T) {
	var notes strings.Builder
	healthy := func(name string, batches int) *session {
		lines := []string{"ok 0", "ok 0.04"}
		for range batches {
			lines = append(lines, "ok 0.08")
		}
		return connected(t, name, answers(lines...))
	}
	wrong := connected(t, "wrong", answers("error element 7"))
	f := &fleet{notes: &notes, sessions: []*session{healthy("good", 3), healthy("dies", 1), wrong}}
	for _, s := range f.sessions {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s.listener = listener
		t.Cleanup(func() { listener.Close() })
	}
	times, err := f.measure(t.Context(), cell{2, "flag", 4}, 3)
	require.NoError(t, err)
	require.Equal(t, map[string][]float64{"good": {0.08, 0.08, 0.08}}, times)
	require.Equal(t, "not measured: wrong: rank 0: check flag 4: element 7\ndropped: dies: rank 0: run flag 4 1: hung up\n", notes.String())
	require.Len(t, f.sessions, 2, "who was wrong may be right elsewhere")
}

func TestTailKeepsTheEnd(t *testing.T) {
	var out tail
	for range 300 {
		fmt.Fprintln(&out, "a line of noise")
	}
	fmt.Fprintln(&out, "the reason")
	require.True(t, strings.HasSuffix(out.String(), "a line of noise\nthe reason"))
	require.LessOrEqual(t, len(out.String()), tailBytes)
}

// TestWorldOfProcesses measures real processes: this program as local, and candidates that cannot
// start.
func TestWorldOfProcesses(t *testing.T) {
	runtime.LockOSThread() // children die with the thread that started them
	defer runtime.UnlockOSThread()
	shop, err := openWorkshop(smallest)
	require.NoError(t, err)
	entrants := wanted([]string{"local"})
	exits := candidate{name: "exits", command: func(s start) []*exec.Cmd { return []*exec.Cmd{s.ours("-nonsense")} }}
	absent := candidate{name: "absent", command: func(start) []*exec.Cmd { return []*exec.Cmd{exec.Command("/nowhere/at/all")} }}
	small := candidate{name: "small", maxWorld: 1}
	entrants = append(entrants, exits, absent, small)

	var text, notes strings.Builder
	opts := options{worlds: []int{2}, ops: []string{"flag", "broadcast"}, max: smallest, rounds: 2}
	record := newRecord(opts)
	require.NoError(t, measureWorld(t.Context(), &text, &notes, shop, entrants, 2, opts, record))
	require.Len(t, record.Cells, 2)
	for _, c := range record.Cells {
		require.Len(t, c.Seconds["local"], 2, c.cell)
		require.Len(t, c.Seconds, 1, c.cell)
	}
	require.Contains(t, text.String(), "broadcast, world 2")
	require.Contains(t, notes.String(), "exits: start: ended too early\n  flag provided but not defined: -nonsense")
	require.Contains(t, notes.String(), "absent: ")
	require.Contains(t, notes.String(), "small: not at world 2")

	require.NoError(t, shop.close())
	require.NoDirExists(t, shop.dir)
	require.NoDirExists(t, shop.shared)
}

func TestMissingCompilerLeavesCandidateOut(t *testing.T) {
	shop, err := openWorkshop(smallest)
	require.NoError(t, err)
	defer shop.close()
	t.Setenv("PATH", t.TempDir())
	var notes strings.Builder
	able := shop.prepare(t.Context(), &notes, options{candidates: []string{"local", "ompi-shm", "ompi-tcp", "gloo"}})
	require.Len(t, able, 1)
	require.Equal(t, "local", able[0].name)
	require.Equal(t, 1, strings.Count(notes.String(), "apt-get install openmpi-bin libopenmpi-dev"), "said once")
	require.Contains(t, notes.String(), "apt-get install g++ libgloo-dev")
}
