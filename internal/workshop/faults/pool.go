package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/workshop/child"
)

// pool keeps worker processes.
type pool struct {
	dir string // of all their files

	mu   sync.Mutex
	idle []*worker
}

// worker is a process that runs ranks.
type worker struct {
	*child.Process

	mu   sync.Mutex
	hear func(report) // receives its reports
	lost func()       // called when it ends
}

// take returns an idle worker, or a new one, and sets the receivers of its reports.
func (p *pool) take(hear func(report), lost func()) (*worker, error) {
	p.mu.Lock()
	var w *worker
	if n := len(p.idle); n > 0 {
		w = p.idle[n-1]
		p.idle = p.idle[:n-1]
	}
	p.mu.Unlock()
	if w == nil {
		var err error
		if w, err = startWorker(p.dir); err != nil {
			return nil, err
		}
	}
	w.listen(hear, lost)
	return w, nil
}

// give takes back a worker that has ended its case.
func (p *pool) give(w *worker) {
	w.listen(nil, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, w)
}

// close ends all idle workers.
func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, w := range p.idle {
		errs = append(errs, w.Close()) // the end of its input ends a worker
	}
	for _, w := range p.idle {
		select {
		case <-w.Gone:
		case <-time.After(5*time.Second + spare):
			errs = append(errs, fmt.Errorf("worker %d does not end", w.OS.Pid))
			w.kill()
		}
	}
	p.idle = nil
	return errors.Join(errs...)
}

func startWorker(dir string) (*worker, error) {
	w := &worker{}
	hear := func(r report) {
		w.mu.Lock()
		hear := w.hear
		w.mu.Unlock()
		if hear != nil {
			hear(r)
		}
	}
	gone := func() {
		w.mu.Lock()
		lost := w.lost
		w.mu.Unlock()
		if lost != nil {
			lost()
		}
	}
	var err error
	w.Process, err = child.Start(hear, gone, workerVariable+"=1", "TMPDIR="+dir)
	return w, err
}

func (w *worker) listen(hear func(report), lost func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hear, w.lost = hear, lost
}

// kill ends the process and waits for its end.
func (w *worker) kill() {
	w.Kill()
	<-w.Gone
}
