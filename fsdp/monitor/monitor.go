package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/fsdp/profile"
)

// Config says what a Monitor watches, and where that is seen. The zero value shows nothing and only
// counts. All ranks give the same, but for what only rank 0 uses: Out, Writers.
type Config struct {
	// Group is the group of the ranks that train; nil means one rank. Step and Eval use its
	// collectives, as methods of [fsdp.Sharded] do: never both at once.
	Group comm.Group
	// Every is the number of steps that a row stands for: 0 means 1. Ranks exchange nothing in
	// between, and nothing is shown. The values of a row are means over its steps.
	Every int
	// Agreed says that what Step and Eval are given is the same on all ranks, as results of
	// collectives are. Then the ranks exchange nothing. Elapsed and Done are those of each rank's own
	// clock, memory is rank 0's, and an error of a writer is returned on rank 0 alone.
	Agreed bool

	// The run ends after so many steps, or when it has taken so long. With neither the end is not
	// known, and with both it is the earlier one.
	Steps  int
	Budget time.Duration

	// Unit is what Step counts, as it is shown: "tok" is the default.
	Unit string
	// FLOPs are the floating-point operations that training all parameters takes for one unit. Models
	// of package nn have a method of this name; for others it is Trained of Plan.Pass.Cost, divided by
	// the units of the plan's batch. With Plan, the operations that frozen parameters save are not
	// counted. 0 means unknown.
	FLOPs int
	// Peak is the number of floating-point operations that one rank does in a second at most, such as
	// what MeasurePeak returns. With it the share that is used is shown (model FLOPs utilisation,
	// Chowdhery et al., 2022, arXiv:2204.02311), without it the operations in a second of all ranks.
	Peak float64
	// Model is asked for the most bytes it has held; nil shows none. Plan is this rank's, and has what
	// was foretold. Of both the most on any rank is shown.
	Model *fsdp.Sharded
	Plan  *fsdp.Plan
	// Profile is that of the model. Ten times in a run, and every ten minutes, Step shows which rank or
	// link the others waited for since the last time: another exchange of all ranks, unless Agreed. With
	// Cluster it shows time and memory beside what they are predicted to be there, by Plan, and which
	// operation is furthest off; where the model has a Config.TraceDir, the predicted pass goes there, to
	// lie beside the real one. See package profile.
	Profile *profile.Profile
	Cluster *plan.Cluster

	// Out is where rank 0 shows the run: a [Screen], or what NewScreen makes one of. Nil shows nothing.
	Out io.Writer
	// Curve is the value that is drawn at the end, "loss" by default, and CurveUnit what it is
	// measured in, such as "nats per token".
	Curve, CurveUnit string
	// Writers get every row, on rank 0.
	Writers []Writer

	// State is where an earlier part of the run has come to; see [Monitor.State].
	State State
}

// A Monitor shows and records the steps of a run. It is for the goroutine that trains; other
// goroutines may use its Screen.
type Monitor struct {
	cfg    Config
	rank   int
	ranks  int     // that exchange: 1 if nothing is
	flops  float64 // for one unit
	screen *Screen
	state  State

	begin, mark time.Time     // of this part of the run, and of what the next step takes
	took        time.Duration // by the steps since the last row
	units       int           // since the last row, of this rank
	train, eval table
	beside      []*table // what Add was given, by prefix
	histograms  []Histogram
	memory      int // most bytes of a rank, counted
	planned     int // and foretold
	mine, all   []float64
	sum         totals
	row         Row
	saving      Saving
	shown       profiled
	failure     error // of a writer, not returned yet
	closed      bool
}

