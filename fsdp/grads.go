package fsdp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// A Norm is a way to measure gradients.
type Norm uint8

// The norms.
const (
	L2Norm  Norm = iota // square root of the sum of squares
	InfNorm             // largest magnitude
)

// check returns an error if there is no such norm.
func (n Norm) check() error {
	if n > InfNorm {
		return fmt.Errorf("norm %d is neither L2Norm nor InfNorm", n)
	}
	return nil
}

// ClipGradNorm computes the norm of the gradients of the whole model, over all ranks, and if it
// exceeds limit scales the gradients by limit/(norm + 1e-6), as PyTorch's clip_grad_norm_ does. It
// returns the norm before clipping; with an infinite limit it only measures. The norm is L2Norm
// unless another is given. If a gradient is not finite it fails on every rank, naming a parameter
// and the first call that may have begun it, and changes nothing.
//
// The norm is computed exactly and rounded at the end, so that it has the same bits under every
// strategy and wrap policy.
func (s *Sharded) ClipGradNorm(ctx context.Context, limit float64, kind ...Norm) (norm float64, err error) {
	if err := s.busy.enter("ClipGradNorm"); err != nil {
		return 0, err
	}
	defer s.busy.leave()
	q := ranks.Ask{Call: "ClipGradNorm", Argument: limit}
	if len(kind) > 0 && kind[0] == InfNorm {
		q.Call = "ClipGradNorm of the infinity norm"
	}
	err = s.checkCall("ClipGradNorm")
	if err == nil && len(kind) > 0 {
		err = kind[0].check()
	}
	if err == nil && !(limit > 0) {
		err = fmt.Errorf("limit is %v, want a positive number", limit)
	}
	if err == nil {
		if q.Value, err = largestGrad(s.engine); err == nil && q.Value-q.Value != 0 {
			err = s.badGrad()
		}
	}
	ans, err := s.ask(ctx, &q, err)
	if err != nil {
		return 0, err
	}
	norm = ans.Largest
	if len(kind) == 0 || kind[0] == L2Norm {
		if norm, err = l2(ctx, s.engine, s.layout, s.cfg.Group, norm); err != nil {
			return 0, s.end(s.team.Fail(fmt.Errorf("ClipGradNorm: %w", err)))
		}
	}
	if math.IsInf(norm, 0) {
		return 0, s.end(errors.New("ClipGradNorm: the norm of the gradients overflows"))
	}
	s.life.sound.Store(true)
	if c := limit / (norm + 1e-6); c < 1 {
		s.scaleGrads(c)
	}
	return norm, nil
}

// ScaleGrads multiplies all gradients in shards by c. It is no collective: every rank must do the
// same.
func (s *Sharded) ScaleGrads(c float64) {
	if !s.busy.enterOrNote("ScaleGrads") {
		return
	}
	defer s.busy.leave()
	s.life.watch.scaled = true
	s.scaleGrads(c)
}

// scaleGrads is ScaleGrads of a method.
func (s *session) scaleGrads(c float64) {
	if s.life.health == closed {
		return
	}
	if c-c != 0 {
		s.life.sound.Store(false)
	}
	s.life.grads.scale *= c
	_, grads := s.engine.Grads()
	_ = s.engine.Device().Scale(grads, c) // a device that has failed returns the error again
}

// largestGrad returns the largest magnitude of this rank's gradients, which is not finite if one of
// them is not.
func largestGrad(e *engine.Engine) (largest float64, err error) {
	_, grads := e.Grads()
	list, err := e.Device().MaxAbs(grads)
	for _, m := range list {
		largest = max(largest, m)
	}
	return largest, err
}

// badGrad returns an error that names a gradient of this rank that is not finite, or nil. Backward
// runs the calls from the last to the first, and a NaN spreads to all that follow. So of several
// parameters it names the one whose first call is the latest: no earlier call can have begun it.
func (s *session) badGrad() error {
	first := make([]int, len(s.layout.Model.Params)) // by parameter, its first call
	calls := s.layout.Model.Paths[""].Calls
	for i := len(calls) - 1; i >= 0; i-- {
		for _, p := range calls[i].Params {
			first[p] = i
		}
	}
	where, latest := "", -1
	groups, grads := s.engine.Grads()
	for i, g := range groups {
		group := &s.layout.Groups[g]
		segments := group.Segments()
		list, err := s.engine.Device().MaxAbs(slicesOf(grads[i], segments))
		if err != nil {
			return err
		}
		for j, m := range list {
			if call := first[group.Params[segments[j].Param]]; m-m != 0 && call > latest {
				where, latest = segments[j].Interval.String(), call
			}
		}
	}
	if where == "" {
		return nil
	}
	return fmt.Errorf("the gradient of %s is not finite (it began in the backward of %s or of a later call)", where, calls[latest].Name)
}

