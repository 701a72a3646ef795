package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/fsdp/profile"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/regular"
)

// rank is one process.
type rank struct {
	number int // in the job
	cmd    *exec.Cmd
	sent   map[syscall.Signal]bool // signals that fsdprun sent
	tail   tail                    // of standard error

	pipes   []*os.File // our ends of its output
	readers sync.WaitGroup
	log     *os.File // nil if there is none

	join   launch.Join // progress in joining
	late   bool        // it joins ranks that run, such as in the place of one that has failed
	joins  string      // the name of the files in which it records that progress
	exited bool        // it was seen to have ended before it was asked to, and is still to be reaped
	end    *ending     // nil until it is reaped
}

// ending is how a rank ended.
type ending struct {
	Rank     int
	After    time.Duration     // since the start
	Code     int               // exit status, if no signal
	Signal   syscall.Signal    // signal that killed it, or 0
	Asked    bool              // fsdprun sent this signal
	Early    bool              // it ended before the ranks of its host were asked to
	Join     launch.Join       // progress in joining
	Replaced bool              // another process has taken its place
	Vain     bool              // it was late, and failed before it had joined; the others go on
	Absent   bool              // it ended well without joining, while others waited for it
	Tail     []string          // of standard error, if it failed
	Totals   []*profile.Totals `json:",omitempty"` // of its models, with -stragglers
}

func (e *ending) failed() bool { return !e.Replaced && (e.Code != 0 || e.Signal != 0 || e.Absent) }

// status is the exit status in the form of a shell.
func (e *ending) status() int {
	switch {
	case e.Signal != 0:
		return 128 + int(e.Signal)
	case e.Absent:
		return exitError
	}
	return e.Code
}

// lost reports whether another process killed the rank.
func (e *ending) lost() bool { return e.Signal != 0 && !e.Asked && !e.Replaced }

// launch starts local rank i. If it is late, it joins the ranks that run.
func (l *launcher) launch(a *attempt, i int, late bool) (*rank, error) {
	s := a.start
	r := &rank{number: s.First + i, sent: make(map[syscall.Signal]bool), late: late, joins: a.joinsName()}
	more, err := l.replaceEnviron(a, late)
	if err != nil {
		return nil, err
	}
	r.cmd = exec.Command(l.command[0], l.command[1:]...)
	r.cmd.Env = append(append(rankEnviron(l.base, s, i, l.cores), launch.Joins+"="+r.joins), more...)
	r.cmd.SysProcAttr = ownGroup()
	stdin, err := l.open(r, late || s.Count > 0)
	if err == nil {
		l.thread.do(func() {
			if err = l.bind(i, s.Ranks); err == nil {
				err = r.cmd.Start()
			}
		})
	}
	for _, theirs := range []any{r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr} {
		if f, ok := theirs.(*os.File); ok {
			f.Close() // the process has its own
		}
	}
	if err != nil {
		if stdin != nil {
			stdin.Close()
		}
		r.release()
		return nil, err
	}
	if stdin != nil {
		l.input.attach(stdin)
	}
	for stream, pipe := range r.pipes {
		r.readers.Go(func() { l.read(r, stream, pipe) })
	}
	return r, nil
}

// open makes the pipes of r and opens its log. For rank 0 it returns the file to write its input
// to.
func (l *launcher) open(r *rank, again bool) (stdin *os.File, err error) {
	for _, to := range []*io.Writer{&r.cmd.Stdout, &r.cmd.Stderr} {
		ours, theirs, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		*to, r.pipes = theirs, append(r.pipes, ours)
	}
	if r.log, err = l.openLog(r.number, again); err != nil || r.number != 0 {
		return nil, err
	}
	theirs, stdin, err := os.Pipe()
	if err == nil {
		r.cmd.Stdin = theirs
	}
	return stdin, err
}

