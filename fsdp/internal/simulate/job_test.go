package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/internal/simnet"
	"github.com/gofsdp/gofsdp/internal/store"
)

// job is one simulated run of a program by many ranks.
type job struct {
	seed  uint64
	size  int
	steps []step
	net   *simnet.Net
	disk  *crashfs.FS
	ranks []*rank
	begun time.Time
	met   chan struct{} // closed when the first rank has joined
	meet  sync.Once

	mu        sync.Mutex
	struck    []*fault // so far
	committed []int    // checkpoints, by step
}

// rank is one process of a job.
type rank struct {
	*job
	no     int
	host   *simnet.Host
	rng    *rand.Rand
	ctx    context.Context
	cancel context.CancelFunc
	group  comm.Group
	joined bool
	at     int // step
	err    error
	late   time.Duration // it starts so long after the job
	took   time.Duration
	ended  bool
}

// tally is what came of some jobs.
type tally struct {
	jobs, ranks, joined, failed, steps int
	faults                             [kinds]int
	hangs, lost, wrong, late, alarms   int
	strays                             int // came when the job had been given up, and only know that rank 0 is not there
	commits                            int
}

func (t *tally) add(o *tally) {
	t.jobs += o.jobs
	t.ranks += o.ranks
	t.joined += o.joined
	t.failed += o.failed
	t.steps += o.steps
	for k := range o.faults {
		t.faults[k] += o.faults[k]
	}
	t.hangs += o.hangs
	t.lost += o.lost
	t.wrong += o.wrong
	t.late += o.late
	t.alarms += o.alarms
	t.strays += o.strays
	t.commits += o.commits
}

// String is a table.
func (t *tally) String() string {
	var b strings.Builder
	row := func(what string, n int) { fmt.Fprintf(&b, "%9d  %s\n", n, what) }
	row("jobs", t.jobs)
	row("ranks in them", t.ranks)
	row("ranks that joined", t.joined)
	row("ranks that ended with an error", t.failed)
	row("steps that ranks completed", t.steps)
	row("checkpoints committed", t.commits)
	row("faults injected", t.injected())
	for k, n := range t.faults {
		row("  "+kind(k).String(), n)
	}
	row("ranks that hang", t.hangs)
	row("commits lost, or checkpoints by half", t.lost)
	row("wrong results, or errors that name nobody at fault", t.wrong)
	row("errors that come late", t.late)
	row("errors without a fault", t.alarms)
	row("ranks that came when the job had been given up, and say only that the rendezvous is gone", t.strays)
	return b.String()
}

func (t *tally) injected() (n int) {
	for _, k := range t.faults {
		n += k
	}
	return n
}

// outcome is what a job came to.
type outcome struct {
	tally
	trace  []string // how each rank ended
	ends   []string // the same without what depends on the order of goroutines at an instant
	faulty []string // what is wrong with that
}

var secret = comm.Secret("what simulated ranks share, 32 by")

func ip(rank int) string { return fmt.Sprintf("10.%d.%d.%d", rank>>16, rank>>8&255, rank&255) }

// newJob draws a job by its seed. It belongs into a bubble.
func newJob(seed uint64, size int) (*job, []*fault) {
	rng := rand.New(rand.NewPCG(seed, 0x73696d))
	j := &job{seed: seed, size: size, disk: crashfs.New(), begun: time.Now(), met: make(chan struct{})}
	j.net = simnet.New(simnet.Config{Seed: seed, Latency: 200 * time.Microsecond, Jitter: 300 * time.Microsecond, Bandwidth: 1e9})
	j.steps = drawSteps(rng, size, 8+rng.IntN(8))
	for no := range size {
		r := &rank{job: j, no: no, host: j.net.Host(ip(no)), rng: rand.New(rand.NewPCG(seed, uint64(no)))}
		r.ctx, r.cancel = context.WithCancel(store.WithNetwork(context.Background(), r.host))
		j.ranks = append(j.ranks, r)
	}
	return j, drawFaults(rng, size)
}