// soundGrads returns an error if a gradient of this rank is NaN or infinite. An optimizer calls it
// before it steps, since such a step spoils parameters for ever. ClipGradNorm and Unscale have
// already checked. The other ranks learn it in the next call that needs the parameters, see
// updates.
func (s *session) soundGrads() error {
	_, grads := s.engine.Grads()
	if s.life.sound.Load() || finiteHere(grads) {
		s.life.sound.Store(true)
		return nil
	}
	largest, err := largestGrad(s.engine)
	if err == nil && largest-largest != 0 {
		if err = s.badGrad(); err != nil {
			s.life.updates.refused = err.Error()
			err = fmt.Errorf("%w: no parameter of this rank has changed; ZeroGrad drops the gradients. Other ranks may have stepped: "+
				"ClipGradNorm before Step returns this error on every rank", err)
		}
	}
	if err != nil {
		return fmt.Errorf("fsdp: rank %d: Step: %w", s.team.Rank(), err)
	}
	s.life.sound.Store(true)
	return nil
}

// finiteHere reports whether all elements are in ordinary memory and finite. It does not allocate.
func finiteHere(list []optim.Vec) bool {
	for _, v := range list {
		g, ok := v.(interface{ Largest() float64 })
		if !ok {
			return false
		}
		if m := g.Largest(); m-m != 0 {
			return false
		}
	}
	return true
}

// slicesOf returns the segments of a shard.
func slicesOf(v optim.Vec, segments []shard.Segment) []optim.Vec {
	list := make([]optim.Vec, len(segments))
	for i, seg := range segments {
		list[i] = v.Slice(seg.At, seg.At+seg.Len)
	}
	return list
}

// l2 returns the L2 norm of the gradients, none of which is larger than bound.
func l2(ctx context.Context, e *engine.Engine, l *layout.Layout, all comm.Group, bound float64) (float64, error) {
	var mine []optim.Vec
	var bounds []float64
	groups, grads := e.Grads()
	for i, g := range groups {
		if l.Groups[g].Ranks.Counts() {
			mine, bounds = append(mine, grads[i]), append(bounds, bound)
		}
	}
	list, err := e.Device().Squares(mine, bounds)
	sum := vec.NewSquares(bound)
	for _, words := range list {
		sum.Merge(words)
	}
	words := sum.Words()
	if err == nil {
		err = all.AllReduce(comm.Of(words[:]).Named("gradient norm"), comm.Sum).Wait(ctx)
	}
	if err != nil {
		return 0, err
	}
	total := vec.NewSquares(bound)
	total.Merge(words)
	return total.Norm(), nil
}

// GradNorms returns the norm of the gradient of each parameter by name, on every rank, for logging.
// Parameters without a gradient are left out. The norm of a gradient that is not finite is not
// finite. For any number of parameters it costs two collectives besides the flag of the call, of 8
// and of 32 bytes a parameter, and two more for each group of Config.Unit.
func (s *Sharded) GradNorms(ctx context.Context, kind Norm) (map[string]float64, error) {
	return s.normsOf(ctx, "GradNorms", kind, func(group, p int) optim.Vec {
		if !s.engine.Present()[p] {
			return nil
		}
		return s.engine.Shards().Grad(group)
	})
}

// ParamNorms returns the norm of each parameter by name, frozen ones included, as GradNorms does
// for gradients.
func (s *Sharded) ParamNorms(ctx context.Context, kind Norm) (map[string]float64, error) {
	return s.normsOf(ctx, "ParamNorms", kind, func(group, _ int) optim.Vec { return s.engine.Shards().Value(group) })
}

// normsOf returns the norms of the shards that of returns for the parameters of a group. Each shard
// contains a part of the parameter; nil leaves the parameter out.
func (s *session) normsOf(ctx context.Context, call string, kind Norm, of func(group, p int) optim.Vec) (map[string]float64, error) {
	if err := s.busy.enter(call); err != nil {
		return nil, err
	}
	defer s.busy.leave()
	err := s.checkCall(call)
	if err == nil {
		err = kind.check()
	}
	if err := s.agree(ctx, ranks.Ask{Call: call, Argument: float64(kind)}, err); err != nil {
		return nil, err
	}
	var meshes []*measured
	for i := range s.layout.Groups {
		g := &s.layout.Groups[i]
		if g.Kind.Buffer {
			continue
		}
		at := slices.IndexFunc(meshes, func(m *measured) bool { return m.ranks == s.meshes[i].Shard })
		if at < 0 {
			at, meshes = len(meshes), append(meshes, &measured{ranks: s.meshes[i].Shard})
		}
		meshes[at].add(g, func(p int) optim.Vec { return of(i, p) })
	}
	all := make(map[string]float64)
	for _, m := range meshes {
		list, err := m.norms(ctx, s.engine.Device(), kind)
		if err != nil {
			return nil, s.end(s.team.Fail(fmt.Errorf("%s: %w", call, err)))
		}
		for i, name := range m.names {
			all[name] = list[i]
		}
	}
	return all, nil
}

// measured are parameters that are cut over the same ranks, and this rank's pieces of them.
type measured struct {
	ranks  comm.Group
	names  []string
	pieces []optim.Vec
	of     []int // by piece, the parameter
}