// New returns a monitor for a run that begins now, or goes on from cfg.State. It opens the writers,
// on rank 0. It is not a collective; an error there is for rank 0 alone to return.
func New(cfg Config) (*Monitor, error) {
	if cfg.Every < 0 || cfg.Steps < 0 || cfg.Budget < 0 || cfg.FLOPs < 0 || !(cfg.Peak >= 0) {
		return nil, fmt.Errorf("monitor: Every %d, Steps %d, Budget %v, FLOPs %d or Peak %v is negative or NaN",
			cfg.Every, cfg.Steps, cfg.Budget, cfg.FLOPs, cfg.Peak)
	}
	if cfg.Cluster != nil && (cfg.Profile == nil || cfg.Plan == nil) {
		return nil, errors.New("monitor: Cluster is of no use without a Profile and a Plan")
	}
	cfg.Every = max(cfg.Every, 1)
	if cfg.Unit == "" {
		cfg.Unit = "tok"
	}
	if cfg.Curve == "" {
		cfg.Curve = "loss"
	}
	now := time.Now()
	m := &Monitor{cfg: cfg, ranks: 1, flops: cfg.flops(), state: cfg.State.clone(), begin: now, mark: now}
	m.train.label, m.eval.label, m.eval.prefix = "monitor:", "monitor, validation:", "validation/"
	if cfg.Group != nil {
		m.rank = cfg.Group.Rank()
		if !cfg.Agreed {
			m.ranks = cfg.Group.Size()
		}
	}
	m.screen = screenOf(cfg.Out)
	if m.rank != 0 {
		m.screen, m.cfg.Writers = screenOf(nil), nil
	}
	for i, w := range m.cfg.Writers {
		if err := w.Open(m.state.Step); err != nil {
			for _, opened := range m.cfg.Writers[:i] {
				err = errors.Join(err, opened.Close())
			}
			return nil, fmt.Errorf("monitor: %w", err)
		}
	}
	return m, nil
}

// Values are numbers by name, of one rank. Names may group what belongs together: "grad_norm/head".
type Values map[string]float64

// Step ends a step. units is what this rank has trained on in it, such as tokens, and the weight of
// its values among those of the other ranks: 0 if it had no batch. Every rank calls Step after every
// step, with values of the same names. Every so many steps, as Config.Every says, the ranks exchange
// what they have in one all-gather, and rank 0 shows it and gives it to the writers. A value that is
// the same on all ranks stays as it is to the bit. values are not kept.
//
// What a writer returns is returned by the next Step or Eval, on every rank, so that all leave the
// loop in the same place; by Close if none follows; at once if there is one rank. What the screen
// returns is dropped: a run does not end because nobody can watch it.
func (m *Monitor) Step(ctx context.Context, units int, values Values) error {
	if err := m.may("Step", units); err != nil {
		return m.refuse(ctx, err)
	}
	if err := m.train.add(values, float64(units)); err != nil {
		return m.refuse(ctx, fmt.Errorf("monitor: Step: %w", err))
	}
	now := time.Now()
	m.took, m.mark = m.took+now.Sub(m.mark), now
	m.units += units
	m.state.Step++
	if m.state.Step%m.cfg.Every != 0 && m.state.Step != m.cfg.Steps {
		return nil
	}
	if err := m.exchange(ctx, &m.train); err != nil {
		return fmt.Errorf("monitor: step %d: %w", m.state.Step, err)
	}
	m.advance()
	if m.screen.due(m.Done(), m.state.Elapsed) {
		m.screen.draw(m.progress())
	}
	m.describe()
	if err := m.profile(ctx); err != nil {
		return fmt.Errorf("monitor: step %d: %w", m.state.Step, err)
	}
	return m.write()
}

