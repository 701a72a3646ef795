package fsdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// An inventory is what the optimizer of a rank keeps. Ranks exchange theirs, as one that owns nothing of a parameter does not
// know what the others keep for it.
type inventory struct {
	Steps int         // calls of Step
	Kinds []entries   // what it keeps for a parameter; most are alike
	Of    []int       // by parameter of the model: index in Kinds, or -1 for nothing
	Full  *stateSheet `json:",omitempty"` // what SetFullOptim is given on its root
}

// kept returns what the optimizer keeps for a parameter, without its counts if they do not matter.
func (inv *inventory) kept(param int, counts bool) entries {
	if inv.Of[param] < 0 {
		return nil
	}
	kind := inv.Kinds[inv.Of[param]]
	if counts {
		return kind
	}
	names := make(entries, len(kind))
	for name := range kind {
		names[name] = 0
	}
	return names
}

// inventory makes the inventory of an optimizer.
func (s *Sharded) inventory(opt optim.Optimizer) inventory {
	inv := inventory{Steps: opt.Steps()}
	kept := make([]entries, len(s.trace.params))
	for _, e := range opt.State() {
		set((*map[string]int)(&kept[s.trace.byName[e.Param]]), e.Name, e.Steps)
	}
	for _, list := range kept {
		kind := -1
		if list != nil {
			kind = slices.IndexFunc(inv.Kinds, func(e entries) bool { return maps.Equal(e, list) })
			if kind < 0 {
				kind = len(inv.Kinds)
				inv.Kinds = append(inv.Kinds, list)
			}
		}
		inv.Of = append(inv.Of, kind)
	}
	return inv
}

// exchange returns the inventories of all ranks.
func (s *Sharded) exchange(ctx context.Context, own inventory) ([]inventory, error) {
	text, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	texts, err := comm.GatherBytes(ctx, s.cfg.Group, text)
	if err != nil {
		return nil, fmt.Errorf("exchanging what the optimizers keep: %w", err)
	}
	all := make([]inventory, len(texts))
	for r, text := range texts {
		if err := json.Unmarshal(text, &all[r]); err != nil {
			return nil, fmt.Errorf("what the optimizer of rank %d keeps: %w", r, err)
		}
	}
	return all, nil
}

// An optimState is the state of an optimizer over all ranks.
type optimState struct {
	steps   int           // calls of Step
	tensors []stateTensor // in the order of the model, those of one parameter by name
}

// merge joins the inventories. It fails, on every rank alike, if a rank that has a part of a parameter keeps other entries for it
// than the rest, or, where the counts matter, if they have had other numbers of updates.
func (s *Sharded) merge(all []inventory, holdings []holding, counts bool) (optimState, error) {
	state := optimState{steps: all[0].Steps}
	for r, inv := range all {
		if counts && inv.Steps != state.steps {
			return state, fmt.Errorf("the optimizer has made %d steps on rank 0, %d on rank %d", state.steps, inv.Steps, r)
		}
	}
	var errs []error
	for p, q := range s.trace.params {
		h, index := &holdings[s.layout.Home[p].Group], s.layout.Home[p].Index
		for _, owner := range h.g.Owners() {
			first, list := -1, entries(nil)
			for r := range all {
				if span := h.g.Span(h.g.Member(r).Place, index); !h.has(r, owner) || span.Start == span.End {
					continue
				}
				if first < 0 {
					first, list = r, all[r].kept(p, counts)
				} else if theirs := all[r].kept(p, counts); !maps.Equal(list, theirs) {
					errs = append(errs, fmt.Errorf("parameter %s: rank %d keeps %v, rank %d %v", q.Name, first, list, r, theirs))
					break
				}
			}
			for _, name := range slices.Sorted(maps.Keys(list)) {
				key := checkpoint.Key{Param: q.Name, Entry: name, Owner: owner}
				state.tensors = append(state.tensors, stateTensor{Key: key, param: p, shape: q.Shape, steps: list[name]})
			}
		}
	}
	if more := len(errs) - 3; more > 0 {
		errs = append(errs[:3], fmt.Errorf("and so %d more parameters", more))
	}
	if err := errors.Join(errs...); err != nil {
		return state, fmt.Errorf("optimizers disagree: %w", err)
	}
	return state, nil
}

// entries are the numbers of updates that the entries of one parameter have had, by name.
type entries map[string]int

// String lists them.
func (e entries) String() string {
	if len(e) == 0 {
		return "nothing"
	}
	var b strings.Builder
	for i, name := range slices.Sorted(maps.Keys(e)) {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s after %d updates", name, e[name])
	}
	return b.String()
}
