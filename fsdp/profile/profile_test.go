package profile_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/profile"
	"github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A job is ranks that train, by clocks of their own: times in milliseconds.
type job struct {
	calls    []string
	forward  func(rank, call int) float64 // a backward takes twice as long
	transfer func(rank int) float64       // of any collective, to that rank
	between  func(rank int) float64       // what comes before a forward
	host     func(rank int) string

	ranks  []*profile.Profile
	now    []float64
	issued map[string][]float64 // by collective and rank
	pass   int
}

// newJob returns a job of even ranks.
func newJob(ranks int) *job {
	return &job{
		calls: []string{"wte", "blocks.0", "blocks.1", "blocks.2", "head"}, now: make([]float64, ranks),
		forward:  func(_, call int) float64 { return 4 + float64(call) },
		transfer: func(int) float64 { return 0.5 }, between: func(int) float64 { return 3 },
		host: func(int) string { return "node" }, issued: make(map[string][]float64),
	}
}

// at returns a time by the clock of a rank, which is hours beside the others.
func at(rank int, ms float64) time.Time {
	return time.Unix(int64(3600*rank), int64(1e6*ms))
}

// op runs an operation on all ranks: until says when it is over on each.
func (j *job) op(kind, name string, until func(rank int) float64) {
	for r, p := range j.ranks {
		end := until(r)
		p.Record(profile.Operation{Pass: j.pass, Kind: kind, Name: name, Shards: len(j.ranks), Begin: at(r, j.now[r]), Took: at(r, end).Sub(at(r, j.now[r])), Live: 100})
		j.now[r] = end
	}
}

func (j *job) issue(kind, name string) {
	j.issued[name] = slices.Clone(j.now)
	j.op(kind, name, func(r int) float64 { return j.now[r] + 0.01 })
}

func (j *job) await(kind, name string) {
	last := slices.Max(j.issued[name])
	j.op(kind, name, func(r int) float64 { return max(j.now[r], last+j.transfer(r)) })
}

func (j *job) agree(call string) {
	end := slices.Max(j.now) + 0.02
	for r, p := range j.ranks {
		p.Agreed(call, at(r, j.now[r]), at(r, end))
		j.now[r] = end
	}
}

// train runs passes with one unit gathered ahead, the first of which does not count.
func (j *job) train(passes int) []*profile.Totals {
	for r := range j.now {
		p := profile.New()
		err := p.Attach(profile.Target{Group: comm.World{Ranks: len(j.now), Place: r}, Host: j.host(r)})
		if err != nil {
			panic(err)
		}
		j.ranks = append(j.ranks, p)
	}
	for range passes + 1 {
		for r := range j.now {
			j.now[r] += j.between(r)
		}
		j.agree("Forward")
		j.pass++
		j.half("forward", j.calls, 1)
		j.agree("Backward")
		back := slices.Clone(j.calls)
		slices.Reverse(back)
		j.half("backward", back, 2)
	}
	var all []*profile.Totals
	for _, p := range j.ranks {
		all = append(all, p.Totals())
	}
	return all
}

func (j *job) half(kind string, calls []string, times float64) {
	j.issue("gather", calls[0])
	for i, name := range calls {
		if i+1 < len(calls) {
			j.issue("gather", calls[i+1])
		}
		j.await("wait", name)
		j.op(kind, name, func(r int) float64 { return j.now[r] + times*j.forward(r, slices.Index(j.calls, name)) })
		if kind == "backward" {
			j.issue("reduce", name)
			if i > 0 {
				j.await("drain", calls[i-1])
			}
		}
	}
	if kind == "backward" {
		j.await("drain", calls[len(calls)-1])
	}
}

