package fsdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
)

// method is a collective method of Sharded that a rank has been called for. Ranks agree on it before its first collective.
type method int64

const (
	methodWrap method = iota + 1
	methodForward
	methodBackward
	methodEval
	methodClip
	methodClipInf
	methodState
	methodGrads
	methodNorms
	methodUnscale
	methodSync
	methodFull
	methodSet
	methodFreeze
	methodBuffers
	methodJoin // and those of its policies
	methodJoinShortest
	methodJoinEven
	methodOptimState
	methodSetOptim
	methodExport
	methodImport
	methodSave
	methodLoad
)

// String names the method as its users do.
func (m method) String() string {
	names := map[method]string{
		methodWrap: "Wrap", methodForward: "Forward", methodBackward: "Backward", methodEval: "Eval",
		methodClip: "ClipGradNorm", methodClipInf: "ClipGradNorm of the infinity norm",
		methodState: "FullState", methodGrads: "FullGrads", methodNorms: "GradNorms", methodUnscale: "Unscale", methodSync: "SyncGrads",
		methodFull: "Full", methodSet: "SetFull", methodFreeze: "Freeze", methodBuffers: "AverageBuffers",
		methodOptimState: "FullOptimState", methodSetOptim: "SetFullOptim", methodExport: "Export", methodImport: "Import",
		methodSave: "Save", methodLoad: "Load",
		methodJoin: "Join", methodJoinShortest: "Join with StopAtShortest", methodJoinEven: "Join with RefuseUneven",
	}
	return names[m]
}

// A PeerError is the failure of another rank before a pass, reported on this one, so that no rank waits for a rank that
// will not come.
type PeerError struct {
	Rank    int
	Message string
}

// Error implements error.
func (e *PeerError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Message) }

// exchangeError is a failure of the exchange itself: this rank cannot know what the others make of it.
type exchangeError struct{ err error }

func (e *exchangeError) Error() string { return e.err.Error() }
func (e *exchangeError) Unwrap() error { return e.err }

// agreement is the exchange that starts every pass. Each rank says what it is about to do and whether it can; if one
// cannot, all return its error, and if they are about to do different things, all say so.
type agreement struct {
	group    comm.Group
	send     []int64  // words of this rank
	recv     []int64  // words of all ranks
	programs []string // of the model: the argument of methodEval is 1 more than an index, or 0 for Forward
}

// The words that a rank contributes.
const (
	wordMethod = iota
	wordNumber
	wordArgument // bits of a float64
	wordSchedule
	wordNoSync // 1 inside NoSync
	wordShadow // 1 without a batch
	wordValue  // bits of a float64
	wordFailed // 1 if the rank cannot
	words
)

// request is what a rank is about to do.
type request struct {
	method   method
	number   int     // of the collective method
	argument float64 // that ranks must agree on, if the method has one
	schedule uint64  // hash of the pass, if there is one
	noSync   bool    // a training pass, or a part of it, inside NoSync
	shadow   bool    // without a batch: any schedule will do
	value    float64 // of this rank, which may be another on others: a weight, or the largest gradient
}

// same tells whether two ranks are about to do the same thing.
func (r request) same(o request) bool {
	if o.value = r.value; o.shadow {
		o.schedule = r.schedule
	}
	o.shadow = r.shadow
	return r == o
}

func (r request) String() string {
	text := fmt.Sprintf("%v number %d", r.method, r.number)
	switch {
	case r.method == methodFreeze && r.argument != 0:
		text += " with an optimizer"
	case r.method == methodSet || r.method == methodSetOptim:
		text += fmt.Sprintf(" from rank %v", r.argument)
	case r.method == methodState || r.method == methodOptimState || r.method == methodFull:
		option := "OnlyOn"
		if r.method == methodFull {
			option = "WriteBack"
		}
		if r.argument != everywhere {
			text += fmt.Sprintf(" with %s(%v)", option, r.argument)
		}
	case r.argument != 0:
		text += fmt.Sprintf(" with %v", r.argument)
	}
	if r.noSync {
		text += " inside NoSync"
	}
	if r.schedule != 0 {
		text += fmt.Sprintf(" by schedule %016x", r.schedule)
	}
	return text
}

// text describes r for messages, with the name of the program that it evaluates.
func (a *agreement) text(r request) string {
	i := int(r.argument) - 1
	if r.method != methodEval || i < 0 || i >= len(a.programs) {
		return r.String()
	}
	r.argument = 0
	return fmt.Sprintf("%v of program %s", r, a.programs[i])
}

func newAgreement(g comm.Group) *agreement {
	return &agreement{group: g, send: make([]int64, words), recv: make([]int64, words*g.Size())}
}

// messageSize bounds the error text that a rank tells the others, in bytes.
const messageSize = 1024

