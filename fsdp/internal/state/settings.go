package state

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/optim"
)

// groupsOf returns the settings of an optimizer for the parameters in a list. If ranks have
// different parameters of one name, all of these have the same settings.
func groupsOf(opt optim.Optimizer, list []Tensor, name func(*Tensor) string) (groups []optim.Group) {
	of := settingsOf(optim.Groups(opt))
	at := make(map[optim.Settings]int)
	for i := range list {
		if list[i].Entry != "" {
			continue
		}
		s := of[list[i].Param]
		if s == nil {
			continue
		}
		g, ok := at[*s]
		if !ok {
			g = len(groups)
			at[*s], groups = g, append(groups, optim.Group{Settings: *s})
		}
		groups[g].Params = append(groups[g].Params, name(&list[i]))
	}
	return groups
}

// settingsOf returns the settings in groups by parameter.
func settingsOf(groups []optim.Group) map[string]*optim.Settings {
	of := make(map[string]*optim.Settings)
	for i := range groups {
		for _, name := range groups[i].Params {
			of[name] = &groups[i].Settings
		}
	}
	return of
}

// A regrouping compares the settings with which a state was made, as far as it has them, with the
// settings of the optimizer that gets it.
type regrouping struct {
	Differ []string // such as "weight decay 0.1 -> 0 of a.bias and b.bias"
	others []other
	apply  func() // takes the settings of the state, or nil
}

// An other is a parameter whose state comes from an optimizer of another kind.
type other struct {
	index       int // of the model
	kinds, name string
}

// regroup compares them for the parameters in a list that belong to this rank.
func (s *Store) regroup(opt optim.Optimizer, groups []optim.Group, n *naming, take bool) (r regrouping, err error) {
	there, here := settingsOf(groups), settingsOf(optim.Groups(opt))
	var facts tally
	var taken []optim.Group
	list := values(s.Layout)
	for i := range list {
		t := &list[i]
		was, is := there[n.param(t)], here[t.Param]
		if was == nil || is == nil || !mine(s.Layout, t) {
			continue
		}
		if was.Kind != is.Kind {
			r.others = append(r.others, other{t.Index, was.Kind + " -> " + is.Kind, n.param(t)})
			continue
		}
		taken = append(taken, optim.Group{Settings: *was, Params: []string{t.Param}})
		theirs := was.Facts()
		for j, fact := range is.Facts() {
			if j < len(theirs) && fact != theirs[j] {
				facts.add(theirs[j]+" -> "+fact[strings.LastIndex(fact, " ")+1:], n.param(t))
			}
		}
	}
	if !take {
		r.Differ = facts.texts()
		return r, nil
	}
	if len(groups) == 0 {
		return r, errors.New("option RestoreHyperparameters: the state does not contain its settings")
	}
	if r.apply, err = optim.Regroup(opt, taken); err != nil {
		return r, fmt.Errorf("option RestoreHyperparameters: %w", err)
	}
	return r, nil
}

// A tally has texts, and for each text the parameters to which it applies.
type tally struct {
	order []string
	about map[string][]string
}

func (t *tally) add(text, param string) {
	if t.about == nil {
		t.about = make(map[string][]string)
	}
	if t.about[text] == nil {
		t.order = append(t.order, text)
	}
	t.about[text] = append(t.about[text], param)
}

// texts returns the texts with a few parameters each.
func (t *tally) texts() []string {
	list := slices.Clone(t.order)
	for i, text := range list {
		of := t.about[text]
		const most = 3
		list[i] += " of " + strings.Join(of[:min(most, len(of))], ", ")
		if more := len(of) - most; more > 0 {
			list[i] += fmt.Sprintf(" and %d more", more)
		}
	}
	return list
}
