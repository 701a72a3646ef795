//go:build netns

package netns

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

const (
	perHost  = 2
	patience = 2 * time.Minute
	limit    = 2 * time.Second  // of no progress, where a link is cut
	silence  = 21 * time.Second // until a host is taken for lost, see mesh
)

func TestMain(m *testing.M) {
	o, ok, err := orderFromEnv()
	if ok && err == nil {
		err = serve(o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if ok {
		return
	}
	if reason := lacking(); reason != "" {
		fmt.Println("network namespaces cannot be tested here:", reason)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// lacking says what the tests lack, "" if nothing.
func lacking() string {
	if os.Geteuid() != 0 {
		return "needs root"
	}
	for _, name := range []string{"ip", "tc", "mpirun"} {
		if _, err := exec.LookPath(name); err != nil {
			return err.Error()
		}
	}
	return ""
}

// ranks are the processes of a job.
type ranks struct {
	said []chan said // by rank, closed at the end of the process
	wait func() []error
}

// start starts a job of two ranks on every host.
func (n *network) start(t *testing.T, program string, timeout time.Duration) *ranks {
	dir := t.TempDir()
	r := &ranks{}
	size := perHost * n.hosts

	var running sync.WaitGroup
	errs := make([]error, size)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	for id := range size {
		o, err := json.Marshal(order{
			Config: comm.Config{
				Rank: id, Size: size, Rendezvous: "file://" + dir, Job: t.Name(), Secret: []byte("of these tests only"),
				Listen: "eth0", Timeout: timeout, JoinTimeout: time.Minute,
			},
			Hosts: n.hosts, Program: program,
		})
		require.NoError(t, err)
		cmd := exec.CommandContext(ctx, "ip", "netns", "exec", space(id/perHost), os.Args[0])
		cmd.Env = append(os.Environ(), orderVariable+"="+string(o))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := make(chan said, 8)
		r.said = append(r.said, lines)
		running.Go(func() {
			defer close(lines)
			for d := json.NewDecoder(out); ; {
				var s said
				if d.Decode(&s) != nil {
					break
				}
				lines <- s
			}
			if err := cmd.Wait(); err != nil {
				errs[id] = fmt.Errorf("rank %d: %w: %s", id, err, &stderr)
			}
		})
	}
	r.wait = func() []error { running.Wait(); return errs }
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return r
}

// ended returns what the ranks said last, all of which must have ended well.
func (r *ranks) ended(t *testing.T) (last []said) {
	for _, lines := range r.said {
		var s said
		for s = range lines {
		}
		last = append(last, s)
	}
	for _, err := range r.wait() {
		require.NoError(t, err)
	}
	for rank, s := range last {
		require.Equal(t, "done", s.What, "rank %d", rank)
	}
	return last
}

func succeeded(t *testing.T, last []said) {
	for rank, s := range last {
		require.Empty(t, s.Err, "rank %d", rank)
	}
}

func TestHosts(t *testing.T) {
	for _, hosts := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d hosts", hosts), func(t *testing.T) {
			n := build(t, hosts)
			succeeded(t, n.start(t, "trials", 0).ended(t))
		})
	}
}

// Results have the bits of groups inside a process.
func TestBits(t *testing.T) {
	n := build(t, 2)
	last := n.start(t, "digest", 0).ended(t)
	succeeded(t, last)
	want := make([]string, len(last))
	var local sync.WaitGroup
	for r, g := range comm.Local(len(last)) {
		local.Go(func() { want[r], _ = digest(context.Background(), g) })
	}
	local.Wait()
	for r, s := range last {
		require.NotEmpty(t, want[r])
		require.Equal(t, want[r], s.Digest, "rank %d", r)
	}
}

// TestUnplugged takes a host off the network in the middle of its work.
func TestUnplugged(t *testing.T) { unplugged(t, limit, limit) }

// TestUnpluggedLongLimit: the end of a host is noticed by its silence, however long the limit.
func TestUnpluggedLongLimit(t *testing.T) { unplugged(t, time.Hour, silence) }

func unplugged(t *testing.T, timeout, noticed time.Duration) {
	n := build(t, 3)
	job := n.start(t, "forever", timeout)
	for rank, lines := range job.said {
		s, ok := <-lines
		require.True(t, ok, "rank %d ended", rank)
		require.Equal(t, "running", s.What)
	}
	cut := time.Now()
	n.unplug(t, 1)
	for rank, s := range job.ended(t) {
		require.True(t, s.Blamed, "rank %d: %s", rank, s.Err)
		took := s.At.Sub(cut)
		require.Less(t, took, noticed+2*time.Second, "rank %d", rank)
		t.Logf("rank %d after %v: %s", rank, took.Round(time.Millisecond), s.Err)
	}
}

// TestLoss loses packets, which costs time and nothing else.
func TestLoss(t *testing.T) {
	n := build(t, 2)
	how, lost := n.lose(t)
	succeeded(t, n.start(t, "trials", 0).ended(t))
	t.Logf("%s: %d packets lost", how, lost())
	require.Positive(t, lost())
}