// Eval adds a point to the validation curve: values after the last step, of data that is not trained
// on. As in Step, units is what this rank has evaluated on and weighs its values; every rank calls
// Eval, and the ranks exchange once. The values are shown, and get the prefix "validation/" in what
// is written. The time since the last step does not count as a part of the next one.
func (m *Monitor) Eval(ctx context.Context, units int, values Values) error {
	if err := m.may("Eval", units); err != nil {
		return m.refuse(ctx, err)
	}
	if err := m.eval.add(values, float64(units)); err != nil {
		return m.refuse(ctx, fmt.Errorf("monitor: Eval: %w", err))
	}
	if err := m.exchange(ctx, &m.eval); err != nil {
		return fmt.Errorf("monitor: validation after step %d: %w", m.state.Step, err)
	}
	m.mark = time.Now()
	if v, ok := m.eval.value(m.cfg.Curve); ok && finite(v) {
		m.state.Validation = thinned(append(m.state.Validation, Point{m.state.Step, v}))
	}
	m.screen.Printf("%s\n", m.evaluation())
	m.row.Values, m.row.Histograms = m.eval.appendTo(m.row.Values[:0]), nil
	return m.write()
}

// Add puts values beside those of the next row, with a prefix such as "grad_norm/" before their
// names. They are not exchanged: give what is the same on all ranks, as GradNorms of [fsdp.Sharded]
// returns, or what is rank 0's. values are not kept.
func (m *Monitor) Add(prefix string, values map[string]float64) error {
	i := slices.IndexFunc(m.beside, func(t *table) bool { return t.prefix == prefix })
	if i < 0 {
		i, m.beside = len(m.beside), append(m.beside, &table{prefix: prefix})
	}
	if err := m.beside[i].add(values, 1); err != nil {
		return fmt.Errorf("monitor: Add: %w", err)
	}
	return nil
}

// AddHistogram puts a histogram beside the values of the next row, such as that of package metrics. It
// is not exchanged, and is rank 0's. TensorBoard draws it, JSON lines have it as an object of edges and
// counts, and a CSV leaves it out. h is kept until that row is written.
func (m *Monitor) AddHistogram(h Histogram) error {
	if err := h.check(); err != nil {
		return fmt.Errorf("monitor: AddHistogram: %w", err)
	}
	m.histograms = append(m.histograms, h)
	return nil
}

// may says why a row of so many units must not be.
func (m *Monitor) may(method string, units int) error {
	switch {
	case m.closed:
		return fmt.Errorf("monitor: %s after Close", method)
	case units < 0:
		return fmt.Errorf("monitor: %s: %d units", method, units)
	}
	return nil
}

// refuse returns err, why this rank takes no part in an exchange, and lets the others know, who may
// be waiting for it: it says so in place of what they say, which is a [comm.MismatchError] for them
// unless they refuse for the same reason. After Close they have left as well.
func (m *Monitor) refuse(ctx context.Context, err error) error {
	if m.ranks > 1 && !m.closed {
		all := make([]float64, m.ranks)
		_ = m.cfg.Group.AllGather(comm.Of(all).Named(err.Error()), comm.Of(all[:1:1]).Named(err.Error())).Wait(ctx)
	}
	return err
}

// advance takes what the ranks have exchanged after steps into the state.
func (m *Monitor) advance() {
	s := &m.state
	s.Units += m.sum.units
	s.Seconds.add(m.sum.took)
	s.Count.add(float64(m.sum.units))
	if v, ok := m.train.value(m.cfg.Curve); ok && finite(v) {
		s.Loss.add(v)
		s.Train = thinned(append(s.Train, Point{s.Step, v}))
	}
	m.took, m.units = 0, 0
}

// describe makes the row of steps: the values, and what the monitor knows itself.
func (m *Monitor) describe() {
	v := m.train.appendTo(m.row.Values[:0])
	for _, t := range m.beside {
		copy(t.results, t.means)
		clear(t.means)
		v = t.appendTo(v)
	}
	v = append(v, Value{"run/seconds", m.state.Elapsed.Seconds()}, Value{"run/units", float64(m.state.Units)})
	if m.sum.took > 0 {
		rate := float64(m.sum.units) / m.sum.took
		v = append(v, Value{"run/units_per_second", rate})
		switch flops := rate * m.flops; {
		case flops > 0 && m.cfg.Peak > 0:
			v = append(v, Value{"run/mfu", m.utilisation(flops)})
		case flops > 0:
			v = append(v, Value{"run/flops_per_second", flops})
		}
	}
	if m.memory > 0 {
		v = append(v, Value{"run/memory", float64(m.memory)})
	}
	m.row.Values, m.row.Histograms = v, append(m.row.Histograms[:0], m.histograms...)
	clear(m.histograms)
	m.histograms = m.histograms[:0]
}

