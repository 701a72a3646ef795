package profile

import (
	"errors"
	"math"
	"slices"
)

// A Report names the rank that holds the others up, and the reason.
type Report struct {
	Ranks  []Rank // in the order of their numbers
	Passes int    // number that each rank has run, at least
	Hosts  []Host // hosts on which ranks share cores, or leave some idle

	// Culprits are the ranks that the others wait for: one, or all of a host; none if ranks are
	// even.
	Culprits []int
	Host     string // host of the culprits, if they are all its ranks
	Cause    Cause
	Share    float64 // share of the others' time that they wait for the culprits
	// Op is the operation in which the culprits exceed the others: for ThisCall and EveryCall the
	// call with the largest excess, for SlowLink the operation that waits. It takes them Seconds
	// each time, and Median is the median of the others.
	Op              string
	Seconds, Median float64

	// Transfers is the share of time in which ranks wait for bytes and not for a rank, and Slowest
	// the operation with the longest such wait.
	Transfers float64
	Slowest   string
}

// A Rank is the time of a rank, in seconds a pass.
type Rank struct {
	Rank      int
	Host      string
	Total     float64
	Calls     float64 // computing
	Held      float64 // waiting for ranks that arrive later
	Transfers float64 // waiting for bytes
	Between   float64 // all else: batches, optimizers, other code
	Late      float64 // time that the other ranks together wait for this one
}

// A Host counts the ranks and cores of one host.
type Host struct {
	Name    string
	Ranks   int
	Threads int // threads of these ranks together; each keeps a core busy
	Cores   int // cores of the host that these ranks may use
}

// Cause is the reason why a rank is slow.
type Cause uint8

// The causes.
const (
	Even      Cause = iota // no rank is slow
	ThisCall               // one call is slow, the others are not
	EveryCall              // all calls are equally slow: a slow processor
	SlowLink               // its transfers are slow, its calls are not
	Elsewhere              // neither: the time between operations
)

