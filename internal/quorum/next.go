package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// ErrExcluded is wrapped by the error of Next if the others go on without this process.
var ErrExcluded = errors.New("the others have continued without this rank")

// errAbsent is why a member that lives is left out.
var errAbsent = errors.New("it lives, but has not called Reconnect")

// errDone is why requests end when there is a decision.
var errDone = errors.New("decided")

// Next returns the membership with a number, or a later one, which has this process. It decides on
// it with the other members, if need be. After an error the process cannot take part any more: the
// caller calls Close.
func (n *Node) Next(ctx context.Context, number int) (Membership, error) {
	n.mu.Lock()
	n.wanted = max(n.wanted, number)
	n.change()
	n.mu.Unlock()
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, n.cfg.Limit, fmt.Errorf("timed out after %v", n.cfg.Limit))
	defer cancel()
	for {
		now, _ := n.state()
		if now.Number >= number {
			if now.Index(n.self.ID) < 0 {
				return now, fmt.Errorf("%w: group %d has %d ranks", ErrExcluded, now.Number, len(now.Members))
			}
			return now, nil
		}
		if err := n.decide(ctx, now, number, begin); err != nil {
			return now, err
		}
	}
}

// decide returns when there is a membership with the number, or a later one.
func (n *Node) decide(ctx context.Context, now Membership, number int, begin time.Time) error {
	self := now.Index(n.self.ID)
	if self < 0 {
		return ErrExcluded
	}
	ctx, cancel := n.until(ctx, number)
	defer cancel()
	p := &proposal{Node: n, now: now, number: number, self: self, begin: begin, members: make([]standing, len(now.Members)), joining: make([][]Member, len(now.Members)), news: make(chan struct{}, 1)}
	if p.follow(ctx) {
		return p.outcome(ctx)
	}
	return p.run(ctx)
}

// Missing returns the members of the current membership that a decision waits for, if this process
// proposes it.
func (n *Node) Missing() (ranks []int) {
	n.mu.Lock()
	p := n.proposal
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range p.members {
		if !s.waits {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// stagger is how long a process waits for the answer of a member before it asks the next one, too.
const stagger = 250 * time.Millisecond

// follow follows the first member before this one that answers. It returns false when none does, so
// that this process proposes.
func (p *proposal) follow(ctx context.Context) bool {
	type end struct {
		member int
		err    error
	}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard, ends := make(chan int), make(chan end)
	next, running, answer := 0, 0, map[int]bool{}
	start := func() {
		i := next
		next, running = next+1, running+1
		all.Go(func() {
			_, err := p.persist(ctx, p.now.Members[i], request{What: askFollow, Number: p.number}, p.begin, func(r reply) error {
				select {
				case heard <- i:
				case <-ctx.Done():
				}
				if !r.Waits && time.Since(p.begin) >= p.cfg.Limit/2 {
					return errAbsent
				}
				return nil
			})
			select {
			case ends <- end{i, err}:
			case <-ctx.Done():
			}
		})
	}
	for next < p.self || running > 0 {
		if running == 0 {
			start()
		}
		timer := time.NewTimer(stagger)
		var more <-chan time.Time
		if next < p.self && len(answer) == 0 {
			more = timer.C
		}
		select {
		case i := <-heard:
			answer[i] = true
		case e := <-ends:
			if e.err == nil {
				return true
			}
			running--
			delete(answer, e.member)
			p.members[e.member] = p.standing(p.now.Members[e.member], e.err)
		case <-more:
			start()
		case <-ctx.Done():
			return true
		}
		timer.Stop()
	}
	return false
}

// until returns a context that ends with errDone when there is a membership with the number.
func (n *Node) until(ctx context.Context, number int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			now, changed := n.state()
			if now.Number >= number {
				cancel(errDone)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-n.ctx.Done():
				cancel(errors.New("this rank has closed its group"))
				return
			}
		}
	})
	return ctx, func() { cancel(nil); watch.Wait() }
}

// standing is the state of a member as a proposer sees it.
type standing struct {
	waits bool  // in Next
	lost  bool  // it has ended, or is silent
	dead  bool  // certainly
	err   error // the latest
}

// standing returns the state of a member that a request has failed for.
func (n *Node) standing(m Member, err error) standing {
	return standing{lost: !errors.Is(err, errAbsent), dead: ended(err) && n.certain(m) || errors.Is(err, errDeparted), err: err}
}

// proposal is a process that proposes a membership.
type proposal struct {
	*Node
	now    Membership
	number int
	self   int
	begin  time.Time
	round  int // the highest seen
	news   chan struct{}

	mu      sync.Mutex
	members []standing
	moved   time.Time  // when a member has come or gone
	joining [][]Member // by member: processes that wait to join, and ask it
	vote    vote
}

