package profile

import (
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// A Profile measures the operations of one rank's model: see Profile of package fsdp. Any
// goroutine may call its methods.
type Profile struct {
	mu     sync.Mutex
	to     Target
	totals Totals
	used   []int // by operation: the last pass in which it ran
	index  map[key]int
	next   int // operation that probably comes next

	pass    int // the last one
	first   int // the first one, which is left out
	newest  int // latest pass that is counted: others may run between its forward and its backward
	half    bool
	origin  time.Time // when the ranks agreed
	agreed  bool      // the ranks have agreed since the last operation
	started time.Time // when the last training pass began
	from    time.Time // when counting began: the end of the first pass, or of the counts before the last Reset
	saved   time.Time // when the totals were written
	failure error     // error of writing the totals
}

// A key identifies an operation of a pass.
type key struct {
	kind, name string
	nth        int
}

// New returns a profile for one model.
func New() *Profile { return &Profile{index: make(map[key]int)} }

// A Target is the profiled model, as package fsdp sees it.
type Target struct {
	Group comm.Group
	Host  string
	// Threads is the number of cores that this rank computes on, and Cores the number that the
	// ranks of its host may use together. 0 means unknown, or a device that computes.
	Threads, Cores int
	Model          int    // number of the model, the same on all ranks
	Path           string // file for the totals, or ""
	Trace          string // file for a predicted pass next to the trace of the real ones, or ""
	Number         uint32 // number of that file among the files of the trace
}

// Attach sets the model of the profile. Only package fsdp uses it, in Wrap.
func (p *Profile) Attach(to Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to.Group != nil {
		return errors.New("the profile belongs to another model: each model needs its own")
	}
	p.to = to
	p.totals = Totals{Rank: to.Group.Rank(), Size: to.Group.Size(), Host: to.Host, Threads: to.Threads, Cores: to.Cores, Model: to.Model}
	return nil
}

// An Operation is a completed operation of a pass.
type Operation struct {
	Pass         int
	Kind, Name   string // of a plan.Op and of its group or call
	Shards       int    // ranks that its group is cut over
	Begin        time.Time
	Took         time.Duration
	Live         int // bytes
	Absent, Eval bool
}

// Record counts an operation. Only package fsdp uses it. A nil profile counts nothing.
func (p *Profile) Record(o Operation) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	begins := o.Pass != p.pass
	p.pass = o.Pass
	if begins && !p.agreed {
		p.origin, p.half = o.Begin, false
	}
	p.agreed = false
	if p.first == 0 && !o.Eval {
		p.first = o.Pass
	}
	if o.Pass == p.first {
		p.from = o.Begin.Add(o.Took)
	}
	if o.Pass == p.first || o.Eval {
		return
	}
	if o.Pass > p.newest {
		p.totals.Passes++
		p.newest, p.started = o.Pass, o.Begin
	}
	p.count(&o)
}

// Now returns the time, for Agreed, or the zero time for a nil profile.
func (p *Profile) Now() (t time.Time) {
	if p != nil {
		t = time.Now()
	}
	return t
}

// Agreed counts the exchange before a collective method. The operations of all ranks are timed from
// its end. Only package fsdp uses it. A nil profile counts nothing.
func (p *Profile) Agreed(call string, begin, end time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.origin, p.agreed, p.half = end, true, call == "Backward"
	if p.first > 0 && (p.pass != p.first || !p.half) {
		p.count(&Operation{Kind: agree, Name: call, Begin: begin, Took: end.Sub(begin)})
	}
	if p.to.Path != "" && p.failure == nil && end.Sub(p.saved) > saveEvery {
		p.saved = end
		p.failure = p.save()
	}
}

// count adds an operation to its totals.
func (p *Profile) count(o *Operation) {
	p.totals.Took = o.Begin.Add(o.Took).Sub(p.from)
	t := p.find(o)
	t.Count++
	t.Begin += o.Begin.Sub(p.origin)
	t.Took += o.Took
	t.Live = max(t.Live, o.Live)
	if o.Absent {
		t.Absent++
	}
}

// find returns the totals of an operation that has not run in this pass. Passes are alike, so
// except for the first time it is the next one.
func (p *Profile) find(o *Operation) *Op {
	is := func(i int) bool {
		t := &p.totals.Ops[i]
		return t.Kind == o.Kind && t.Name == o.Name && p.free(i)
	}
	i := p.next
	if i >= len(p.totals.Ops) || !is(i) {
		i = p.search(o)
	}
	p.used[i], p.next = p.pass, i+1
	return &p.totals.Ops[i]
}

// search finds an operation by name, and adds it if it is new.
func (p *Profile) search(o *Operation) int {
	for nth := 0; ; nth++ {
		k := key{o.Kind, o.Name, nth}
		i, known := p.index[k]
		if !known {
			i = len(p.totals.Ops)
			p.index[k] = i
			p.totals.Ops = append(p.totals.Ops, Op{Kind: o.Kind, Name: o.Name, Nth: nth, Shards: o.Shards, Backward: p.half})
			p.used = append(p.used, -1)
			return i
		}
		if p.free(i) {
			return i
		}
	}
}

// free reports whether an operation belongs to this half of a pass and has not run in it.
func (p *Profile) free(i int) bool { return p.used[i] != p.pass && p.totals.Ops[i].Backward == p.half }

// Reset restarts the counts. "fsdprun -stragglers" compares the counts since the last Reset that a
// pass followed.
func (p *Profile) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to.Path != "" && p.failure == nil {
		p.failure = p.save()
	}
	p.from = p.from.Add(p.totals.Took)
	p.totals.Passes, p.totals.Took = 0, 0
	for i := range p.totals.Ops {
		t := &p.totals.Ops[i]
		t.Count, t.Absent, t.Begin, t.Took, t.Live = 0, 0, 0, 0, 0
	}
}

// Totals returns a copy of the counts.
func (p *Profile) Totals() *Totals {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.totals.clone()
}

// saveEvery is the interval between writes of the totals while a training runs.
const saveEvery = 10 * time.Second

// Close writes the totals to the file of the target, if it has one and a pass was counted. It
// returns the first error of writing them, now or earlier. Only package fsdp uses it. A nil profile
// writes nothing.
func (p *Profile) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to.Path != "" && p.failure == nil {
		p.failure = p.save()
	}
	return p.failure
}

// save writes the totals. If the process is killed meanwhile, the previous totals remain.
func (p *Profile) save() error {
	if p.totals.Passes == 0 {
		return nil
	}
	b, err := json.Marshal(&p.totals)
	if err != nil {
		return err
	}
	part := p.to.Path + ".part"
	if err := os.WriteFile(part, b, 0o666); err != nil {
		return err
	}
	return os.Rename(part, p.to.Path)
}
