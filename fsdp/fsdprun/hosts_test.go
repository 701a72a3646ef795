//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

// together runs a script on several hosts, which are one, to the end.
func together(t *testing.T, script string, hosts int, flags ...string) (statuses []int, all []*running) {
	rdzv := freeAddress(t)
	for host := range hosts {
		all = append(all, begin(t, script, strings.NewReader(""),
			append([]string{"-nnodes", fmt.Sprint(hosts), "-node-rank", fmt.Sprint(host), "-rdzv", rdzv}, flags...)))
	}
	for _, r := range all {
		statuses = append(statuses, <-r.status)
	}
	return statuses, all
}

func freeAddress(t *testing.T) string {
	port, err := freePort("127.0.0.1")
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", port)
}

func secretFile(t *testing.T) string {
	name := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(name, []byte("0123456789abcdef 0123456789\n"), 0o600))
	return name
}

func TestSeveralHosts(t *testing.T) {
	statuses, all := together(t, "place", 3, "-n", "2", "-secret-file", secretFile(t), "-tls")
	require.Equal(t, []int{0, 0, 0}, statuses, &all[0].err)
	require.Regexp(t, `fsdprun: waiting at 127\.0\.0\.1:\d+ for hosts 1-2\n`, all[0].err.String())
	for host, r := range all {
		for i := range 2 {
			rank := 2*host + i
			require.Regexp(t, fmt.Sprintf(`^\[%d\] %d 6 %d 2 %d 3 127\.0\.0\.1:\d+ 127\.0\.0\.1:\d+-[0-9a-f]{8} 0 0  127\.0\.0\.1 `, rank, rank, i, host), r.out.sorted()[i])
		}
		require.Contains(t, r.err.String(), "start 0: 6 ranks on hosts 0-2\n")
	}
}

// hostFlags returns the flags of hosts with one rank each.
func hostFlags(t *testing.T, hosts int, flags ...string) func(host int) []string {
	common := append([]string{"-n", "1", "-nnodes", fmt.Sprint(hosts), "-rdzv", freeAddress(t), "-secret-file", secretFile(t)}, flags...)
	return func(host int) []string { return append(slices.Clone(common), "-node-rank", fmt.Sprint(host)) }
}

// TestStragglersOfHosts: ranks of several hosts are compared on each, without a directory in
// common.
func TestStragglersOfHosts(t *testing.T) {
	flags := hostFlags(t, 2, "-stragglers")
	var hosts []*running
	for host := range 2 {
		hosts = append(hosts, begin(t, "straggle", strings.NewReader(""), flags(host)))
	}
	for _, r := range hosts {
		require.Zero(t, <-r.status, &r.err)
		require.Contains(t, r.err.String(), "stragglers: 10 passes of 2 ranks\n")
	}
}

// TestHostLeaves: a signal for one host ends its part. The others go on with another one in its
// place, which had to wait for that.
func TestHostLeaves(t *testing.T) {
	flags := hostFlags(t, 2, "-restarts", "1")
	var hosts []*running
	for host := range 2 {
		hosts = append(hosts, begin(t, "wait", strings.NewReader(""), flags(host)))
		defer func() { hosts[host].signals <- syscall.SIGTERM }()
	}
	hosts[0].await(1, "ready")
	hosts[1].await(1, "ready")
	second := begin(t, "wait", strings.NewReader(""), flags(1))
	second.err.await("host 1 is already connected: waiting for it to end")
	third := begin(t, "wait", strings.NewReader(""), flags(1))
	third.err.await("host 1 is already connected: waiting for it to end")
	third.signals <- syscall.SIGINT // it need not wait
	require.Zero(t, <-third.status, &third.err)
	hosts[1].signals <- syscall.SIGINT
	require.Zero(t, <-hosts[1].status, &hosts[1].err) // its rank chose to end well
	hosts[0].await(1, "ready")
	second.await(1, "ready")
	require.Contains(t, hosts[0].err.String(), "first: host 1 leaves: SIGINT\n")
	require.Contains(t, second.err.String(), "start 1: 2 ranks on hosts 0-1\n")
	hosts[0].signals <- syscall.SIGINT
	require.Zero(t, <-hosts[0].status, &hosts[0].err)
	require.Zero(t, <-second.status, &second.err)
}

// TestSignalMeetsHost0: a signal that comes while a host finds host 0 is not lost.
func TestSignalMeetsHost0(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	g := newGuest(&config{}, store.Config{}, auth.Hello{}, offer{})
	g.tell(report{Signal: syscall.SIGTERM})
	require.EqualError(t, g.join(newWire(near, near)), "SIGTERM: this host no longer waits for host 0")
	require.False(t, g.hold())
	_, err := g.find()
	require.EqualError(t, err, "SIGTERM: this host no longer waits for host 0")
}

