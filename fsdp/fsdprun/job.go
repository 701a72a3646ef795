package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// system is the environment of fsdprun, in addition to its arguments.
type system struct {
	in       io.Reader
	out, err io.Writer
	signals  <-chan os.Signal
	environ  []string
	after    func(time.Duration) <-chan time.Time // time.After, or a replacement in tests
}

// launcher is a running fsdprun.
type launcher struct {
	config
	command []string // of the program, ready to be executed
	base    []string // environment of all ranks
	cores   int      // divided among the ranks
	allowed []int    // numbers of the cores, if ranks are to be pinned

	signals <-chan os.Signal
	screen  *screen
	input   *input
	thread  *thread
	seat    seat
	totals  string // directory for the ranks' totals of their operations, or ""

	mu      sync.Mutex
	lost    error  // error of the first log that could not be written completely
	members string // directory in which the ranks record their group, or ""
}

// Exit statuses of fsdprun itself.
const (
	exitError = 1
	exitUsage = 2
)

// run is fsdprun. It returns the exit status.
func run(args []string, sys system) int {
	cores := runtime.GOMAXPROCS(0)
	screen := newScreen(sys.out, sys.err, sys.environ)
	c, err := parse(args, cores, sys.err)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	var base []string
	if n := screen.columns(); n > 0 && c.logDir == "" { // a file would have every state of a progress line
		c.columns = strconv.Itoa(n)
	}
	if err == nil {
		base, err = c.settings(sys.environ)
	} else if c.meet != nil {
		_, _ = c.settings(sys.environ) // the first error counts
	}
	l := &launcher{config: c, base: base, cores: cores, signals: sys.signals, screen: screen}
	if err != nil {
		screen.say("%v", err)
		if c.secret != nil {
			l.giveUp(err)
		}
		return exitUsage
	}
	if c.serve != "" {
		return l.beWitness()
	}
	for _, doubt := range []string{c.doubt, c.short()} {
		if doubt != "" {
			screen.say("%s", doubt)
		}
	}
	temporary, err := l.prepare(sys.environ)
	if temporary != "" {
		defer os.RemoveAll(temporary)
	}
	defer l.removeTotals()
	if err != nil {
		screen.say("%v", err)
		l.giveUp(err)
		return exitError
	}
	l.thread = newThread()
	defer l.thread.close()
	l.input = newInput(sys.in)
	defer l.input.close()
	if l.seat, err = l.takeSeat(sys.after); err != nil {
		screen.say("%v", err)
		return exitError
	}
	defer l.seat.close()
	status := l.job()
	traces := l.joinTraces()
	if traces != nil {
		traces = fmt.Errorf("-trace: %w", traces)
	}
	if err := errors.Join(traces, l.lost); err != nil { // the ranks' readers have ended
		screen.say("%v", err)
		return max(status, exitError)
	}
	return status
}

// prepare builds the program, and does everything else that may fail before a rank is started.
func (l *launcher) prepare(environ []string) (temporary string, err error) {
	if l.pin {
		if l.allowed, err = allowedCores(); err != nil {
			return "", fmt.Errorf("-pin: %w", err)
		}
		l.cores = len(l.allowed)
	}
	if l.logDir != "" {
		if err := os.MkdirAll(l.logDir, 0o777); err != nil {
			return "", fmt.Errorf("-log-dir: %w", err)
		}
	}
	if err := l.prepareRecords(); err != nil {
		return "", err
	}
	if err := l.prepareTotals(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.command, temporary, err = resolve(ctx, l.program, environ)
	}()
	for {
		select {
		case <-done:
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return temporary, err
		case sig := <-l.signals:
			if sig != growSignal && sig != noticeSignal {
				cancel(fmt.Errorf("%v before the ranks were started", sig))
			}
		}
	}
}

// job executes the meeting's orders until one ends the job, and returns the exit status.
func (l *launcher) job() int {
	for {
		select {
		case sig := <-l.signals:
			if sig != noticeSignal { // there are no ranks
				l.seat.tell(report{Signal: sig.(syscall.Signal)})
			}
		case o := <-l.seat.orders:
			l.print(o)
			switch {
			case o.End:
				return o.Exit
			case o.Start != nil:
				l.seat.tell(report{Ended: l.attempt(*o.Start)})
			}
		}
	}
}

// print prints the text of an order.
func (l *launcher) print(o order) {
	if o.Say != "" {
		l.screen.say("%s", o.Say)
	}
}
