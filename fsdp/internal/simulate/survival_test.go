package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/simnet"
	"github.com/gofsdp/gofsdp/internal/store"
)

// A survival is a job whose ranks connect again after each loss, see comm.Reconnect.
//
// Each of its steps changes the state of all ranks by a sum over micro-batches that the ranks
// share. After a loss the ranks take the latest state of those that are left, as a MemoryCheckpoint
// would. Half of the killed ranks are replaced by a process on another host, and other processes
// come in addition. Ranks also leave after a step, as planned. In some jobs the ranks wait for
// processes that replace lost ones, and in some they also connect again after each 20 steps, to let
// others in. In some jobs all addresses are loopback, as on one host, which is never cut. Some of
// the others have a witness, and no directory in common: the witness is killed and started again,
// and halves of the ranks are killed or cut apart, with the witness on either side or between both.
// These must hold, whatever is lost, and whenever:
//
//   - no rank hangs
//   - after each step, the state of a rank has the bits of a job that is not disturbed
//   - no rank makes a step twice, and all ranks of a group make the same step
//   - once a group has formed, no earlier group makes more than the step that it has begun
//   - in a calm job, whose losses are minorities that come one at a time, all other ranks make all
//     steps; with a witness that lives in the last two groups the losses may be halves of the group
type survival struct {
	seed    uint64
	dir     string // where the ranks meet
	net     *simnet.Net
	calm    bool
	planned bool // the ranks connect again without a loss, too
	oneHost bool // all addresses are loopback
	over    chan struct{}
	witness *witness // or nil

	mu     sync.Mutex
	ranks  []*survivor
	size   int               // of the first group
	live   int               // ranks that have not ended
	groups map[int64]*formed // by a number that its ranks draw
	latest *formed           // of them, or nil
	survived
	faulty []string
}

// formed is a group that has made a step.
type formed struct {
	since time.Time
	size  int
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
	struck bool // it is killed, stopped or cut off, or in the smaller part, or leaves
	leaves bool // after its step
	rank   int  // in its group, or -1 while it connects
	done   int  // steps
	state  int64
	groups int
	group  *formed // the latest
	err    error
	ended  bool
}

const (
	survivalSteps = 200
	stepTime      = 2 * time.Second
	microBatches  = 64
)

// shareOf is the part of a step's sum that rank of size computes.
func shareOf(state int64, rank, size int) (sum int64) {
	for v := rank; v < microBatches; v += size {
		sum += int64(mix(uint64(state), uint64(v)) >> 24)
	}
	return sum
}

