package ranks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// A Team is all ranks that train a model, as seen by one of them: the exchanges between all, and
// the groups over which its parameters are cut. It belongs to one goroutine.
type Team struct {
	*Agreement
	Model   int // number of the model, the same on all ranks; other models have other numbers
	group   comm.Group
	alone   comm.Group // this rank
	mixed   *Mesh      // of the hybrid strategies, once it is needed
	near    comm.Group // the ranks that share shards of the hybrid strategies, or a second copy, likewise
	own     map[comm.Group]int
	split   []comm.Group // made here
	beside  []comm.Group // likewise, but Fail does not fail them
	watch   func(transport.Flight)
	watched []func() // each ends a Watch
}

// A Mesh is the ranks that have the parameters of a flat group: they are cut over the ranks of
// Shard, and the ranks of Replica hold the same piece.
//
//	FullShard     Shard: all ranks      Replica: none
//	HybridShard   Shard: one of R sets  Replica: the ranks that have the same place in the other sets
//	NoShard       Shard: this rank      Replica: all ranks
//
// The mesh of SecondaryShard is like FullShard's, with a Second group.
type Mesh struct {
	Shard   comm.Group
	Replica comm.Group // nil without replicas
	Peers   comm.Group // all ranks that have these parameters, or buffers
	Second  comm.Group // the ranks that a second copy is cut over, or nil
}

// Staging notes in most, by group, the bytes that groups use internally to sum gradients of a flat
// group whose shards have n elements, if they exceed the noted number.
func (m *Mesh) Staging(most map[comm.Group]int, d comm.DType, n int) {
	most[m.Shard] = max(most[m.Shard], staging(m.Shard, d, n))
	if r := m.Replica; r != nil {
		most[r] = max(most[r], staging(r, d, (n+r.Size()-1)/r.Size()))
	}
}

// NewTeam returns the team of the ranks of g. peer makes the errors for failures of other ranks.
func NewTeam(g comm.Group, peer func(rank int, message string) error) *Team {
	return &Team{Agreement: NewAgreement(g, peer), group: g, alone: comm.Local(1)[0], own: make(map[comm.Group]int)}
}

// Rank returns this rank.
func (t *Team) Rank() int { return t.group.Rank() }

// Size returns the number of ranks.
func (t *Team) Size() int { return t.group.Size() }

// Mesh returns the mesh of parameters that are cut over shards ranks, with this number of replicas:
// of the ranks of own, or of all ranks if own is nil. It is a collective of these ranks.
func (t *Team) Mesh(ctx context.Context, own comm.Group, shards, replicas int) (_ Mesh, err error) {
	all := t.group
	if own != nil {
		all = own
	}
	switch {
	case shards == all.Size():
		return Mesh{Shard: all, Peers: all}, nil
	case replicas == 1: // buffers
		return Mesh{Shard: t.alone, Peers: all}, nil
	case shards == 1:
		return Mesh{Shard: t.alone, Replica: all, Peers: all}, nil
	case t.mixed != nil:
		return *t.mixed, nil
	}
	m := Mesh{Peers: all}
	place := t.Rank() % shards
	if m.Shard, err = t.Second(ctx, shards); err != nil {
		return m, err
	}
	if m.Replica, err = t.part(ctx, replicas+place, place, shards, replicas); err != nil { // the color names the group
		return m, fmt.Errorf("making the groups of ranks that hold the same shard: %w", err)
	}
	t.mixed = &m
	return m, nil
}

// Second returns the group of n consecutive ranks that includes this one. Hybrid strategies cut
// over the same group, because groups of the same ranks and name could not be distinguished in a
// trace. It is a collective of all ranks, and always for the same number.
func (t *Team) Second(ctx context.Context, n int) (comm.Group, error) {
	if n == 1 {
		return t.alone, nil
	}
	if t.near == nil {
		set := t.Rank() / n
		g, err := t.part(ctx, set, set*n, 1, n)
		if err != nil {
			return nil, fmt.Errorf("making the groups of %d ranks that share shards: %w", n, err)
		}
		t.near = g
	}
	return t.near, nil
}

// part splits off the group of color, whose n ranks are first, first+step, …
func (t *Team) part(ctx context.Context, color, first, step, n int) (comm.Group, error) {
	g, err := t.group.Split(ctx, color, t.Rank())
	if err != nil {
		return nil, err
	}
	p := &part{Group: g}
	for i := range n {
		p.ranks = append(p.ranks, first+i*step)
	}
	t.split = append(t.split, p)
	return p, t.watchOne(p)
}

// Meet returns the first rank, in the team, of a user's group. The first call is a collective of
// that group.
func (t *Team) Meet(ctx context.Context, own comm.Group) (leader int, err error) {
	if leader, known := t.own[own]; known {
		return leader, nil
	}
	first := []int64{int64(t.Rank())}
	if err := own.AllReduce(comm.Of(first).Named("first rank"), comm.Min).Wait(ctx); err != nil {
		return 0, fmt.Errorf("exchanging ranks in a group of Config.Unit: %w", err)
	}
	t.own[own] = int(first[0])
	return int(first[0]), t.watchOne(own)
}

