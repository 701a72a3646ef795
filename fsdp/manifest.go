package fsdp

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/launch"
)

// manifest returns the facts on which all ranks must agree, as text, so that a difference can be
// shown: one fact a line.
func manifest(cfg *Config, tr *trace, m *layout.Model, units []*unit) string {
	var b strings.Builder
	for _, field := range []struct {
		name  string
		value any
	}{
		{"Precision.Compute", cfg.Precision.Compute}, {"Precision.Gather", cfg.Precision.Gather}, {"Precision.Reduce", cfg.Precision.Reduce}, {"Precision.Master", cfg.Precision.Master},
		{"GradAverage", cfg.GradAverage}, {"Prefetch", cfg.Prefetch}, {"InFlight", cfg.InFlight}, {"ShardRanks", cfg.ShardRanks}, {"Seed", cfg.Seed}, {"VirtualRanks", cfg.VirtualRanks},
		{"TraceDir is set:", cfg.observe.traceDir != ""}, {"HashDir is set:", cfg.observe.hashDir != ""},
		{"Device is set:", cfg.Device != nil},
	} {
		fmt.Fprintf(&b, "Config.%s %v\n", field.name, field.value)
	}
	if cfg.Device != nil {
		fmt.Fprintf(&b, "Config.Device: %s\n", cfg.Device.Settings())
	}
	facts := make([]string, len(tr.params))
	for _, u := range units {
		for i, p := range u.members {
			facts[p] = fmt.Sprintf("%v, in unit %s", u.kinds[i], u.Name)
		}
	}
	for i, p := range tr.params {
		fmt.Fprintf(&b, "parameter %s %v: %s\n", p.Name, p.Shape, facts[i])
	}
	for i, c := range tr.calls {
		fmt.Fprintf(&b, "call %s: Recompute %t, Save %t, Wide %t\n",
			c.name, tr.save[i] == exec.RecomputeAll, tr.save[i] == exec.SaveAll, tr.wide[i])
		fmt.Fprintf(&b, "call %s %v of %s\n", c.name, c.in, describe(c.module))
	}
	fmt.Fprintf(&b, "results %v\n%s", tr.results, absences(m.Paths[""], ""))
	for _, name := range programNames(m) {
		path := m.Paths[name]
		fmt.Fprintf(&b, "results %v of program %s\n", path.Results, name)
		for _, c := range path.Calls {
			fmt.Fprintf(&b, "call %s %v in program %s\n", c.Name, c.In, name)
		}
		b.WriteString(absences(path, " in program "+name))
	}
	for _, u := range units {
		fmt.Fprintf(&b, "unit %s: %v", u.Name, u.strategy)
		if u.group != nil {
			fmt.Fprintf(&b, ", in a group of %d", u.group.Size())
		}
		if u.cut != "" {
			fmt.Fprintf(&b, ", cut at %s", u.cut)
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// absences lists the parts of a path that may be absent.
func absences(p *layout.Path, of string) string {
	if !p.Varies() && len(p.Choices) == 0 {
		return ""
	}
	return fmt.Sprintf("Optional inputs %v, choices %v%s\n", p.Optional, p.Choices, of)
}

// programNames returns the names of the programs other than Forward.
func programNames(m *layout.Model) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m.Paths)), func(name string) bool { return name == "" })
}

// log reports the layout of the model and likely mistakes to the logger. Without a logger, rank 0
// still warns of mistakes, as they are the same on all ranks.
func (a *arrangement) log(what string, tr *trace, rank int) {
	logger := a.cfg.warner(rank)
	if logger == nil {
		return
	}
	if a.cfg.Logger != nil {
		a.logUnits(logger, what)
	}
	if a.cfg.Device == nil && !a.cfg.Precision.native() {
		logger.Warn("fsdp: Config.Precision.Compute is bfloat16, but this processor has no instructions that multiply it: " +
			"products are slower than in float32")
	}
	if unused := unused(a.layout); len(unused) > 0 {
		logger.Warn("fsdp: the loss does not depend on some parameters: they get no gradient", "parameters", some(unused))
	}
	for _, f := range a.idleFields(tr) {
		logger.Warn("fsdp: Config."+f.name+f.text, "among", some(f.of))
	}
	if a.cfg.ShardRanks > 0 && !slices.ContainsFunc(a.units, func(u *unit) bool { return u.strategy.overSome() }) {
		logger.Warn("fsdp: Config.ShardRanks is set, but no unit has a strategy that uses it")
	}
}