// write gives the row to the writers. With several ranks an error is returned when all know of it.
func (m *Monitor) write() error {
	m.row.Step, m.row.Time = m.state.Step, time.Now()
	for _, w := range m.cfg.Writers {
		if err := w.Write(&m.row); err != nil {
			m.failure = errors.Join(m.failure, fmt.Errorf("the row of step %d: %w", m.state.Step, err))
		}
	}
	if m.ranks > 1 || m.failure == nil {
		return nil
	}
	return fmt.Errorf("monitor: %w", m.failed())
}

// failed returns what writers have returned since it was last called.
func (m *Monitor) failed() error {
	err := m.failure
	m.failure = nil
	return err
}

// Last returns the value of a name in the last row that Step has made, or Eval under its prefix
// "validation/", over all ranks, and whether it has one. It is the same on every rank.
func (m *Monitor) Last(name string) (float64, bool) {
	if name, ok := strings.CutPrefix(name, m.eval.prefix); ok {
		return m.eval.value(name)
	}
	return m.train.value(name)
}

// Elapsed returns the time that the run had taken at the last row, earlier parts of it included: by
// rank 0's clock, so that it is the same on every rank.
func (m *Monitor) Elapsed() time.Duration { return m.state.Elapsed }

// Done returns the share of the run that was over at the last row, from 0 to 1, by Config.Steps and
// Config.Budget. It is the same on every rank: a loop may end by it, and a learning rate follow it.
// Without an end it is 0.
func (m *Monitor) Done() (share float64) {
	if m.cfg.Steps > 0 {
		share = float64(m.state.Step) / float64(m.cfg.Steps)
	}
	if m.cfg.Budget > 0 {
		share = max(share, m.state.Elapsed.Seconds()/m.cfg.Budget.Seconds())
	}
	return min(share, 1)
}

// State returns what the rest of the run needs to go on as if it had not been interrupted: where the
// curve, averages, counts and files are. It is the same on every rank, as [fsdp.Extra] wants it:
//
//	m.Save(ctx, dir, opt, fsdp.Extra("monitor", mon.State()))
//
// With Config.Every, values and units of steps since the last row are not in it: save when there is
// a row.
func (m *Monitor) State() State { return m.state.clone() }

// Screen returns where the run is shown. What is printed there stands above the progress line.
func (m *Monitor) Screen() *Screen { return m.screen }

// Printf prints text, which should end a line, above the progress line, on rank 0.
func (m *Monitor) Printf(format string, args ...any) { m.screen.Printf(format, args...) }

// Saving is what is shown of a [fsdp.Saving].
type Saving interface {
	Progress() (done, total int64) // bytes of this rank
	Done() <-chan struct{}
}

// Saving shows the progress of a save beside that of the steps until it is complete.
func (m *Monitor) Saving(s Saving) { m.saving = s }

// Close shows the curve and a summary, if there was a step, and closes the writers. It returns what
// they return, now or since the last Step. It exchanges nothing: values of steps that had made no
// row yet, see Config.Every, are dropped. Another Close does nothing.
func (m *Monitor) Close() error {
	if m.closed {
		return nil
	}
	m.closed = true
	if m.state.Step > 0 {
		m.result()
	}
	err := m.failed()
	for _, w := range m.cfg.Writers {
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		return fmt.Errorf("monitor: %w", err)
	}
	return nil
}