// TestStragglers plants what is slow.
func TestStragglers(t *testing.T) {
	slow := func(of func(int) float64, ranks []int, by float64) func(int) float64 {
		return func(r int) float64 {
			if slices.Contains(ranks, r) {
				return of(r) * by
			}
			return of(r)
		}
	}
	for name, c := range map[string]struct {
		ranks    int
		plant    func(j *job)
		culprits []int
		cause    profile.Cause
		words    []string
	}{
		"even":     {4, func(j *job) {}, nil, profile.Even, []string{"No rank delays the others."}},
		"one rank": {1, func(j *job) {}, nil, profile.Even, []string{"No rank"}},
		"one call": {8, func(j *job) {
			j.forward = func(r, c int) float64 {
				if r == 3 && c == 2 {
					return 12
				}
				return 6
			}
		}, []int{3}, profile.ThisCall, []string{"Rank 3 holds up the others, which wait", `It computes "backward blocks.1" in 24.0 ms where the median of the others needs 12.0 ms. That call alone is slow.`}},
		"every call": {4, func(j *job) {
			of := j.forward
			j.forward = func(r, c int) float64 { return slow(func(r int) float64 { return of(r, c) }, []int{2}, 1.5)(r) }
		}, []int{2}, profile.EveryCall, []string{"Rank 2 holds", "All its calls are slow: they take 1.50 times as long", `"backward head" in 24.0 ms`}},
		"a host": {8, func(j *job) {
			of := j.forward
			j.forward = func(r, c int) float64 {
				return slow(func(r int) float64 { return of(r, c) }, []int{4, 5, 6, 7}, 1.5+float64(r)/100)(r)
			}
			j.host = func(r int) string { return fmt.Sprint("node", r/4) }
		}, []int{4, 5, 6, 7}, profile.EveryCall, []string{"Host node1, ranks 4-7, holds up the others"}},
		"a rank on a host": {8, func(j *job) {
			of := j.forward
			j.forward = func(r, c int) float64 { return slow(func(r int) float64 { return of(r, c) }, []int{6}, 1.5)(r) }
			j.host = func(r int) string { return fmt.Sprint("node", r/4) }
		}, []int{6}, profile.EveryCall, []string{"Rank 6 on node1 holds up the others"}},
		"a link": {4, func(j *job) { j.transfer = slow(j.transfer, []int{1}, 20) },
			[]int{1}, profile.SlowLink, []string{"Rank 1 holds", "Its link is slow, its calls are not"}},
		"all links": {4, func(j *job) { j.transfer = slow(j.transfer, []int{0, 1, 2, 3}, 20) },
			nil, profile.Even, []string{"No rank delays the others.", "Waiting for transfers takes 29 % of all time, most in \"wait wte\"."}},
		"batches": {4, func(j *job) { j.between = slow(j.between, []int{0}, 10) },
			[]int{0}, profile.Elsewhere, []string{"Rank 0 holds", "between operations it takes 30.1 ms", "for batches, the optimizer or other code"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(c.ranks)
			c.plant(j)
			r, err := profile.Find(j.train(5))
			require.NoError(t, err)
			require.Equal(t, c.culprits, r.Culprits, r)
			require.Equal(t, c.cause, r.Cause, r)
			require.Empty(t, text.Wider(r.String(), 74))
			for _, words := range c.words {
				require.Contains(t, strings.ReplaceAll(r.String(), "\n", " "), words)
			}
			for _, k := range r.Ranks {
				require.InDelta(t, k.Total, k.Calls+k.Held+k.Transfers+k.Between, 1e-9)
				require.GreaterOrEqual(t, k.Between, -1e-9)
			}
		})
	}
}

// TestShare has two ranks, of which one computes 40 ms longer in a pass that then takes 100: the
// other waits for it as long.
func TestShare(t *testing.T) {
	j := newJob(2)
	j.calls = []string{"a"}
	j.transfer, j.between = func(int) float64 { return 0 }, func(int) float64 { return 10 }
	j.forward = func(r, _ int) float64 { return 30 - 40.0/3*float64(1-r) }
	r, err := profile.Find(j.train(50))
	require.NoError(t, err)
	require.Equal(t, []int{1}, r.Culprits)
	require.InDelta(t, 0.40, r.Share, 0.002)
	require.InDelta(t, 0.040, r.Ranks[0].Held, 0.001)
	require.InDelta(t, 0, r.Ranks[1].Held, 1e-6)
	require.InDelta(t, 0.040, r.Ranks[1].Late, 0.001)
}

// TestPlanted plants a slow call on any rank of any job, whose times vary a little.
func TestPlanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(2, 9).Draw(t, "ranks")
		j := newJob(ranks)
		culprit, call := rapid.IntRange(0, ranks-1).Draw(t, "culprit"), rapid.IntRange(0, len(j.calls)-1).Draw(t, "call")
		times := rapid.SliceOfN(rapid.Float64Range(1, 10), len(j.calls), len(j.calls)).Draw(t, "times")
		planted := rapid.Float64Range(2, 5).Draw(t, "planted") * 10
		noise := rapid.SliceOfN(rapid.Float64Range(0.99, 1), 64, 64).Draw(t, "noise")
		n := 0
		j.forward = func(r, c int) float64 {
			n++
			if r == culprit && c == call {
				return planted
			}
			return times[c] * noise[n%len(noise)]
		}
		r, err := profile.Find(j.train(3))
		require.NoError(t, err)
		require.Equal(t, []int{culprit}, r.Culprits, r)
		require.Equal(t, profile.ThisCall, r.Cause, r)
		require.Contains(t, r.Op, j.calls[call])
	})
}

