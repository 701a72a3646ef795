package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/text"
)

// columns is the largest width of the output.
const columns = 80

// A report is the output of fsdpplan.
type report struct {
	*query
	top  int
	text bytes.Buffer
}

// say adds a paragraph.
func (r *report) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
	fmt.Fprintln(&r.text, text.Fill(line, columns, indent))
}

// table prints the best settings of each number of ranks.
func (r *report) table(answers []*answer) {
	c := r.cluster
	tokens := "tokens"
	if _, ok := r.model.(*nn.T5); ok {
		tokens += ", for encoder and decoder each,"
	}
	inside := plan.Bytes(int(c.Inside.Bandwidth)) + "/s"
	if c.Cores > 0 {
		inside = "memory"
	}
	device := c.Device.Name
	if r.threads > 1 {
		device += fmt.Sprintf(", %d for each rank,", r.threads)
	}
	r.say("%s: %s parameters, %s, optimizer %s, %d × %d %s a GPU and step, on %s: %s with %s, %s between %s, %s/s between hosts", r.name,
		count(answers[0].best.Params), r.precision, r.optimizer, r.batch, r.seq, tokens, c.Name, device, plan.Bytes(r.memory),
		inside, fmt.Sprintf("the %d of a host", c.PerHost), plan.Bytes(int(c.Between.Bandwidth)))
	fmt.Fprintf(&r.text, "\n%6s %-12s %-8s %-6s %5s %3s %4s %9s %8s %4s %5s\n", "", "", "", "recom-", "micro", "pre", "mem-", "seconds", "tokens/s", "", "ex-")
	fmt.Fprintf(&r.text, "%6s %-12s %-8s %-6s %5s %3s %4s %9s %8s %4s %5s\n", "GPUs", "strategy", "unit", "pute", "batch", "fet", "ory", "a step", "a GPU", "MFU", "posed")
	for _, a := range answers {
		if a.fits == 0 {
			fmt.Fprintf(&r.text, "%6d nothing fits\n", a.ranks)
		}
		for i, c := range r.best(a) {
			ranks := ""
			if i == 0 {
				ranks = strconv.Itoa(a.ranks)
			}
			fmt.Fprintf(&r.text, "%6s %-12s %-8s %-6s %5s %3d %3.0f%% %9.3f %8.1f %3.0f%% %4.0f%%\n", ranks, c.Strategy, c.Units, c.Recompute, cut(c.Setting), c.Prefetch,
				100*float64(c.Memory)/float64(r.memory), c.Time.Total, c.Rate()*float64(r.seq), 100*c.Time.MFU, 100*exposed(c.Time))
		}
	}
	fmt.Fprintln(&r.text)
}

// smallest says whether the number of GPUs is enough, and what fills the memory of the best
// setting.
func (r *report) smallest(a *answer) {
	if a.fits > 0 {
		r.say("%s are the fewest on which a setting fits, counted in hosts of %d.", gpus(a.ranks), r.host())
	} else {
		r.say("No number of GPUs is enough, up to %d.", a.ranks)
	}
	p, s := a.best.Pass, a.choices[0].Setting
	op := p.Ops[p.Peak()]
	r.say("  %s by %s with recompute %s has, during %s, %v.", s.Strategy, s.Units, s.Recompute, p.Text(op), op.Live)
}

// best returns the best choices. It leaves out choices that differ from a better one only in
// Prefetch.
func (r *report) best(a *answer) (list []plan.Choice) {
	for _, c := range a.choices[:a.fits] {
		same := func(o plan.Choice) bool { o.Prefetch = c.Prefetch; return o.Setting == c.Setting }
		if len(list) < r.top && !slices.ContainsFunc(list, same) {
			list = append(list, c)
		}
	}
	return list
}

// cut returns the micro batch and the number of passes.
func cut(s plan.Setting) string { return fmt.Sprintf("%d×%d", s.Micro, s.Passes) }