func mix(a, b uint64) uint64 {
	a = (a ^ b + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return (a ^ a>>31) * 0x94d049bb133111eb
}

// undisturbed has the states of one rank that is not disturbed, by step.
var undisturbed = sync.OnceValue(func() []int64 {
	list := make([]int64, survivalSteps+1)
	for i := range survivalSteps {
		list[i+1] = int64(mix(uint64(list[i]), uint64(shareOf(list[i], 0, 1))))
	}
	return list
})

func newSurvival(dir string, seed uint64, size int) *survival {
	s := &survival{
		seed: seed, dir: dir, calm: seed%2 == 0, planned: seed%3 == 0, oneHost: seed/2%4 == 0, size: size,
		over: make(chan struct{}), groups: map[int64]*formed{}, survived: survived{jobs: 1, ranks0: size},
	}
	s.net = simnet.New(simnet.Config{Seed: seed, Latency: 200 * time.Microsecond, Jitter: 300 * time.Microsecond, Bandwidth: 1e9})
	if !s.oneHost && seed%2+seed/8%2 == 1 {
		s.witness = newWitness(s)
	}
	for no := range size {
		s.start(no)
	}
	return s
}

// ip is the address of a process.
func (s *survival) ip(no int) string {
	if s.oneHost {
		return fmt.Sprintf("127.1.%d.%d", no>>8, no&255)
	}
	return ip(no)
}

// start starts a process, unless the job is over.
func (s *survival) start(place int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	no := len(s.ranks)
	if no >= s.size && s.live == 0 {
		return
	}
	r := &survivor{survival: s, no: no, place: place, host: s.net.Host(s.ip(no)), rng: rand.New(rand.NewPCG(s.seed, uint64(no))), rank: -1}
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

// later counts an event and starts a process after a time, if place is not negative, unless the job
// is over then.
func (s *survival) later(after time.Duration, e event, place int) {
	time.AfterFunc(after, func() {
		s.mu.Lock()
		over := s.live == 0
		if !over {
			s.counts[e]++
		}
		s.mu.Unlock()
		if !over && place >= 0 {
			s.start(place)
		}
	})
}

func (s *survival) fault(count *int, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*count++
	s.faulty = append(s.faulty, fmt.Sprintf(format, args...))
}

// run runs the job to its end.
func (s *survival) run(t *testing.T) {
	if s.witness != nil {
		defer s.witness.end()
	}
	s.strike()
	select {
	case <-s.over:
	case <-time.After(survivalSteps*stepTime + 10*stuck):
		buf := make([]byte, 1<<20)
		t.Logf("seed %d hangs:\n%s", s.seed, buf[:runtime.Stack(buf, true)])
		s.mu.Lock()
		for _, r := range s.ranks {
			if !r.ended {
				s.hangs++
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
}

// alive returns the ranks that have been in a group and are not struck, in random order.
func (s *survival) alive(rng *rand.Rand) (list []*survivor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.ranks {
		if !r.ended && !r.struck && r.groups > 0 {
			list = append(list, r)
		}
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// strike lets events happen until the job is over, or has few ranks.
func (s *survival) strike() {
	rng := rand.New(rand.NewPCG(s.seed, 0x6c6f7373))
	gap := 3 * stuck / 10
	if !s.calm {
		gap = time.Duration(rng.Int64N(int64(2 * time.Minute)))
	}
	for range 20 {
		pause := 5*time.Second + gap
		if !s.calm {
			pause = time.Duration(rng.Int64N(int64(gap) + 1))
		}
		select {
		case <-s.over:
			return
		case <-time.After(pause):
		}
		list := s.alive(rng)
		if len(list) < 3 {
			return
		}
		if first := slices.MinFunc(list, func(a, b *survivor) int { return a.no - b.no }); rng.IntN(3) == 0 {
			i := slices.Index(list, first)
			list[0], list[i] = list[i], list[0]
		}
		some := list[:1+rng.IntN(min(3, (len(list)-1)/2))]
		if rng.IntN(4) == 0 {
			some = list[:1+rng.IntN((len(list)-1)/2)]
		}
		if s.oneHost && !s.calm && rng.IntN(4) == 0 {
			some = list[:1+rng.IntN(len(list)-1)]
		}
		if s.witness != nil && rng.IntN(2) == 0 {
			s.witness.strike(rng)
			continue
		}
		switch rng.IntN(8) {
		case 0:
			for range 1 + rng.IntN(3) {
				s.later(time.Duration(rng.Int64N(int64(time.Second))), added, rng.IntN(s.size))
			}
		case 1:
			s.note(some, left)
		default:
			s.lose(rng, some)
		}
	}
}

// note counts an event of some ranks.
func (s *survival) note(some []*survivor, e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	connecting := slices.ContainsFunc(s.ranks, func(r *survivor) bool { return !r.ended && !r.struck && r.groups > 0 && r.rank < 0 })
	for _, r := range some {
		r.struck, r.leaves = true, e == left
		s.counts[e]++
		for mark, is := range map[event]bool{ofRank0: r.rank == 0, together: len(some) > 1, meanwhile: connecting} {
			if is {
				s.counts[mark]++
			}
		}
	}
}

// lose strikes some ranks.
func (s *survival) lose(rng *rand.Rand, some []*survivor) {
	lasting := time.Duration(rng.Int64N(int64(3 * time.Minute)))
	e := [...]event{killed, killed, killed, stopped, isolated, parted}[rng.IntN(6)]
	if s.oneHost && e > stopped {
		e = killed
	}
	s.note(some, e)
	var hosts []*simnet.Host
	for _, r := range some {
		hosts = append(hosts, r.host)
		switch e {
		case killed:
			r.host.Kill()
			r.cancel()
			if rng.IntN(2) == 0 {
				s.later(time.Duration(rng.Int64N(int64(10*time.Second))), replaced, r.place)
			}
			continue
		case isolated:
			r.host.Isolate(lasting)
		case stopped:
			r.host.Stall(lasting)
		}
		s.later(lasting, returned, -1)
	}
	if e == parted {
		s.net.Part(hosts, lasting)
	}
}

var (
	errPlanned = errors.New("the ranks let others in")
	errLeaves  = errors.New("this rank leaves, as planned")
)

// work makes the steps.
func (r *survivor) work(ctx context.Context) error {
	meet, members := "file://"+r.dir, ""
	if r.witness != nil {
		meet, members = "tcp://"+r.ip(0)+":29500", filepath.Join(r.dir, fmt.Sprint(r.place))
	}
	g, err := comm.Connect(ctx, comm.Config{
		Rank: r.place, Size: r.size, Rendezvous: meet, Members: members, Job: fmt.Sprint("survival ", r.seed), Secret: secret, Listen: r.ip(r.no),
		Host: fmt.Sprint("host-", r.no), Transport: comm.TCP, Timeout: limit, JoinTimeout: joinLimit, Logger: slog.New(slog.DiscardHandler),
		Join: r.no >= r.size, Witness: r.witness.address(), ReplaceTimeout: time.Duration(r.seed%5) * 5 * time.Second,
	})
	for err == nil {
		err = r.train(ctx, g)
		r.mu.Lock()
		r.rank = -1
		r.mu.Unlock()
		if err == nil {
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
		_ = g.Close() // it has failed, or this rank leaves
	}
	return err
}

// begin brings this rank to the latest state of the ranks of a group.
func (r *survivor) begin(ctx context.Context, g comm.Group) (id int64, f *formed, err error) {
	first := []int64{r.rng.Int64(), int64(r.done)}
	if err := g.AllReduce(comm.Of(first), comm.Max).Wait(ctx); err != nil {
		return 0, nil, err
	}
	latest := []int64{math.MinInt64}
	if r.done == int(first[1]) {
		latest[0] = r.state
	}
	if err := g.AllReduce(comm.Of(latest), comm.Max).Wait(ctx); err != nil {
		return 0, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups++
	r.rank = g.Rank()
	r.done, r.state = int(first[1]), latest[0]
	if f = r.survival.groups[first[0]]; f == nil {
		f = &formed{time.Now(), g.Size(), map[int]map[int]int{}}
		r.survival.groups[first[0]], r.latest = f, f
	}
	r.group = f
	return first[0], f, nil
}

// train makes steps in a group.
func (r *survivor) train(ctx context.Context, g comm.Group) error {
	id, f, err := r.begin(ctx, g)
	if err != nil {
		return err
	}
	for r.done < survivalSteps {
		pass(stepTime)
		sums := []int64{1, int64(r.done), shareOf(r.state, g.Rank(), g.Size())}
		if err := g.AllReduce(comm.Of(sums), comm.Sum).Wait(ctx); err != nil {
			return err
		}
		if sums[0] != int64(g.Size()) || sums[1] != int64(g.Size()*r.done) {
			r.fault(&r.wrong, "rank %d: a step %d of %d ranks gives %v", r.no, r.done, g.Size(), sums)
		}
		if r.state = int64(mix(uint64(r.state), uint64(sums[2]))); r.state != undisturbed()[r.done+1] {
			r.fault(&r.wrong, "rank %d: wrong state after step %d of %d ranks", r.no, r.done, g.Size())
		}
		r.mu.Lock()
		r.done++
		r.steps++
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
		leaves := r.leaves
		r.mu.Unlock()
		switch {
		case leaves:
			return errLeaves
		case r.planned && r.done%20 == 0:
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
					s.fault(&s.splits, "rank %d makes %d steps in group %d after a later one has formed", r.no, n, id)
				case step >= 0:
					made[step] += n
				}
			}
		}
		for step, n := range made {
			if n > 1 {
				s.fault(&s.doubles, "rank %d makes step %d %d times", r.no, step, n)
			}
		}
		if s.calm && !r.struck && r.err != nil && r.groups > 0 {
			s.fault(&s.incomplete, "rank %d ends with %v", r.no, r.err)
		}
		if r.no >= s.size && r.groups > 0 {
			s.joined++
		}
	}
	s.formed = len(s.groups)
}
