//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/perfetto"
	"github.com/gofsdp/gofsdp/internal/perfetto/perfettotest"
	"github.com/gofsdp/gofsdp/internal/text"
)

// The test binary is also the program that is launched, and the launcher where that has to be a
// process of its own.
const (
	scriptVariable   = "FSDPRUN_TEST_SCRIPT"
	launcherVariable = "FSDPRUN_TEST_LAUNCHER"
)

func TestMain(m *testing.M) {
	switch script := os.Getenv(scriptVariable); {
	case script == "grandchild": // of a rank, whose RANK it inherits
		hold()
	case script != "" && os.Getenv("RANK") != "":
		e, ok, err := launch.Parse(os.Getenv)
		if err != nil || !ok {
			fmt.Fprintln(os.Stderr, "no rank:", err)
			os.Exit(99)
		}
		os.Exit(scripts[script](e))
	case os.Getenv(launcherVariable) != "":
		main()
	default:
		goleak.VerifyTestMain(m)
	}
}

// scripts are what ranks do. They return the exit status.
var scripts = map[string]func(launch.Env) int{
	"place": func(e launch.Env) int {
		fmt.Println(e.Rank, e.Size, e.LocalRank, e.LocalSize, e.NodeRank, e.Nodes, e.Addr, e.Job, e.Restart,
			len(e.Secret), e.Transport, e.Listen, e.Timeout, os.Getenv("GOMAXPROCS"), os.Args[1:])
		return 0
	},
	"trust": func(e launch.Env) int {
		fmt.Println(len(e.Secret), e.TLS, e.TrustNetwork)
		return 0
	},
	"lines": func(e launch.Env) int {
		for i := range 200 {
			fmt.Printf("%d line %d %s\n", e.Rank, i, strings.Repeat("x", i))
			fmt.Fprintf(os.Stderr, "%d error %d\n", e.Rank, i)
		}
		fmt.Print("no end")
		return 0
	},
	// A monitor of its own on each rank, which prints between its progress lines.
	"watched": func(e launch.Env) int {
		mon, err := monitor.New(monitor.Config{Steps: 30, Out: os.Stdout})
		for i := 0; err == nil && i < 30; i++ {
			err = mon.Step(context.Background(), 1, monitor.Values{"loss": float64(30 - i)})
			mon.Printf("note %d\n", i)
		}
		if err := errors.Join(err, mon.Close()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	},
	"huge": func(launch.Env) int {
		fmt.Println(strings.Repeat("a", 900_000))
		fmt.Println(strings.Repeat("b", 2*maxLine+5))
		return 0
	},
	"cat": func(e launch.Env) int {
		n, _ := io.Copy(os.Stdout, os.Stdin)
		fmt.Println("read", n)
		return 0
	},
	// Each rank writes a trace. That of rank 1 is cut short, as if the rank had been killed.
	"trace": func(e launch.Env) int {
		var b bytes.Buffer
		w := perfetto.NewWriter(&b, uint32(e.Rank+1))
		row := w.Row(w.Process(e.Rank+1, fmt.Sprint("rank ", e.Rank)), "calls")
		w.Slice(row, "forward", time.Unix(1, 0), time.Unix(2, 0))
		if err := w.Flush(); err != nil {
			return 1
		}
		whole := b.Len()
		w.Slice(row, "backward", time.Unix(3, 0), time.Unix(4, 0))
		if err := w.Flush(); err != nil {
			return 2
		}
		if e.Rank == 1 {
			b.Truncate(whole + 7)
		}
		if err := os.WriteFile(filepath.Join(os.Getenv("FSDP_TRACE"), fmt.Sprintf("rank-%d.pftrace", e.Rank)), b.Bytes(), 0o666); err != nil {
			return 3
		}
		return 0
	},
	// Ranks join. The first argument names a rank that ends before.
	"join": func(e launch.Env) int {
		if len(os.Args) > 1 && os.Args[1] == strconv.Itoa(e.Rank) {
			return 0
		}
		g, err := comm.FromEnv(context.Background())
		if err == nil {
			err = g.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	},
	// Ranks train.
	"straggle": func(launch.Env) int {
		if err := straggle(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	},
	// Ranks train until they are interrupted, and save to the first argument.
	"train": func(launch.Env) int {
		if err := trainUntilInterrupted(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	},
	// The last rank fails, the others wait for the signal.
	"fail": func(e launch.Env) int {
		if e.Rank < e.Size-1 {
			return untilSignal()
		}
		for i := range 12 {
			fmt.Fprintln(os.Stderr, "reason", i)
		}
		return 7
	},
	// All but the last rank end with the error that the death of the last one is to them.
	"kill": func(e launch.Env) int {
		if e.Rank == e.Size-1 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return untilSignal()
	},
	// The last rank is killed at the first start only.
	"killed once": func(e launch.Env) int {
		fmt.Println("start", e.Restart, "of", e.Size)
		if e.Restart == 0 && e.Rank == e.Size-1 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		if e.Restart == 0 {
			return untilSignal()
		}
		return 0
	},
	"fail twice": func(e launch.Env) int {
		fmt.Println("start", e.Restart, e.Job, e.Addr)
		if e.Restart < 2 {
			return 5
		}
		return 0
	},
	// What Load says of a damaged checkpoint, unless an older one will do.
	"damaged": func(e launch.Env) int {
		fmt.Println("start", e.Restart)
		if os.Getenv(launch.AllowOlder) != "" {
			return 0
		}
		if e.Rank > 0 {
			return untilSignal()
		}
		fmt.Fprintln(os.Stderr, "fsdp: rank 0: Load:", launch.NoRestart+": checkpoint 2")
		return 6
	},
	// Rank 1 can write no trace, and its program drops the error of Close.
	"unrecorded": func(e launch.Env) int {
		if e.Rank == 1 {
			launch.Unrecorded(e.Rank, "the trace is", syscall.ENOSPC)
			fmt.Fprint(os.Stderr, strings.Repeat("more\n", 2*tailLines))
		}
		return 0
	},
	// The same before another failure, long before it or not.
	"damaged before": func(e launch.Env) int {
		fmt.Fprintln(os.Stderr, launch.NoRestart)
		if e.Restart > 0 {
			return 0
		}
		if len(os.Args) > 1 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		for i := range tailLines {
			fmt.Fprintln(os.Stderr, "but", i)
		}
		return 1
	},
	// Until a signal comes; the exit status is its number, 0 for SIGINT.
	"wait": func(launch.Env) int { return untilSignal() },
	"grow": func(e launch.Env) int {
		if e.Restart > 0 {
			fmt.Println("start", e.Restart, "of", e.Size)
			return 0
		}
		return untilSignal()
	},
	"stubborn": func(e launch.Env) int {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("ready")
		if e.Rank == 1 { // fails once rank 0 ignores signals
			f, _ := os.Open(os.Args[1])
			f.Read(make([]byte, 1))
			return 1
		}
		hold()
		return 0
	},
	// Rank 1 fails. Rank 0 takes its time to end, until the FIFO is opened, and no second signal.
	"saving": func(e launch.Env) int {
		if e.Rank == 1 {
			os.Open(os.Args[1]) // until rank 0 is ready
			return 1
		}
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		os.OpenFile(os.Args[1], os.O_WRONLY, 0)
		<-c
		signal.Reset(syscall.SIGTERM)
		fmt.Println("saving")
		os.Open(os.Args[2])
		return 0
	},
	// Ranks take their time to end, until the FIFO is opened.
	"hangup": func(launch.Env) int {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGHUP)
		fmt.Println("ready")
		<-c
		fmt.Println("saving")
		os.Open(os.Args[1])
		return 0
	},
	// Rank 0 leaves a child behind, which holds a pipe of the test and the output of the rank.
	"parent": func(launch.Env) int { return leaveChild(false) },
	"escape": func(launch.Env) int { return leaveChild(true) },
	// Holds the FIFO that the first argument names open, for ever.
	"hold": func(launch.Env) int { hold(); return 0 },
}

// untilSignal says that it is ready and waits.
func untilSignal() int {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	fmt.Println("ready")
	s := <-c
	fmt.Println("got", s)
	if s == syscall.SIGINT {
		return 0
	}
	return int(s.(syscall.Signal))
}

// leaveChild starts a child, in a session of its own or not, and returns once that holds both
// FIFOs.
func leaveChild(session bool) int {
	child := exec.Command(os.Args[0], os.Args[1:]...)
	child.Env = append(os.Environ(), scriptVariable+"=grandchild")
	child.Stdout = os.Stdout
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	if err := child.Start(); err != nil {
		return 1
	}
	fmt.Println("child", child.Process.Pid)
	in, err := os.Open(os.Args[2])
	if err != nil {
		return 1
	}
	in.Read(make([]byte, 1))
	return 0
}

// hold opens the FIFOs that are arguments, writes a byte to each, and waits to be killed.
func hold() {
	var files []*os.File
	for _, name := range os.Args[1:] {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			os.Exit(1)
		}
		f.Write([]byte("x"))
		files = append(files, f)
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR2)
	<-c
	fmt.Println(files)
}

// output keeps what is written, and tells a channel of each line.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	lines chan string // nil if nobody listens
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lines != nil {
		for line := range strings.Lines(string(p)) {
			o.lines <- strings.TrimSuffix(line, "\n")
		}
	}
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// await waits for a line that contains text.
func (o *output) await(text string) {
	for !strings.Contains(<-o.lines, text) {
	}
}

// sorted returns the lines in order.
func (o *output) sorted() []string { return slices.Sorted(strings.Lines(o.String())) }

// running is an fsdprun inside this process. Its clock is fast, unless there are several hosts: no
// rest takes time.
type running struct {
	out, err output
	signals  chan os.Signal
	status   chan int
	rests    []time.Duration
}

func (r *running) after(d time.Duration) <-chan time.Time {
	r.rests = append(r.rests, d)
	over := make(chan time.Time)
	close(over)
	return over
}

// begin runs fsdprun with a script.
func begin(t *testing.T, script string, in io.Reader, flags []string, args ...string) *running {
	r := &running{signals: make(chan os.Signal, 8), status: make(chan int, 1)}
	r.out.lines, r.err.lines = make(chan string, 10000), make(chan string, 10000)
	env := append(os.Environ(), scriptVariable+"="+script, "GOMAXPROCS=", "GORACE=atexit_sleep_ms=0")
	after := r.after
	if slices.Contains(flags, "-nnodes") {
		after = time.After
	}
	flags = append([]string{"-grace", "1h"}, flags...) // a busy machine takes its time, unless the test says less
	go func() {
		r.status <- run(append(append(flags, os.Args[0]), args...), system{
			in: in, out: &r.out, err: &r.err, signals: r.signals, environ: env, after: after,
		})
	}()
	return r
}

// await waits until n lines of standard output contain text.
func (r *running) await(n int, text string) {
	for range n {
		r.out.await(text)
	}
}

// finish runs a script to its end.
func finish(t *testing.T, script string, flags ...string) (status int, r *running) {
	r = begin(t, script, strings.NewReader(""), flags)
	return <-r.status, r
}

func TestPlaces(t *testing.T) {
	r := begin(t, "place", strings.NewReader(""), []string{"-n", "3", "-transport", "tcp", "-listen", "lo", "-timeout", "9s", "-job", "j"}, "-a", "b c")
	require.Zero(t, <-r.status, &r.err)
	for i, line := range r.out.sorted() {
		require.Regexp(t, fmt.Sprintf(`^\[%d\] %d 3 %d 3 0 1 127\.0\.0\.1:\d+ j 0 32 tcp lo 9s %d \[-a b c\]\n$`,
			i, i, i, max(1, runtime.GOMAXPROCS(0)/3)), line)
	}
	require.Equal(t, 1, strings.Count(r.err.String(), "\n"), "only that none joined: %v", &r.err)
}

// TestTrust passes on what the flags say of secret, encryption and network.
func TestTrust(t *testing.T) {
	t.Setenv("FSDP_SECRET", "")
	t.Setenv("FSDP_SECRET_FILE", "")
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{[]string{"-n", "1"}, "[0] 32 false false"},
		{[]string{"-n", "1", "-tls"}, "[0] 32 true false"},
	} {
		status, r := finish(t, "trust", c.flags...)
		require.Zero(t, status, &r.err)
		require.Equal(t, c.want+"\n", r.out.sorted()[0])
	}
	statuses, all := together(t, "trust", 2, "-n", "1", "-trust-network")
	require.Equal(t, []int{0, 0}, statuses)
	require.Equal(t, "[1] 0 false true\n", all[1].out.String())
	t.Setenv("FSDP_TRUST_NETWORK", "0")
	status, r := finish(t, "trust", "-n", "1", "-nnodes", "2", "-rdzv", "h:77")
	require.Equal(t, exitUsage, status)
	require.Contains(t, r.err.String(), "several hosts need a common secret")
}

func TestUsage(t *testing.T) {
	short := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(short, []byte("short"), 0o600))
	hosts := "-n 2 -nnodes 2 -rdzv h:1 "
	for _, c := range []struct{ flags, want string }{
		{"", "no program"},
		{"-n 0 x", "-n 0: want a number of ranks from 1 on, or auto"},
		{"-n many x", "-n many"},
		{"-n 3 -max 2 x", "-n 3 is not between -min 3 and -max 2"},
		{"-n 2 -min 3 x", "-min 3"},
		{"-nnodes 2 -node-rank 2 x", "-node-rank 2 is not one of -nnodes 2 hosts, which count from 0"},
		{"-rdzv h:1 x", "-rdzv is for several hosts"},
		{"-n 2 -nnodes 2 x", "-rdzv: several hosts need the host:port of host 0"},
		{"-n 2 -nnodes 2 -rdzv h:1 -min -1 x", "-min -1"},
		{"-n 2 -nnodes 2 -rdzv a:1,b:1,c:1 x", "-rdzv has 3 addresses for -nnodes 2: give the addresses of the first hosts, one for each"},
		{"-n 2 -nnodes 2 -rdzv a:1,b:1 x", "-rdzv has two addresses, of which no majority is left when one host is lost: give one, or at least three"},
		{"-n 2 -nnodes 3 -replace 1 -rdzv a:1,b:1,c:1 x", "-rdzv with several addresses is for -restarts"},
		{"-n 2 -nnodes 3 -rdzv a:1,b,c:1 x", "-rdzv b: not host:port: give the name of host 1 and a free port, such as host1:29500"},
		{"-n 2 -nnodes 2 -rdzv h x", "-rdzv h: not host:port: give the name of host 0 and a free port, such as host0:29500"},
		{hosts + "x", "several hosts need a common secret: (umask 077; head -c 32 /dev/urandom | base64 > key) once"},
		{hosts + "-secret-file " + short + " x", "this one has 5: (umask 077; head -c 32 /dev/urandom | base64 > key) makes one"},
		{hosts + "-secret-file /nowhere x", "/nowhere"},
		{"-n 1 -timeout 5 x", "FSDP_TIMEOUT"},
		{"-n 1 -join-timeout 5 x", "FSDP_JOIN_TIMEOUT"},
		{"-n 1 -transport ib x", "FSDP_TRANSPORT"},
		{"-n 1 -show 3-2 x", "-show 3-2"},
		{"-n 1 -restarts -1 x", "not be negative"},
		{"-bogus x", "bogus"},
	} {
		var err output
		require.Equal(t, exitUsage, run(strings.Fields(c.flags), system{err: &err, out: io.Discard}), c.flags)
		require.Contains(t, err.String(), c.want, c.flags)
	}
	var err output
	require.Equal(t, exitError, run([]string{"-n", "1", "no-such-program"}, system{err: &err, out: io.Discard}))
	require.Contains(t, err.String(), "no-such-program: no such file")
	for flags, doubt := range map[string]string{
		"no-such-program -n 2":            "-n after no-such-program goes to the program: if it is for fsdprun, put it before the program",
		"-n 1 no-such-program --nnodes=2": "--nnodes=2 after no-such-program goes to the program",
		"-n 1 no-such-program -n 2":       "",
		"no-such-program n -lr 2":         "",
	} {
		var err output
		require.Equal(t, exitError, run(strings.Fields(flags), system{err: &err, out: io.Discard}))
		require.Contains(t, err.String(), doubt)
		require.Equal(t, doubt != "", strings.Contains(err.String(), "goes to the program"), err.String())
	}
	script := filepath.Join(t.TempDir(), "train.sh")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o644))
	require.Equal(t, exitError, run([]string{"-n", "1", script}, system{err: &err, out: io.Discard}))
	require.Contains(t, err.String(), `train.sh": permission denied: make the program executable (chmod +x), or give its package`)
	require.Equal(t, exitError, run([]string{"-n", "1", "-log-dir", script, "true"}, system{err: &err, out: io.Discard}))
	require.Contains(t, err.String(), "fsdprun: -log-dir: mkdir ")
	err = output{}
	srun := system{err: &err, out: io.Discard, environ: []string{"RANK=0", "SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=4"}}
	require.Equal(t, exitUsage, run([]string{"-n", "2", "x"}, srun))
	require.Contains(t, err.String(), "Slurm has started 4 processes, and without -nnodes each of them runs a separate job: "+
		"give -nnodes, -node-rank and -rdzv, or unset SLURM_STEP_ID")
	err = output{}
	require.Equal(t, exitError, run(strings.Fields("-n 2 -nnodes 4 -node-rank 0 -rdzv h:1 -trust-network no-such-program"), srun))
	require.Contains(t, err.String(), "no-such-program: no such file", "it goes on below srun")
	var unknown output
	require.Equal(t, exitUsage, run([]string{"-ranks", "2", "program"}, system{err: &unknown, out: io.Discard}))
	require.Equal(t, "fsdprun: flag provided but not defined: -ranks; fsdprun -h lists the flags\n", unknown.String())
	var help output
	require.Zero(t, run([]string{"-h"}, system{err: &help, out: io.Discard}))
	require.Empty(t, text.Wider(help.String(), 80))
}

