package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/profile"
	"github.com/gofsdp/gofsdp/internal/launch"
)

// prepareTotals makes the directory for the totals of this host's ranks.
func (l *launcher) prepareTotals() (err error) {
	if !l.compare {
		return nil
	}
	if l.totals, err = os.MkdirTemp("", "fsdprun-stragglers"); err != nil {
		return fmt.Errorf("-stragglers: %w", err)
	}
	l.base = append(l.base, launch.Stragglers+"="+l.totals)
	return nil
}

func (l *launcher) removeTotals() {
	if l.totals != "" {
		os.RemoveAll(l.totals)
	}
}

// readTotals reads the totals that an ended rank has left.
func (l *launcher) readTotals(r *rank) {
	if l.totals == "" || r.end == nil {
		return
	}
	files, err := filepath.Glob(filepath.Join(l.totals, fmt.Sprintf("rank-%d.*.json", r.number)))
	for _, name := range files {
		text, rerr := os.ReadFile(name)
		t := new(profile.Totals)
		err = errors.Join(err, rerr, os.Remove(name))
		if rerr == nil {
			err = errors.Join(err, json.Unmarshal(text, t))
		}
		if t.Cores > 0 { // a rank that is pinned, or has a GOMAXPROCS of its own, sees only its share
			t.Cores = l.cores
		}
		r.end.Totals = append(r.end.Totals, t)
	}
	if err != nil {
		l.screen.say("-stragglers: rank %d: %v", r.number, err)
		r.end.Totals = nil
	}
}

// stragglers reports which ranks the others waited for, for each of their models.
func stragglers(ended []*ending) string {
	models := make(map[int][]*profile.Totals)
	var numbers []int
	for _, e := range ended {
		for _, t := range e.Totals {
			if models[t.Model] == nil {
				numbers = append(numbers, t.Model)
			}
			models[t.Model] = append(models[t.Model], t)
		}
	}
	if len(numbers) == 0 {
		return "-stragglers: no rank has reported its times: none has run two passes of an fsdp model, or they were killed within seconds"
	}
	var b strings.Builder
	slices.Sort(numbers)
	for _, n := range numbers {
		of := ""
		if len(numbers) > 1 {
			of = fmt.Sprintf(" of model %d", n)
		}
		fmt.Fprintf(&b, "stragglers%s: %s\n", of, compared(models[n]))
	}
	return b.String()
}

// compared compares the ranks of a model.
func compared(all []*profile.Totals) string {
	slices.SortFunc(all, func(a, b *profile.Totals) int { return cmp.Compare(a.Rank, b.Rank) })
	for i, t := range all {
		if i > 0 && t.Rank == all[i-1].Rank {
			return "several groups of ranks have a model with this number: they cannot be compared"
		}
	}
	r, err := profile.Find(all)
	if err != nil {
		return err.Error()
	}
	missing := ""
	if n := all[0].Size - len(all); n > 0 {
		missing = fmt.Sprintf("\n%d of %d ranks have reported nothing", n, all[0].Size)
	}
	return fmt.Sprintf("%d passes of %d ranks\n%v%s", all[0].Passes, len(all), r, missing)
}