// warnOfOthers warns if Config.Group is nil although other ranks run.
func (c *Config) warnOfOthers() {
	if others := launch.Others(os.Getenv); others != "" {
		cmp.Or(c.Logger, slog.Default()).Warn("fsdp: Config.Group is nil, so this rank trains a whole model by itself: "+
			"give it the group of the ranks, or comm.Local(1)[0] if this is intended", "but", others)
	}
}

// cores returns the number of ranks of the group on this host, or in this process if ranks are
// goroutines, and the number of cores they may use. If no launcher gives the number, it is all
// ranks.
func (c *Config) cores() (ranks, cores int) {
	ranks, cores = c.Group.Size(), runtime.GOMAXPROCS(0)
	if env, launched, err := launch.Parse(os.Getenv); err == nil && launched {
		cores = runtime.NumCPU() // fsdprun divides them by GOMAXPROCS
		if env.LocalSize > 0 {
			ranks = min(ranks, env.LocalSize)
		}
	}
	return ranks, cores
}

// logCores reports cores on which no rank computes.
func (c *Config) logCores(rank int) {
	if c.Logger == nil || c.Device != nil || rank != 0 {
		return
	}
	if ranks, cores := c.cores(); ranks*c.Threads < cores {
		c.warner(rank).Info("fsdp: some cores compute nothing: more ranks (fsdprun -n) or Config.Threads use them",
			"computing", ranks*c.Threads, "cores", cores, "ranks", ranks, "threads", c.Threads)
	}
}

// warner returns the logger for warnings that are the same on all ranks: the rank's Logger. Without
// a Logger, rank 0 uses [slog.Default], and the other ranks do not warn.
func (c *Config) warner(rank int) *slog.Logger {
	switch {
	case c.Logger != nil:
		return c.Logger.With("rank", rank)
	case rank == 0:
		return slog.Default()
	}
	return nil
}

// logUnits reports the layout of the model.
func (a *arrangement) logUnits(logger *slog.Logger, what string) {
	for _, u := range a.units {
		logger.Debug("fsdp: unit", "name", u.Name, "strategy", u.strategy.String(), "elements", u.Len())
	}
	frozen, total := 0, 0
	for _, g := range a.layout.Groups {
		for _, p := range g.Flat.Params() {
			total += p.Len()
			if g.Kind.Frozen {
				frozen += p.Len()
			}
		}
	}
	logger.Info("fsdp: "+what, "ranks", a.cfg.Group.Size(), "units", len(a.units), "groups", len(a.layout.Groups), "elements", total,
		"frozen", frozen, "shard bytes", a.layout.ShardBytes(), "compute", a.cfg.Precision.Compute.String(), "kernels", a.cfg.kernels())
}

// An idleField is a field of the configuration that selects nothing, or less than it names.
type idleField struct {
	name string
	text string   // the warning
	of   []string // the names that it selects from
}

// idleFields returns the idle fields.
func (a *arrangement) idleFields(tr *trace) (idle []idleField) {
	any := func(is func(k layout.Kind) bool) bool {
		return slices.ContainsFunc(a.units, func(u *unit) bool { return slices.ContainsFunc(u.kinds, is) })
	}
	var calls, params []string
	for _, c := range tr.calls {
		calls = append(calls, fmt.Sprintf("%s (%T)", c.name, c.module))
	}
	for _, p := range tr.params {
		params = append(params, p.Name)
	}
	const nothing = " selects nothing"
	const whole = nothing + ": all parameters are in the root unit, which is whole during a pass"
	for _, f := range []struct {
		idleField
		set, found bool
	}{
		{idleField{"WrapPolicy", whole, calls}, a.cfg.WrapPolicy != nil, slices.ContainsFunc(a.units, func(u *unit) bool { return !u.Root })},
		{idleField{"Activations.Recompute", nothing, calls}, a.cfg.Activations.Recompute != nil, slices.Contains(tr.save, exec.RecomputeAll)},
		{idleField{"Activations.Save", nothing, calls}, a.cfg.Activations.Save != nil, slices.Contains(tr.save, exec.SaveAll)},
		{idleField{"Activations.Offload", nothing, calls}, a.cfg.Activations.Offload != nil, slices.Contains(tr.spill, true)},
		{idleField{"Precision.Wide", nothing, calls}, a.cfg.Precision.Wide != nil, slices.Contains(tr.wide, true)},
		{idleField{"Frozen", nothing, params}, a.cfg.Frozen != nil, any(func(k layout.Kind) bool { return k.Frozen && !k.Buffer })},
		{idleField{"Ignored", nothing, params}, a.cfg.Ignored != nil, any(func(k layout.Kind) bool { return k.Ignored })},
	} {
		notes := tr.notes[f.name]
		if !f.set || f.found && notes == nil {
			continue
		}
		if f.found {
			f.text = ""
		}
		if notes != nil {
			f.text += ": " + strings.Join(notes, "; ")
		}
		idle = append(idle, f.idleField)
	}
	return idle
}