func TestOutputIsWholeLinesWithPrefix(t *testing.T) {
	logs := t.TempDir()
	status, r := finish(t, "lines", "-n", "3", "-show", "0,2", "-log-dir", logs)
	require.Zero(t, status)
	for _, rank := range []string{"0", "2"} {
		var want []string
		for i := range 200 {
			want = append(want, fmt.Sprintf("[%s] %s line %d %s\n", rank, rank, i, strings.Repeat("x", i)))
		}
		require.Equal(t, append(want, "["+rank+"] no end\n"), slices.DeleteFunc(slices.Collect(strings.Lines(r.out.String())),
			func(line string) bool { return !strings.HasPrefix(line, "["+rank+"]") }))
		require.Contains(t, r.err.String(), "["+rank+"] "+rank+" error 199\n")
	}
	require.NotContains(t, r.out.String()+r.err.String(), "[1]")
	log, err := os.ReadFile(filepath.Join(logs, "rank-1.log"))
	require.NoError(t, err)
	require.Equal(t, 400, bytes.Count(log, []byte("\n")))
	require.Contains(t, string(log), "1 error 199\n")

	status, r = finish(t, "lines", "-n", "2", "-show", "none", "-log-dir", logs)
	require.Zero(t, status)
	earlier := filepath.Join(logs, "earlier-1", "rank-1.log")
	require.Contains(t, r.err.String(), "fsdprun: -log-dir: "+filepath.Join(logs, "rank-1.log")+" of an earlier job is now "+earlier+"\n")
	kept, err := os.ReadFile(earlier)
	require.NoError(t, err)
	require.Equal(t, string(log), string(kept))
}

