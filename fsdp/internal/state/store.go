package state

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/optim"
)

// A Store is the state of this rank's part of a training, for the length of one method.
type Store struct {
	Layout  *layout.Layout
	Memory  Memory
	Team    Team
	Compute comm.DType // of parameters, gradients and the optimizer's state
	Refusal error      // nil, or why this rank cannot take part: all ranks get it first
	Files   *Files     // of a method that writes or reads files
	// Draw draws the initial values that no one has used, before a method compares values.
	Draw func() error
	// Uneven is called by a method that writes, on every rank, with the buffers that differ between
	// ranks.
	Uneven func(buffers []string)
}

// Memory lends the memory of this rank.
type Memory interface {
	// Value returns the shard of a group's parameters, Grad the shard of their gradients: nil if
	// they have none.
	Value(group int) optim.Vec
	Grad(group int) optim.Vec
	// Scratch returns n bytes for data that is whole for a moment, and a function that frees them.
	// After a failure of the groups it does nothing: their transports may still write there.
	Scratch(n int) (b []byte, free func(), err error)
	// Snapshot returns n bytes for a copy that outlives the method, in place of its previous
	// result.
	Snapshot(n int) ([]byte, error)
	// Forget drops the rounding errors of gradients that travel, which no checkpoint has.
	Forget()
	// Lend runs f, which calls a method of an optimizer that reads or changes vectors of the model:
	// see optim.Guard.
	Lend(f func() error) error
}

// Team is the communication of this rank with the others.
type Team interface {
	// Group returns the group of all ranks.
	Group() comm.Group
	// Shard returns the group of the ranks over which a group of parameters is cut.
	Shard(group int) comm.Group
	// Agree returns nil on every rank, or an error on every rank. err is the reason why this rank
	// cannot continue, or nil. The hash must be the same on all ranks.
	Agree(ctx context.Context, hash uint64, err error) error
	// Busy runs work of any length, and returns when it has ended on every rank. Other ranks do not
	// get its error. If files do not respond, the work is left behind. f may be nil.
	Busy(ctx context.Context, f ranks.Files, work func(context.Context) error) error
	// Same returns an error on every rank unless all have the same text.
	Same(ctx context.Context, what, text string) error
	// Tell returns root's bytes on every rank.
	Tell(ctx context.Context, root int, mine []byte) ([]byte, error)
	// Fail ends all groups, at once: err is the failure of a collective, in which other ranks may
	// wait for this one. It returns err as a *ranks.LostError.
	Fail(err error) error
}

// prepare agrees that all ranks can take part. local needs no other rank.
func (s *Store) prepare(ctx context.Context, hash uint64, local func() error) error {
	err := s.Refusal
	if err == nil {
		err = local()
	}
	return s.Team.Agree(ctx, hash, err)
}

// same returns an error on every rank unless all have the same text. If the exchange fails, other
// ranks may already be in the next collective.
func (s *Store) same(ctx context.Context, what, text string) error {
	err := s.Team.Same(ctx, what, text)
	if errors.As(err, new(*ranks.LostError)) {
		return s.Team.Fail(err)
	}
	return err
}

// busy runs work on this rank and returns an error on every rank if it fails on any.
func busy(ctx context.Context, t Team, f ranks.Files, work func(context.Context) error) error {
	return t.Agree(ctx, 0, t.Busy(ctx, f, work))
}

// rank returns this rank, and world the number of ranks.
func (s *Store) rank() int  { return s.Team.Group().Rank() }
func (s *Store) world() int { return s.Team.Group().Size() }

// A Mismatch says that a file, checkpoint or full state does not fit the model or its optimizer.
type Mismatch struct {
	Where    string   // the file, checkpoint or state
	Missing  []string // in the model, not in the state
	Extra    []string // in the state, not in the model
	Reshaped []string // with another shape, as "name [shape there] -> [shape here]"
	Kinds    []string // optimizers of another kind, as "AdamW -> SGD of w, b and 7 more"
	Changed  []string // frozen parameters with other values than at Save, which the checkpoint does not have

	trained bool // Missing are parameters that the checkpoint lacks as they were frozen
}

// any reports whether there is a mismatch.
func (m *Mismatch) any() bool {
	return len(m.Missing)+len(m.Extra)+len(m.Reshaped)+len(m.Kinds)+len(m.Changed) > 0
}

// Error implements error. It lists a few names of each kind: a model has thousands, and one wrong
// prefix renames them all. It says which option would accept them.
func (m *Mismatch) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s does not fit the model", m.Where)
	missing, sep := ", see AllowMissing", ": "
	if m.trained {
		missing = ": it has only the parameters that were trained (SaveOptions.TrainedOnly), so freeze the others, or see AllowMissing"
	}
	for _, kind := range []struct {
		label  string
		names  []string
		advice string
	}{
		{"saved by another kind of optimizer:", m.Kinds, ": make an optimizer of the saved kind, or start without its state by AllowMissing and AllowExtra"},
		{"missing", m.Missing, missing}, {"extra", m.Extra, ", see AllowExtra"},
		{"reshaped", m.Reshaped, ": give the model the sizes that it was saved with, or begin with new values: Rename to a name that AllowMissing accepts, and accept the old one by AllowExtra"},
		{"another base:", m.Changed, ": these parameters are frozen, and their values differ from the values at Save, which the checkpoint " +
			"does not have (SaveOptions.TrainedOnly): load the same base model before, or accept this one by AllowMissing"},
	} {
		if len(kind.names) == 0 {
			continue
		}
		const most = 5
		fmt.Fprintf(&b, "%s%s %s", sep, kind.label, strings.Join(kind.names[:min(most, len(kind.names))], ", "))
		if more := len(kind.names) - most; more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
		b.WriteString(kind.advice)
		if kind.label == "extra" && len(m.Missing) > 0 {
			b.WriteString(", or Rename if these are the missing ones")
		}
		sep = "; "
	}
	return b.String()
}