// some returns the first of a list of names, and the number of the others.
func some(names []string) []string {
	const most = 16
	if len(names) <= most {
		return names
	}
	return append(slices.Clip(names[:most]), fmt.Sprintf("and %d more", len(names)-most))
}

// unused returns the names of trained parameters that the loss does not depend on.
func unused(l *layout.Layout) (names []string) {
	used := make([]bool, len(l.Model.Params))
	for c, need := range l.Entries[""].NeedsBackward() {
		for _, p := range l.Entries[""].Calls[c].Params {
			used[p] = used[p] || need
		}
	}
	for p, q := range l.Model.Params {
		if !used[p] && !l.Groups[l.Home[p].Group].Kind.Frozen {
			names = append(names, q.Name)
		}
	}
	return names
}

// describe returns v as text, pointers followed, so that deeply equal modules read the same in
// every process. A value that is meaningless outside a process, such as a function, reads as its
// type.
func describe(v any) string {
	var b strings.Builder
	writeValue(&b, reflect.ValueOf(v), 0)
	return b.String()
}

const (
	deepest = 16 // levels of a value that are written: a cycle must end
	longest = 16 // elements of a slice that are written; of a longer one, length and hash
)

var typeOfType = reflect.TypeFor[reflect.Type]()

func writeValue(w io.Writer, v reflect.Value, depth int) {
	switch {
	case !v.IsValid():
		io.WriteString(w, "nil")
		return
	case depth > deepest:
		io.WriteString(w, "…")
		return
	case v.Type().Implements(typeOfType): // points into the program, which differs from build to build
		if v.CanInterface() {
			fmt.Fprint(w, v)
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		writeValue(w, v.Elem(), depth+1)
	case reflect.Struct:
		io.WriteString(w, v.Type().String()+"{")
		for i := range v.NumField() {
			fmt.Fprintf(w, " %s:", v.Type().Field(i).Name)
			writeValue(w, v.Field(i), depth+1)
		}
		io.WriteString(w, " }")
	case reflect.Slice, reflect.Array:
		writeList(w, v, depth)
	case reflect.Map:
		var entries []string
		for it := v.MapRange(); it.Next(); {
			var b strings.Builder
			writeValue(&b, it.Key(), depth+1)
			b.WriteByte(':')
			writeValue(&b, it.Value(), depth+1)
			entries = append(entries, b.String())
		}
		slices.Sort(entries)
		fmt.Fprint(w, entries)
	case reflect.Func, reflect.Chan, reflect.Uintptr, reflect.UnsafePointer:
		io.WriteString(w, v.Type().String())
	case reflect.String:
		fmt.Fprintf(w, "%q", v.String())
	default:
		fmt.Fprint(w, v)
	}
}

func writeList(w io.Writer, v reflect.Value, depth int) {
	n := v.Len()
	if n > longest {
		h := fnv.New64a()
		for i := range n {
			writeValue(h, v.Index(i), depth+1)
			h.Write([]byte{' '})
		}
		fmt.Fprintf(w, "[%d elements, hash %016x]", n, h.Sum64())
		return
	}
	io.WriteString(w, "[")
	for i := range n {
		writeValue(w, v.Index(i), depth+1)
		io.WriteString(w, " ")
	}
	io.WriteString(w, "]")
}

// bytesText returns n in a unit that suits it.
func bytesText(n int) string {
	switch {
	case n < 1e6:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1e9:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	default:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	}
}