// exposed is the share of a step that waits for collectives.
func exposed(t *plan.Timeline) float64 { return t.Exposed / t.Total }

func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

// count writes a large number.
func count(n int) string {
	switch {
	case n < 1e6:
		return strconv.Itoa(n)
	case n < 1e9:
		return fmt.Sprintf("%.1fM", float64(n)/1e6)
	case n < 1e12:
		return fmt.Sprintf("%.1fB", float64(n)/1e9)
	default:
		return fmt.Sprintf("%.3fT", float64(n)/1e12)
	}
}

// explain lists the strategies that fit, why others do not, and improvements of the best settings.
func (r *report) explain(answers []*answer) error {
	misfits := make(map[string]string) // by strategy, on as many GPUs as possible
	for _, a := range answers {
		strategies := r.space(a.ranks).Strategies
		var fit []string
		for _, s := range strategies {
			i := slices.IndexFunc(a.choices, func(c plan.Choice) bool { return c.Strategy == s })
			if c := &a.choices[i]; c.Time != nil { // strategies that fit come first
				fit = append(fit, s)
			} else {
				misfits[s] = misfit(a.ranks, c)
			}
		}
		of := ""
		if len(fit) > 0 && len(fit) < len(strategies) {
			of = ": " + strings.Join(fit, ", ")
		}
		r.say("%s: %d of %d settings fit%s.", gpus(a.ranks), a.fits, len(a.choices), of)
		if err := r.advise(a); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(misfits)) {
		r.say("%s", misfits[name])
	}
	return nil
}

// misfit returns why the smallest choice of a strategy does not fit.
func misfit(ranks int, c *plan.Choice) string {
	var m *plan.Misfit
	if !errors.As(c.Misfit, &m) { // Fits returns no other error
		panic(c.Misfit)
	}
	over := ""
	if c.ShardRanks > 0 {
		over = fmt.Sprintf(" over %d", c.ShardRanks)
	}
	largest := strings.SplitN(m.Live.String(), ", ", 3)
	return fmt.Sprintf("%s%s does not fit on %s. During %s it has %s. What helps most: %s.", c.Strategy, over, gpus(ranks), m.Op,
		strings.Join(largest[:min(2, len(largest))], ", "), m.Help)
}

// muchExposed is the share of a step from which waiting for collectives is worth a remark.
const muchExposed = 0.1

// help adds the changes that would help if nothing fits.
func (r *report) help(a *answer) error {
	s := a.choices[0].Setting
	err := fsdp.Planner{Model: r.model, Config: r.config(a.ranks, s), NewOptimizer: newByName[r.optimizer], Batch: r.subject.batch(s.Micro, r.seq)}.Fits(r.memory)
	var m *plan.Misfit
	if !errors.As(err, &m) {
		return err
	}
	if len(m.Changes) > 0 {
		r.say("  The smallest setting is %s by %s with recompute %s and %s. Each of these alone helps it: %s.", s.Strategy, s.Units, s.Recompute, plan.Bytes(m.Live.Total()), m.Advice())
	}
	return nil
}

// advise adds the changes that help if nothing fits, and whether more samples hide collectives.
func (r *report) advise(a *answer) error {
	if a.fits == 0 {
		return r.help(a)
	}
	if exposed(a.choices[0].Time) < muchExposed {
		return nil
	}
	best := &a.choices[0]
	r.say("  %.0f %% of the best step waits for collectives.", 100*exposed(best.Time))
	for _, times := range []int{4, 16} {
		more := *r.query
		more.batch, more.from = times*r.batch, 2*best.Micro
		b, err := more.answer(a.ranks)
		if err != nil {
			return err
		}
		other := &b.choices[0]
		if other.Time == nil || other.Rate() < 1.05*best.Rate() { // nothing fits, or little is gained
			break
		}
		r.say("  With -batch %d it is %.0f %%: %.1f tokens/s a GPU, in micro batches of %d.", more.batch, 100*exposed(other.Time), other.Rate()*float64(r.seq), other.Micro)
		if best = other; exposed(best.Time) < muchExposed {
			return nil
		}
	}
	r.say("  Faster links between hosts would help, and so would longer sequences.")
	return nil
}

