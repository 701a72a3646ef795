package fsdp

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/optim"
)

// health says whether a model can be used.
type health uint8

const (
	running health = iota
	broken         // a pass has failed in the middle, or a group has: ranks may differ
	closed
)

// life is the state of a model, which decides which methods may be called next. Besides its health,
// four facts are independent of each other: a Forward waits for its Backward, others are put aside,
// gradients are not reduced (the engine counts them), and parameters or optimizers are mixed:
// partly old and partly new.
//
//	Forward        forwarded: the last Forward, whose Backward is to come
//	Hold           held: put aside
//	JoinCalls      calls: until its function has returned on all ranks
//	a NoSync pass  unreduced
//	Load, Import   markMixed before the first parameter changes, markWhole after the last
//	a failure      markBroken: nothing but Close helps
type life struct {
	health health
	cause  error          // why it is broken
	last   *pass          // forward done, backward to come
	held   map[*Pass]bool // likewise, put aside
	calls  *calls         // a JoinCalls under way, or nil
	passes int            // of a step on each rank, see Config.VirtualRanks; 0 without it
	uneven bool           // in the last of them some ranks have no batch

	// Load reads state straight into its place, so a failure in the middle leaves a mixture. No
	// caller may continue with it unnoticed: neither with parameters, nor with an optimizer after
	// only the parameters were loaded again.
	mixed    error // of an interrupted Load or Import, until one succeeds
	mixedOpt struct {
		cause error // of one that was changing optimizers, or nil
		lists int   // calls of Params until then: an optimizer made of a later one is whole
	}

	drawn    bool // initial values are
	compared bool // the sources of batches are, see compareSources
	grads    gradients
	sound    atomic.Bool                         // the gradients in the shards are known to be finite
	targets  struct{ counted, all atomic.Int64 } // of passes with a Backward
	updates  updates
	averages int    // pieces that have averages of an optimizer in the place of their values
	moved    string // a frozen parameter that UpdateEMA has changed, or ""
	frozen   struct {
		changes int  // of values, by loads
		lent    bool // FrozenParams has returned pieces, which a program may change
	}
	kept  int // bytes of a MemoryCheckpoint
	watch watch
}

var (
	errClosed = errors.New("the model is closed: call Close after the last use, or Wrap again")
	errFormer = errors.New("the optimizer was made before Freeze, which has changed the trained parameters: make a new one of Sharded.Params, and call its Adopt with the result of Freeze")
	errHalf   = errors.New("the optimizer is partly loaded: load it again, or make a new one of Sharded.Params")
	errCalls  = errors.New("inside JoinCalls each rank runs its own Forward, Backward and Eval, and replays the passes of the others: " +
		"call collectives, such as steps, clipping and saving, before or after JoinCalls, and use plain loops instead of Join")
	errBusy = errors.New("another goroutine runs a method of this Sharded, which supports only one at a time")
	// errOptimMixed is for parameters, too: a caller who has changed a part of an optimizer must
	// notice.
	errOptimMixed = errors.New("a LoadOptimStateDict has failed in the middle and left optimizers partly loaded: call LoadOptimStateDict, Load or Import again")
)

// A methodLock is held while a method of a model, or of an optimizer of its pieces, is at work: see
// enter.
//
//	at work               lock    inner   lent
//	a method              held    -       false
//	an optimizer          held    held    true
//	a method that calls   held    -       true    see lend
//	an optimizer, so      held    held    true
//	a method that asks    held    held    true    see refusal
type methodLock struct {
	sync.Mutex
	rank   int
	missed atomic.Pointer[string] // the method without an error that another goroutine has called meanwhile

	inner sync.Mutex
	lent  atomic.Bool // an optimizer may take inner
	outer bool        // the optimizer that has inner holds the lock, too
}

// enter notes that a method has begun, or returns an error if another goroutine is in one. It reads
// nothing that such a goroutine may write. A method holds the lock from begin to end, except while
// it runs a function of the caller's.
func (b *methodLock) enter(method string) error {
	if !b.TryLock() {
		return fmt.Errorf("fsdp: rank %d: %s: %w", b.rank, method, errBusy)
	}
	if err := b.missedOne(); err != nil && method != "Close" {
		b.leave()
		return fmt.Errorf("fsdp: rank %d: %s: %w", b.rank, method, err)
	}
	return nil
}

// missedOne returns an error, once, if an earlier method without an error result has done nothing.
func (b *methodLock) missedOne() error {
	if name := b.missed.Swap(nil); name != nil {
		return fmt.Errorf("an earlier call of %s did nothing: %w", *name, errBusy)
	}
	return nil
}

