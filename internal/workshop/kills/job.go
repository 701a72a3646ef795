package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// A job is the processes of a training.
type job struct {
	events  chan event
	workers []*worker // of the current group, in the order of ranks
	first   []*worker // of the first group
	idle    []*worker
	dir     string
	group   int // number of the current group
	size    int // of the group when it began
	ready   int // ranks that have the state of the last step
	stepped int // first group that made a step, or -1
	hash    string
	killed  int // ranks
	pauses  []time.Duration
	since   time.Time // of the first kill from which the ranks have not recovered
	next    int       // kill
	timer   *time.Timer
}

// A worker is the process of a rank.
type worker struct {
	cmd    *exec.Cmd
	orders io.WriteCloser
	stderr bytes.Buffer
	gone   chan struct{} // closed when the process has ended
	killed bool
	idle   bool // its part of the current group has ended: it is lost, or all steps are made
	ended  bool
}

// An order is a message to a worker: to be a rank of a group.
type order struct {
	Group, Rank, Size, Virtual int
	Dir                        string
	Shared                     bool
	Files                      bool // the checkpoint is in files
}

// An event is a message of a worker.
type event struct {
	What  string // ready, anew, step, lost, end; gone if the process has ended
	Group int
	Step  int
	Text  string // the error, or the hash of the state
	from  *worker
}

// train returns the hash of the state at the end.
func (t *training) train(ctx context.Context) (hash string, err error) {
	t.job = job{events: make(chan event, 1000), timer: time.NewTimer(0), stepped: -1, pauses: t.pauses, killed: t.killed}
	<-t.timer.C
	if t.dir, err = os.MkdirTemp("", "kills"); err != nil {
		return "", err
	}
	defer func() {
		for _, w := range slices.Concat(t.workers, t.idle) {
			w.kill()
		}
		err = errors.Join(err, os.RemoveAll(t.dir))
	}()
	for range t.spares {
		w, err := t.start()
		if err != nil {
			return "", err
		}
		t.idle = append(t.idle, w)
	}
	for range t.ranks {
		w, err := t.start()
		if err != nil {
			return "", err
		}
		t.workers = append(t.workers, w)
	}
	t.first = slices.Clone(t.workers)
	t.form()
	for t.hash == "" || slices.ContainsFunc(t.workers, func(w *worker) bool { return !w.ended }) {
		if err := t.await(ctx); err != nil {
			return "", err
		}
	}
	return t.hash, nil
}

// await handles an event, or a kill that is due.
func (t *training) await(ctx context.Context) error {
	select {
	case e := <-t.events:
		return t.handle(e)
	case <-t.timer.C:
		return t.kill()
	case <-time.After(patience):
		return fmt.Errorf("nothing has happened for %v in group %d, in which %d ranks were ready", patience, t.group, t.ready)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// handle handles an event.
func (t *training) handle(e event) error {
	if e.What == "gone" {
		if e.from.killed {
			return nil
		}
		return fmt.Errorf("a process has ended: %s", &e.from.stderr)
	}
	if e.Group != t.group || e.from.killed {
		return nil
	}
	switch e.What {
	case "ready":
		if t.ready++; t.ready == t.size && !t.since.IsZero() {
			t.pauses = append(t.pauses, time.Since(t.since))
			t.since = time.Time{}
		}
		t.arm(e.from, 0)
	case "anew":
		if t.stepped >= 0 && t.stepped < e.Group {
			return fmt.Errorf("no rank has a step: %s", e.Text)
		}
	case "step":
		if t.stepped < 0 {
			t.stepped = e.Group
		}
		t.arm(e.from, e.Step)
	case "lost", "end":
		e.from.idle, e.from.ended = true, e.What == "end"
		if e.What == "end" && e.Text != "" {
			t.hash = e.Text
		}
		if t.since.IsZero() && e.What == "lost" {
			return fmt.Errorf("a rank is lost without a kill: %s", e.Text)
		}
		if !t.since.IsZero() && t.ready == t.size {
			return t.reform()
		}
	}
	return nil
}

// arm sets the timer if the next kill waits for this step.
func (t *training) arm(w *worker, step int) {
	if t.next < len(t.kills) {
		if k := t.kills[t.next]; k.step == step && t.first[k.rank] == w && t.since.IsZero() {
			t.timer.Reset(k.after)
		}
	}
}

// kill makes the next kill, and sets the timer for the kill after it.
func (t *training) kill() error {
	w := t.first[t.kills[t.next].rank]
	if t.next++; t.next < len(t.kills) && t.kills[t.next].step < 0 {
		t.timer.Reset(t.kills[t.next].after)
	}
	i := slices.Index(t.workers, w)
	if i < 0 {
		return nil
	}
	forming := t.ready < t.size
	if t.since.IsZero() {
		t.since = time.Now()
	}
	t.killed++
	w.kill()
	t.workers = slices.Delete(t.workers, i, i+1)
	if t.restart {
		for _, other := range t.workers {
			other.kill()
			<-other.gone // as it locks the directory of checkpoints
		}
		<-w.gone
		t.workers = nil
	} else if !forming {
		return t.reform()
	}
	return t.fill()
}

// reform makes the next group if all ranks of the current one have noticed the loss.
func (t *training) reform() error {
	if slices.ContainsFunc(t.workers, func(w *worker) bool { return !w.idle }) {
		return nil
	}
	return t.fill()
}

// fill makes the next group: the ranks that are left, and others in the place of the killed ones.
func (t *training) fill() error {
	for len(t.workers) < t.ranks && (t.restart || t.fresh || len(t.idle) > 0) {
		var w *worker
		if len(t.idle) > 0 && !t.restart {
			w, t.idle = t.idle[0], t.idle[1:]
		} else {
			var err error
			if w, err = t.start(); err != nil {
				return err
			}
		}
		t.workers = append(t.workers, w)
	}
	t.group++
	t.form()
	return nil
}

// form sends the orders for a group. A worker that forms another one gives it up.
func (t *training) form() {
	t.ready, t.size, t.hash = 0, len(t.workers), ""
	for r, w := range t.workers {
		w.idle, w.ended = false, false
		_ = json.NewEncoder(w.orders).Encode(order{ // if it does not arrive, the process has ended
			Group: t.group, Rank: r, Size: t.size, Virtual: t.virtual, Dir: filepath.Join(t.dir, strconv.Itoa(t.group)), Shared: t.shared, Files: t.restart,
		})
	}
}

// start starts a process.
func (t *training) start() (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.Command(self), gone: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), workerVariable+"=1", "TMPDIR="+t.dir, "GOMAXPROCS=1")
	w.cmd.Stderr = &w.stderr
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
	events := t.events
	go func() {
		for d := json.NewDecoder(out); ; {
			e := event{from: w}
			if d.Decode(&e) != nil {
				break
			}
			events <- e
		}
		_ = w.cmd.Wait() // it may have been killed
		close(w.gone)
		select {
		case events <- event{What: "gone", from: w}:
		default: // the training has ended
		}
	}()
	return w, nil
}

// kill ends the process without a warning.
func (w *worker) kill() {
	w.killed = true
	_ = w.cmd.Process.Kill() // it may have ended
	_ = w.orders.Close()
}
