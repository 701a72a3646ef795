package fsdp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/text"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// A watch detects loops that train nothing, or train other parameters or gradients than intended:
// no single call shows these mistakes. Each is a warning, once. All ranks do the same in a loop, so
// rank 0 warns for all, except about batches, which differ between ranks.
type watch struct {
	warned  map[string]bool // by message
	planned bool            // slow operations were looked for

	params []watched // by parameter
	begun  bool      // some parameter was updated since the last Forward
	rate   float64   // the largest of these updates
	zero   int       // Forwards in a row after updates at rate 0

	asked   bool // an optimizer has asked whether it may step
	dropped int  // ZeroGrads of gradients before that

	search bool // evaluations search for the call in which a NaN begins

	summed bool // since ZeroGrad there was a Backward with neither Share nor Scale
	scaled bool // since ZeroGrad there was a ScaleGrads

	shared  int // Backwards with Share since the last update or ZeroGrad
	batches int // of this rank that the last of them had
}

// watched counts the updates of a parameter.
type watched struct {
	last  optim.Update // since the last Forward
	steps int          // updates since ZeroGrad
	grads int          // Forwards before which it had a gradient when others were updated
	ever  bool         // it was updated
}

// patience is how many steps a loop may look like a mistake: a warmup may begin at a rate of 0, and
// optimizers may take turns.
const patience = 3

// warn logs a message once. A nil logger logs nothing.
func (w *watch) warn(logger *slog.Logger, message string, args ...any) {
	if logger == nil || w.warned[message] {
		return
	}
	if w.warned == nil {
		w.warned = make(map[string]bool)
	}
	w.warned[message] = true
	logger.Warn("fsdp: "+message, args...)
}

// missingGrad is called when an optimizer steps and a parameter has no gradient. It returns true,
// and warns once if none can have one.
func (s *session) missingGrad() bool {
	if s.life.grads.passes == 0 {
		s.life.watch.warn(s.cfg.warner(s.team.Rank()),
			"an optimizer steps without any gradient: there was no Backward since Wrap or ZeroGrad, "+
				"or the optimizer was made from the Params of another model. Call ZeroGrad after Step or before Backward")
	}
	return true
}

// update notes an update of a parameter.
func (w *watch) update(s *session, param int, u optim.Update) {
	if w.params == nil {
		w.params = make([]watched, len(s.layout.Model.Params))
	}
	w.params[param].ever = true // also by an optimizer that is not of package optim, if it calls Updated
	lr, is := u.Rate()
	if !is {
		return
	}
	p, logger := &w.params[param], s.cfg.warner(s.team.Rank())
	if !w.begun {
		w.begun, w.rate = true, 0
		if 0 < w.shared && w.shared < w.batches {
			w.warn(logger, "an optimizer steps before the Backward of all batches that Share has for the step: "+
				"step after the last one, which StepEnds of a data.Loader reports", "batches", w.batches, "passes", w.shared)
		}
		w.shared = 0
		for p, has := range s.engine.Present() {
			if has {
				w.params[p].grads++
			}
		}
	}
	w.rate = max(w.rate, lr)
	passes := s.life.grads.passes
	if p.last != (optim.Update{}) && !p.last.SameOptimizer(u) {
		w.warn(logger, "a parameter was updated by two optimizers since the last Forward: each parameter belongs in one",
			"parameter", s.layout.Model.Params[param].Name)
	} else if 0 < passes && passes <= p.steps {
		w.warn(logger, "a Step applies gradients that an earlier Step has applied: there was no Backward in between", "steps", p.steps+1, "passes", passes)
	}
	p.last = u
	p.steps++
	if p.steps == patience && passes >= patience && !w.scaled {
		w.warn(logger, "no ZeroGrad between steps: each step has applied the gradients of all passes before it again", "steps", p.steps, "passes", passes)
	}
	if ranks := s.cfg.virtualRanks(); s.cfg.GradAverage == ByOne && ranks > 1 && w.summed && !w.scaled {
		w.warn(logger, "Config.GradAverage is ByOne, but Backward has neither Share nor Scale: gradients are sums over the ranks. "+
			"Give Backward Share, or Scale(1) if sums are intended", "ranks", ranks)
	}
}

