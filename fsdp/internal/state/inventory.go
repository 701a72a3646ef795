package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/optim"
)

// The inventory lists the state that optimizers keep. A rank that has no part of a parameter cannot
// list the state of other ranks for it, so rank 0 merges the lists of the ranks and sends the
// result to all:
//	every rank   an inventory of the values that it has a part of   to rank 0
//	rank 0       merges them: ranks with parts of one tensor must   to every rank
//	             keep the same for it
//
// It refers to values by their index in the list that all ranks have: see values.

// An inventory lists the state that the optimizer of a rank, or of all, keeps.
type inventory struct {
	Steps int    // calls of Step
	Kinds []kind // the entries kept for one value; most are alike
	Runs  []run  // ascending, without overlap
	Fault string `json:",omitempty"` // of rank 0: why there is no merged one

	index map[string]int // in Kinds, by their text
}

// A kind has the entries that are kept for one value, by name.
type kind map[string]entry

// An entry is the number of its updates, and its bits an element if they differ from the value's.
type entry struct {
	Steps int
	Bits  int `json:",omitzero"`
}

// A run is Len values from First on. The same kind is kept for all of them. Values with an empty
// kind have no entries.
type run struct{ First, Len, Kind int }

// newInventory makes the inventory of opt: the entries that it keeps for the values of pieces.
// Counts of steps are left out if they do not matter.
func newInventory(l *layout.Layout, list []Tensor, pieces []Piece, opt optim.Optimizer, counts bool) *inventory {
	inv := &inventory{}
	if counts {
		inv.Steps = opt.Steps()
	}
	kept := make([]kind, len(l.Model.Params)) // by parameter
	last, k := kind{}, kind{}
	for i := 0; i < len(pieces); {
		param := pieces[i].Index
		clear(k)
		for maps.Copy(k, kept[param]); i < len(pieces) && pieces[i].Index == param; i++ {
			p := &pieces[i]
			if p.Entry == "" {
				continue
			}
			e := entry{}
			if counts {
				e.Steps = p.Steps
			}
			if v, ok := p.Vec.(optim.Packed); ok {
				e.Bits = v.Bits()
			}
			k[p.Entry] = e
		}
		if !maps.Equal(k, last) {
			last = maps.Clone(k)
		}
		kept[param] = last
	}
	for i := range list {
		if t := &list[i]; kept[t.Index] != nil && mine(l, t) {
			inv.add(i, kept[t.Index])
		}
	}
	return inv
}

// add appends the kind that is kept for a value.
func (inv *inventory) add(value int, k kind) {
	if n := len(inv.Runs); n > 0 {
		if last := &inv.Runs[n-1]; last.First+last.Len == value && maps.Equal(inv.Kinds[last.Kind], k) {
			last.Len++
			return
		}
	}
	text, _ := json.Marshal(k) // Marshal sorts the names
	at, known := inv.index[string(text)]
	if !known {
		if at = len(inv.Kinds); at == 0 {
			inv.index = make(map[string]int)
		}
		inv.index[string(text)] = at
		inv.Kinds = append(inv.Kinds, k)
	}
	inv.Runs = append(inv.Runs, run{value, 1, at})
}

// encode returns inv as bytes for decodeInventory.
func (inv *inventory) encode() []byte {
	text, _ := json.Marshal(inv) // names and numbers: nothing there can fail
	return text
}

// decodeInventory is the reverse of encode. It refuses an inventory of more than this number of
// values.
func decodeInventory(b []byte, values int) (*inventory, error) {
	inv := &inventory{}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(inv); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("other data follows the inventory")
	}
	least := inv.Steps
	for _, k := range inv.Kinds {
		if _, ok := k[""]; ok || k == nil {
			return nil, errors.New("an optimizer kind is null, or one of its entries has no name")
		}
		for _, e := range k {
			least = min(least, e.Steps)
		}
	}
	if least < 0 {
		return nil, fmt.Errorf("the number of optimizer steps is %d: it must not be negative", least)
	}
	next := 0
	for _, r := range inv.Runs {
		if r.First < next || r.Len < 1 || r.Len > values-r.First || r.Kind < 0 || r.Kind >= len(inv.Kinds) {
			return nil, fmt.Errorf("run %+v is out of range: there are %d values and %d kinds", r, values, len(inv.Kinds))
		}
		next = r.First + r.Len
	}
	return inv, nil
}

