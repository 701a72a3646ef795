package fsdp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/internal/record"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/fsdp/internal/timeline"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// Package state moves state in and out. This file implements its interfaces for a model, and
// handles its errors.

// A store is the state of a model for one method, and this rank's answer to the others meanwhile.
type store struct {
	state.Store
	*ranks.Team
	s   *Sharded
	ask ranks.Ask
}

// store prepares for a method. refusal is the reason why this rank cannot take part, or nil.
func (s *Sharded) store(ask ranks.Ask, refusal error) *store {
	if !tolerances[ask.Call].mixed { // it needs the parameters whole: ranks must have made the same steps
		ask.Past = &s.life.updates
	}
	st := &store{Team: s.team, s: s, ask: ask}
	files := &s.files.saves
	switch ask.Call {
	case "Export":
		files = &s.files.exports
	case "Load", "Import":
		files = &s.files.loads
	}
	if files.Warn == nil {
		logger := s.cfg.Logger // Warn may be called while Freeze replaces s.cfg
		files.Warn = func(what string, d time.Duration) {
			cmp.Or(logger, slog.Default()).Warn("fsdp: the file system does not answer", "rank", s.team.Rank(), "operation", what, "for", d.Round(time.Millisecond))
		}
	}
	st.Store = state.Store{Layout: s.layout, Memory: memory{s, s.engine.Shards()}, Team: st, Compute: s.cfg.Precision.wide().comm(), Refusal: refusal, Files: files, Uneven: st.uneven, Draw: func() error { return s.drawn() }}
	return st
}

// uneven warns of buffers that differ between ranks.
func (st *store) uneven(buffers []string) {
	what := "each rank saves its own values"
	if st.ask.Call == "Export" {
		what = "the values of rank 0 are written"
	}
	st.s.life.watch.warn(st.s.cfg.warner(st.Rank()), st.ask.Call+": buffers, such as running means, differ between ranks: "+what+
		". AverageBuffers gives all ranks their mean", "buffers", some(buffers))
}

// end returns an error of the method in the form its user gets.
func (st *store) end(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fsdp: rank %d: %s: %w", st.Rank(), st.ask.Call, err)
}

// Group implements state.Team.
func (st *store) Group() comm.Group { return st.s.cfg.Group }

// Shard implements state.Team.
func (st *store) Shard(group int) comm.Group { return st.s.meshes[group].Shard }

