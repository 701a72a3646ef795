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

// Config configures a Monitor. The zero value shows nothing and only counts. It must be the same on
// all ranks except for the fields that only rank 0 uses: Out, Writers.
type Config struct {
	// Group is the group of the training ranks; nil means one rank. Step and Eval use its
	// collectives, as do methods of [fsdp.Sharded]: never call both at the same time.
	Group comm.Group
	// Every is the number of steps in a row: 0 means 1. In between, ranks exchange nothing, and
	// nothing is shown. The values of a row are means over its steps.
	Every int
	// Agreed says that the arguments of Step and Eval are the same on all ranks, as results of
	// collectives are. Then the ranks exchange nothing. Elapsed and Done follow each rank's own
	// clock, memory is rank 0's, and only rank 0 returns an error of a writer.
	Agreed bool

	// The run ends after this number of steps, or after this time. With neither, the end is
	// unknown. With both, it is the earlier one.
	Steps  int
	Budget time.Duration

	// Unit is the displayed name of the units that Step counts: "tok" is the default.
	Unit string
	// FLOPs is the number of floating-point operations for one unit if all parameters are trained.
	// Models of package nn have a method of this name. For others it is Trained of Plan.Pass.Cost,
	// divided by the units of the plan's batch. With Plan, operations that frozen parameters save
	// are not counted. 0 means unknown.
	FLOPs int
	// Peak is the maximum number of floating-point operations of one rank per second, such as the
	// result of MeasurePeak. With it, the monitor shows the share in use (model FLOPs utilisation,
	// Chowdhery et al., 2022, arXiv:2204.02311). Without it, the monitor shows the operations per
	// second of all ranks.
	Peak float64
	// Model reports its peak memory, and the targets of its batches that count, see
	// [fsdp.Sharded.Targets]; nil shows none. Plan is the plan of this rank, with the
	// predicted memory. For both, the monitor shows the maximum over the ranks.
	Model *fsdp.Sharded
	Plan  *fsdp.Plan
	// Profile is the profile of the model. Ten times in a run, and every ten minutes, Step shows
	// the rank or link that the others have waited for since the last time. This is another
	// exchange of all ranks, unless Agreed is set. With Cluster, it shows time and memory next to
	// the prediction of Plan for that cluster, and the operation that differs most. If the model
	// has an fsdp.TraceDir, the predicted pass is added there, next to the real one. See package
	// profile.
	Profile *profile.Profile
	Cluster *plan.Cluster

	// Out is the output of rank 0: a [Screen], or a writer for NewScreen. Nil shows nothing.
	Out io.Writer
	// Curve is the value that is drawn at the end, "loss" by default, and CurveUnit its unit, such
	// as "nats per token".
	Curve, CurveUnit string
	// Writers get every row, on rank 0.
	Writers []Writer

	// State is the state of an earlier part of the run; see [Monitor.State].
	State State
}

// A Monitor shows and records the steps of a run. Only the training goroutine may use it, but other
// goroutines may use its Screen.
type Monitor struct {
	cfg    Config
	rank   int
	ranks  int     // number of ranks that exchange: 1 if none do
	flops  float64 // of one unit
	screen *Screen
	state  State

	begin, mark time.Time     // start of this part of the run, and of the next step
	took        time.Duration // time of the steps since the last row
	units       int           // units of this rank since the last row
	counted     int           // targets of this rank that count, until the last row
	masked      int           // targets of this rank that do not count, likewise
	train, eval table
	beside      []*table // arguments of Add, by prefix
	histograms  []Histogram
	memory      int // peak of a rank, measured
	planned     int // peak of a rank, predicted
	mine, all   []float64
	sum         totals
	row         Row
	saving      Saving
	shown       profiled
	failure     error // error of a writer, not returned yet
	closed      bool
}

