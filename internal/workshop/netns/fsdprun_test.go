//go:build netns

package netns

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cluster is three hosts on which fsdprun trains examples/gpt. Checkpoints lie in one directory.
type cluster struct {
	*network
	dir     string // of programs, data and checkpoints
	flags   []string
	running [3]*exec.Cmd
	lines   chan line // of all hosts; those of fsdprun that say which ranks start, once
	starts  sync.Map  // these lines
	readers sync.WaitGroup
	past    []stretch
}

type line struct {
	text string
	at   time.Time
}

// meet are the addresses at which the hosts can meet.
var meet = []string{"10.77.0.1:29500", "10.77.0.2:29500", "10.77.0.3:29500"}

// stretch is what a start has trained.
type stretch struct{ from, ranks int }

// training are flags of gpt: it takes a moment to start, and trains until it is interrupted.
const training = "-data data -holdout 5 -layers 2 -dim 32 -heads 2 -context 32 -batch 12 -steps 100000 -warmup 0 " +
	"-eval-bytes 512 -eval-every 1000000 -sample-bytes 0 -keep 100000 -resume"

// train starts a training on three hosts.
func train(t *testing.T, rdzv string, flags ...string) *cluster {
	c := &cluster{network: build(t, 3), dir: t.TempDir(), lines: make(chan line, 10000)}
	must(t, "go -C ../../.. build -o", c.dir+"/", "./fsdp/fsdprun ./examples/gpt")
	require.NoError(t, os.Mkdir(filepath.Join(c.dir, "data"), 0o700))
	for i := range 20 {
		text := strings.Repeat(fmt.Sprintf("func f%d(x int) int {\n\treturn x + %d\n}\n\n", i, i), 10)
		require.NoError(t, os.WriteFile(filepath.Join(c.dir, "data", fmt.Sprintf("f%02d.go", i)), []byte(text), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "key"), []byte("a secret of these tests only"), 0o600))
	c.flags = append(flags, "-nnodes", "3", "-rdzv", rdzv, "-secret-file", "key", "-restarts", "9")
	t.Cleanup(func() {
		for host := range c.running {
			c.kill(t, host)
		}
		c.readers.Wait()
	})
	for host := range c.running {
		c.start(t, host)
	}
	return c
}

// start starts fsdprun on a host.
func (c *cluster) start(t *testing.T, host int) {
	args := append([]string{"netns", "exec", space(host), "./fsdprun", "-node-rank", strconv.Itoa(host)}, c.flags...)
	args = append(args, "./gpt", "-save", "saved", "-save-every", "20")
	cmd := exec.Command("ip", append(args, strings.Fields(training)...)...)
	cmd.Dir = c.dir
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	c.running[host] = cmd
	c.readers.Go(func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			again := false
			if strings.HasPrefix(s.Text(), "fsdprun: start ") {
				_, again = c.starts.LoadOrStore(s.Text(), true)
			}
			if !again {
				c.lines <- line{s.Text(), time.Now()}
			}
		}
		_, _ = io.Copy(io.Discard, out)
	})
}

// kill kills all processes of a host at once.
func (c *cluster) kill(t *testing.T, host int) {
	if c.running[host] == nil {
		return
	}
	for _, pid := range strings.Fields(must(t, "ip netns pids", space(host))) {
		n, err := strconv.Atoi(pid)
		require.NoError(t, err)
		_ = syscall.Kill(n, syscall.SIGKILL) // it may have ended
	}
	_ = c.running[host].Wait() // it was killed
}

// await returns the next line that matches.
func (c *cluster) await(t *testing.T, pattern string) (match []string, at time.Time) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case l := <-c.lines:
			if match = regexp.MustCompile(pattern).FindStringSubmatch(l.text); match != nil {
				return match, l.at
			}
		case <-late:
			t.Fatalf("no line %q", pattern)
		}
	}
}

// goesOn waits until so many ranks train, and returns when that was.
func (c *cluster) goesOn(t *testing.T, ranks int) time.Time {
	t.Helper()
	s := stretch{ranks: ranks}
	c.await(t, fmt.Sprintf(`fsdprun: start \d+: %d ranks`, ranks))
	if len(c.past) > 0 {
		match, _ := c.await(t, `resumed after step (\d+)`)
		s.from, _ = strconv.Atoi(match[1])
	}
	_, at := c.await(t, `step +\d+/.* loss`)
	c.past = append(c.past, s)
	c.await(t, `step \d+ +saved`)
	return at
}

// took reports the time since begin.
func took(t *testing.T, what string, begin, end time.Time, atMost time.Duration) {
	t.Helper()
	t.Logf("%s: training goes on after %.1f s", what, end.Sub(begin).Seconds())
	require.Less(t, end.Sub(begin), atMost, what)
}