// Watch has f called for each collective on the groups that passes use, until Close. That includes
// groups that Mesh and Meet make or find later, as in Freeze.
func (t *Team) Watch(f func(transport.Flight)) error {
	t.watch = f
	for _, g := range slices.Concat([]comm.Group{t.group}, t.split, slices.Collect(maps.Keys(t.own))) {
		if err := t.watchOne(g); err != nil {
			return err
		}
	}
	return nil
}

// watchOne begins to watch a group, if the team is watched.
func (t *Team) watchOne(g comm.Group) error {
	if t.watch == nil {
		return nil
	}
	if p, ok := g.(*part); ok {
		g = p.Group
	}
	w, ok := g.(transport.Watcher)
	if !ok {
		return fmt.Errorf("%T does not report its collectives: it does not implement transport.Watcher", g)
	}
	t.watched = append(t.watched, w.Watch(t.watch))
	return nil
}

// Each returns the words of every rank, in rank order. mine has this rank's words; every rank has
// the same number of words.
func (t *Team) Each(ctx context.Context, what string, mine []int64) ([]int64, error) {
	all := make([]int64, len(mine)*t.Size())
	if len(mine) == 0 {
		return nil, nil
	}
	return all, t.group.AllGather(comm.Of(all).Named(what), comm.Of(mine).Named(what)).Wait(ctx)
}

// Beside returns another group of all ranks. A failure of the team does not fail it as long as no
// rank is gone, so that operations under way in it can be finished. It is closed with the team.
func (t *Team) Beside(ctx context.Context) (comm.Group, error) {
	g, err := t.group.Split(ctx, comm.Detached, t.Rank())
	if err == nil {
		t.beside = append(t.beside, g)
	}
	return g, err
}

// A Failure is an error after which no group of the model is usable. It is the same on every rank,
// or one rank's own error.
type Failure struct{ Err error }

func (e *Failure) Error() string { return e.Err.Error() }
func (e *Failure) Unwrap() error { return e.Err }

// Fail fails all groups on every rank and returns err as a Failure. Groups made here fail with the
// team's group, unless that has failed before because a rank has left it. Without the loop, ranks
// that wait in them for this one would not notice.
func (t *Team) Fail(err error) error {
	t.group.Abort(err)
	for _, g := range t.split {
		g.Abort(err)
	}
	for g := range t.own {
		g.Abort(err)
	}
	return &Failure{err}
}

// Close closes the groups made here, and ends all watches.
func (t *Team) Close() error {
	for _, stop := range t.watched {
		stop()
	}
	var errs []error
	for _, g := range slices.Concat(t.split, t.beside, []comm.Group{t.alone}) {
		errs = append(errs, g.Close())
	}
	return errors.Join(errs...)
}

// A part is a group that was split off here. It numbers its ranks differently from the user's
// group, so its errors list the user's numbers.
type part struct {
	comm.Group
	ranks []int // of the team
}

// partWork is an operation of a part.
type partWork struct {
	comm.Work
	part *part
}

// Wait implements comm.Work.
func (w partWork) Wait(ctx context.Context) error { return Among(w.part, w.Work.Wait(ctx)) }

// Among adds the ranks of a group to its error, if the group was split off here, because it numbers
// its ranks differently.
func Among(g comm.Group, err error) error {
	if p, ok := g.(*part); ok && err != nil {
		return fmt.Errorf("among ranks %v: %w", p.ranks, err)
	}
	return err
}

// Failing makes the part report its failures: see [transport.Failing].
func (p *part) Failing() <-chan struct{} { return transport.Failing(p.Group) }

// AllGather implements comm.Group.
func (p *part) AllGather(dst, src comm.Buffer) comm.Work {
	return partWork{p.Group.AllGather(dst, src), p}
}

// ReduceScatter implements comm.Group.
func (p *part) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return partWork{p.Group.ReduceScatter(dst, src, op), p}
}

// Gather implements comm.Group.
func (p *part) Gather(dst, src comm.Buffer, counts []int, root int) comm.Work {
	return partWork{p.Group.Gather(dst, src, counts, root), p}
}

// Staging implements transport.Stager.
func (p *part) Staging(d comm.DType, n int) int { return staging(p.Group, d, n) }

// staging returns the staging memory of g, or 0 if g works in the memory of its callers.
func staging(g comm.Group, d comm.DType, n int) int {
	if s, ok := g.(transport.Stager); ok {
		return s.Staging(d, n)
	}
	return 0
}

// AllReduce implements comm.Group.
func (p *part) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return partWork{p.Group.AllReduce(buf, op), p}
}