// TestRankOfWriter blames the rank whose monitor cannot write a row, not the ones that it stops.
func TestRankOfWriter(t *testing.T) {
	other := &ending{Rank: 1, Code: 1, Early: true, Tail: []string{"monitor: step 3: a writer of rank 0 has failed: the error of rank 0 says why"}}
	first := &ending{Rank: 0, Code: 1, Tail: []string{"monitor: step 3: the row of step 2: write log.csv: no space left on device"}}
	for _, early := range []bool{false, true} {
		first.Early = early
		require.Equal(t, first, culprit([]*ending{other, first}))
		require.Contains(t, summary(culprit([]*ending{other, first}), []*ending{other, first}, nil), "no space left on device")
	}
}

func TestHugeLines(t *testing.T) {
	status, r := finish(t, "huge", "-n", "1")
	require.Zero(t, status)
	var lengths []int
	for line := range strings.Lines(r.out.String()) {
		lengths = append(lengths, len(line)-len("[0] \n"))
	}
	require.Equal(t, []int{900_000, maxLine, maxLine, 5}, lengths)
}

func TestInputGoesToRank0(t *testing.T) {
	r := begin(t, "cat", strings.NewReader("one\ntwo\n"), []string{"-n", "2"})
	require.Zero(t, <-r.status)
	require.Equal(t, []string{"[0] one\n", "[0] read 8\n", "[0] two\n", "[1] read 0\n"}, r.out.sorted())
}