// forward is called when a Forward begins.
func (w *watch) forward(s *session) {
	if !w.begun {
		return
	}
	logger := s.cfg.warner(s.team.Rank())
	if w.zero++; w.rate > 0 {
		w.zero = 0
	}
	if w.zero == patience {
		w.warn(logger, "optimizers step with a learning rate of 0, which trains nothing", "steps in a row", w.zero)
	}
	var missed []string
	for i := range w.params {
		p := &w.params[i]
		if p.last = (optim.Update{}); p.grads >= patience && !p.ever {
			missed = append(missed, s.layout.Model.Params[i].Name)
		}
	}
	w.begun = false
	if len(missed) > 0 {
		w.warn(logger, "no optimizer updates some parameters that have gradients: make one of all that Params returns, or freeze them by Config.Frozen",
			"steps", patience, "parameters", some(missed))
	}
}

// countDropped is called by ZeroGrad. It counts dropped gradients until an optimizer steps. A
// LossScaler may skip the first steps.
func (w *watch) countDropped(s *session) {
	const most = 8
	if groups, _ := s.engine.Grads(); w.asked || s.life.grads.passes == 0 || len(groups) == 0 {
		return
	}
	if w.dropped++; w.dropped == most {
		w.warn(s.cfg.warner(s.team.Rank()), "ZeroGrad has dropped the gradients of all steps so far, but no optimizer of this model has stepped: "+
			"make one from Params, and call its Step before ZeroGrad. Steps are only seen if the optimizer calls Param.Ready", "steps", most)
	}
}

// slow warns of slow operations on a GPU before the first pass, which nothing else shows.
func (w *watch) slow(s *session, p *engine.Pass) {
	logger := s.cfg.warner(s.team.Rank())
	if s.cfg.Device == nil || logger == nil || w.planned || p.Absent {
		return
	}
	w.planned = true
	var found Plan
	found.compute(p.Compiled, s.engine.Device())
	var list []string
	for _, op := range found.slow() {
		list = append(list, fmt.Sprintf("%s: %s in %s", op.Reason, op.Op, op.Call))
	}
	if list != nil {
		w.warn(logger, "the GPU has only slow kernels for some operations, see Plan.Stock", "operations", some(list))
	}
}

// batch warns if no target counts. It is about this rank's batch, so this rank warns.
func (w *watch) batch(s *session, p *engine.Pass, batch []Tensor) {
	w.slow(s, p)
	for _, t := range p.Targets {
		if n, all, err := targetsOf(batch, t); err == nil && n == 0 && all > 0 {
			logger := cmp.Or(s.cfg.Logger, slog.Default()).With("rank", s.team.Rank())
			w.warn(logger, "no target of a batch counts, so its loss is 0 and trains nothing: check whether all are masked, or cut off by the context",
				"pass", p.Number, "targets", p.Path.Input(t.Input), "of", all)
		}
	}
}

// eval warns of a loss of an evaluation that is NaN or infinite. It is about this rank's batch, so
// this rank warns. If neither the batch nor a parameter of this rank has the NaN, the next
// evaluations search for the call in which it begins. None pays for that before.
func (w *watch) eval(s *session, p *engine.Pass, results []Tensor) {
	const message, again = "the loss of an Eval is not finite", "the loss of an Eval is not finite again"
	loss := 0.0
	if r := results[0]; r != nil && r.Shape().TotalSize() == 1 {
		switch v := r.Data().(type) {
		case []float32:
			loss = float64(v[0])
		case []float64:
			loss = v[0]
		}
	}
	if loss-loss == 0 || w.warned[message] && !w.search {
		return
	}
	from := ""
	if w.search {
		from = strings.TrimPrefix(s.origin(p), ": ")
	} else {
		from, _ = p.Origin()
	}
	for i := 0; from == "" && i < len(p.Model.Calls); i++ {
		if bad := s.spoiled(p.Model.Calls[i].Params); bad != "" {
			from = fmt.Sprintf("call %s: parameter %s is not finite", p.Model.Calls[i].Name, bad)
		}
	}
	text := message
	if w.warned[message] {
		text = again
	}
	w.search = from == ""
	logger := cmp.Or(s.cfg.Logger, slog.Default()).With("rank", s.team.Rank())
	w.warn(logger, text, "pass", p.Number, "loss", loss, "origin",
		cmp.Or(from, "not in the batch or this rank's parameters: Eval this batch again to get a second warning that names the first such call"))
}