// String names the cause.
func (c Cause) String() string {
	names := [...]string{"even", "one call", "every call", "slow link", "between operations"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown cause"
}

// A rank is a culprit if the others wait for it at least muchHeld of their time and longHeld
// seconds a pass, and twice as long as for any other rank, and if its excess over them is at least
// half of that. Smaller values change from pass to pass.
const (
	muchHeld = 0.05
	longHeld = 100e-6
	twice    = 2
	half     = 0.5
)

// Find compares the totals of all ranks of a model.
func Find(all []*Totals) (*Report, error) {
	if len(all) == 0 {
		return nil, errors.New("profile: there are no totals")
	}
	if slices.ContainsFunc(all, func(t *Totals) bool { return t.Passes == 0 }) {
		return nil, errNoPass
	}
	all = alike(all)
	f := &finder{all: all, r: &Report{Passes: all[0].Passes}, at: make(map[key]int), late: make([][]float64, len(all))}
	for i := range all[0].Ops {
		o := &all[0].Ops[i]
		f.at[key{o.Kind, o.Name, o.Nth}] = i
	}
	for r, t := range all {
		f.late[r] = make([]float64, len(all))
		f.r.Passes = min(f.r.Passes, t.Passes)
		f.r.Ranks = append(f.r.Ranks, Rank{Rank: t.Rank, Host: t.Host, Total: t.Took.Seconds() / float64(t.Passes)})
	}
	f.hosts()
	f.transfers = make([][]float64, len(all))
	for r := range all {
		f.divide(r)
	}
	f.accuse()
	f.links()
	return f.r, nil
}

// A finder builds a report.
type finder struct {
	all       []*Totals
	r         *Report
	at        map[key]int
	late      [][]float64 // seconds a pass by waiting rank and the rank that it waits for
	transfers [][]float64 // seconds a pass by rank and operation, waiting for bytes
}

// hosts lists the hosts whose ranks compute on more or fewer cores than there are. Ranks that do
// not report both numbers are not counted.
func (f *finder) hosts() {
	for _, t := range f.all {
		if t.Threads == 0 || t.Cores == 0 {
			continue
		}
		i := slices.IndexFunc(f.r.Hosts, func(h Host) bool { return h.Name == t.Host })
		if i < 0 {
			i = len(f.r.Hosts)
			f.r.Hosts = append(f.r.Hosts, Host{Name: t.Host})
		}
		h := &f.r.Hosts[i]
		h.Ranks, h.Threads, h.Cores = h.Ranks+1, h.Threads+t.Threads, max(h.Cores, t.Cores)
	}
	f.r.Hosts = slices.DeleteFunc(f.r.Hosts, func(h Host) bool { return h.Threads == h.Cores })
}

// divide divides the time of a rank into its parts.
func (f *finder) divide(r int) {
	t, rank := f.all[r], &f.r.Ranks[r]
	passes := float64(t.Passes)
	f.transfers[r] = make([]float64, len(t.Ops))
	for i := range t.Ops {
		o := &t.Ops[i]
		took := o.Took.Seconds() / passes
		switch {
		case o.Count == 0:
		case o.computes():
			rank.Calls += took
		case o.waits():
			last, by := f.issued(r, i)
			held := min(max(0, last-f.begin(r, i))*float64(o.Count)/passes, took)
			f.late[r][by] += held
			rank.Held += held
			f.r.Ranks[by].Late += held
			f.transfers[r][i] = took - held
			rank.Transfers += took - held
		}
	}
	rank.Between = max(0, rank.Total-rank.Calls-rank.Held-rank.Transfers)
}

// begin returns the average time after the ranks' agreement at which an operation begins on a rank.
func (f *finder) begin(r, i int) float64 {
	o := &f.all[r].Ops[i]
	return o.Begin.Seconds() / float64(max(1, o.Count))
}

// issued returns when the last rank issues the collective that an operation of rank r waits for,
// and that rank. Collectives issued before the ranks agreed on a backward had been issued by all of
// them.
func (f *finder) issued(r, i int) (last float64, by int) {
	o := &f.all[r].Ops[i]
	issue, ended, strided := i, false, false
	find := func(kind string) bool {
		k, ok := f.at[key{kind, o.Name, o.Nth}]
		if ok && f.all[r].Ops[k].Count > 0 {
			issue = k
		}
		return ok && issue == k
	}
	switch o.Kind {
	case "wait":
		find("gather")
	case "sync":
		find("reduce")
	case "drain":
		if ended = find("sync"); ended { // sync issues the sum over the replicas at its end
			strided = true
		} else {
			find("reduce")
		}
	}
	if f.all[r].Ops[issue].Backward != o.Backward {
		return math.Inf(-1), r
	}
	last, by = math.Inf(-1), r
	for p, t := range f.all {
		if t.Ops[issue].Count == 0 || !peers(f.all[r].Rank, t.Rank, o.Shards, strided) {
			continue
		}
		at := f.begin(p, issue)
		if ended {
			at += t.Ops[issue].Took.Seconds() / float64(t.Ops[issue].Count)
		}
		if at > last {
			last, by = at, p
		}
	}
	return last, by
}

// peers reports whether two ranks take part in the same collectives of a group that is cut over
// shards ranks. Consecutive ranks share the shards, and ranks with the same place among them are
// replicas.
func peers(a, b, shards int, strided bool) bool {
	switch {
	case shards <= 1:
		return true
	case strided:
		return a%shards == b%shards
	default:
		return a/shards == b/shards
	}
}

// accuse finds the culprits: the rank that the others wait for most, or all ranks of its host, if
// they are about as slow.
func (f *finder) accuse() {
	ranks := f.r.Ranks
	worst := 0
	for r := range ranks {
		if ranks[r].Late > ranks[worst].Late {
			worst = r
		}
	}
	accused := []int{worst}
	if mates := f.mates(worst); len(mates) > 1 && len(mates) < len(ranks) {
		rest := f.otherRanks(mates)
		_, mine := f.cause([]int{worst}, rest)
		_, theirs := f.cause(slices.DeleteFunc(slices.Clone(mates), func(r int) bool { return r == worst }), rest)
		if theirs > mine/2 {
			accused = mates
			f.r.Host = ranks[worst].Host
		}
	}
	rest := f.otherRanks(accused)
	var held, total, late, next float64
	for _, r := range rest {
		for _, a := range accused {
			held += f.late[r][a]
		}
		total += ranks[r].Total
		next = max(next, ranks[r].Late)
	}
	for _, a := range accused {
		late += ranks[a].Late
	}
	cause, excess := f.cause(accused, rest)
	if n := float64(len(rest)); n == 0 || held < max(muchHeld*total, longHeld*n) || late < twice*next || excess < half*held/n {
		f.r.Host = ""
		return
	}
	f.r.Share = held / total
	for _, a := range accused {
		f.r.Culprits = append(f.r.Culprits, ranks[a].Rank)
	}
	f.r.Cause = cause
	switch cause {
	case ThisCall:
		f.calls(accused, rest)
	case SlowLink:
		f.r.Op, f.r.Seconds, f.r.Median = f.link(accused, rest)
	}
}

// mates returns the ranks on the host of r.
func (f *finder) mates(r int) (list []int) {
	for i := range f.r.Ranks {
		if f.r.Ranks[i].Host == f.r.Ranks[r].Host {
			list = append(list, i)
		}
	}
	return list
}

// otherRanks returns the ranks that are not in a list.
func (f *finder) otherRanks(list []int) (rest []int) {
	for r := range f.all {
		if !slices.Contains(list, r) {
			rest = append(rest, r)
		}
	}
	return rest
}

// cause returns the part in which ranks exceed the median of the rest most, and the excess. For
// calls it does not decide yet whether one is slow, or all are.
func (f *finder) cause(accused, rest []int) (c Cause, excess float64) {
	excess = math.Inf(-1)
	for _, by := range []struct {
		cause Cause
		of    func(r *Rank) float64
	}{
		{ThisCall, func(r *Rank) float64 { return r.Calls }},
		{SlowLink, func(r *Rank) float64 { return r.Transfers }},
		{Elsewhere, func(r *Rank) float64 { return r.Between }},
	} {
		of := func(i int) float64 { return by.of(&f.r.Ranks[i]) }
		if x := median(accused, of) - median(rest, of); x > excess {
			c, excess = by.cause, x
		}
	}
	return c, excess
}

// calls finds the call with the largest excess over the others, and whether only this call is slow.
func (f *finder) calls(accused, rest []int) {
	type call struct {
		op           *Op
		mine, theirs float64 // seconds each time
	}
	var list []call
	var most, mine, theirs float64
	worst := 0
	for i := range f.all[0].Ops {
		if o := &f.all[0].Ops[i]; o.computes() {
			of := func(r int) float64 { return f.all[r].Ops[i].each() }
			c := call{o, median(accused, of), median(rest, of)}
			if mine, theirs = mine+c.mine, theirs+c.theirs; c.mine-c.theirs > most {
				worst, most = len(list), c.mine-c.theirs
			}
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		f.r.Cause = Elsewhere
		return
	}
	c := list[worst]
	f.r.Op, f.r.Seconds, f.r.Median = c.op.text(), c.mine, c.theirs
	for _, o := range list { // a slow call is slow in forward and backward
		if o.op.Name == c.op.Name {
			mine, theirs = mine-o.mine, theirs-o.theirs
		}
	}
	if mine-theirs > theirs*(c.mine-c.theirs)/c.theirs/3 {
		f.r.Cause = EveryCall
	}
}

// link returns the operation whose wait for bytes exceeds the others' most.
func (f *finder) link(accused, rest []int) (name string, mine, theirs float64) {
	for i := range f.all[0].Ops {
		of := func(r int) float64 { return f.transfers[r][i] }
		if a, b := median(accused, of), median(rest, of); name == "" || a-b > mine-theirs {
			name, mine, theirs = f.all[0].Ops[i].text(), a, b
		}
	}
	return name, mine, theirs
}

// links sets how long all ranks wait for bytes, and the operation with the longest wait.
func (f *finder) links() {
	var waited, total, most float64
	for i := range f.r.Ranks {
		waited += f.r.Ranks[i].Transfers
		total += f.r.Ranks[i].Total
	}
	if total > 0 {
		f.r.Transfers = waited / total
	}
	for i := range f.all[0].Ops {
		sum := 0.0
		for r := range f.all {
			sum += f.transfers[r][i]
		}
		if sum > most {
			most, f.r.Slowest = sum, f.all[0].Ops[i].text()
		}
	}
}

// median returns the median of the ranks' values, or 0 without ranks.
func median(ranks []int, of func(r int) float64) float64 {
	var list []float64
	for _, r := range ranks {
		list = append(list, of(r))
	}
	slices.Sort(list)
	switch n := len(list); {
	case n == 0:
		return 0
	case n%2 == 1:
		return list[n/2]
	default:
		return (list[n/2-1] + list[n/2]) / 2
	}
}
