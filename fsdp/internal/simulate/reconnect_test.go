package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/simnet"
	"github.com/gofsdp/gofsdp/internal/store"
)

// A survival is a job whose ranks connect again after each loss, see comm.Reconnect.
//
// Its ranks count steps. After a loss they take the largest count of the ranks that are left, as a
// MemoryCheckpoint would. Half of the killed ranks are replaced by a process on another host. In
// some jobs the ranks wait for such processes, and in some they also connect again after each 40
// steps, to let them in. These must hold, whatever is lost, and whenever:
//
//   - no rank hangs
//   - no rank makes a step twice, and all ranks of a group make the same step
//   - once a group has formed, no earlier group makes more than the step that it has begun
//   - in a calm job, whose losses are minorities that come one at a time, all other ranks make all steps
type survival struct {
	seed    uint64
	dir     string // where the ranks meet
	net     *simnet.Net
	calm    bool
	planned bool // the ranks connect again without a loss, too
	over    chan struct{}

	mu     sync.Mutex
	ranks  []*survivor
	size   int               // of the first group
	live   int               // ranks that have not ended
	groups map[int64]*formed // by a number that its ranks draw
	faulty []string
}

// formed is a group that has made a step.
type formed struct {
	since time.Time
	steps map[int]map[int]int // how often each rank has made each step
}

// survivor is a rank of a survival.
type survivor struct {
	*survival
	no     int
	place  int // in its configuration
	host   *simnet.Host
	rng    *rand.Rand
	cancel context.CancelFunc
	struck bool // it is killed, stopped or cut off, or in the smaller part
	done   int  // steps
	groups int
	err    error
	ended  bool
}

const (
	survivalSteps = 400
	stepTime      = time.Second
)

func newSurvival(dir string, seed uint64, size int) *survival {
	s := &survival{seed: seed, dir: dir, calm: seed%2 == 0, planned: seed%3 == 0, size: size, over: make(chan struct{}), groups: map[int64]*formed{}}
	s.net = simnet.New(simnet.Config{Seed: seed, Latency: 200 * time.Microsecond, Jitter: 300 * time.Microsecond, Bandwidth: 1e9})
	for no := range size {
		s.start(no)
	}
	return s
}

// start starts a process, unless the job is over.
func (s *survival) start(place int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	no := len(s.ranks)
	if no > s.size && s.live == 0 {
		return
	}
	r := &survivor{survival: s, no: no, place: place, host: s.net.Host(ip(no)), rng: rand.New(rand.NewPCG(s.seed, uint64(no)))}
	ctx, cancel := context.WithCancel(store.WithNetwork(context.Background(), r.host))
	r.cancel = cancel
	s.ranks = append(s.ranks, r)
	s.live++
	go func() {
		err := r.work(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		r.err, r.ended = err, true
		if s.live--; s.live == 0 {
			close(s.over)
		}
	}()
}

func (s *survival) fault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faulty = append(s.faulty, fmt.Sprintf(format, args...))
}

// run returns the number of losses, of groups, and of ranks that hang.
func (s *survival) run(t *testing.T) (losses, groups, hangs int) {
	losses = s.strike()
	select {
	case <-s.over:
	case <-time.After(survivalSteps*stepTime + 10*stuck):
		buf := make([]byte, 1<<20)
		t.Logf("seed %d hangs:\n%s", s.seed, buf[:runtime.Stack(buf, true)])
		s.mu.Lock()
		for _, r := range s.ranks {
			if !r.ended {
				hangs++
			}
		}
		s.mu.Unlock()
		for _, r := range s.ranks {
			r.cancel()
			r.host.Kill()
		}
		<-s.over
	}
	s.judge()
	return losses, len(s.groups), hangs
}

// strike lets losses happen until the job is over.
func (s *survival) strike() (losses int) {
	rng := rand.New(rand.NewPCG(s.seed, 0x6c6f7373))
	gap, left := 3*stuck/10, 12
	if !s.calm {
		gap = time.Duration(rng.Int64N(int64(2 * time.Minute)))
	}
	for ; left > 0; left-- {
		pause := 5*time.Second + gap
		if !s.calm {
			pause = time.Duration(rng.Int64N(int64(gap) + 1))
		}
		select {
		case <-s.over:
			return losses
		case <-time.After(pause):
		}
		var alive []*survivor
		s.mu.Lock()
		for _, r := range s.ranks {
			if !r.ended && !r.struck && r.groups > 0 {
				alive = append(alive, r)
			}
		}
		s.mu.Unlock()
		if len(alive) < 3 {
			return losses
		}
		rng.Shuffle(len(alive), func(i, j int) { alive[i], alive[j] = alive[j], alive[i] })
		if first := slices.MinFunc(alive, func(a, b *survivor) int { return a.no - b.no }); rng.IntN(3) == 0 {
			i := slices.Index(alive, first)
			alive[0], alive[i] = alive[i], alive[0]
		}
		some := alive[:1+rng.IntN(min(3, (len(alive)-1)/2))]
		if rng.IntN(4) == 0 {
			some = alive[:1+rng.IntN((len(alive)-1)/2)]
		}
		losses += s.lose(rng, some)
	}
	return losses
}