// Agree implements state.Team.
func (st *store) Agree(ctx context.Context, hash uint64, err error) error {
	s, q := st.s, st.ask
	if err := s.life.localError(err); err != nil {
		return err
	}
	s.requests++
	q.Model, q.Number, q.Loops, q.Schedule = s.team.Model, s.requests, s.loops, hash
	if err == nil {
		err = s.engine.Device().Wait() // writes may fail late
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	_, all := st.Team.Agree(ctx, &q, err)
	if err == nil {
		all = s.withoutRank(q.Call, all)
	}
	if errors.As(all, new(*ranks.LostError)) {
		return st.Fail(all)
	}
	return all
}

// Fail implements state.Team.
func (st *store) Fail(err error) error {
	if st.s.life.health == running {
		_ = st.s.end(st.Team.Fail(fmt.Errorf("%s: %w", st.ask.Call, err))) // the method returns err
	}
	return &ranks.LostError{Err: err}
}

// differ warns, on rank 0, of settings that an optimizer keeps although they differ from the loaded
// state's.
func (st *store) differ(settings []string) {
	if len(settings) > 0 && st.Rank() == 0 {
		cmp.Or(st.s.cfg.Logger, slog.Default()).Warn("fsdp: "+st.ask.Call+": the optimizer keeps its own settings, which differ from the settings of the loaded state: set RestoreHyperparameters to load these too",
			"state -> optimizer", settings)
	}
}

// replace drops state that a change of the parameters makes invalid, and changes the parameters.
func (st *store) replace(ctx context.Context, what string, f filling) error {
	s := st.s
	if err := s.discard(ctx, s.life.takeLast()); err != nil { // its gathers may read parameters that will change
		return err
	}
	s.zeroGrad()
	s.engine.Forget()
	s.life.updates.clear()
	s.life.frozen.changes++
	s.life.markMixed(what, f.Optimizer(), s.lists)
	if err := st.end(f.Run(ctx)); err != nil {
		s.life.mixed = fmt.Errorf("%w: %w", s.life.mixed, err)
		return err
	}
	s.life.markWhole(f.Optimizer())
	s.saver.Rebase()
	return nil
}

// A filling is state that is about to replace the model's, and the optimizer's if Optimizer is
// true.
type filling interface {
	Optimizer() bool
	Run(ctx context.Context) error
}

// A sideTeam is the team of a group that is separate from the training's.
type sideTeam struct {
	*ranks.Agreement
	group comm.Group
	calls int
}

// newSideTeam makes one. It is a collective.
func newSideTeam(ctx context.Context, t *ranks.Team) (state.Team, error) {
	g, err := t.Beside(ctx)
	if err != nil {
		return nil, err
	}
	return &sideTeam{Agreement: ranks.NewAgreement(g, newPeerError), group: g}, nil
}

// Group implements state.Team.
func (t *sideTeam) Group() comm.Group { return t.group }

// Shard implements state.Team: nothing is collected during the training.
func (t *sideTeam) Shard(int) comm.Group { return nil }

// Agree implements state.Team.
func (t *sideTeam) Agree(ctx context.Context, hash uint64, err error) error {
	t.calls++
	_, err = t.Agreement.Agree(ctx, &ranks.Ask{Call: "Save", Number: t.calls, Schedule: hash}, err)
	return err
}

// Fail implements state.Team. The group has failed already.
func (t *sideTeam) Fail(err error) error { return &ranks.LostError{Err: err} }

// memory is the memory of a device.
type memory struct {
	s *Sharded
	engine.Shards
}

// Scratch implements state.Memory.
func (m memory) Scratch(n int) (b []byte, free func(), err error) {
	d := m.s.engine.Device()
	block, err := d.Host(n, arena.Gathered)
	if err != nil {
		return nil, nil, err
	}
	return block.Data, func() {
		if m.s.life.health == running { // after a failure buffers stay where they are
			d.Free(block)
		}
	}, nil
}

// Snapshot implements state.Memory.
func (m memory) Snapshot(n int) (b []byte, err error) {
	d := m.s.engine.Device()
	d.Free(m.s.copied) // which comes back, unless it is of another size
	if m.s.copied, err = d.Host(n, arena.Snapshot); err != nil {
		return nil, err
	}
	return m.s.copied.Data, nil
}

// giveBack closes files and groups of the model. A write or read that does not end keeps its memory
// until then.
func (s *Sharded) giveBack() error {
	var left []<-chan struct{}
	var err error
	for _, files := range []*state.Files{&s.files.saves, &s.files.exports, &s.files.loads} {
		done, late := files.Await(ranks.Limit(s.cfg.Group))
		if late != nil {
			left, err = append(left, done), errors.Join(err, late)
		}
	}
	// free frees memory that a write or read may still use, and unlocks the directories of
	// checkpoints.
	free := func() error { return errors.Join(s.engine.Close(), s.saver.Close()) }
	if err != nil {
		go func() {
			for _, done := range left {
				<-done
			}
			_ = free()
		}()
		err = fmt.Errorf("%w; its memory is freed when the file system answers", err)
	} else {
		err = free()
	}
	return errors.Join(err, endTrace(s.timeline), s.hashes.Close(), s.cfg.observe.profile.Close(), s.team.Close())
}

// remains is everything in a dropped model that the collector does not free. Nothing in it refers
// to the Sharded, which would never be dropped then.
type remains struct {
	rank   int
	device engine.Device
	hashes *record.File
	trace  *timeline.File
	logger *slog.Logger // Config.Logger
}

// releaseDropped has the remains of s released when nothing refers to s any more, unless Close
// comes first. A model all of whose memory is the collector's has none.
func (s *Sharded) releaseDropped() {
	c := &s.cfg
	if _, shared := c.Group.(comm.Allocator); shared || c.Threads > 1 || c.Device != nil || c.Offload.Dir != "" || c.observe.hashDir != "" || c.observe.traceDir != "" {
		s.files.dropped = runtime.AddCleanup(s, func(r remains) { go r.release() }, // which may wait
			remains{s.team.Rank(), s.engine.Device(), s.hashes, s.timeline, c.Logger})
	}
}

// release frees the remains and warns.
func (r remains) release() {
	err := errors.Join(r.device.Close(), endTrace(r.trace), r.hashes.Close())
	if logger := (&Config{Logger: r.logger}).warner(r.rank); logger != nil {
		logger.Warn("fsdp: a model was dropped without Close: its threads, files and memory are freed only now, when the garbage collector has found it. "+
			"Call Close when a model is no longer used", "error", err)
	}
}

// endTrace ends the file of TraceDir, if there is one.
func endTrace(f *timeline.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// newValue returns a tensor of zeros on the heap.
func newValue(t DType, shape []int) exec.Value {
	return exec.Value{Shape: shape, DType: t.tensor(), Bytes: state.BytesOf(state.NewHost(t.comm(), exec.Numel(shape)))}
}

// fromRank describes the root. All ranks must give the same one; the name of the method is not
// compared.
func fromRank(root int) string { return fmt.Sprintf(" from rank %d", root) }

// withOption describes an option that names a rank.
func withOption(option string, rank int) string {
	if rank == everywhere {
		return ""
	}
	return fmt.Sprintf(" with %s %d", option, rank)
}

// rewordedError is an error with another text.
type rewordedError struct {
	text  string
	cause error
}

func (e *rewordedError) Error() string { return e.text }
func (e *rewordedError) Unwrap() error { return e.cause }
