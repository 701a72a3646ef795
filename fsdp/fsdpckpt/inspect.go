package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

var inspectCommand = command{
	name: "inspect", args: "PATH", n: 1, short: "the contents of a checkpoint",
	long: `
Prints the contents of a checkpoint: step, ranks, parameters, optimizer state
with its settings, the data of the options Extra and RankExtra of fsdp.Save, and
the files. A tensor that belongs to one rank, such as an expert's, is called
"name@rank".`,
	flags: func(f *flag.FlagSet) action {
		tensors := f.Bool("tensors", false, "list the tensors, with the file of each range of elements")
		asJSON := f.Bool("json", false, "print JSON, for programs")
		return func(ctx context.Context, sys system, args []string) error {
			return inspect(ctx, sys, args[0], *tensors, *asJSON)
		}
	},
}

func inspect(ctx context.Context, sys system, path string, tensors, asJSON bool) error {
	r, dir, err := open(ctx, sys, path)
	if err != nil {
		return err
	}
	m := r.Manifest()
	if err := r.Close(); err != nil {
		return err
	}
	a, err := readAbout(m)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if asJSON {
		return inspectJSON(sys, dir, m, a, tensors)
	}
	fmt.Fprintf(sys.out, "%s\n\n", dir)
	if err := table(sys.out, append(aboutRows(m, a), contentRows(m, a)...)); err != nil {
		return err
	}
	fmt.Fprintln(sys.out)
	if err := table(sys.out, fileRows(m)); err != nil || !tensors {
		return err
	}
	fmt.Fprintln(sys.out)
	return table(sys.out, tensorRows(m))
}

// aboutRows lists the state of the training.
func aboutRows(m *checkpoint.Manifest, a *about) []string {
	rows := []string{fmt.Sprintf("step\t%d", m.Step), fmt.Sprintf("ranks\t%d", m.World)}
	if a.Seed != nil {
		rows = append(rows, fmt.Sprintf("seed\t%d", *a.Seed))
	}
	if a.Forwards != nil {
		rows = append(rows, fmt.Sprintf("passes\t%d", *a.Forwards))
	}
	return rows
}

// contentRows sums up the contents by kind.
func contentRows(m *checkpoint.Manifest, a *about) []string {
	var values, buffers, state []checkpoint.Tensor
	entries := make(map[string]bool)
	for _, t := range m.Tensors {
		switch {
		case t.Entry != "":
			entries[t.Entry] = true
			state = append(state, t)
		case a.isBuffer(t.Key):
			buffers = append(buffers, t)
		default:
			values = append(values, t)
		}
	}
	rows := []string{"parameters\t" + volume(values)}
	if n := len(a.Base); n > 0 {
		elements := 0
		for _, b := range a.Base {
			elements += (&checkpoint.Tensor{Shape: b.Shape}).Len()
		}
		rows = append(rows, fmt.Sprintf("frozen\t%s, %s, left out by SaveOptions.TrainedOnly", plural(n, "tensor"), plural(elements, "element")))
	}
	if len(buffers) > 0 {
		rows = append(rows, "buffers\t"+volume(buffers)+", different on every rank")
	}
	if a.OptimizerSteps != nil || len(state) > 0 {
		row := "optimizer\t"
		if a.OptimizerSteps != nil {
			row += plural(*a.OptimizerSteps, "step") + ", "
		}
		rows = append(rows, row+volume(state))
	}
	for _, g := range a.OptimizerGroups {
		facts := slices.Insert(g.Facts(), 1, fmt.Sprintf("learning rate %v", g.LR))
		rows = append(rows, fmt.Sprintf("settings\t%s: %s", strings.Join(facts, ", "), plural(len(g.Params), "parameter")))
	}
	if len(state) > 0 {
		rows = append(rows, "entries\t"+strings.Join(slices.Sorted(maps.Keys(entries)), ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Extra)) {
		rows = append(rows, fmt.Sprintf("extra\t%s %s", name, excerpt(a.Extra[name])))
	}
	perRank := make(map[string]int)
	for _, extras := range a.RankExtra {
		for name := range extras {
			perRank[name]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(perRank)) {
		rows = append(rows, fmt.Sprintf("rank extra\t%s of %s", name, plural(perRank[name], "rank")))
	}
	return rows
}

// volume returns the size of some tensors.
func volume(tensors []checkpoint.Tensor) string {
	if len(tensors) == 0 {
		return "no tensors"
	}
	elements, bytes := 0, int64(0)
	types := make(map[string]bool)
	for i := range tensors {
		t := &tensors[i]
		elements += t.Len()
		bytes += tensorBytes(t)
		types[string(t.DType)] = true
	}
	return fmt.Sprintf("%s, %s of %s, %s", plural(len(tensors), "tensor"), plural(elements, "element"),
		strings.Join(slices.Sorted(maps.Keys(types)), " and "), sizeText(bytes))
}

// excerpt returns the beginning of a JSON text, and its size if it is longer.
func excerpt(text json.RawMessage) string {
	const most = 40
	runes := []rune(string(text))
	if len(runes) <= most {
		return string(runes)
	}
	return fmt.Sprintf("%s… (%s)", string(runes[:most]), sizeText(int64(len(text))))
}

// fileRows lists the files.
func fileRows(m *checkpoint.Manifest) []string {
	pieces := make([]int, len(m.Files))
	for _, t := range m.Tensors {
		for p := range t.All() {
			pieces[p.File]++
		}
	}
	rows := []string{"FILE\tNAME\tPIECES\tSIZE"}
	for i, f := range m.Files {
		rows = append(rows, fmt.Sprintf("%d\t%s\t%d\t%s", i, f.Name, pieces[i], sizeText(f.Size)))
	}
	return rows
}

// tensorRows lists the tensors. A piece is the number of its file and the interval of elements.
func tensorRows(m *checkpoint.Manifest) []string {
	rows := []string{"TENSOR\tTYPE\tSHAPE\tSIZE\tUPDATES\tPIECES"}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		updates := "-"
		if t.Entry != "" {
			updates = countText(t.Steps)
		}
		var pieces []string
		for p := range t.All() {
			pieces = append(pieces, fmt.Sprintf("%d[%d:%d]", p.File, p.Offset, p.Offset+p.Len))
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%v\t%s\t%s\t%s",
			t.Name(), t.DType, t.Shape, sizeText(tensorBytes(t)), updates, cmp.Or(strings.Join(pieces, " "), "-")))
	}
	return rows
}
