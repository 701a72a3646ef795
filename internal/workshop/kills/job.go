package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/gofsdp/gofsdp/internal/workshop/child"
)

// A job is the processes of a training.
type job struct {
	training
	restart bool // after a kill all processes restart from a checkpoint in files
	events  chan event
	dir     string
	tries   int              // restarts
	all     map[int]*process // by process ID
	group   []*process       // the last one that was complete: all its ranks had the state of the last step
	ring    []*process       // the ranks of group that train: each has a copy of the next one's share
	rings   map[string]int   // the groups of which a rank is ready: its number of ranks that train
	lost    []*process       // killed after group was complete
	since   time.Time        // of the first of lost
	next    int              // of kills
	victim  *process         // of it, or nil
	timer   *time.Timer      // runs when the victim has come to the moment
	saved   int              // steps of which a rank has seen the end
	hash    string           // of the end
	ending  bool             // a rank is at the end: no more kills
	over    bool             // all are
	result  *result
}

// A process is a rank, or waits to join.
type process struct {
	*child.Process
	killed bool
	part   string // of the training, in which it is
	ready  string // the group of which it has the last step
	ended  string // the group in which it has made all steps
}

// An order is the first message to a process. The second one, which is empty, says that the
// training is over.
type order struct {
	mode
	Rank, Size int
	Dir        string
	Join       bool // it joins a group that connects again
	Files      bool // checkpoints are in files
	Uneven     bool // see training
}

// An event is a message of a process.
type event struct {
	What     string // a part that begins, or gone if the process has ended
	Ranks    []int  // the process IDs of its group
	Trainers int    // how many of them train, the first ones
	Step     int    // steps made and saved
	Hash     string // of the state at the end
	from     *process
}

// run runs the training, and returns the hash of the state at the end.
func (j *job) run(ctx context.Context) (hash string, err error) {
	j.events, j.all, j.rings, j.timer = make(chan event, 1000), map[int]*process{}, map[string]int{}, time.NewTimer(0)
	<-j.timer.C
	if j.dir, err = os.MkdirTemp("", "kills"); err != nil {
		return "", err
	}
	defer func() {
		j.endAll()
		err = errors.Join(err, os.RemoveAll(j.dir))
	}()
	if err := j.begin(); err != nil {
		return "", err
	}
	for !j.over || slices.ContainsFunc(j.group, func(p *process) bool { return j.all[p.OS.Pid] != nil }) {
		if err := j.await(ctx); err != nil {
			return "", err
		}
	}
	return j.hash, nil
}

// begin starts the processes.
func (j *job) begin() error {
	for rank := range j.Ranks {
		if err := j.start(rank, false); err != nil {
			return err
		}
	}
	for rank := range j.spares {
		if err := j.start(rank, true); err != nil {
			return err
		}
	}
	return nil
}

// start starts a process.
func (j *job) start(rank int, join bool) (err error) {
	p, events := &process{part: partConnect}, j.events
	p.Process, err = child.Start(func(e event) { e.from = p; events <- e }, func() { events <- event{What: partGone, from: p} },
		workerVariable+"=1", "TMPDIR="+j.dir, "GOMAXPROCS=1")
	if err != nil {
		return err
	}
	j.all[p.OS.Pid] = p
	p.Say(order{mode: j.mode, Rank: rank, Size: j.Ranks, Dir: filepath.Join(j.dir, strconv.Itoa(j.tries)), Join: join, Files: j.restart, Uneven: j.uneven})
	return nil
}

// endAll kills all processes that are left, and waits for them.
func (j *job) endAll() {
	for _, p := range j.all {
		p.Kill()
	}
	for len(j.all) > 0 {
		if e := <-j.events; e.What == partGone {
			j.gone(e.from)
		} else {
			e.from.part = e.What
		}
	}
}