// openLog opens the log of a rank. Unless it starts again it moves the log of an earlier job aside.
// It returns nil if there are no logs.
func (l *launcher) openLog(number int, again bool) (*os.File, error) {
	if l.logDir == "" {
		return nil, nil
	}
	path := filepath.Join(l.logDir, "rank-"+strconv.Itoa(number)+".log")
	if !again {
		to, _, err := regular.PutAside(path)
		if err != nil {
			return nil, err
		}
		if to != "" {
			l.screen.say("-log-dir: %s of an earlier job is now %s", path, to)
		}
	}
	return regular.Open(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
}

// incomplete records why a file of a rank has lost its end: the job ends with an error.
func (l *launcher) incomplete(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.lost = err
	}
}

// bind restricts the thread that starts ranks to the cores of local rank i of n.
func (l *launcher) bind(i, n int) error {
	if !l.pin {
		return nil
	}
	return setCores(share(l.allowed, i, n))
}

// share cuts cores into n contiguous parts, as even as possible, and returns part i. With fewer
// cores than parts, each is one core, shared.
func share(cores []int, i, n int) []int {
	lo, hi := i*len(cores)/n, (i+1)*len(cores)/n
	return cores[lo:max(hi, lo+1)]
}

// drain is how long a process that outlives its rank, and holds the pipe, may keep silent before it
// is cut off.
const drain = time.Second

// read copies one output stream of r until it ends.
func (l *launcher) read(r *rank, stream int, pipe *os.File) {
	lines := splitter{emit: func(line []byte, progress bool) {
		if stream == stderr && !progress {
			r.tail.add(line)
			if launch.IsUnrecorded(line) {
				l.incomplete(fmt.Errorf("the hashes or the trace of rank %d are incomplete, see its standard error", r.number))
			}
		}
		if l.show(r.number) {
			l.screen.print(stream, r.number, line, progress)
		}
	}}
	buf := make([]byte, 64<<10)
	logging := r.log != nil
	for deadlines, silent := 0, false; ; {
		n, err := pipe.Read(buf)
		lines.Write(buf[:n])
		if logging && n > 0 {
			if _, err := r.log.Write(buf[:n]); err != nil {
				l.screen.say("rank %d: log: %v", r.number, err)
				l.incomplete(fmt.Errorf("-log-dir: the log of rank %d is incomplete: %w", r.number, err))
				logging = false
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && !silent && deadlines < 5 {
			pipe.SetReadDeadline(time.Now().Add(drain)) // there may be more, which waited for a slow terminal
			deadlines, silent = deadlines+1, true
			continue
		}
		if err != nil {
			lines.flush()
			return
		}
		silent = false
	}
}

// signal sends a signal to the processes of r, unless r has ended.
func (r *rank) signal(s syscall.Signal) {
	if r.end == nil && !r.exited {
		r.sent[s] = true
		signalGroup(r.cmd.Process, s)
	}
}

// reap collects an ended process, and kills the processes that it leaves behind. asked says whether
// ranks that end now were asked to.
func (r *rank) reap(begin time.Time, asked bool) {
	r.end = &ending{Rank: r.number, After: time.Since(begin), Early: r.exited || !asked}
	signalGroup(r.cmd.Process, syscall.SIGKILL)
	r.cmd.Wait() // its error is in the state
	switch w, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus); {
	case ok && w.Signaled():
		r.end.Signal = w.Signal()
		r.end.Asked = r.sent[w.Signal()]
	default:
		r.end.Code = r.cmd.ProcessState.ExitCode()
	}
	for _, p := range r.pipes {
		p.SetReadDeadline(time.Now().Add(drain))
	}
}

// release waits until the output is read, keeps its end, and closes the files.
func (r *rank) release() {
	r.readers.Wait()
	if r.end != nil && r.end.failed() {
		r.end.Tail = r.tail.last()
	}
	for _, p := range r.pipes {
		p.Close()
	}
	if r.log != nil {
		r.log.Close()
	}
}