// hesitation is how long a proposer waits after a member has come or gone, if another one is
// silent: when a network that was cut is whole again, all of them come back within this time.
const hesitation = dialTime + time.Second

// reportTime is how long a proposer without a majority waits for the report of a member that has
// ended: it may have left as planned.
const reportTime = time.Second

// run proposes until there is a decision.
func (p *proposal) run(ctx context.Context) error {
	var visits sync.WaitGroup
	visiting, cancel := context.WithCancel(ctx)
	defer visits.Wait()
	defer cancel()
	p.members[p.self].waits = true
	p.propose(p)
	defer p.propose(nil)
	for i := range p.members {
		if i != p.self {
			visits.Go(func() { p.visit(visiting, i) })
		}
	}
	if p.now.Witness != (Member{}) {
		visits.Go(func() { p.watch(visiting) })
	}
	tick := time.NewTicker(beat / 20)
	defer tick.Stop()
	settled := time.Time{} // since then no member is awaited
	for pause := 100 * time.Millisecond; ; {
		value, err := p.value()
		switch {
		case err != nil:
			return err
		case value == nil:
			settled = time.Time{}
		case settled.IsZero():
			settled = time.Now()
		}
		if value != nil && (len(value.Members)+p.departed() >= len(p.now.Members) || time.Since(settled) >= p.cfg.Replace) {
			if p.ballot(ctx, value) {
				return nil
			}
			// Another process proposes, too, or too few have answered. The first of them tries again first.
			timer := time.NewTimer(pause + time.Duration(p.self)*pause/4)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			pause = min(2*pause, 2*time.Second)
		}
		select {
		case <-tick.C:
		case <-p.news:
		case <-ctx.Done():
			return p.outcome(ctx)
		}
	}
}

// propose sets the current proposal of this process.
func (n *Node) propose(p *proposal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.proposal = p
}

// visit awaits member i, and watches it then.
func (p *proposal) visit(ctx context.Context, i int) {
	for begin := p.begin; ctx.Err() == nil; {
		r, err := p.persist(ctx, p.now.Members[i], request{What: askAwait, Number: p.number}, begin, func(r reply) error {
			p.set(i, standing{err: errAbsent}, r.Joining)
			return nil
		})
		switch {
		case err == nil && r.Decided != nil:
			return
		case err == nil: // and from now on it must live
			p.set(i, standing{waits: true}, r.Joining)
			_, _, err = p.try(ctx, p.now.Members[i], request{What: askFollow, Number: p.number}, func(r reply) error {
				p.set(i, standing{waits: true}, r.Joining)
				return nil
			})
			if err != nil && ctx.Err() == nil && !ended(err) {
				p.set(i, standing{err: errAbsent}, nil) // until it answers again: it may have been killed
				begin = time.Now()
				continue
			}
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case ended(err):
			p.set(i, p.standing(p.now.Members[i], err), nil)
			select {
			case <-p.life(p.now.Members[i].ID).Done(): // its report came later than its end
				p.set(i, p.standing(p.now.Members[i], errDeparted), nil)
			case <-ctx.Done():
			}
			return
		}
		p.set(i, p.standing(p.now.Members[i], err), nil) // but it may be back
		timer := time.NewTimer(time.Second)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		begin = time.Now().Add(-silence)
	}
}

func (p *proposal) set(i int, s standing, joining []Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.members[i]; old.waits != s.waits || old.lost != s.lost {
		p.moved = time.Now()
	}
	p.members[i], p.joining[i] = s, joining
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// value returns the membership to propose, or nil as long as members are awaited or there is no
// majority. An error says that there never will be.
func (p *proposal) value() (*Membership, error) {
	p.Node.mu.Lock()
	here := p.Node.joining
	p.Node.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	late := time.Since(p.begin) >= p.cfg.Limit/2
	waits := func(i int) bool { return p.members[i].waits }
	for _, s := range p.members {
		silent := s.lost && !ended(s.err)
		overdue := late && errors.Is(s.err, errAbsent)
		if !s.waits && !s.lost && !overdue || silent && time.Since(p.moved) < hesitation {
			return nil, nil
		}
	}
	if p.now.Witness != (Member{}) && !p.vote.asked {
		return nil, nil
	}
	dead := func(i int) bool { return p.members[i].dead }
	if !p.now.suffices(waits, dead, p.votes()) {
		pending := slices.ContainsFunc(p.members, func(s standing) bool { return !s.waits && !ended(s.err) })
		pending = pending || p.vote.err != nil && !ended(p.vote.err) && p.now.suffices(waits, dead, true)
		if pending || time.Since(p.begin) < reportTime || time.Since(p.moved) < reportTime {
			return nil, nil
		}
		return nil, p.minority()
	}
	var joining []Member
	for _, m := range slices.Concat(append(p.joining, here)...) {
		if !slices.ContainsFunc(joining, func(o Member) bool { return o.ID == m.ID }) {
			joining = append(joining, m)
		}
	}
	next := p.now.next(waits, joining)
	if p.vote.id != "" { // else the last one may live
		next.Witness.ID = p.vote.id
	}
	return next, nil
}

// departed returns the number of members that have left as planned: no process has to replace them.
func (p *proposal) departed() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.members {
		if errors.Is(s.err, errDeparted) {
			n++
		}
	}
	return n
}

