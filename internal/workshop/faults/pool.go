package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// pool keeps worker processes.
type pool struct {
	dir string // of all their files

	mu   sync.Mutex
	idle []*worker
}

// worker is a process that runs ranks.
type worker struct {
	cmd    *exec.Cmd
	orders io.WriteCloser
	stderr *head
	gone   chan struct{} // closed when the process has ended

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
		errs = append(errs, w.orders.Close()) // the end of its input ends a worker
	}
	for _, w := range p.idle {
		select {
		case <-w.gone:
		case <-time.After(5*time.Second + spare):
			errs = append(errs, fmt.Errorf("worker %d does not end", w.cmd.Process.Pid))
			w.kill()
		}
	}
	p.idle = nil
	return errors.Join(errs...)
}

func startWorker(dir string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.Command(self), stderr: &head{}, gone: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), workerVariable+"=1", "TMPDIR="+dir)
	w.cmd.Stderr = w.stderr
	if w.orders, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go w.read(out)
	return w, nil
}

// read passes on the worker's reports until it ends.
func (w *worker) read(out io.Reader) {
	decoder := json.NewDecoder(out)
	for {
		var r report
		if err := decoder.Decode(&r); err != nil {
			break
		}
		w.mu.Lock()
		hear := w.hear
		w.mu.Unlock()
		if hear != nil {
			hear(r)
		}
	}
	_ = w.cmd.Wait() // its exit status does not matter: it may have been killed
	close(w.gone)
	w.mu.Lock()
	lost := w.lost
	w.mu.Unlock()
	if lost != nil {
		lost()
	}
}

func (w *worker) listen(hear func(report), lost func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hear, w.lost = hear, lost
}

// say sends an order. If it does not arrive, the worker has ended, which is noticed.
func (w *worker) say(o order) { _ = json.NewEncoder(w.orders).Encode(o) }

// kill ends the process and waits for its end.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // it may have ended
	_ = w.orders.Close()
	<-w.gone
}

// head keeps the beginning of a worker's standard error: a panic, or the stacks of a hanging
// worker.
type head struct {
	mu   sync.Mutex
	text []byte
}

func (t *head) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[:min(len(b), 256<<10-len(t.text))]...)
	return len(b), nil
}

func (t *head) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