// on agrees to run r. err is why this rank cannot, or nil. It returns nil on every rank or an error on every rank, an
// exchangeError if the ranks could not talk.
func (a *agreement) on(ctx context.Context, r request, err error) error {
	a.send[wordMethod], a.send[wordNumber], a.send[wordSchedule] = int64(r.method), int64(r.number), int64(r.schedule)
	a.send[wordArgument], a.send[wordValue] = int64(math.Float64bits(r.argument)), int64(math.Float64bits(r.value))
	a.send[wordNoSync], a.send[wordShadow], a.send[wordFailed] = word(r.noSync), word(r.shadow), word(err != nil && a.group.Size() > 1)
	if a.group.Size() == 1 {
		copy(a.recv, a.send)
		return err
	}
	label := "agreement"
	if werr := a.group.AllGather(comm.Of(a.recv).Named(label), comm.Of(a.send).Named(label)).Wait(ctx); werr != nil {
		return &exchangeError{errors.Join(err, fmt.Errorf("agreeing with the other ranks: %w", werr))}
	}
	for rank := range a.group.Size() {
		if a.recv[words*rank+wordFailed] != 0 {
			return a.tell(ctx, err)
		}
	}
	if lead := a.leader(); r.shadow && lead >= 0 {
		r.schedule = a.request(lead).schedule
	}
	for rank := range a.group.Size() {
		if theirs := a.request(rank); !r.same(theirs) {
			return fmt.Errorf("ranks disagree: rank %d runs %s, rank %d runs %s", a.group.Rank(), a.text(r), rank, a.text(theirs))
		}
	}
	return nil
}

// request returns what another rank has said that it is about to do.
func (a *agreement) request(rank int) request {
	w := a.recv[words*rank:][:words]
	return request{
		method: method(w[wordMethod]), number: int(w[wordNumber]), argument: math.Float64frombits(uint64(w[wordArgument])),
		schedule: uint64(w[wordSchedule]), noSync: w[wordNoSync] != 0, shadow: w[wordShadow] != 0, value: math.Float64frombits(uint64(w[wordValue])),
	}
}

// leader returns the first rank that has a batch, or -1.
func (a *agreement) leader() int {
	for rank := range a.group.Size() {
		if !a.request(rank).shadow {
			return rank
		}
	}
	return -1
}

// shadows returns the ranks that have no batch.
func (a *agreement) shadows() (ranks []int) {
	for rank := range a.group.Size() {
		if a.request(rank).shadow {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// schedules tells whether all ranks know the schedule of the leader.
func (a *agreement) schedules(lead int) bool {
	for rank := range a.group.Size() {
		if a.request(rank).schedule != a.request(lead).schedule {
			return false
		}
	}
	return true
}

func word(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// sum returns the sum of the values that the ranks have just given, in rank order.
func (a *agreement) sum() float64 {
	total := 0.0
	for rank := range a.group.Size() {
		total += a.request(rank).value
	}
	return total
}

// largest returns the largest of those values.
func (a *agreement) largest() float64 {
	most := 0.0
	for rank := range a.group.Size() {
		most = max(most, a.request(rank).value)
	}
	return most
}

// tell exchanges the messages of the ranks that failed and joins those that say more than this rank's own.
func (a *agreement) tell(ctx context.Context, err error) error {
	var message string
	if err != nil {
		message = err.Error()
		message = message[:min(len(message), messageSize)]
	}
	all, gerr := comm.GatherBytes(ctx, a.group, []byte(message))
	if gerr != nil {
		return &exchangeError{errors.Join(err, gerr)}
	}
	errs := []error{err}
	for r, m := range all {
		if a.recv[words*r+wordFailed] != 0 && r != a.group.Rank() && (err == nil || string(m) != message) {
			errs = append(errs, &PeerError{r, string(m)})
		}
	}
	return errors.Join(errs...)
}

// sameText returns an error on every rank unless all ranks have the same text. It names the first line that differs.
func sameText(ctx context.Context, g comm.Group, what, text string) error {
	all, err := comm.GatherBytes(ctx, g, []byte(text))
	if err != nil {
		return fmt.Errorf("comparing the %s: %w", what, err)
	}
	for r := range all {
		if bytes.Equal(all[r], all[0]) {
			continue
		}
		a, b := strings.Split(string(all[0]), "\n"), strings.Split(string(all[r]), "\n")
		i := 0
		for i < len(a) && i < len(b) && a[i] == b[i] {
			i++
		}
		first, other := parting(line(a, i), line(b, i))
		return fmt.Errorf("ranks disagree about the %s: rank 0 has %q, rank %d has %q", what, first, r, other)
	}
	return nil
}

func line(lines []string, i int) string {
	if i < len(lines) && !slices.Equal(lines[i:], []string{""}) {
		return lines[i]
	}
	return "nothing"
}

// parting returns the beginnings of two lines, and of long ones what is around the place where they part.
func parting(a, b string) (string, string) {
	const head, around = 60, 40
	at := 0
	for at < len(a) && at < len(b) && a[at] == b[at] {
		at++
	}
	cut := func(s string) string {
		if at > head+around {
			s = s[:head] + " … " + s[at-around:]
			if end := head + 5 + 2*around; len(s) > end {
				s = s[:end] + "…"
			}
		} else if end := at + around; len(s) > max(end, 2*head) {
			s = s[:max(end, 2*head)] + "…"
		}
		return strings.ToValidUTF8(s, "…")
	}
	return cut(a), cut(b)
}

// textHash returns a number that is the same for the same words.
func textHash(words []string) uint64 {
	h := fnv.New64a()
	for _, w := range words {
		fmt.Fprintf(h, "%q", w)
	}
	return h.Sum64()
}

// guarded calls a function of the user's and turns a panic into an error, which wraps what it panicked with if that is one.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			cause, ok := r.(error)
			if !ok {
				cause = fmt.Errorf("%v", r)
			}
			err = fmt.Errorf("panic: %w\n%s", cause, debug.Stack())
		}
	}()
	return f()
}