// enterOrNote is enter for a method that returns no error: the next method returns it.
func (b *methodLock) enterOrNote(method string) bool {
	if !b.TryLock() {
		b.missed.Store(&method)
		return false
	}
	return true
}

// leave ends a method that enter began.
func (b *methodLock) leave() { b.Unlock() }

// A guard implements optim.Guard for the pieces of a layout of a model.
type guard struct {
	s      *session
	layout *layout.Layout
}

// Enter implements optim.Guard.
func (g guard) Enter(method string, silent bool) error {
	b, err := &g.s.busy, g.s.busy.enter(method)
	if err == nil {
		b.inner.Lock()
		b.outer = true
		b.lent.Store(true)
	} else if !b.takeInner() {
		if silent {
			b.missed.CompareAndSwap(nil, &method)
		}
		return err
	}
	switch {
	case g.s.life.health == closed:
		err = errClosed
	case g.layout != g.s.layout:
		err = errFormer
	default:
		return nil
	}
	g.Leave()
	return fmt.Errorf("fsdp: rank %d: %s: %w", g.s.team.Rank(), method, err)
}

// Leave implements optim.Guard.
func (g guard) Leave() {
	b := &g.s.busy
	outer := b.outer
	if outer {
		b.outer = false
		b.lent.Store(false)
	}
	if b.inner.Unlock(); outer {
		g.s.busy.leave()
	}
}

// takeInner takes inner if the method that holds the lock has lent it.
func (b *methodLock) takeInner() bool {
	if !b.lent.Load() || !b.inner.TryLock() {
		return false
	}
	if !b.lent.Load() { // no longer
		b.inner.Unlock()
		return false
	}
	return true
}

// lend runs f, in which a method that holds the lock calls a method of an optimizer. Other
// goroutines are refused, except at the very beginning and end of f. If one enters first there, f
// is refused, and lend waits for that goroutine.
func (b *methodLock) lend(f func() error) error {
	b.lent.Store(true)
	defer func() {
		b.inner.Lock()
		b.lent.Store(false)
		b.inner.Unlock()
	}()
	if err := f(); err != nil {
		return err
	}
	return b.missedOne()
}

// Lend implements state.Memory.
func (m memory) Lend(f func() error) error { return m.s.busy.lend(f) }

// ready returns an error if an optimizer must not step the pieces that call number list of Params
// has returned, or if the pieces of FrozenParams must not change.
func (g guard) ready(list int, frozen bool) error {
	s, b := g.s, &g.s.busy
	if !b.lent.Load() { // it does not enter its Guard
		if !b.TryLock() {
			return errBusy
		}
		defer b.Unlock()
	} else if !b.outer { // a method only asks
		return s.life.checkStep(g.layout == s.layout, list, s.engine.Pending())
	}
	if err := s.life.checkStep(g.layout == s.layout, list, s.engine.Pending()); err != nil {
		return err
	}
	err := s.drawn()
	if err != nil || frozen {
		return err
	}
	s.life.watch.asked = true
	return s.soundGrads()
}

// tolerance says in which states a method may be called; the zero value is the strictest. No
// collective method may be called on a model that is broken or closed.
type tolerance struct {
	broken    bool // but not closed
	mixed     bool
	held      bool
	unreduced bool
	last      bool // a Forward that waits for its Backward; only Step refuses
	calls     bool // inside JoinCalls
	draws     bool // initial values, as it uses values
}