// New returns a monitor for a run that begins now, or continues from cfg.State. On rank 0 it opens
// the writers. It is not a collective: if rank 0 gets an error, only rank 0 returns it.
func New(cfg Config) (*Monitor, error) {
	if cfg.Every < 0 || cfg.Steps < 0 || cfg.Budget < 0 || cfg.FLOPs < 0 || !(cfg.Peak >= 0) {
		return nil, fmt.Errorf("monitor: Every %d, Steps %d, Budget %v, FLOPs %d and Peak %v must not be negative or NaN",
			cfg.Every, cfg.Steps, cfg.Budget, cfg.FLOPs, cfg.Peak)
	}
	if cfg.Cluster != nil && (cfg.Profile == nil || cfg.Plan == nil) {
		return nil, errors.New("monitor: Cluster is set without Profile and Plan: set these, too, or leave it out")
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
	m.markTargets()
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

// Values are numbers of one rank, by name. Names may form groups: "grad_norm/head".
type Values map[string]float64

// Step ends a step. units is the amount of this rank's training in the step, such as tokens. It is
// the weight of the rank's values among all ranks, and 0 without a batch. If targets are masked,
// the mean loss over all ranks is exact if units is their number that counts. Every rank calls Step
// after every step, with values of the same names. Every Config.Every steps, the ranks exchange
// their data in one all-gather. Rank 0 shows the result and passes it to the writers. A value that
// is the same on all ranks stays the same to the bit. Step does not keep values.
//
// With several ranks, the next Step or Eval returns the error of a writer, on every rank, so that
// all leave the loop at the same place. If neither follows, Close returns it. A single rank returns
// it at once. Errors of the screen are dropped: a run does not end because its output is gone.
func (m *Monitor) Step(ctx context.Context, units int, values Values) error {
	if err := m.check("Step", units); err != nil {
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

// Eval adds a point to the validation curve: values after the last step, from data outside the
// training. As in Step, units is the amount of this rank's evaluation, and the weight of its
// values. Every rank calls Eval, which exchanges once. Eval shows the values, and gives them to the
// writers with the prefix "validation/". The time since the last step does not count for the next
// one.
func (m *Monitor) Eval(ctx context.Context, units int, values Values) error {
	if err := m.check("Eval", units); err != nil {
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

// Add adds values to the next row, with a prefix such as "grad_norm/" before their names. They are
// not exchanged: pass values that are the same on all ranks, as GradNorms of [fsdp.Sharded]
// returns, or rank 0's values. Add does not keep values.
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

// AddHistogram adds a histogram to the next row, such as one of package metrics. It is not
// exchanged: rank 0's counts. TensorBoard draws it, JSON lines have it as an object of edges and
// counts, and CSV leaves it out. The monitor keeps h until it writes the row.
func (m *Monitor) AddHistogram(h Histogram) error {
	if err := h.check(); err != nil {
		return fmt.Errorf("monitor: AddHistogram: %w", err)
	}
	m.histograms = append(m.histograms, h)
	return nil
}

// check returns an error if a row with these units is not allowed.
func (m *Monitor) check(method string, units int) error {
	switch {
	case m.closed:
		return fmt.Errorf("monitor: %s after Close", method)
	case units < 0:
		return fmt.Errorf("monitor: %s: the number of units is %d: must not be negative", method, units)
	}
	return nil
}

// refuse returns err, the reason why this rank takes no part in an exchange. The other ranks may be
// waiting for this rank, so it joins their all-gather with the text of err as the name. They get a
// [comm.MismatchError] unless they refuse for the same reason. After Close the others have left,
// too.
func (m *Monitor) refuse(ctx context.Context, err error) error {
	if m.ranks > 1 && !m.closed {
		all := make([]float64, m.ranks)
		_ = m.cfg.Group.AllGather(comm.Of(all).Named(err.Error()), comm.Of(all[:1:1]).Named(err.Error())).Wait(ctx)
	}
	return err
}

// advance adds the results of an exchange after steps to the state.
func (m *Monitor) advance() {
	s := &m.state
	s.Units += m.sum.units
	s.Seconds.add(m.sum.took)
	s.Count.add(float64(m.sum.units))
	m.advanceTargets()
	if v, ok := m.train.value(m.cfg.Curve); ok && finite(v) {
		s.Loss.add(v)
		s.Train = thinned(append(s.Train, Point{s.Step, v}))
	}
	m.took, m.units = 0, 0
}

// describe makes the row of steps: the values, and the monitor's own numbers.
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
	v = m.appendTargets(v)
	if m.memory > 0 {
		v = append(v, Value{"run/memory", float64(m.memory)})
	}
	m.row.Values, m.row.Histograms = v, append(m.row.Histograms[:0], m.histograms...)
	clear(m.histograms)
	m.histograms = m.histograms[:0]
}

// write passes the row to the writers. With several ranks, an error is returned when all ranks have
// it.
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

// failed returns the errors of writers since the last call.
func (m *Monitor) failed() error {
	err := m.failure
	m.failure = nil
	return err
}

// Last returns the value of a name in the last row of Step, or, with the prefix "validation/", of
// Eval, over all ranks. It returns false if the row has no such value. The results are the same on
// every rank.
func (m *Monitor) Last(name string) (float64, bool) {
	if name, ok := strings.CutPrefix(name, m.eval.prefix); ok {
		return m.eval.value(name)
	}
	return m.train.value(name)
}

// Elapsed returns the time from the start of the run to the last row, including earlier parts of
// the run. It follows rank 0's clock, so it is the same on every rank.
func (m *Monitor) Elapsed() time.Duration { return m.state.Elapsed }

// Done returns the completed share of the run at the last row, from 0 to 1, by Config.Steps and
// Config.Budget. It is the same on every rank, so a loop can end by it, and a learning rate can
// follow it. If the end is unknown, it is 0.
func (m *Monitor) Done() (share float64) {
	if m.cfg.Steps > 0 {
		share = float64(m.state.Step) / float64(m.cfg.Steps)
	}
	if m.cfg.Budget > 0 {
		share = max(share, m.state.Elapsed.Seconds()/m.cfg.Budget.Seconds())
	}
	return min(share, 1)
}

// State returns the state from which a resumed run continues as if without interruption: the curve,
// averages, counts and position in the files. It is the same on every rank, as
// [fsdp.SaveOptions].Extra requires:
//
//	m.Save(ctx, dir, opt, &fsdp.SaveOptions{Extra: map[string]any{"monitor": mon.State()}})
//
// With Config.Every, it lacks the values and units of steps since the last row: save after a row.
func (m *Monitor) State() State { return m.state.clone() }

// Screen returns the screen of the run. Text printed to it appears above the progress line.
func (m *Monitor) Screen() *Screen { return m.screen }

// Printf prints text, which should end a line, above the progress line, on rank 0.
func (m *Monitor) Printf(format string, args ...any) { m.screen.Printf(format, args...) }

// Saving is the part of [fsdp.Saving] that the monitor shows.
type Saving interface {
	Progress() (done, total int64) // bytes of this rank
	Done() <-chan struct{}
}

// Saving shows the progress of a save next to the steps until it is complete.
func (m *Monitor) Saving(s Saving) { m.saving = s }

// Close shows the curve and a summary, if there was a step, and closes the writers. It returns
// their errors, including those since the last Step. It exchanges nothing: values of steps after
// the last row, see Config.Every, are dropped. Further calls do nothing.
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

// progress returns the contents of the progress line.
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
	if s.Masked > 0 {
		m.screen.Printf(", %s targets that count,", Count(s.Targets))
	}
	m.screen.Printf(" in %s", Duration(s.Elapsed))
	if rate := float64(s.Units) / s.Elapsed.Seconds(); rate > 0 && finite(rate) {
		m.screen.Printf(": %s", Rate(rate, m.cfg.Unit))
	}
	m.screen.Printf("\n")
	if what, best, ok := s.best(); ok {
		m.screen.Printf("  %s validation %s: %.4f at step %d\n", what, m.cfg.Curve, best.Loss, best.Step)
	}
	switch {
	case m.memory > 0 && m.planned > 0:
		m.screen.Printf("  memory per rank: %s at most, %s planned\n", Bytes(m.memory), Bytes(m.planned))
	case m.memory > 0:
		m.screen.Printf("  memory per rank: %s at most\n", Bytes(m.memory))
	}
}