// run runs a job to its end.
func (j *job) run(t *testing.T, faults []*fault) *outcome {
	o := &outcome{tally: tally{jobs: 1, ranks: j.size}}
	var all sync.WaitGroup
	for _, r := range j.ranks {
		all.Go(r.live)
	}
	over := make(chan struct{})
	go func() { all.Wait(); close(over) }()
	j.strike(faults, over)
	select {
	case <-over:
	case <-time.After(stuck):
		j.hang(t, o)
		select {
		case <-over:
		case <-time.After(stuck):
			t.Fatal("ranks hang, and cannot be stopped")
		}
	}
	j.judge(o)
	j.checkDisk(o)
	return o
}

// hang notes the ranks that hang, and ends the job.
func (j *job) hang(t *testing.T, o *outcome) {
	buf := make([]byte, 1<<20)
	j.mu.Lock()
	for _, r := range j.ranks {
		if !r.ended {
			o.hangs++
			o.faulty = append(o.faulty, fmt.Sprintf("rank %d hangs in step %d", r.no, r.at))
		}
	}
	j.mu.Unlock()
	t.Logf("seed %d hangs:\n%s", j.seed, buf[:runtime.Stack(buf, true)])
	for _, r := range j.ranks {
		r.cancel()
		r.host.Kill()
	}
}

// strike lets faults happen until the job is over.
func (j *job) strike(faults []*fault, over <-chan struct{}) {
	since := j.begun
	for i, f := range faults {
		if f.later && (i == 0 || !faults[i-1].later) {
			select {
			case <-over:
				return
			case <-j.met:
				since = time.Now()
			}
		}
		timer := time.NewTimer(time.Until(since.Add(f.at)))
		select {
		case <-over:
			timer.Stop()
			return
		case <-timer.C:
		}
		a, b := j.ranks[f.ranks[0]], j.ranks[f.ranks[1]]
		switch f.kind {
		case kill:
			a.host.Kill()
			a.cancel()
		case freeze, stall:
			a.host.Stall(f.how)
		case cutOff, isolate:
			a.host.Isolate(f.how)
		case cut:
			n := 0
			if n, f.met = j.net.Cut(a.host, b.host); n == 0 {
				continue // nothing to cut
			}
		case flip:
			f.met = j.net.Flip(a.host, b.host)
		case slow:
			j.net.Delay(a.host, b.host, f.how, 3*time.Second)
		}
		f.at = time.Since(j.begun)
		j.mu.Lock()
		j.struck = append(j.struck, f)
		j.mu.Unlock()
	}
}

// pass lets fake time pass.
func pass(d time.Duration) { <-time.After(d) }