// TestHostsDiffer: hosts that were told different things do not become one job.
func TestHostsDiffer(t *testing.T) {
	flags := hostFlags(t, 2, "-restarts", "1")
	first := begin(t, "wait", strings.NewReader(""), flags(0))
	other := secretFile(t)
	require.NoError(t, os.WriteFile(other, []byte("another secret of these tests"), 0o600))
	for _, c := range [][2]string{
		{"-min 1", "host 1 has -min 1 -restarts 1 -replace 0, host 0 has -min 0 -restarts 1 -replace 0"},
		{"-nnodes 3", "host 0 has -nnodes 2, host 1 has -nnodes 3: give all hosts the same"},
		{"-job other", `runs job "127.0.0.1`},
		{"-secret-file " + other, "the other side has a different secret"},
	} {
		r := begin(t, "wait", strings.NewReader(""), append(flags(1), strings.Fields(c[0])...))
		require.NotZero(t, <-r.status)
		require.Contains(t, r.err.String(), c[1])
	}
	first.signals <- syscall.SIGTERM
	require.Equal(t, exitError, <-first.status)
	require.Contains(t, first.err.String(), "SIGTERM before the ranks were started")
}

// TestNoHost0: a host does not look for host 0 for ever.
func TestNoHost0(t *testing.T) {
	flags := hostFlags(t, 2, "-join-timeout", "50ms", "-restarts", "1")
	r := begin(t, "wait", strings.NewReader(""), flags(1))
	require.Equal(t, exitError, <-r.status)
	require.Contains(t, r.err.String(), "-join-timeout 50ms is too short to survive a host that falls silent, which is detected after 20s: give at least 30s\n")
	require.Regexp(t, `host 0 at 127\.0\.0\.1:\d+ does not answer: .*\(time is up after 50ms \(-join-timeout\)\)`, r.err.String())

	r = begin(t, "wait", strings.NewReader(""), hostFlags(t, 2)(1))
	r.err.await("waiting for host 0")
	r.signals <- syscall.SIGTERM
	require.Equal(t, exitError, <-r.status)
	require.Contains(t, r.err.String(), "SIGTERM: this host no longer waits for host 0")
}

// TestSilence: both ends of a wire speak often enough, and notice when the other one does not.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		near, far := newWire(a, a), newWire(b, b)
		defer near.close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for far.read(&report{}) == nil {
			}
		}()
		near.send(order{Say: "hello"})
		begin := time.Now()
		for time.Since(begin) < time.Minute {
			require.NoError(t, near.read(&order{}))
		}
		close(far.closed) // it says nothing any more, and does not hang up
		far.writing.Wait()
		begin = time.Now()
		require.EqualError(t, near.read(&order{}), "no word for 20s")
		require.Equal(t, silence, time.Since(begin))
		far.raw.Close()
		require.Error(t, near.read(&order{}))
		<-done
	})
}

// stopped is a connection whose process is stopped before it first reads.
type stopped struct {
	net.Conn
	goesOn func()
}

func (s *stopped) Read(b []byte) (int, error) {
	s.goesOn()
	s.goesOn = func() {}
	return s.Conn.Read(b)
}

// TestSilenceWhileStopped: what an end has said while the other one was stopped is heard.
func TestSilenceWhileStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		near := newWire(&stopped{a, func() { time.Sleep(silence + time.Second) }}, a)
		var far sync.WaitGroup
		far.Go(func() { _, _ = io.Copy(io.Discard, b) })
		far.Go(func() { _ = json.NewEncoder(b).Encode(order{Say: "hello"}) })
		var o order
		require.NoError(t, near.read(&o))
		require.Equal(t, "hello", o.Say)
		near.close()
		far.Wait()
	})
}

// TestHostGivesUp: host 0 says why a host does not come, at once and in the end.
func TestHostGivesUp(t *testing.T) {
	flags := hostFlags(t, 2, "-join-timeout", "2s")
	first := begin(t, "wait", strings.NewReader(""), flags(0))
	first.err.await("waiting at ")
	var err output
	for why, wrong := range map[string][]string{
		`launch: FSDP_TIMEOUT="never" is not a duration`:      {"-timeout", "never"},
		"-restarts, -replace and -grace must not be negative": {"-grace", "-1s"},
	} {
		require.Equal(t, exitUsage, run(append(append(flags(1), wrong...), "true"), system{err: &err, out: io.Discard}))
		first.err.await("host 1 has given up: " + why)
	}
	require.Equal(t, exitError, run(append(flags(1), "no-such-program"), system{err: &err, out: io.Discard}))
	require.NotContains(t, err.String(), "cannot tell host 0")
	require.Equal(t, exitError, <-first.status)
	const why = "host 1 has given up: no-such-program: no such file, directory or command: build the program first, or give its package, such as ./examples/digits"
	require.Contains(t, first.err.String(), "fsdprun: "+why+"\n")
	require.Contains(t, first.err.String(), "within 2s there was no host 1; "+why+"\n")

	s := open(2, 2, 0, 1)
	s.tell(1, report{Join: &offer{Ranks: 2, Most: 2}})
	s.wait()
	require.Regexp(t, `there was no host 1; host 1 has -min 0 -restarts 0 -replace 0, host 0 has -min 0 -restarts 1 -replace 0: give them all the same\n`, s.said())
}