func TestFirstFailure(t *testing.T) {
	status, r := finish(t, "fail", "-n", "3")
	require.Equal(t, 7, status)
	require.Regexp(t, `(?s)rank 2: exit status 7; ending the others.*first: rank 2, after \S+: exit status 7\n.*standard error:\n`+
		`fsdprun:   \| reason 2\n.*reason 11\nfsdprun: then: ranks? 0\S*: (ended by fsdprun with SIGTERM|exit status 15)`, r.err.String())
	require.NotContains(t, r.err.String(), "| reason 1\n")
}

func TestKilledRank(t *testing.T) {
	status, r := finish(t, "kill", "-n", "2")
	require.Equal(t, 128+9, status)
	require.Regexp(t, `first: rank 1, after \S+: killed by SIGKILL\nfsdprun: fsdprun did not send it: was it the kernel, out of memory\?`, r.err.String())
}

// TestBlame checks who is blamed when several ranks have failed before fsdprun could look.
func TestBlame(t *testing.T) {
	const early = true
	failed := func(early bool) *ending { return &ending{Rank: 0, Code: 1, Early: early} }
	killed := func(early bool) *ending { return &ending{Rank: 1, Signal: syscall.SIGKILL, Early: early} }
	ended := &ending{Rank: 2, Signal: syscall.SIGTERM, Asked: true}
	well := &ending{Rank: 3, Early: true}
	for _, c := range []struct {
		ended []*ending
		want  int
		lost  int
	}{
		{[]*ending{failed(early), killed(early), ended, well}, 1, 1}, // its peers noticed
		{[]*ending{failed(early), killed(!early), ended, well}, 0, 0},
		{[]*ending{failed(!early), killed(!early), ended, well}, 0, 0}, // all were asked to end
	} {
		first := culprit(c.ended)
		require.Equal(t, c.want, first.Rank)
		require.Equal(t, c.lost, lost(c.ended, first))
	}
	require.Nil(t, culprit([]*ending{well}))
}