// tolerances has the tolerance of each method. may checks for a refusal in the order of the fields
// of tolerance. internal/accept/faults/testdata/life.txt lists the results.
var tolerances = map[string]tolerance{
	"Forward":            {held: true, unreduced: true, last: true, calls: true, draws: true},
	"Backward":           {held: true, unreduced: true, last: true, calls: true},
	"Eval":               {held: true, unreduced: true, last: true, calls: true, draws: true},
	"ClipGradNorm":       {mixed: true, held: true, last: true},
	"Unscale":            {mixed: true, held: true, last: true},
	"GradNorms":          {mixed: true, held: true, last: true},
	"FullGrads":          {mixed: true, held: true, last: true},
	"SyncGrads":          {mixed: true, held: true, unreduced: true, last: true},
	"Any":                {mixed: true, held: true, unreduced: true, last: true},
	"Mean":               {mixed: true, held: true, unreduced: true, last: true},
	"ParamNorms":         {mixed: true, held: true, unreduced: true, last: true, draws: true},
	"AverageBuffers":     {mixed: true, held: true, unreduced: true, last: true, draws: true},
	"Summon":             {mixed: true, held: true, unreduced: true, last: true, draws: true},
	"Join":               {mixed: true, held: true, unreduced: true, last: true, draws: true},
	"JoinCalls":          {mixed: true, held: true, unreduced: true, last: true, draws: true},
	"LoadStateDict":      {mixed: true, unreduced: true, last: true},
	"StateDict":          {held: true, unreduced: true, last: true, draws: true},
	"OptimStateDict":     {held: true, unreduced: true, last: true},
	"Export":             {held: true, unreduced: true, last: true, draws: true},
	"Save":               {held: true, unreduced: true, last: true, draws: true},
	"Load":               {mixed: true, unreduced: true, last: true},
	"Import":             {mixed: true, unreduced: true, last: true},
	"LoadOptimStateDict": {mixed: true, held: true, unreduced: true, last: true},
	"Freeze":             {last: true, draws: true},
	"CopyState":          {draws: true},
	saveMemory:           {draws: true},
	loadMemory:           {mixed: true, unreduced: true, last: true},
	"Plan":               {broken: true, mixed: true, held: true, unreduced: true, last: true, calls: true},
	"Step":               {broken: true},
}

// check returns an error if a method cannot be called now. unreduced is the number of passes whose
// gradients are not reduced.
func (l *life) check(method string, unreduced int) error {
	t := tolerances[method]
	switch {
	case l.health == closed:
		return errClosed
	case l.health == broken && !t.broken:
		return l.cause
	case l.mixed != nil && !t.mixed:
		return l.mixed
	case len(l.held) > 0 && !t.held && t.last:
		return fmt.Errorf("%d passes put aside by Hold are waiting for their Backward: call Backward or Discard of each first", len(l.held))
	case (l.last != nil || len(l.held) > 0) && !t.last:
		return errors.New("a Forward waits for its Backward, and parameters must not change in between: call Backward first, or Eval instead of Forward")
	case unreduced > 0 && unreduced < l.passes && !t.unreduced:
		return fmt.Errorf("Config.VirtualRanks makes %d micro-batches of a step on each rank, but only %d have run: run the others%s, or call ZeroGrad",
			l.passes, unreduced, l.without())
	case unreduced > 0 && !t.unreduced:
		return fmt.Errorf("the gradients of %d passes inside NoSync are not reduced: run a Backward outside, SyncGrads or ZeroGrad first", unreduced)
	case l.calls != nil && !t.calls:
		return errCalls
	}
	return nil
}

// backward notes that all ranks begin the Backward of p.
func (l *life) backward(s *session, p *pass) {
	l.grads.add()
	l.sound.Store(false)
	l.watch.backward(s, p)
	if p.dummy || p.declined {
		return
	}
	for _, t := range p.Targets {
		if counted, all, err := targetsOf(p.tensors, t); err == nil { // else Forward has refused them
			l.targets.counted.Add(int64(counted))
			l.targets.all.Add(int64(all))
		}
	}
}

// localError returns err, or another reason why this rank cannot run a method, if the other ranks
// must not get it; else nil.
func (l *life) localError(err error) error {
	switch {
	case l.health == closed: // the others do not need it, and may have left
		return errClosed
	case err == errCalls: // they run something else
		return err
	}
	return nil
}

// checkStep returns an error if an optimizer must not step. The optimizer was made of the pieces
// that call number list of Params has returned, for the layout that the model has now or for a
// former one.
func (l *life) checkStep(now bool, list, unreduced int) error {
	if !now && l.health != closed {
		return errFormer
	}
	if l.mixedOpt.cause != nil && list <= l.mixedOpt.lists && l.health != closed && l.mixed == nil {
		return l.mixedOpt.cause
	}
	return l.check("Step", unreduced)
}

// markBroken records that a failure in the middle of something has ended the use of the model.
func (l *life) markBroken(cause error) {
	if l.health == running {
		l.health, l.cause = broken, cause
	}
}

// markMixed records that parameters are about to change, and optimizers, too, if opt is true. It
// holds until markWhole.
func (l *life) markMixed(what string, opt bool, lists int) {
	l.mixed = fmt.Errorf("%s has failed in the middle and left parameters partly loaded: call Load or Import again", what)
	if opt {
		l.markMixedOpt(what, lists)
	}
}