// TestCounts compares the totals of a rank with what it has run, after a Reset too.
func TestCounts(t *testing.T) {
	j := newJob(2)
	all := j.train(4)
	require.Equal(t, 4, all[1].Passes)
	counts := make(map[string]int)
	for _, o := range all[1].Ops {
		require.Equal(t, 4, o.Count, o)
		counts[o.Kind]++
	}
	require.Equal(t, map[string]int{"agree": 2, "gather": 10, "wait": 10, "forward": 5, "backward": 5, "reduce": 5, "drain": 5}, counts)
	j.ranks[1].Reset()
	again := j.ranks[1].Totals()
	require.Zero(t, again.Passes)
	for _, o := range again.Ops {
		require.Zero(t, o.Count)
	}
	_, err := profile.Find([]*profile.Totals{again})
	require.ErrorContains(t, err, "no pass has been counted")
}

// TestCoresOfHosts has ranks share cores on one host, leave some idle on another, and use all on
// the third.
func TestCoresOfHosts(t *testing.T) {
	said := func(hosts ...profile.Host) string {
		var all []*profile.Totals
		for _, h := range hosts {
			for range h.Ranks {
				all = append(all, &profile.Totals{Rank: len(all), Host: h.Name, Threads: h.Threads / h.Ranks, Cores: h.Cores, Passes: 1, Took: time.Second})
			}
		}
		r, err := profile.Find(all)
		require.NoError(t, err)
		return strings.ReplaceAll(r.String(), "\n", " ")
	}
	a, b, c := profile.Host{Name: "a", Ranks: 4, Threads: 4, Cores: 2}, profile.Host{Name: "b", Ranks: 1, Threads: 2, Cores: 16}, profile.Host{Name: "c", Ranks: 2, Threads: 2, Cores: 2}
	require.Contains(t, said(a), "4 ranks share 2 cores: they wait for a core, which counts below as waiting for ranks and transfers. Run fewer ranks there. No rank")
	require.Contains(t, said(b), "1 rank with 2 threads: 2 of 16 cores in use. More ranks (fsdprun -n) or Config.Threads use the others. No rank")
	require.Regexp(t, "^No rank", said(c))
	require.Regexp(t, "^4 ranks share 2 cores of a: .* there. 1 rank with 2 threads: 2 of 16 cores of b in use.* others. No rank", said(a, c, b))
	require.Contains(t, said(a, b, a, profile.Host{Name: "d", Ranks: 1, Threads: 1, Cores: 2}, profile.Host{Name: "e", Ranks: 1, Threads: 1, Cores: 2},
		profile.Host{Name: "f", Ranks: 1, Threads: 1, Cores: 2}), "8 ranks share 2 cores of a: ")
	require.Regexp(t, "^No rank", said(profile.Host{Name: "gpu", Ranks: 4}))
}

// TestCoresAreExchanged collects the number of cores that each rank of a group uses.
func TestCoresAreExchanged(t *testing.T) {
	require.NoError(t, comm.Run(t.Context(), 3, func(ctx context.Context, g comm.Group) error {
		p := profile.New()
		if err := p.Attach(profile.Target{Group: g, Host: "here", Threads: 1 + g.Rank(), Cores: 4}); err != nil {
			return err
		}
		for pass := range 2 {
			p.Record(profile.Operation{Pass: pass + 1, Kind: "forward", Name: "a", Begin: at(0, float64(pass)), Took: time.Millisecond})
		}
		r, err := p.Stragglers(ctx)
		if err == nil && !slices.Equal(r.Hosts, []profile.Host{{Name: "here", Ranks: 3, Threads: 6, Cores: 4}}) {
			err = fmt.Errorf("hosts are %v", r.Hosts)
		}
		return err
	}))
}

// TestEvaluation leaves evaluations out.
func TestEvaluation(t *testing.T) {
	p := profile.New()
	for pass, eval := range []bool{true, false, true, false, true} {
		p.Record(profile.Operation{Pass: pass + 1, Kind: "forward", Name: "a", Begin: at(0, float64(pass)), Took: time.Millisecond, Eval: eval})
	}
	require.Equal(t, 1, p.Totals().Passes)
	require.Equal(t, 1, p.Totals().Ops[0].Count)
}

