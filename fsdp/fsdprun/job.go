package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// system is what fsdprun is given besides its arguments.
type system struct {
	in       io.Reader
	out, err io.Writer
	signals  <-chan os.Signal
	environ  []string
	after    func(time.Duration) <-chan time.Time // time.After, or that of a test
}

// launcher is a running fsdprun.
type launcher struct {
	config
	command []string // of the program, ready to be executed
	base    []string // environment that all ranks have
	cores   int      // to be divided among them
	allowed []int    // their numbers, if they are to be pinned

	signals <-chan os.Signal
	after   func(time.Duration) <-chan time.Time
	screen  *screen
	input   *input
	thread  *thread
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
	if err == nil {
		base, err = c.settings(sys.environ)
	}
	if err != nil {
		screen.say("%v", err)
		return exitUsage
	}
	l := &launcher{config: c, base: base, cores: cores, signals: sys.signals, after: sys.after, screen: screen}
	temporary, err := l.prepare(sys.environ)
	if temporary != "" {
		defer os.RemoveAll(temporary)
	}
	if err != nil {
		screen.say("%v", err)
		return exitError
	}
	l.thread = newThread()
	defer l.thread.close()
	l.input = newInput(sys.in)
	defer l.input.close()
	status, err := l.job()
	if err != nil {
		screen.say("%v", err)
		return exitError
	}
	return status
}

// prepare builds the program, and whatever else may fail before a rank is started.
func (l *launcher) prepare(environ []string) (temporary string, err error) {
	if l.pin {
		if l.allowed, err = allowedCores(); err != nil {
			return "", fmt.Errorf("-pin: %w", err)
		}
		l.cores = len(l.allowed)
	}
	if l.logDir != "" {
		if err := os.MkdirAll(l.logDir, 0o777); err != nil {
			return "", err
		}
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
			if sig != growSignal {
				cancel(fmt.Errorf("%v before the ranks were started", sig))
			}
		}
	}
}

// job starts the ranks until they succeed or have failed too often, and returns the exit status.
func (l *launcher) job() (int, error) {
	name := l.config.job
	if name == "" {
		name = "fsdprun-" + random(4)
	}
	n, failures, rest := l.n, 0, time.Duration(0)
	for count := 0; ; count++ {
		s, err := l.next(name, count, n)
		if err != nil {
			return 0, err
		}
		a, err := l.attempt(s)
		if err != nil {
			return 0, err
		}
		culprit := a.culprit()
		switch {
		case a.grow && !a.user:
			n = l.max
			l.screen.say("starting again with %d ranks", n)
			continue
		case culprit == nil:
			return 0, nil
		}
		l.screen.say("%s", a.summary())
		if a.user || failures == l.restarts {
			return culprit.end.status(), nil
		}
		if r := a.hopeless(); r != nil && !culprit.lost() {
			l.screen.say("not starting again: rank %d says that %s", r.number, launch.NoRestart)
			return culprit.end.status(), nil
		}
		failures++
		n = max(l.min, n-a.lost())
		rest = restAfter(rest, time.Since(a.begin))
		l.screen.say("restart %d of %d in %v, with %d ranks", failures, l.restarts, rest, n)
		switch s := l.rest(rest); s {
		case nil:
		case growSignal:
			n = l.max
			l.screen.say("asked to grow: starting again with %d ranks", n)
		default:
			l.screen.say("%s: no restart", signalName(s.(syscall.Signal)))
			return culprit.end.status(), nil
		}
	}
}

// Restarts get rarer while ranks fail at once, so that an outage of the network or the disk does
// not use them all up.
const (
	shortestRest = time.Second
	longestRest  = time.Minute
)

// restAfter returns how long to wait before a restart: twice as long as the last time, or as short
// as can be if the ranks have lasted.
func restAfter(rest, lasted time.Duration) time.Duration {
	if lasted >= longestRest {
		rest = 0
	}
	return min(max(2*rest, shortestRest), longestRest)
}

// rest waits before a restart. It returns the signal that ended the wait, nil if none did.
func (l *launcher) rest(d time.Duration) os.Signal {
	select {
	case <-l.after(d):
		return nil
	case s := <-l.signals:
		return s
	}
}