// TestBlameByEvidence: a rank that was killed closes its connections before it has ended. On a busy
// machine its peers are seen to fail first, and it is asked to end like all. Their errors tell.
func TestBlameByEvidence(t *testing.T) {
	const fails, dies = syscall.Signal(0), syscall.SIGKILL
	type end struct {
		signal syscall.Signal
		err    error // on standard error
	}
	of := func(group string, rank int, err error) error {
		return fmt.Errorf("Forward: %w", &comm.RankError{Group: group, Rank: rank, Err: err})
	}
	disk := errors.New("disk full")
	for name, c := range map[string]struct {
		ends  []end // by rank, in order of time
		early int   // so many were seen before all were asked to end
		want  int
		lost  int
	}{
		"killed, seen late":       {[]end{{fails, of("world", 1, comm.ErrLost)}, {dies, nil}}, 1, 1, 1},
		"of a part, seen late":    {[]end{{fails, of("world/3/1", 1, comm.ErrLost)}, {fails, nil}, {dies, nil}}, 1, 2, 1},
		"failed, seen late":       {[]end{{fails, of("world", 1, disk)}, {fails, of("world", 1, disk)}}, 1, 1, 0},
		"failed, seen in time":    {[]end{{fails, of("world", 1, disk)}, {fails, disk}, {dies, nil}}, 2, 1, 0},
		"own error, then a crash": {[]end{{fails, disk}, {dies, nil}}, 1, 0, 0},
		"own error of a group":    {[]end{{fails, of("world", 0, disk)}, {dies, nil}}, 1, 0, 0},
		"nobody else":             {[]end{{fails, of("world", 1, comm.ErrTimeout)}, {syscall.SIGTERM, nil}}, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var ended []*ending
			for i, e := range c.ends {
				r := &ending{Rank: i, Signal: e.signal, Asked: e.signal == syscall.SIGTERM, Early: i < c.early, Tail: []string{"starting"}}
				if e.signal == fails {
					r.Code = 1
				}
				if e.err != nil {
					r.Tail = append(r.Tail, "train: "+e.err.Error(), "exit status 1")
				}
				ended = append(ended, r)
			}
			first := culprit(ended)
			require.Equal(t, c.want, first.Rank)
			require.Equal(t, c.lost, lost(ended, first))
		})
	}
}