// live is the life of a rank.
func (r *rank) live() {
	err := r.train()
	took := time.Since(r.begun)
	if r.group != nil {
		if cerr := r.group.Close(); err == nil {
			err = cerr
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.took, r.ended = err, took, true
}

// join makes the rank join the job, some time after that has begun.
func (r *rank) join() (err error) {
	r.late = time.Duration(r.rng.Int64N(int64(time.Second)))
	pass(r.late)
	r.group, err = comm.Connect(r.ctx, comm.Config{
		Rank: r.no, Size: r.size, Rendezvous: "tcp://" + ip(0) + ":29500", Job: "simulated", Secret: secret, Listen: ip(r.no),
		Host: fmt.Sprint("host-", r.no), Transport: comm.TCP, Timeout: limit, JoinTimeout: joinLimit, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		r.joined = true
		r.meet.Do(func() { close(r.met) })
	}
	return err
}

// train does the steps of the job.
func (r *rank) train() error {
	if err := r.join(); err != nil {
		return err
	}
	for i, s := range r.steps {
		r.at = i
		pass(time.Duration(r.rng.Int64N(int64(800 * time.Millisecond)))) // it computes
		if err := s.do(r, i); err != nil {
			return fmt.Errorf("step %d, %s: %w", i, s.name, err)
		}
	}
	r.at = len(r.steps)
	return nil
}

// errWrong is wrapped by the error of a rank that has got wrong values.
var errWrong = errors.New("wrong result")

// judge looks how the ranks ended.
func (j *job) judge(o *outcome) {
	for _, f := range j.struck {
		o.faults[f.kind]++
	}
	for _, r := range j.ranks {
		o.steps += r.at
		if r.joined {
			o.joined++
		}
		text := ""
		if r.err != nil {
			o.failed++
			text = r.err.Error()
		}
		if r.ctx.Err() != nil {
			text = "its process has ended" // what its goroutines find out then is of no account
		}
		o.trace = append(o.trace, fmt.Sprintf("%d after %d steps, %v: %s", r.no, r.at, r.took, text))
		o.ends = append(o.ends, fmt.Sprintf("%d after %d steps, failed %v", r.no, r.at, r.err != nil))
		r.judge(o)
	}
}

// judge looks how a rank ended.
func (r *rank) judge(o *outcome) {
	blame := func(count *int, format string, args ...any) {
		*count++
		o.faulty = append(o.faulty, fmt.Sprintf("rank %d after %v: ", r.no, r.took)+fmt.Sprintf(format, args...))
	}
	if errors.Is(r.err, errWrong) {
		blame(&o.wrong, "%v", r.err)
		return
	}
	due := time.Duration(math.MaxInt64) // by then it has to know
	at := map[int]bool{}
	for _, f := range r.struck {
		from, ok := f.since(r.begun)
		switch {
		case f.harmless() || !ok || from > r.took:
			continue
		case !f.link() && f.ranks[0] == r.no:
			return // it cannot know
		}
		at[f.ranks[0]] = true
		if f.link() {
			at[f.ranks[1]] = true
		}
		if f.link() || f.at <= r.ranks[f.ranks[0]].took { // else it may have done its part
			due = min(due, r.undisturbed(from, r.within(f)))
		}
	}
	switch {
	case r.err == nil && r.at == len(r.steps):
	case r.err == nil:
		blame(&o.wrong, "it ended early without an error")
	case len(at) == 0:
		blame(&o.alarms, "nothing was wrong: %v", r.err)
	case !r.joined && !r.names(at) && r.names(map[int]bool{0: true}) && r.ranks[0].took < r.took:
		o.strays++
	case !r.names(at):
		blame(&o.wrong, "not one of %v: %v", at, r.err)
	case r.joined && r.took > due || r.took > max(due, joinLimit+2*time.Second+slack):
		blame(&o.late, "after %v was due: %v", due, r.err)
	}
}

// named finds the ranks that errors of groups name.
var named = regexp.MustCompile(`rank (\d+) of group "world(?:/([01]))?"`)

// names reports whether the error of a rank names one of the given ones: the last of those that it
// names, as a rank that hands on why its group has failed is named before.
func (r *rank) names(at map[int]bool) bool {
	text := r.err.Error()
	if list := named.FindAllStringSubmatch(text, -1); list != nil {
		last := list[len(list)-1]
		no, _ := strconv.Atoi(last[1])
		if last[2] != "" { // of even or odd ranks
			no *= 2
		}
		if last[2] == "1" {
			no++
		}
		return at[no]
	}
	if r.joined {
		return false
	}
	for no := range at {
		if mentions(text, no) {
			return true
		}
	}
	return false
}

// mentions reports whether a text speaks of a rank, as in "rank 3" or "ranks [1 3]".
func mentions(text string, no int) bool {
	words := strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(" ,:;()[]", c) })
	list := false
	for i, w := range words {
		if w == "rank" || w == "ranks" {
			list = true
			continue
		}
		if list && w == fmt.Sprint(no) && !(i > 0 && words[i-1] == "of") {
			return true
		}
		list = list && strings.Trim(w, "0123456789") == ""
	}
	return false
}

// simulate runs a job in a bubble.
func simulate(t *testing.T, seed uint64, size int) (o *outcome) {
	synctest.Test(t, func(t *testing.T) {
		j, faults := newJob(seed, size)
		o = j.run(t, faults)
		if len(o.faulty) > 0 {
			for _, f := range j.struck {
				o.faulty = append(o.faulty, f.text(j.begun))
			}
			o.faulty = append(o.faulty, o.trace...)
		}
	})
	return o
}