// backward is called when all ranks begin the Backward of p.
func (w *watch) backward(s *session, p *pass) {
	w.summed = w.summed || !p.scaled && p.share == nil && s.life.calls == nil
	if p.share != nil && !p.dummy {
		w.shared, w.batches = w.shared+1, len(p.share.batches)
	}
	if groups, _ := s.engine.Grads(); len(groups) == 0 {
		w.warn(s.cfg.warner(s.team.Rank()), "Backward has nothing to do: all parameters are frozen, so nothing is trained. "+
			"Change Config.Frozen or Freeze, or add parameters to train, such as nn.LoRA", "parameters", len(s.layout.Model.Params))
	}
}

// zeroGrad is called by ZeroGrad.
func (l *life) zeroGrad() {
	l.grads = gradients{}
	w := &l.watch
	w.summed, w.scaled, w.shared = false, false, 0
	for i := range w.params {
		w.params[i].steps = 0
	}
}

// warnOfSets warns that ranks compute with different instruction sets.
func warnOfSets(ctx context.Context, team *ranks.Team, cfg *Config, own int) error {
	all, err := team.Each(ctx, "instruction sets", []int64{int64(own)})
	if err != nil || cfg.Device != nil {
		return err
	}
	var sets []string
	for set, name := range kernel.InstructionSets {
		var ranks []int
		for rank, theirs := range all {
			if int(theirs) == set {
				ranks = append(ranks, rank)
			}
		}
		if ranks != nil {
			sets = append(sets, name+": "+text.Numbered("rank", ranks))
		}
	}
	if logger := cfg.warner(team.Rank()); logger != nil {
		logger.Warn("fsdp: ranks compute with instruction sets that round differently: replicas of parameters (NoShard, HybridShard, "+
			"Config.Ignored) may diverge, and then Save refuses them. Units of FullShard have no replicas; "+
			"GODEBUG turns sets off, such as cpu.avx512f=off", "sets", sets)
	}
	return nil
}

// origin returns the place where a loss that is not finite begins, if this rank has the cause: a
// batch, a parameter or a call.
func (s *session) origin(p *engine.Pass) string {
	text, call := p.Origin()
	if call < 0 {
		call = len(p.Model.Calls) - 1
	}
	if bad := s.spoiled(p.Model.Calls[call].Params); bad != "" {
		text = strings.TrimPrefix(text+"; parameter "+bad+" is not finite", "; ")
	}
	if text == "" {
		return ""
	}
	return ": " + text
}

// spoiled returns the interval of the first of these parameters with a value on this rank that is
// not finite, or "".
func (s *session) spoiled(params []int) string {
	for _, p := range params {
		home := s.layout.Home[p]
		for _, seg := range s.layout.Groups[home.Group].Segments() {
			if seg.Param != home.Index {
				continue
			}
			value := s.engine.Shards().Value(home.Group)
			if most, err := s.engine.Device().MaxAbs(slicesOf(value, []shard.Segment{seg})); err == nil && most[0]-most[0] != 0 {
				return seg.Interval.String()
			}
		}
	}
	return ""
}

// Actions of single ranks
//
// Ranks step optimizers, and drop and scale gradients, without communication. All must do the same,
// as each owns a part of every parameter. So ranks compare these actions before the next call that
// depends on them: updates before a Forward or Eval, and before state is saved, exported or
// returned; gradients before a Backward adds to them. ZeroGrad may come before the Forward or after
// it. A rank of a loop over Join that has no batch steps like the others. Parameters of units with
// separate groups may differ, so their updates are not compared. An optimizer refuses to step on a
// rank that owns a bad gradient. A refusal counts, too, unless all ranks have refused.

// gradients is the history of the gradients since ZeroGrad.
type gradients struct {
	passes int     // Backwards
	scale  float64 // product of all factors
}

// add counts a Backward.
func (g *gradients) add() {
	if g.passes++; g.passes == 1 {
		g.scale = 1
	}
}

// Hash implements ranks.Past.
func (g *gradients) Hash() uint64 {
	return uint64(g.passes)<<33 | uint64(math.Float32bits(float32(g.scale)))<<1 // processors may round a norm differently
}