// TestRestsGrow: restarts get rarer while the ranks fail at once.
func TestRestsGrow(t *testing.T) {
	var rests []float64
	rest := time.Duration(0)
	for range 8 {
		rest = restAfter(rest, 59*time.Second)
		rests = append(rests, rest.Seconds())
	}
	require.Equal(t, []float64{1, 2, 4, 8, 16, 32, 60, 60}, rests)
	require.Equal(t, time.Second, restAfter(rest, time.Minute))
}

// TestSignalInRest: a signal between two starts counts.
func TestSignalInRest(t *testing.T) {
	for s, want := range map[syscall.Signal]string{
		syscall.SIGTERM: "SIGTERM: no restart", syscall.SIGUSR1: "asked to grow: starting again with 3 ranks",
	} {
		var r running
		signals := make(chan os.Signal, 1)
		status := run([]string{"-n", "1", "-max", "3", "-restarts", "1", os.Args[0]}, system{
			in: strings.NewReader(""), out: &r.out, err: &r.err, signals: signals,
			environ: append(os.Environ(), scriptVariable+"=fail twice"),
			after:   func(time.Duration) <-chan time.Time { signals <- s; return nil },
		})
		require.Equal(t, 5, status)
		require.Contains(t, r.err.String(), want)
		require.Equal(t, s == syscall.SIGUSR1, strings.Contains(r.out.String(), "start 1"))
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	r := begin(t, "wait", strings.NewReader(""), []string{"-n", "2", "-restarts", "5"})
	r.await(2, "ready")
	r.signals <- syscall.SIGINT
	require.Zero(t, <-r.status) // the ranks chose to end well
	require.Equal(t, []string{"[0] got interrupt\n", "[0] ready\n", "[1] got interrupt\n", "[1] ready\n"}, r.out.sorted())

	r = begin(t, "wait", strings.NewReader(""), []string{"-n", "2", "-restarts", "5"})
	r.await(2, "ready")
	r.signals <- syscall.SIGTERM
	require.Equal(t, 15, <-r.status) // and no restart
	require.NotContains(t, r.err.String(), "restart")
}

// TestSignalWhileEnding: ranks that were asked to end get no second signal, which kills many
// programs.
func TestSignalWhileEnding(t *testing.T) {
	dir := t.TempDir()
	saved := fifo(t, dir, "saved")
	r := begin(t, "saving", strings.NewReader(""), []string{"-n", "2", "-restarts", "1"}, fifo(t, dir, "ready"), saved)
	r.await(1, "saving")
	r.signals <- syscall.SIGTERM
	r.err.await("a second SIGINT or SIGTERM kills")
	f, err := os.OpenFile(saved, os.O_RDWR, 0) // which waits for nobody
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, 1, <-r.status)
	require.Contains(t, r.err.String(), "then: rank 0: ended well\n")
}

func TestSecondSignalKills(t *testing.T) {
	r := begin(t, "stubborn", strings.NewReader(""), []string{"-n", "1", "-grace", "1h"})
	r.await(1, "ready")
	r.signals <- syscall.SIGTERM
	r.signals <- syscall.SIGTERM
	require.Equal(t, 128+9, <-r.status)
	require.Contains(t, r.err.String(), ": ended by fsdprun with SIGKILL")
}

// TestTerminalCloses: several SIGHUPs are one wish to end.
func TestTerminalCloses(t *testing.T) {
	saved := fifo(t, t.TempDir(), "saved")
	r := begin(t, "hangup", strings.NewReader(""), []string{"-n", "1", "-grace", "1h"}, saved)
	r.await(1, "ready")
	r.signals <- syscall.SIGHUP
	r.await(1, "saving")
	for range 2 + cap(r.signals) { // the first of them has been handled when all are sent
		r.signals <- syscall.SIGHUP
	}
	f, err := os.OpenFile(saved, os.O_RDWR, 0) // which waits for nobody
	require.NoError(t, err)
	defer f.Close()
	require.Zero(t, <-r.status, &r.err)
	require.Equal(t, 1, strings.Count(r.err.String(), "SIGHUP"))
}

func TestKillAfterGrace(t *testing.T) {
	r := begin(t, "stubborn", strings.NewReader(""), []string{"-n", "2", "-grace", "10ms"}, fifo(t, t.TempDir(), "ready"))
	require.Equal(t, 1, <-r.status)
	require.Contains(t, r.err.String(), "killing the ranks that still run after 10ms")
	require.Contains(t, r.err.String(), "then: rank 0: ended by fsdprun with SIGKILL")
}

func TestRestarts(t *testing.T) {
	logs := t.TempDir()
	status, r := finish(t, "fail twice", "-n", "1", "-restarts", "2", "-job", "j", "-log-dir", logs)
	require.Zero(t, status, &r.err)
	starts := regexp.MustCompile(`start (\d) (\S+) 127.0.0.1:(\d+)`).FindAllStringSubmatch(r.out.String(), -1)
	require.Len(t, starts, 3)
	for i, job := range []string{"j", "j.1", "j.2"} {
		require.Equal(t, []string{strconv.Itoa(i), job}, starts[i][1:3])
	}
	log, err := os.ReadFile(filepath.Join(logs, "rank-0.log"))
	require.NoError(t, err)
	require.Equal(t, 3, bytes.Count(log, []byte("start")))
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second}, r.rests)

	status, r = finish(t, "fail twice", "-n", "1", "-restarts", "1")
	require.Equal(t, 5, status)
	require.Equal(t, 2, strings.Count(r.err.String(), "first:"))
}