// compare prints the memory and time of the strategies with otherwise equal settings.
func (r *report) compare(a *answer) error {
	base := a.choices[0].Setting
	fmt.Fprintf(&r.text, "\n%s, micro batch %s, recompute %s: bytes of a GPU at the peak\n", gpus(a.ranks), cut(base), base.Recompute)
	fmt.Fprintf(&r.text, "%-19s %8s %8s %8s %8s %8s %4s %9s\n", "", "param,", "opti-", "whole", "activa-", "", "of", "seconds")
	fmt.Fprintf(&r.text, "%-19s %8s %8s %8s %8s %8s %4s %9s\n", "", "gradient", "mizer", "units", "tions", "total", "GPU", "a step")
	rows := []struct{ name, strategy, wrap string }{
		{"DDP", "NoShard", "blocks"}, {"ZeRO-2", "ShardGradOp", "blocks"}, {"ZeRO-3 in one unit", "FullShard", "one unit"},
		{"ZeRO-3 by blocks", "FullShard", "blocks"}, {"hybrid by blocks", "HybridShard", "blocks"},
		{"ZeRO++ by blocks", "SecondaryShard", "blocks"},
	}
	if !r.hybrid(a.ranks) {
		rows = rows[:len(rows)-2]
	}
	for _, row := range rows {
		s := base
		s.Strategy, s.Units, s.ShardRanks, s.Prefetch = row.strategy, row.wrap, 0, max(1, s.Prefetch)
		if row.strategy == "HybridShard" || row.strategy == "SecondaryShard" {
			s.ShardRanks = r.cluster.PerHost
		}
		p, err := r.plan(a.ranks, s)
		if err != nil {
			return err
		}
		m := peak(p.Pass)
		seconds := "no room"
		if m.Total() <= r.memory {
			seconds = fmt.Sprintf("%.3f", p.Pass.Time(r.cluster, s.Passes).Total)
		}
		fmt.Fprintf(&r.text, "%-19s %8s %8s %8s %8s %8s %3.0f%% %9s\n", row.name, plan.Bytes(m.Shard), plan.Bytes(m.State), plan.Bytes(m.Gathered+m.Gradient),
			plan.Bytes(m.Activation+m.Saved+m.Work), plan.Bytes(m.Total()), 100*float64(m.Total())/float64(r.memory), seconds)
	}
	return nil
}

// measured are the GPUs of the published runs in plan.Published.
var measured = []string{"a100-40", "a100-80", "h100"}

// roomy is the share of memory up to which predictions are good.
const roomy = 0.85

// band adds the accuracy of the predictions.
func (r *report) band(answers []*answer) {
	r.say("Another micro-batch or another number of GPUs rounds sums differently. The other settings here do not change a bit of a step's result.")
	r.say("\nError of such predictions for published runs (go test ./fsdp/plan -run Published):")
	r.text.WriteString(plan.Published())
	if !slices.Contains(measured, r.cluster.Name) {
		r.say("None of these runs is on %s.", r.cluster.Name)
	}
	fullest := slices.MaxFunc(answers, func(a, b *answer) int { return cmp.Compare(r.full(a), r.full(b)) })
	if r.full(fullest) > roomy {
		r.say("At %.0f %% of memory the allocator may take time that is not predicted: -memory %.0fGB leaves room.", 100*r.full(fullest), roomy*float64(r.memory)/1e9)
	}
}

// full returns the share of memory that the best choice takes, or 0 if nothing fits.
func (r *report) full(a *answer) float64 {
	if a.fits == 0 {
		return 0
	}
	return float64(a.choices[0].Memory) / float64(r.memory)
}