// String implements ranks.Past.
func (g *gradients) String() string {
	text := fmt.Sprintf("the gradients of %d passes", g.passes)
	switch g.passes {
	case 0:
		return "no gradients"
	case 1:
		text = "the gradients of one pass"
	}
	if g.scale != 1 {
		text += fmt.Sprintf(" scaled by %v", g.scale)
	}
	return text
}

// Differ implements ranks.Past.
func (g *gradients) Differ(a, b int, first, other string) string {
	return fmt.Sprintf("rank %d has %s, rank %d has %s: every rank must make the same calls of Backward, ZeroGrad, ScaleGrads and ClipGradNorm", a, first, b, other)
}

// updates are the updates that optimizers have made since the last pass.
type updates struct {
	model   *layout.Model
	hash    uint64
	last    []updated // by parameter of the model
	refused string    // the gradient for which an optimizer has refused to step, and none has stepped since; or ""
}

// updated is the last update of a parameter.
type updated struct {
	optim.Update
	made bool
	by   gradients
}

// add notes an update of a parameter. Optimizers may come in any order.
func (u *updates) add(param int, made optim.Update, by gradients) {
	u.last[param] = updated{made, true, by}
	u.refused = ""
	u.hash += made.Hash(by.Hash() ^ uint64(param)<<48)
}

// clear starts over: ranks have agreed on the updates, or the parameters have been replaced.
func (u *updates) clear() {
	if u.Hash() != 0 {
		clear(u.last)
		u.hash, u.refused = 0, ""
	}
}

// Hash implements ranks.Past. The reason of a refusal is not part of the hash: ranks may refuse for
// different gradients.
func (u *updates) Hash() uint64 {
	if u.refused != "" {
		return ^u.hash
	}
	return u.hash
}

// String implements ranks.Past: a line for a refusal, and one for each parameter.
func (u *updates) String() string {
	var b strings.Builder
	b.WriteString(u.refused + "\n")
	for p, last := range u.last {
		if b.WriteString(u.model.Params[p].Name + ": "); last.made {
			b.WriteString(strings.Join(append(last.Facts(), last.by.String()), factEnd))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

const factEnd = ", "

// Differ implements ranks.Past. It describes the first parameter, and the first fact.
func (u *updates) Differ(a, b int, first, other string) string {
	x, y := strings.Split(first, "\n"), strings.Split(other, "\n")
	switch {
	case y[0] == "" && x[0] != "":
		return refuses(a, b, x[0])
	case x[0] == "" && y[0] != "":
		return refuses(b, a, y[0])
	}
	x, y = x[1:], y[1:]
	different := 0
	var name, mine, theirs string
	for i := range min(len(x), len(y)) {
		if x[i] == y[i] {
			continue
		}
		if different++; different == 1 {
			name, mine, _ = strings.Cut(x[i], ": ")
			_, theirs, _ = strings.Cut(y[i], ": ")
		}
	}
	where := ""
	if different < len(u.last) {
		where = fmt.Sprintf(" (parameter %s, %d in all)", name, different)
	}
	switch {
	case different == 0:
		return fmt.Sprintf("ranks %d and %d have made different steps since the last pass, although their last steps are equal", a, b)
	case mine == "":
		return skips(b, a, theirs) + where
	case theirs == "":
		return skips(a, b, mine) + where
	}
	f, g := strings.Split(mine, factEnd), strings.Split(theirs, factEnd)
	for i := 1; i < min(len(f), len(g)) && f[0] == g[0]; i++ {
		if f[i] != g[i] {
			return fmt.Sprintf("rank %d has %s with %s, rank %d has %s with %s%s", a, f[0], f[i], b, g[0], g[i], where)
		}
	}
	return fmt.Sprintf("rank %d has %s, rank %d has %s%s", a, f[0], b, g[0], where)
}

// refuses says that the optimizer of one rank has refused to step and the optimizer of another rank
// has not.
func refuses(rank, other int, gradient string) string {
	return fmt.Sprintf("rank %d refused its step because %s, and rank %d did not refuse, so the step is applied on some ranks only: "+
		"load the last checkpoint. ClipGradNorm before Step returns this error on every rank, before any rank steps", rank, gradient, other)
}

// skips says that one rank has made an update and another has not.
func skips(rank, other int, facts string) string {
	kind, _, _ := strings.Cut(facts, factEnd)
	return fmt.Sprintf("rank %d has made a step of %s since the last pass, but rank %d has made none: every rank must step", rank, kind, other)
}