// TestCannotStart: a rank that cannot be started is one that fails at once.
func TestCannotStart(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(program, []byte("no program"), 0o700))
	var r running
	status := run([]string{"-n", "2", "-restarts", "1", program}, system{
		in: strings.NewReader(""), out: &r.out, err: &r.err, environ: os.Environ(), after: r.after,
	})
	require.Equal(t, exitError, status)
	require.Equal(t, 2, strings.Count(r.err.String(), "fsdprun:   | cannot start rank 0: "), &r.err)
	require.Len(t, r.rests, 1)
}

// TestNoRestart ends a job at once that would fail again.
func TestNoRestart(t *testing.T) {
	status, r := finish(t, "damaged", "-n", "2", "-restarts", "5")
	require.Equal(t, 6, status)
	require.Contains(t, r.out.String(), "start 0") // of rank 0; rank 1 may be ended before it speaks
	require.NotContains(t, r.out.String(), "start 1")
	require.Contains(t, r.err.String(), "fsdprun: not restarting: rank 0 reports that a restart does not help\n")
	require.Empty(t, r.rests)

	status, r = finish(t, "damaged", "-n", "2", "-restarts", "5", "-older")
	require.Zero(t, status, &r.err)
	require.Empty(t, r.rests)
}

// TestRestartAfterOtherFailures restarts where a rank has gone on after such an error, or was
// killed.
func TestRestartAfterOtherFailures(t *testing.T) {
	for _, args := range [][]string{{}, {"killed"}} {
		r := begin(t, "damaged before", strings.NewReader(""), []string{"-n", "1", "-restarts", "1"}, args...)
		require.Zero(t, <-r.status, &r.err)
		require.Len(t, r.rests, 1)
	}
}

// TestUnrecorded ends with an error if hashes or traces are not complete, even if no rank fails.
func TestUnrecorded(t *testing.T) {
	status, r := finish(t, "unrecorded", "-n", "2")
	require.Equal(t, exitError, status)
	require.Contains(t, r.err.String(), "[1] fsdp: rank 1: the trace is not recorded any more: no space left on device: free some space, or choose another directory\n")
	require.Contains(t, r.err.String(), "fsdprun: the hashes or the trace of rank 1 are incomplete, see its standard error\n")
}

// TestRecordsNeedDirectories before any rank starts.
func TestRecordsNeedDirectories(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, flag := range []string{"-trace", "-hashes"} {
		status, r := finish(t, "trace", "-n", "2", flag, file)
		require.Equal(t, exitError, status)
		require.Contains(t, r.err.String(), "fsdprun: "+flag+": mkdir "+file+": not a directory: give a directory that can be written\n")
		require.Empty(t, r.out.String())
	}
}

// TestTrace joins what ranks have written, but for the end that one of them did not come to.
// Another job gets another directory.
func TestTrace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "traces [1]") // no pattern
	status, r := finish(t, "trace", "-n", "2", "-trace", dir)
	require.Zero(t, status, &r.err)
	require.Contains(t, r.err.String(), "the trace of 2 files is "+filepath.Join(dir, jobTrace))
	rows := perfettotest.Read(t, filepath.Join(dir, jobTrace))
	require.Len(t, rows, 2)
	require.Equal(t, []string{"rank 0", "rank 1"}, []string{rows[0].Process, rows[1].Process})
	require.Len(t, rows[0].Slices, 2)
	require.Len(t, rows[1].Slices, 1)

	status, r = finish(t, "trace", "-n", "2", "-trace", dir)
	require.Equal(t, exitError, status)
	require.Contains(t, r.err.String(), "-trace "+dir+" already has traces of another job")

	other := t.TempDir()
	status, r = finish(t, "place", "-n", "1", "-trace", other)
	require.Equal(t, exitError, status)
	require.Contains(t, r.err.String(), "no rank has written a trace to "+other)
}

func TestShrink(t *testing.T) {
	for _, c := range []struct {
		flags string
		want  int
	}{
		{"-n 3 -min 1", 2},
		{"-n 3 -min 3", 3}, // not below
		{"-n 3", 3},        // not elastic
	} {
		status, r := finish(t, "killed once", append(strings.Fields(c.flags), "-restarts", "1")...)
		require.Zero(t, status, &r.err)
		require.Equal(t, c.want, strings.Count(r.out.String(), fmt.Sprintf("start 1 of %d\n", c.want)), c.flags)
	}
}

func TestGrow(t *testing.T) {
	r := begin(t, "grow", strings.NewReader(""), []string{"-n", "1", "-max", "3"})
	r.await(1, "ready")
	r.signals <- syscall.SIGUSR1
	require.Zero(t, <-r.status, &r.err)
	require.Equal(t, 3, strings.Count(r.out.String(), "start 1 of 3\n"))

	r = begin(t, "wait", strings.NewReader(""), []string{"-n", "1"})
	r.await(1, "ready")
	r.signals <- syscall.SIGUSR1
	r.signals <- syscall.SIGINT
	require.Zero(t, <-r.status)
	require.Contains(t, r.err.String(), "1 ranks are already running")
}