// progress returns what the progress line shows.
func (m *Monitor) progress() progress {
	s, done := &m.state, m.Done()
	p := progress{
		step: s.Step, steps: m.cfg.Steps, done: done, elapsed: s.Elapsed,
		curve: m.cfg.Curve, loss: s.Loss.value(),
	}
	var last float64
	if last, p.hasLoss = m.train.value(m.cfg.Curve); p.hasLoss && !finite(last) {
		p.loss = last
	}
	if m.cfg.Budget > 0 {
		p.estimated, p.steps = true, 0
		if done > 0 {
			p.steps = int(math.Round(float64(s.Step) / done))
		}
	}
	if done > 0 {
		p.left = time.Duration(float64(s.Elapsed) * (1 - done) / done)
	}
	p.rest = append(m.saved(), m.speeds()...)
	for _, v := range m.train.appendTo(nil) {
		if v.Name != m.cfg.Curve {
			p.rest = append(p.rest, v.text())
		}
	}
	return p
}

// saved returns how far a save has come, if one is under way.
func (m *Monitor) saved() []string {
	if m.saving == nil {
		return nil
	}
	select {
	case <-m.saving.Done():
		m.saving = nil
		return nil
	default:
		written, size := m.saving.Progress()
		return []string{fmt.Sprintf("saving %s of %s", Bytes(int(written)), Bytes(int(size)))}
	}
}

// speeds returns units in a second, smoothed, and what they take of the ranks.
func (m *Monitor) speeds() (texts []string) {
	rate := m.state.Count.value() / m.state.Seconds.value()
	if !finite(rate) {
		rate = 0
	}
	if rate > 0 {
		texts = append(texts, Rate(rate, m.cfg.Unit))
	}
	flops := rate * m.flops
	if flops > 0 && m.cfg.Peak > 0 {
		texts = append(texts, fmt.Sprintf("MFU %.1f%%", 100*m.utilisation(flops)))
	}
	if m.memory > 0 {
		texts = append(texts, Bytes(m.memory)+"/rank")
	}
	if flops > 0 && m.cfg.Peak == 0 {
		number, prefix := short(flops)
		texts = append(texts, number+" "+prefix+"FLOP/s")
	}
	return texts
}

// evaluation returns the line of an evaluation.
func (m *Monitor) evaluation() string {
	line := fmt.Sprintf("step %d  validation", m.state.Step)
	if v, ok := m.eval.value(m.cfg.Curve); ok {
		line += fmt.Sprintf(" %s %.4f", m.cfg.Curve, v)
	}
	for _, v := range m.eval.appendTo(nil) {
		if v.Name = strings.TrimPrefix(v.Name, m.eval.prefix); v.Name != m.cfg.Curve {
			line += gap + v.text()
		}
	}
	return line
}

// result prints the curve and the summary of the run.
func (m *Monitor) result() {
	s := &m.state
	c := curve{train: s.Train, validation: s.Validation, name: m.cfg.Curve, unit: m.cfg.CurveUnit,
		width: min(m.screen.Width(), 100), height: 14, color: m.screen.color}
	if drawn := c.String(); drawn != "" {
		m.screen.Printf("\n%s", drawn)
	}
	m.screen.Printf("\n%s\n  %s steps", m.screen.Title("result"), Count(s.Step))
	if s.Units > 0 {
		m.screen.Printf(" over %s %s", Count(s.Units), m.cfg.Unit)
	}
	m.screen.Printf(" in %s", Duration(s.Elapsed))
	if rate := float64(s.Units) / s.Elapsed.Seconds(); rate > 0 && finite(rate) {
		m.screen.Printf(": %s", Rate(rate, m.cfg.Unit))
	}
	m.screen.Printf("\n")
	switch {
	case m.memory > 0 && m.planned > 0:
		m.screen.Printf("  memory per rank: %s at most, %s planned\n", Bytes(m.memory), Bytes(m.planned))
	case m.memory > 0:
		m.screen.Printf("  memory per rank: %s at most\n", Bytes(m.memory))
	}
}
