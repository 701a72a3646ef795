package fsdp

import (
	"cmp"
	"context"
	"log/slog"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/text"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// A watch notices loops that train nothing, or not what they seem to train: mistakes that no single
// call shows. Each is a warning, once. All ranks do the same in a loop, so rank 0 warns for all, except
// about batches, which are each rank's own.
type watch struct {
	warned map[string]bool // by message

	params []watched // by parameter
	begun  bool      // some parameter was updated since the last Forward
	rate   float64   // the largest of these updates
	zero   int       // Forwards in a row after updates at rate 0

	summed bool // since ZeroGrad there was a Backward with neither Share nor Scale
	scaled bool // since ZeroGrad there was a ScaleGrads
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

// warn warns, unless the message was said before. A nil logger says nothing.
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

// lacks is called when an optimizer steps and a parameter has no gradient. It returns true, and
// warns once if none can have one.
func lacks(s *Sharded) bool {
	if s.life.grads.passes == 0 {
		s.life.watch.warn(s.cfg.warner(s.team.Rank()),
			"an optimizer steps without any gradient: there was no Backward since Wrap or ZeroGrad, which comes after Step or before Backward, "+
				"or the optimizer was made of the Shards of another model")
	}
	return true
}

// update notes an update of a parameter.
func (w *watch) update(s *Sharded, param int, u optim.Update) {
	if w.params == nil {
		w.params = make([]watched, len(s.layout.Model.Params))
	}
	w.params[param].ever = true // also by an optimizer that is not of package optim, if it calls Updated
	lr, is := u.Rate()
	if !is {
		return
	}
	if !w.begun {
		w.begun, w.rate = true, 0
		for p, has := range s.engine.Present() {
			if has {
				w.params[p].grads++
			}
		}
	}
	w.rate = max(w.rate, lr)
	p, logger := &w.params[param], s.cfg.warner(s.team.Rank())
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
	if ranks := s.cfg.virtualRanks(); s.cfg.Divide == ByOne && ranks > 1 && w.summed && !w.scaled {
		w.warn(logger, "Config.Divide is ByOne, and Backward has neither Share nor Scale: gradients are sums over the ranks, "+
			"as many times their mean. Give Backward Share, or Scale(1) if sums are meant", "ranks", ranks)
	}
}

// forward is called when a Forward begins.
func (w *watch) forward(s *Sharded) {
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
	if w.begun = false; len(missed) > 0 {
		w.warn(logger, "no optimizer updates some parameters that have gradients: make one of all that Shards returns, or select them by Config.Frozen",
			"steps", patience, "parameters", some(missed))
	}
}

// batch warns of targets none of which counts. It is about this rank's batch, so this rank warns.
func (w *watch) batch(s *Sharded, p *engine.Pass, batch []Tensor) {
	for _, t := range p.Targets {
		if n, all, err := targetsOf(batch, t); err == nil && n == 0 && all > 0 {
			logger := cmp.Or(s.cfg.Logger, slog.Default()).With("rank", s.team.Rank())
			w.warn(logger, "no target of a batch counts: its loss is 0 and trains nothing. Are all of them masked, or cut off by the context?",
				"pass", p.Number, "targets", p.Path.Input(t.Input), "of", all)
		}
	}
}

// backward is called after a Backward, with whether it had Share or Scale.
func (w *watch) backward(s *Sharded, weighed bool) {
	w.summed = w.summed || !weighed && s.life.calls == nil
	if groups, _ := s.engine.Grads(); len(groups) == 0 {
		w.warn(s.cfg.warner(s.team.Rank()), "Backward has nothing to do: all parameters are frozen, so nothing is trained. "+
			"Change Config.Frozen or Freeze, or add what is trained to the model, such as nn.LoRA", "parameters", len(s.layout.Model.Params))
	}
}

// zeroGrad is called by ZeroGrad.
func (l *life) zeroGrad() {
	l.grads = gradients{}
	w := &l.watch
	w.summed, w.scaled = false, false
	for i := range w.params {
		w.params[i].steps = 0
	}
}

// warnOfSets warns of ranks that compute with different instruction sets. There are some.
func warnOfSets(ctx context.Context, s *Sharded, own int) error {
	all, err := s.team.Each(ctx, "instruction sets", []int64{int64(own)})
	if err != nil || s.cfg.Device != nil {
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
	if logger := s.cfg.warner(s.team.Rank()); logger != nil {
		logger.Warn("fsdp: ranks compute with instruction sets that round differently: replicas of parameters (NoShard, HybridShard, "+
			"Config.Ignored) may diverge, and then Save refuses them. Units of FullShard have no replicas; "+
			"GODEBUG turns sets off, such as cpu.avx512f=off", "sets", sets)
	}
	return nil
}

// origin says where a loss that is not finite comes from, as far as this rank has the reason: a batch,
// a parameter or a call.
func origin(s *Sharded, p *engine.Pass) string {
	text, call := p.Origin()
	if call < 0 {
		call = len(p.Model.Calls) - 1
	}
	if bad := spoiled(s, p.Model.Calls[call].Params); bad != "" {
		text = strings.TrimPrefix(text+"; parameter "+bad+" is not finite", "; ")
	}
	if text == "" {
		return ""
	}
	return ": " + text
}

// spoiled returns the interval of the first of some parameters of which this rank's values are not
// finite, or "".
func spoiled(s *Sharded, params []int) string {
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