// fifo makes a named pipe in a directory.
func fifo(t *testing.T, dir, name string) string {
	path := filepath.Join(dir, name)
	require.NoError(t, unix.Mkfifo(path, 0o600))
	return path
}

// TestGrandchildrenEndWithTheirRank checks that a process which a rank leaves behind ends, and
// holds nothing up.
func TestGrandchildrenEndWithTheirRank(t *testing.T) {
	dir := t.TempDir()
	mine, ranks := fifo(t, dir, "test"), fifo(t, dir, "rank")
	r := begin(t, "parent", strings.NewReader(""), []string{"-n", "1"}, mine, ranks)
	f, err := os.Open(mine)
	require.NoError(t, err)
	defer f.Close()
	held, err := io.ReadAll(f) // until nobody can write: the grandchild is dead
	require.NoError(t, err)
	require.Equal(t, "x", string(held))
	require.Zero(t, <-r.status, &r.err)
}

// TestEscapedProcessHoldsNothingUp checks that fsdprun ends although a process outside of its reach
// holds its pipes.
func TestEscapedProcessHoldsNothingUp(t *testing.T) {
	dir := t.TempDir()
	mine, ranks := fifo(t, dir, "test"), fifo(t, dir, "rank")
	r := begin(t, "escape", strings.NewReader(""), []string{"-n", "1"}, mine, ranks)
	f, err := os.Open(mine)
	require.NoError(t, err)
	defer f.Close()
	require.Zero(t, <-r.status, &r.err)
	var pid int
	_, err = fmt.Sscanf(r.out.String(), "[0] child %d", &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL)) // it was there all the time
	_, err = io.ReadAll(f)
	require.NoError(t, err)
}

func TestPackageIsBuilt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hello")
	require.NoError(t, os.Mkdir(dir, 0o700))
	files := map[string]string{
		"go.mod":  "module hello\n\ngo 1.21\n",
		"main.go": "package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(\"hello \" + os.Args[1] + os.Getenv(\"RANK\") + \"\\n\") }\n",
	}
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	for _, program := range []string{dir, filepath.Join(dir, "main.go")} {
		var r running
		require.Zero(t, run([]string{"-n", "2", program, "rank "}, system{in: strings.NewReader(""), out: &r.out, err: &r.err, environ: os.Environ()}), &r.err)
		require.Equal(t, []string{"[0] hello rank 0\n", "[1] hello rank 1\n"}, r.out.sorted())
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte("package hello\n"), 0o600))
	var r running
	require.Equal(t, exitError, run([]string{"-n", "1", dir}, system{out: &r.out, err: &r.err, environ: os.Environ()}))
	require.Contains(t, r.err.String(), "is not a main package")
	left, err := os.ReadDir(temporary)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestSignalsSave sends fsdprun the signals of a closed terminal, a cancelled job, and a Slurm time
// limit: all ranks save after the same step, and none fails.
func TestSignalsSave(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "7")
	for _, signals := range [][]syscall.Signal{{syscall.SIGTERM}, {syscall.SIGHUP, syscall.SIGHUP}, {syscall.SIGUSR2, syscall.SIGUSR2}, {syscall.SIGINT}} {
		dir := t.TempDir()
		cmd, lines := process(t, "train", "-n", "2", os.Args[0], dir)
		for range 2 {
			require.Contains(t, <-lines, "ready")
		}
		for _, s := range signals {
			require.NoError(t, cmd.Process.Signal(s))
		}
		var out []string
		for line := range lines {
			if !strings.HasPrefix(line, "fsdprun: ") {
				out = append(out, line)
			}
		}
		require.NoError(t, cmd.Wait(), "%v: %q", signals, out)
		require.Len(t, out, 2)
		latest, err := fsdp.LatestCheckpoint(dir)
		require.NoError(t, err)
		for _, line := range out {
			require.Contains(t, line, filepath.Base(latest))
		}
	}
}

// TestRealSignal sends a signal to a launcher that is a process of its own.
func TestRealSignal(t *testing.T) {
	cmd, lines := process(t, "wait", "-n", "2", os.Args[0])
	for range 2 {
		require.Contains(t, <-lines, "ready")
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	for range lines {
	}
	require.Error(t, cmd.Wait())
	require.Equal(t, 15, cmd.ProcessState.ExitCode())
}

// process starts a launcher as a process, and returns its lines of output until that is closed.
func process(t *testing.T, script string, args ...string) (*exec.Cmd, <-chan string) {
	cmd := exec.Command(os.Args[0], append([]string{"-grace", "1h"}, args...)...)
	cmd.Env = append(os.Environ(), launcherVariable+"=1", scriptVariable+"="+script, "TMPDIR="+t.TempDir())
	heard := make(chan os.Signal, 1) // else the program ignores what nohup has this process ignore
	signal.Notify(heard, syscall.SIGINT, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(heard) })
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return cmd, lines
}