// await handles an event, or a kill that is due.
func (j *job) await(ctx context.Context) error {
	select {
	case e := <-j.events:
		return j.handle(e)
	case <-j.timer.C:
		return j.kill()
	case <-time.After(2 * patience):
		err := fmt.Errorf("nothing has happened for %v", 2*patience)
		for pid, p := range j.all {
			err = fmt.Errorf("%w\nprocess %d in %s: %s", err, pid, p.part, p.Stacks())
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// handle handles an event.
func (j *job) handle(e event) error {
	p, ranks := e.from, fmt.Sprint(e.Ranks)
	if e.What == partGone {
		if j.gone(p); !p.killed && (!j.over || p.Err != nil) {
			return fmt.Errorf("a process has ended while it was in %s: %w: %s", p.part, p.Err, &p.Stderr)
		}
		return nil
	}
	switch p.part = e.What; e.What {
	case partReady:
		p.ready = ranks
		if _, known := j.rings[ranks]; !known {
			if e.Step < j.saved {
				return fmt.Errorf("a group continues after step %d, and a rank had made step %d", e.Step, j.saved)
			}
			j.rings[ranks] = e.Trainers
		}
		return j.complete(e.Ranks)
	case partForward, partEnd:
		j.saved = max(j.saved, e.Step)
	case partEnded:
		p.ended, j.ending = ranks, true
		if e.Hash != "" {
			j.hash = e.Hash
		}
		return j.finish(e.Ranks)
	}
	j.arm(p, e.Step)
	return nil
}

// gone removes a process that has ended.
func (j *job) gone(p *process) {
	if delete(j.all, p.OS.Pid); p.killed {
		j.result.moments[p.part]++
	}
}

// members returns the processes of a group, or nil if one of them is lost.
func (j *job) members(ranks []int) (list []*process) {
	for _, pid := range ranks {
		if p := j.all[pid]; p != nil && !p.killed {
			list = append(list, p)
		}
	}
	if len(list) < len(ranks) {
		return nil
	}
	return list
}

// complete notes that all ranks of a group have the last step, if they do.
func (j *job) complete(ranks []int) error {
	group, name := j.members(ranks), fmt.Sprint(ranks)
	if group == nil || slices.ContainsFunc(group, func(p *process) bool { return p.ready != name }) {
		return nil
	}
	if j.group, j.ring = group, group[:j.rings[name]]; !j.since.IsZero() {
		j.result.pauses = append(j.result.pauses, time.Since(j.since))
	}
	j.lost, j.since = nil, time.Time{}
	if j.victim == nil {
		j.choose()
	}
	return nil
}

// finish ends the processes if all ranks of the group that train are at the end.
func (j *job) finish(ranks []int) error {
	group, name := j.members(ranks), fmt.Sprint(ranks)
	if group == nil || slices.ContainsFunc(group[:j.rings[name]], func(p *process) bool { return p.ended != name }) {
		return nil
	}
	j.over, j.group = true, group
	for _, p := range group {
		p.Say(struct{}{})
	}
	return nil
}

// choose chooses the victim of the next kill.
func (j *job) choose() {
	for ; j.victim == nil && j.next < len(j.kills); j.next++ {
		if list := j.candidates(); len(list) > 0 {
			j.victim = list[j.kills[j.next].victim%len(list)]
			break
		}
	}
	if j.victim != nil && !slices.Contains(j.ring, j.victim) { // it waits
		j.timer.Reset(j.kills[j.next].after)
	}
}

// candidates lists the processes without which the others can continue, in the order of their IDs
// behind the ranks.
func (j *job) candidates() (list []*process) {
	left := 0
	for i, p := range j.group {
		if p.killed {
			continue
		}
		left++
		neighbour := func(o *process) bool {
			at, n := slices.Index(j.ring, o), len(j.ring)
			return at >= 0 && i < n && ((at+1)%n == i || (i+1)%n == at)
		}
		alone := len(j.ring) == 1 && i == 0 // no rank has a copy of its state
		if !alone && !slices.ContainsFunc(j.lost, neighbour) {
			list = append(list, p)
		}
	}
	if left < 2 || j.Apart && 2*(len(j.lost)+1) >= len(j.group) {
		list = nil
	}
	if !j.restart {
		var others []*process
		for _, p := range j.all {
			if !p.killed && !slices.Contains(j.group, p) {
				others = append(others, p)
			}
		}
		slices.SortFunc(others, func(a, b *process) int { return a.OS.Pid - b.OS.Pid })
		if !j.Apart || len(list) > 0 { // they may have a vote by now
			list = append(list, others...)
		}
	}
	return list
}

// arm starts the timer if p is the victim, and has come to the moment of its kill.
func (j *job) arm(p *process, step int) {
	if j.victim == p && !j.ending {
		if k := j.kills[j.next]; k.part == p.part && (k.recovery() || step >= k.step) {
			j.timer.Reset(k.after)
		}
	}
}

// kill makes the next kill.
func (j *job) kill() error {
	p := j.victim
	if p == nil || j.ending {
		return nil
	}
	j.victim = nil
	j.next++
	if slices.Contains(j.group, p) || !j.since.IsZero() {
		if j.lost = append(j.lost, p); j.since.IsZero() {
			j.since = time.Now()
		}
	}
	p.killed = true
	p.Kill()
	if j.restart {
		j.endAll()
		j.tries++
		return j.begin()
	}
	if j.Fresh {
		if err := j.start(0, true); err != nil {
			return err
		}
	}
	if !j.since.IsZero() && j.next < len(j.kills) && j.kills[j.next].recovery() {
		j.choose()
	}
	return nil
}