// end ends the job, and compares it with what one does by hand: with each number of ranks, in one
// process, go on from the checkpoint from which the job went on, as long as the job did.
func (c *cluster) end(t *testing.T) {
	require.NoError(t, c.running[0].Process.Signal(syscall.SIGINT))
	match, _ := c.await(t, `interrupted after step (\d+)`)
	last, err := strconv.Atoi(match[1])
	require.NoError(t, err)
	for host, cmd := range c.running {
		require.NoError(t, cmd.Wait(), "host %d", host)
	}
	t.Log("stretches (from step, ranks):", c.past, "until step", last)
	before := ""
	for i, s := range c.past {
		until := last
		if i+1 < len(c.past) {
			until = c.past[i+1].from
		}
		require.Greater(t, until, s.from)
		dir := fmt.Sprintf("hand%d", i)
		if i > 0 {
			from := c.checkpoint(t, before, s.from)
			require.NoError(t, os.CopyFS(filepath.Join(c.dir, dir, filepath.Base(from)), os.DirFS(from)))
		}
		c.byHand(t, dir, s.ranks, until)
		theirs, ours := c.checkpoint(t, "saved", until), c.checkpoint(t, dir, until)
		for rank := range s.ranks {
			name := fmt.Sprintf("rank-%05d-of-%05d.safetensors", rank, s.ranks)
			want, err := os.ReadFile(filepath.Join(ours, name))
			require.NoError(t, err)
			got, err := os.ReadFile(filepath.Join(theirs, name))
			require.NoError(t, err)
			require.True(t, slices.Equal(want, got), "%s after step %d", name, until)
		}
		before = dir
	}
}

// checkpoint returns the checkpoint of a step.
func (c *cluster) checkpoint(t *testing.T, dir string, step int) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(c.dir, dir, fmt.Sprintf("*-step-%d", step)))
	require.NoError(t, err)
	require.Len(t, found, 1, "step %d in %s", step, dir)
	return found[0]
}

// byHand trains in a process until a step.
func (c *cluster) byHand(t *testing.T, dir string, ranks, until int) {
	args := append(strings.Fields(training), "-ranks", strconv.Itoa(ranks), "-save", dir, "-save-every", strconv.Itoa(until))
	cmd := exec.Command("./gpt", args...)
	cmd.Dir = c.dir
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	saved := false
	for s := bufio.NewScanner(out); !saved && s.Scan(); {
		saved = strings.HasPrefix(s.Text(), fmt.Sprintf("step %d  saved", until))
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	require.True(t, saved, "step %d", until)
}

// TestHostsComeAndGo: hosts die, fall silent, and come back, the first one too.
func TestHostsComeAndGo(t *testing.T) {
	c := train(t, meet[0], "-n", "1", "-min", "2")
	c.goesOn(t, 3)

	begin := time.Now()
	c.kill(t, 1)
	took(t, "host 1 of 3 killed", begin, c.goesOn(t, 2), 15*time.Second)
	begin = time.Now()
	c.start(t, 1)
	took(t, "host 1 back", begin, c.goesOn(t, 3), 15*time.Second)

	begin = time.Now()
	c.unplug(t, 2)
	took(t, "link of host 2 cut", begin, c.goesOn(t, 2), silence+15*time.Second)
	begin = time.Now()
	c.plug(t, 2)
	took(t, "link of host 2 back", begin, c.goesOn(t, 3), 30*time.Second)

	begin = time.Now()
	c.kill(t, 0)
	c.start(t, 0)
	took(t, "host 0 killed, and started again at once", begin, c.goesOn(t, 3), 15*time.Second)
	c.end(t)
}

// TestAnyHostComesAndGoes cuts host 0 off, and then kills it: the others go on, and take it in when
// it is back. Alone it starts no rank, though one would do.
func TestAnyHostComesAndGoes(t *testing.T) {
	c := train(t, strings.Join(meet, ","), "-n", "1", "-min", "1")
	c.goesOn(t, 3)

	begin := time.Now()
	c.unplug(t, 0)
	took(t, "link of host 0 cut", begin, c.goesOn(t, 2), silence+15*time.Second)
	begin = time.Now()
	c.plug(t, 0)
	took(t, "link of host 0 back", begin, c.goesOn(t, 3), 30*time.Second)

	begin = time.Now()
	c.kill(t, 0)
	took(t, "host 0 of 3 killed", begin, c.goesOn(t, 2), 15*time.Second)
	begin = time.Now()
	c.start(t, 0)
	took(t, "host 0 back", begin, c.goesOn(t, 3), 15*time.Second)
	c.end(t)
	c.starts.Range(func(text, _ any) bool {
		require.NotContains(t, text, ": 1 ranks")
		return true
	})
}

// TestRankKilled: a host goes on with a rank less, and has it back when that is asked for.
func TestRankKilled(t *testing.T) {
	c := train(t, meet[0], "-n", "2", "-min", "4")
	c.goesOn(t, 6)
	begin := time.Now()
	c.killRank(t, 2, 5)
	took(t, "rank 5 of 6 killed", begin, c.goesOn(t, 5), 15*time.Second)
	begin = time.Now()
	require.NoError(t, c.running[2].Process.Signal(syscall.SIGUSR1))
	took(t, "rank 5 asked for", begin, c.goesOn(t, 6), 15*time.Second)
	c.end(t)
}

// killRank kills the process of a rank.
func (c *cluster) killRank(t *testing.T, host, rank int) {
	for _, pid := range strings.Fields(must(t, "ip netns pids", space(host))) {
		environ, err := os.ReadFile("/proc/" + pid + "/environ")
		require.NoError(t, err)
		if slices.Contains(strings.Split(string(environ), "\x00"), fmt.Sprint("RANK=", rank)) {
			n, err := strconv.Atoi(pid)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(n, syscall.SIGKILL))
			return
		}
	}
	t.Fatalf("no rank %d on host %d", rank, host)
}