// merge joins the inventories of ranks. It fails if ranks keep different entries for one of the
// values in list, or have made different numbers of steps.
func merge(all []*inventory, list []Tensor) (*inventory, error) {
	type known struct {
		rank int // that has reported it first
		kept kind
	}
	first := make([]known, len(list)) // kept is nil if no rank has reported anything
	faults := make([]error, len(list))
	for r, inv := range all {
		if inv.Steps != all[0].Steps {
			return nil, fmt.Errorf("the optimizer has made %d steps on rank 0, but %d steps on rank %d", all[0].Steps, inv.Steps, r)
		}
		for _, run := range inv.Runs {
			theirs := inv.Kinds[run.Kind]
			for v := run.First; v < run.First+run.Len; v++ {
				switch f := first[v]; {
				case f.kept == nil:
					first[v] = known{r, theirs}
				case faults[v] == nil && !maps.Equal(f.kept, theirs):
					faults[v] = fmt.Errorf("parameter %s: rank %d has %v, rank %d has %v", list[v].Param, f.rank, f.kept, r, theirs)
				}
			}
		}
	}
	faults = slices.DeleteFunc(faults, func(err error) bool { return err == nil })
	if more := len(faults) - 3; more > 0 {
		faults = append(faults[:3], fmt.Errorf("%d more parameters differ", more))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("optimizers differ between ranks, so give all ranks the same optimizer: %w", err)
	}
	merged := &inventory{Steps: all[0].Steps}
	for v, f := range first {
		if f.kept != nil {
			merged.add(v, f.kept)
		}
	}
	return merged, nil
}

// tensors returns list with the entries of each value after it, by name.
func (inv *inventory) tensors(list []Tensor) []Tensor {
	n, next := len(list), 0
	for _, r := range inv.Runs {
		n += r.Len * len(inv.Kinds[r.Kind])
	}
	all := make([]Tensor, 0, n)
	for _, r := range inv.Runs {
		all = append(all, list[next:r.First]...)
		names := slices.Sorted(maps.Keys(inv.Kinds[r.Kind]))
		for next = r.First; next < r.First+r.Len; next++ {
			t := list[next]
			all = append(all, t)
			for _, name := range names {
				t.Entry, t.Steps = name, inv.Kinds[r.Kind][name].Steps
				all = append(all, t)
			}
		}
	}
	return append(all, list[next:]...)
}

// listed lists the state: the values and, unless opt is nil, the entries that the optimizers of all
// ranks keep. It is a collective, and an error is the same on all ranks.
func (s *Store) listed(ctx context.Context, opt optim.Optimizer, pieces []Piece, counts bool) (list []Tensor, steps int, err error) {
	list = values(s.Layout)
	if opt == nil {
		return list, 0, nil
	}
	failed := func(err error) error {
		return s.Team.Fail(fmt.Errorf("exchanging the lists of optimizer state: %w", err))
	}
	texts, err := gather(ctx, s.Team.Group(), newInventory(s.Layout, list, pieces, opt, counts).encode(), "inventory")
	if err != nil {
		return nil, 0, failed(err)
	}
	var told []byte
	if s.rank() == 0 {
		told = mergeTexts(texts, list).encode()
	}
	if told, err = s.Team.Tell(ctx, 0, told); err != nil {
		return nil, 0, failed(err)
	}
	merged, err := decodeInventory(told, len(list))
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("rank 0's list of optimizer state is invalid: %w", err)
	case merged.Fault != "":
		return nil, 0, errors.New(merged.Fault)
	}
	return merged.tensors(list), merged.Steps, nil
}

// mergeTexts merges the inventories of all ranks, or returns the reason why that is not possible.
func mergeTexts(texts [][]byte, list []Tensor) *inventory {
	all := make([]*inventory, len(texts))
	for r, text := range texts {
		var err error
		if all[r], err = decodeInventory(text, len(list)); err != nil {
			return &inventory{Fault: fmt.Sprintf("rank %d's list of optimizer state is invalid: %v", r, err)}
		}
	}
	merged, err := merge(all, list)
	if err != nil {
		return &inventory{Fault: err.Error()}
	}
	return merged
}

// String lists the entries.
func (k kind) String() string {
	if len(k) == 0 {
		return "nothing"
	}
	var b strings.Builder
	for i, name := range slices.Sorted(maps.Keys(k)) {
		if i > 0 {
			b.WriteString(", ")
		}
		if b.WriteString(name); k[name].Bits != 0 {
			fmt.Fprintf(&b, " in %d bits", k[name].Bits)
		}
		fmt.Fprintf(&b, " after %d updates", k[name].Steps)
	}
	return b.String()
}