// markMixedOpt records that optimizers are about to change, or that a change has failed in the
// middle.
func (l *life) markMixedOpt(what string, lists int) {
	l.mixedOpt.cause, l.mixedOpt.lists = fmt.Errorf("%s has failed in the middle: %w", what, errHalf), lists
}

// markWhole records that the parameters are whole again, and the optimizers if opt is true.
func (l *life) markWhole(opt bool) {
	l.mixed = nil
	if opt {
		l.mixedOpt.cause = nil
	}
}

// markWholeOpt records that the optimizers are whole again, and the parameters if only a
// LoadOptimStateDict had made them mixed.
func (l *life) markWholeOpt() {
	if errors.Is(l.mixed, errOptimMixed) {
		l.mixed = nil
	}
	l.mixedOpt.cause = nil
}

// swapped counts a piece whose value is now replaced by its average, or no longer.
func (l *life) swapped(in bool) {
	if l.averages--; in {
		l.averages += 2
	}
}

// checkReplace is checkOptim for a method that replaces or moves the values of parameters. While
// averages are in their place it must not: the next Swap would turn averages into values.
func (s *Sharded) checkReplace(method string, opt optim.Optimizer) error {
	if err := s.checkOptim(method, opt); err != nil || s.life.averages == 0 {
		return err
	}
	return optim.ErrSwapped
}

// checkOptim is checkCall for a method that reads or replaces the state of opt, which may be nil.
func (s *Sharded) checkOptim(method string, opt optim.Optimizer) error {
	if err := s.checkCall(method); err != nil {
		return err
	}
	if tolerances[method].mixed { // it replaces it
		if _, err := s.files.loads.Left(); err != nil { // a read may still change it
			return err
		}
		return s.busy.refusal(opt, errFormer, optim.ErrSwapped)
	}
	return s.busy.refusal(opt, errHalf, errFormer, optim.ErrSwapped)
}

// checkCall returns an error if a method cannot be called now. If the method uses values, checkCall
// draws them.
func (s *session) checkCall(method string) error {
	err := s.life.check(method, s.engine.Pending())
	if err == nil && tolerances[method].draws {
		err = s.drawn()
	}
	return err
}

// drawn draws initial values, unless they are. The caller holds the lock of s.
func (s *session) drawn() error {
	if s.life.drawn {
		return nil
	}
	err := initials{s.layout, s.engine.Shards(), s.trace.params}.draw(s.cfg.Seed)
	s.life.drawn = err == nil
	return err
}

// withoutRank returns err, the error of an exchange for a call. If another rank has closed the
// group, it returns an explanation.
func (s *session) withoutRank(call string, err error) error {
	var blame *comm.RankError
	if !errors.As(err, &blame) || blame.Err != comm.ErrClosed || blame.Rank == s.team.Rank() {
		return err
	}
	when, advice := "", "call "+call+" on every rank, because it is a collective"
	switch {
	case s.life.calls != nil:
		advice = "call JoinCalls on every rank"
	case len(s.loops) > 0:
		when, advice = fmt.Sprintf(" after %d Forwards", s.forwards), "leave the loop over Join in the same iteration on every rank"
	case tolerances[call].calls: // a pass
		when, advice = fmt.Sprintf(" after %d Forwards", s.forwards), "range over Sharded.Join, which goes on until no rank has a batch"
	}
	text := fmt.Sprintf("rank %d of group %q has ended%s, but this rank has not: %s. If that rank ended with an error, its error is the cause", blame.Rank, blame.Group, when, advice)
	return &rewordedError{text, err}
}

// takeLast returns the last Forward, or nil. The caller ends it.
func (l *life) takeLast() *pass {
	p := l.last
	l.last = nil
	return p
}

// waiting returns the passes whose Backward is to come.
func (l *life) waiting() (list []*pass) {
	if l.last != nil {
		list = append(list, l.last)
	}
	for p := range l.held {
		list = append(list, p.p)
	}
	return list
}

// refusal returns the reason why the pieces that opt was made of are of no use, if it is one of
// reasons. opt may be nil. The caller holds the lock.
func (b *methodLock) refusal(opt optim.Optimizer, reasons ...error) error {
	if opt == nil {
		return nil
	}
	b.inner.Lock() // no optimizer comes in between
	b.lent.Store(true)
	defer func() {
		b.lent.Store(false)
		b.inner.Unlock()
	}()
	for _, p := range optim.Params(opt) {
		if p.Ready == nil {
			continue
		}
		err := p.Ready()
		for _, reason := range reasons {
			if errors.Is(err, reason) {
				return err
			}
		}
	}
	return nil
}