// TestHeldPasses runs forwards of two passes, an evaluation, and then their backwards, as Hold
// lets.
func TestHeldPasses(t *testing.T) {
	p, now := profile.New(), 0.0
	op := func(pass int, kind string, eval bool) {
		p.Record(profile.Operation{Pass: pass, Kind: kind, Name: "a", Begin: at(0, now), Took: time.Millisecond, Eval: eval})
		now++
	}
	for pass := 1; pass < 13; pass += 3 {
		for _, half := range []string{"Forward", "Backward"} {
			for i := range 2 {
				p.Agreed(half, at(0, now), at(0, now))
				op(pass+i, "gather", false)
				op(pass+i, strings.ToLower(half), false)
			}
			op(pass+2, "forward", true)
		}
	}
	all := p.Totals()
	require.Equal(t, 7, all.Passes, "without the first")
	for _, o := range all.Ops {
		if o.Kind != "agree" {
			require.Equal(t, 7, o.Count, o)
		}
	}
	require.Len(t, all.Ops, 6)
}

// TestResetKeepsTheFile ends a run with a Reset, as a monitor does: the file has what was counted.
func TestResetKeepsTheFile(t *testing.T) {
	p, path := profile.New(), filepath.Join(t.TempDir(), "totals.json")
	require.NoError(t, p.Attach(profile.Target{Group: comm.World{Ranks: 1}, Path: path}))
	for pass := range 3 {
		p.Agreed("Forward", at(0, float64(pass)), at(0, float64(pass)))
		p.Record(profile.Operation{Pass: pass + 1, Kind: "forward", Name: "a", Begin: at(0, float64(pass)), Took: time.Millisecond})
	}
	p.Reset()
	require.NoError(t, p.Close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), `"Passes":2`)
}

// TestNoAllocation counts a pass.
func TestNoAllocation(t *testing.T) {
	j := newJob(1)
	j.train(2)
	p := j.ranks[0]
	require.Zero(t, testing.AllocsPerRun(100, func() {
		j.pass++
		p.Agreed("Forward", at(0, 0), at(0, 1))
		p.Record(profile.Operation{Pass: j.pass, Kind: "gather", Name: "wte", Begin: at(0, 1), Took: 3})
		p.Record(profile.Operation{Pass: j.pass, Kind: "forward", Name: "head", Begin: at(0, 2), Took: 3})
	}))
}

// TestStragglersOfGroup exchanges what ranks have counted: the same operations, and others.
func TestStragglersOfGroup(t *testing.T) {
	for _, names := range [][]string{{"a", "a", "a"}, {"a", "b", "longer"}} {
		reports := make([]*profile.Report, 3)
		require.NoError(t, comm.Run(t.Context(), 3, func(ctx context.Context, g comm.Group) (err error) {
			p := profile.New()
			if _, err := p.Stragglers(ctx); err == nil || !strings.Contains(err.Error(), "no model was wrapped") {
				return fmt.Errorf("without a model: %v", err)
			}
			if err := p.Attach(profile.Target{Group: g, Host: strings.Repeat("host", 15)}); err != nil {
				return err
			}
			if err := p.Attach(profile.Target{Group: g}); err == nil {
				return errors.New("a second model was accepted")
			}
			took := time.Duration(10+20*(g.Rank()/2)) * time.Millisecond
			for pass := range 3 {
				p.Agreed("Forward", at(0, float64(100*pass+int(took.Milliseconds()))), at(0, float64(100*pass+30)))
				p.Record(profile.Operation{Pass: pass + 1, Kind: "forward", Name: names[g.Rank()], Begin: at(0, float64(100*pass+30)), Took: took})
			}
			reports[g.Rank()], err = p.Stragglers(ctx)
			return err
		}))
		require.Equal(t, reports[0], reports[1])
		require.Equal(t, reports[0], reports[2])
		require.Equal(t, []int{2}, reports[0].Culprits, reports[0])
		require.Equal(t, "forward "+names[2], reports[0].Op)
		require.Equal(t, strings.Repeat("host", 15), reports[0].Ranks[1].Host)
		require.InDelta(t, 0.030, reports[0].Ranks[2].Calls, 1e-9)
		require.InDelta(t, 0.010, reports[0].Ranks[1].Calls, 1e-9)
	}
}

func BenchmarkRecord(b *testing.B) {
	j := newJob(1)
	j.train(2)
	p := j.ranks[0]
	ops := p.Totals().Ops
	b.ReportAllocs()
	for i := 0; i < b.N; i += len(ops) {
		j.pass++
		for k := range ops {
			p.Record(profile.Operation{Pass: j.pass, Kind: ops[k].Kind, Name: ops[k].Name, Begin: at(0, 1), Took: 3})
		}
	}
}
