package comm

import (
	"context"
	"errors"
	"fmt"
)

// World is a group of ranks that do not exist: their number, and the place of this rank. Callers
// use it to compute the part of one rank among many. It communicates nothing: every collective
// fails with [ErrWorld]. It is a value, and may be used by several goroutines.
type World struct {
	Ranks int // at least 1
	Place int // this rank's
}

// ErrWorld is the error of every collective of a [World].
var ErrWorld = errors.New("comm: a World has no ranks to communicate with")

var _ Group = World{}

// Rank implements [Group].
func (w World) Rank() int { return w.Place }

// Size implements [Group].
func (w World) Size() int { return w.Ranks }

// String says which rank of how many it is.
func (w World) String() string {
	return fmt.Sprintf("rank %d of a World of %d", w.Place, w.Ranks)
}

// AllGather implements [Group]: it fails.
func (World) AllGather(dst, src Buffer) Work { return noWork{} }

// ReduceScatter implements [Group]: it fails.
func (World) ReduceScatter(dst, src Buffer, op Op) Work { return noWork{} }

// AllReduce implements [Group]: it fails.
func (World) AllReduce(buf Buffer, op Op) Work { return noWork{} }

// Broadcast implements [Group]: it fails.
func (World) Broadcast(buf Buffer, root int) Work { return noWork{} }

// Gather implements [Group]: it fails.
func (World) Gather(dst, src Buffer, counts []int, root int) Work { return noWork{} }

// AllToAll implements [Group]: it fails.
func (World) AllToAll(dst, src Buffer) Work { return noWork{} }

// Barrier implements [Group]: it fails.
func (World) Barrier(context.Context) error { return ErrWorld }

// Split implements [Group]: it fails.
func (World) Split(ctx context.Context, color, key int) (Group, error) { return nil, ErrWorld }

// Abort implements [Group]: there is no rank to inform.
func (World) Abort(error) {}

// Close implements [Group]: there is nothing to leave.
func (World) Close() error { return nil }

// noWork is the Work of a collective without ranks.
type noWork struct{}

func (noWork) Wait(context.Context) error { return ErrWorld }