// lose strikes some ranks.
func (s *survival) lose(rng *rand.Rand, some []*survivor) int {
	var hosts []*simnet.Host
	lasting := time.Duration(rng.Int64N(int64(3 * time.Minute)))
	kind := max(0, rng.IntN(6)-2)
	for _, r := range some {
		s.mu.Lock()
		r.struck = true
		s.mu.Unlock()
		hosts = append(hosts, r.host)
		switch kind {
		case 0:
			r.host.Kill()
			r.cancel()
			if rng.IntN(2) == 0 {
				time.AfterFunc(time.Duration(rng.Int64N(int64(10*time.Second))), func() { s.start(r.place) })
			}
		case 1:
			r.host.Isolate(lasting)
		case 2:
			r.host.Stall(lasting)
		}
	}
	if kind == 3 {
		s.net.Part(hosts, lasting)
	}
	return len(some)
}

var errPlanned = errors.New("the ranks let others in")

// work makes the steps.
func (r *survivor) work(ctx context.Context) error {
	g, err := comm.Connect(ctx, comm.Config{
		Rank: r.place, Size: r.size, Rendezvous: "file://" + r.dir, Job: fmt.Sprint("survival ", r.seed), Secret: secret, Listen: ip(r.no),
		Host: fmt.Sprint("host-", r.no), Transport: comm.TCP, Timeout: limit, JoinTimeout: joinLimit, Logger: slog.New(slog.DiscardHandler),
		Join: r.no >= r.size, ReplaceTimeout: time.Duration(r.seed%5) * 5 * time.Second,
	})
	for err == nil {
		if err = r.train(ctx, g); err == nil {
			return g.Close()
		}
		if lost := new(comm.RankError); !errors.As(err, &lost) && !errors.Is(err, errPlanned) {
			break
		}
		former := g
		g, err = comm.Reconnect(ctx, former)
		_ = former.Close() // it has failed
	}
	if g != nil {
		_ = g.Close() // likewise
	}
	return err
}

// train makes steps in a group.
func (r *survivor) train(ctx context.Context, g comm.Group) error {
	begin := []int64{r.rng.Int64(), int64(r.done)}
	if err := g.AllReduce(comm.Of(begin), comm.Max).Wait(ctx); err != nil {
		return err
	}
	id := begin[0]
	r.mu.Lock()
	r.groups++
	r.done = int(begin[1])
	f := r.survival.groups[id]
	if f == nil {
		f = &formed{time.Now(), map[int]map[int]int{}}
		r.survival.groups[id] = f
	}
	r.mu.Unlock()
	for r.done < survivalSteps {
		pass(stepTime)
		sums := []int64{1, int64(r.done)}
		if err := g.AllReduce(comm.Of(sums), comm.Sum).Wait(ctx); err != nil {
			return err
		}
		if sums[0] != int64(g.Size()) || sums[1] != int64(g.Size()*r.done) {
			r.fault("rank %d: a step %d of %d ranks gives %v", r.no, r.done, g.Size(), sums)
		}
		r.mu.Lock()
		r.done++
		if f.steps[r.no] == nil {
			f.steps[r.no] = map[int]int{}
		}
		f.steps[r.no][r.done]++
		for other, o := range r.survival.groups {
			if other != id && o.since.After(f.since) {
				f.steps[r.no][-1]++ // steps after a later group had formed
				break
			}
		}
		r.mu.Unlock()
		if r.planned && r.done%40 == 0 {
			return errPlanned
		}
	}
	return nil
}

// judge checks the invariants.
func (s *survival) judge() {
	for _, r := range s.ranks {
		made := map[int]int{}
		for id, f := range s.groups {
			for step, n := range f.steps[r.no] {
				switch {
				case step == -1 && n > 1:
					s.fault("rank %d makes %d steps in group %d after a later one has formed", r.no, n, id)
				case step >= 0:
					made[step] += n
				}
			}
		}
		for step, n := range made {
			if n > 1 {
				s.fault("rank %d makes step %d %d times", r.no, step, n)
			}
		}
		if s.calm && !r.struck && r.err != nil && r.groups > 0 {
			s.fault("rank %d ends with %v", r.no, r.err)
		}
	}
}

// TestReconnect loses ranks of jobs until SIMULATE_LOSSES have been lost, from SIMULATE_SEED on.
func TestReconnect(t *testing.T) {
	want, first := number("SIMULATE_LOSSES", 10), uint64(number("SIMULATE_SEED", 1))
	var mu sync.Mutex
	seed, losses, groups, joined, hangs := first, 0, 0, 0, 0
	next := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		seed++
		return seed - 1, losses < want
	}
	t.Run("jobs", func(t *testing.T) {
		for w := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(w), func(t *testing.T) {
				t.Parallel()
				for seed, more := next(); more; seed, more = next() {
					synctest.Test(t, func(t *testing.T) {
						s := newSurvival(t.TempDir(), seed, number("SIMULATE_SIZE", sizeOf(seed)))
						l, g, h := s.run(t)
						mu.Lock()
						defer mu.Unlock()
						losses, groups, hangs = losses+l, groups+g, hangs+h
						for _, r := range s.ranks[s.size:] {
							if r.groups > 0 {
								joined++
							}
						}
						if len(s.faulty) > 0 {
							t.Errorf("seed %d, %d ranks: %q", seed, s.size, s.faulty)
						}
					})
				}
			})
		}
	})
	t.Logf("seeds %d to %d: %d losses, %d groups, %d processes that joined, %d ranks that hang", first, seed-1, losses, groups, joined, hangs)
	require.Zero(t, hangs)
}