// outcome returns the error of a decision that has not come about, if it has not.
func (p *proposal) outcome(ctx context.Context) error {
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), errDone) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.minority()
	return fmt.Errorf("%w; %w", context.Cause(ctx), err)
}

// minority is the error of ranks that are no majority. The caller holds p.mu.
func (p *proposal) minority() error {
	var missing []int
	var why error
	for i, s := range p.members {
		if i != p.self && !s.waits && s.err != nil {
			missing = append(missing, i)
			if why == nil {
				why = fmt.Errorf("rank %d: %w", i, s.err)
			}
		}
	}
	n := len(p.members)
	if why == nil {
		return fmt.Errorf("the %d ranks of group %d have not agreed on the next group", n, p.now.Number)
	}
	if !p.members[p.self].waits { // this process follows the first one that answers, and asks none after it
		first := slices.IndexFunc(p.members, func(s standing) bool { return s.err == nil })
		return fmt.Errorf("ranks %v of group %d do not answer (%w), and rank %d has not decided without them: see its error", missing, p.now.Number, why, first)
	}
	half := "rank 0"
	if p.now.Witness != (Member{}) {
		half = "the witness"
	}
	return fmt.Errorf("ranks %v of group %d do not answer (%w)%s: %d of its %d ranks are left, and more than half, or half with %s, must be, as the others may continue",
		missing, p.now.Number, why, p.absence(), n-len(missing), n, half)
}

// ballot tries to decide on value, or on the value that another process has proposed. It reports
// whether there is a decision.
func (p *proposal) ballot(ctx context.Context, value *Membership) bool {
	p.round++
	b := Ballot{p.round, p.self}
	accepted := value
	if p.ask(ctx, request{What: askPrepare, Number: p.number, Ballot: b}, func(r reply) {
		if r.Value != nil && accepted.Ballot.less(r.Value.Ballot) {
			accepted = r.Value
		}
	}) {
		proposed := *accepted
		proposed.Ballot = b
		if p.ask(ctx, request{What: askAccept, Number: p.number, Value: &proposed}, func(reply) {}) {
			p.Node.mu.Lock()
			p.learn(&proposed, b)
			p.Node.mu.Unlock()
		}
	}
	return p.decided()
}

func (p *proposal) decided() bool {
	now, _ := p.state()
	return now.Number >= p.number
}

// ask sends a request to this process, and then to all members that answer, until enough members
// agree. If the witness is needed, too, it is asked last: its vote completes the decision.
func (p *proposal) ask(ctx context.Context, q request, yes func(reply)) bool {
	all := ctx
	ctx, cancel := context.WithTimeout(all, askTime)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	type result struct {
		member int
		reply
	}
	results := make(chan result, len(p.members))
	p.mu.Lock()
	dead := make([]bool, len(p.members))
	var asked []int
	for i, s := range p.members {
		if dead[i] = s.dead; i != p.self && !s.lost {
			asked = append(asked, i)
		}
	}
	p.mu.Unlock()
	agree := make([]bool, len(p.members))
	hear := func(r result) {
		if p.round = max(p.round, r.Ballot.Round); r.OK {
			agree[r.member] = true
			yes(r.reply)
		}
	}
	own, _ := p.answer(&q)
	if hear(result{p.self, own}); !own.OK {
		return false
	}
	for _, i := range asked {
		asking.Go(func() {
			r, err := p.call(ctx, p.now.Members[i], q, nil)
			if err != nil {
				r = reply{}
			}
			results <- result{i, r}
		})
	}
	enough := func(witness bool) bool {
		return p.now.suffices(func(i int) bool { return agree[i] }, func(i int) bool { return dead[i] }, witness)
	}
	for range asked {
		if enough(false) || p.decided() {
			break
		}
		hear(<-results)
	}
	return enough(!enough(false) && enough(true) && !p.decided() && p.consult(all, q, yes)) && !p.decided()
}