// add adds the parameters of g. The function of returns a shard of g for each parameter, or nil.
func (m *measured) add(g *layout.Group, of func(p int) optim.Vec) {
	segments := g.Segments()
	for i, p := range g.Params {
		v := of(p)
		if len(segments) > 0 && segments[0].Param == i {
			if v != nil {
				m.pieces, m.of = append(m.pieces, slicesOf(v, segments[:1])...), append(m.of, len(m.names))
			}
			segments = segments[1:]
		}
		if v != nil {
			m.names = append(m.names, g.Flat.Params()[i].Name)
		}
	}
}

// norms returns the norm of each parameter.
func (m *measured) norms(ctx context.Context, d engine.Device, kind Norm) ([]float64, error) {
	mine, err := d.MaxAbs(m.pieces)
	if err != nil {
		return nil, err
	}
	largest := make([]float64, len(m.names))
	for i, most := range mine {
		if most != most { // a maximum over ranks may lose a NaN
			most = math.Inf(1)
		}
		largest[m.of[i]] = most
	}
	if err := m.ranks.AllReduce(comm.Of(largest).Named("norms"), comm.Max).Wait(ctx); err != nil || kind == InfNorm {
		return largest, err
	}
	bounds := make([]float64, len(m.pieces))
	for i, p := range m.of {
		bounds[i] = largest[p]
	}
	list, err := d.Squares(m.pieces, bounds)
	if err != nil {
		return nil, err
	}
	const words = 4
	sums := make([]float64, words*len(m.names))
	for i, p := range m.of {
		copy(sums[words*p:], list[i][:])
	}
	if err := m.ranks.AllReduce(comm.Of(sums).Named("norms"), comm.Sum).Wait(ctx); err != nil {
		return nil, err
	}
	for i, bound := range largest {
		squares := vec.NewSquares(bound)
		squares.Merge([words]float64(sums[words*i:]))
		largest[i] = squares.Norm()
	}
	return largest, nil
}

// Unscale divides the gradients by the scale of l, by which the losses were multiplied
// (Scale(l.Scale()) in Backward), and updates l. If a gradient on any rank is not finite, it
// returns false on every rank and drops the gradients: leave out the step then. Call it once a
// step, after the last Backward and before ClipGradNorm.
func (s *Sharded) Unscale(ctx context.Context, l *optim.LossScaler) (finite bool, err error) {
	if err := s.busy.enter("Unscale"); err != nil {
		return false, err
	}
	defer s.busy.leave()
	q := ranks.Ask{Call: "Unscale"}
	if err = s.checkCall("Unscale"); err == nil && l == nil {
		err = errors.New("the LossScaler is nil")
	}
	if err == nil {
		q.Argument = l.Scale()
		var largest float64
		if largest, err = largestGrad(s.engine); largest-largest != 0 {
			q.Value = 1
		}
	}
	ans, err := s.ask(ctx, &q, err)
	if err != nil {
		return false, err
	}
	finite = ans.Largest == 0
	if finite {
		s.life.sound.Store(true)
		s.scaleGrads(1 / l.Scale())
	} else {
		s.zeroGrad()
	}
	l.Update(finite)
	return finite, nil
}

// NoSync runs f. A Backward inside f sends no gradients: they add up whole on every rank, and the
// next Backward outside, or [Sharded.SyncGrads], reduces the sum. That replaces many reductions by
// one, and costs memory for the whole model's gradients on every rank. Without NoSync every
// Backward adds to the gradient shards, which costs no memory. Both may be mixed: the result is the
// gradients of all the batches together. NoSync itself does not communicate and may be nested.
func (s *Sharded) NoSync(f func() error) error {
	if f == nil {
		return errors.New("fsdp: NoSync: the function is nil")
	}
	if err := s.busy.enter("NoSync"); err != nil {
		return err
	}
	before := s.noSync
	s.noSync = true
	s.busy.leave()
	defer func() {
		s.busy.Lock() // a method that f has left to another goroutine ends first
		s.noSync = before
		s.busy.leave()
	}()
	return f()
}

// SyncGrads reduces the gradients of the passes inside NoSync, as the next Backward outside would.
// It does nothing if there are none.
func (s *Sharded) SyncGrads(ctx context.Context) error {
	if err := s.busy.enter("SyncGrads"); err != nil {
		return err
	}
	defer s.busy.leave()
	q, err := ranks.Ask{Call: "SyncGrads"}, s.checkCall("SyncGrads")
	if n := s.engine.MidStep(); err == nil && n > 0 {
		err = fmt.Errorf("a step has %d micro-batches on each rank, but only %d have run: run the others%s first", s.cfg.passes(), n, s.life.without())
	}
	if err == nil {
		q.Argument = float64(s.engine.Pending())
	}
	if err := s.agree(ctx, q, err); err != nil {
		return err
	}
	return s.end(s.engine.SyncGrads(ctx))
}
