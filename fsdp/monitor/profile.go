package monitor

import (
	"context"
	"fmt"
	"time"
)

// profiled records the last time that the profile was shown.
type profiled struct {
	share  float64       // of the run that was over
	at     time.Duration // time that the run had taken
	traced bool          // the predicted pass is in the trace
}

// profileTimes is the number of times that a run with a known end shows the profile.
const profileTimes = 10

// profile shows the operations since the last time, if it is time: by the share of the run and by
// rank 0's clock, which are the same on every rank.
func (m *Monitor) profile(ctx context.Context) error {
	p, now := m.cfg.Profile, m.state.Elapsed
	if p == nil || !crossed(m.shown.share, m.Done(), profileTimes) && now-m.shown.at < logEvery {
		return nil
	}
	m.shown.share, m.shown.at = m.Done(), now
	if p.Totals().Passes == 0 {
		return nil
	}
	if m.ranks > 1 {
		r, err := p.Stragglers(ctx)
		if err != nil {
			return err
		}
		m.screen.Printf("%s\n%v\n", m.screen.Title(fmt.Sprintf("ranks, %d passes", r.Passes)), r)
	}
	if err := m.compare(); err != nil { // does not end the run
		m.screen.Printf("%v\n", err)
	}
	p.Reset()
	return nil
}

// compare shows, on rank 0, the real passes next to predicted ones.
func (m *Monitor) compare() error {
	if m.cfg.Cluster == nil || m.rank != 0 {
		return nil
	}
	p, pass := m.cfg.Profile, m.cfg.Plan.Pass
	b, err := p.Beside(pass, m.cfg.Cluster)
	if err != nil {
		return err
	}
	m.screen.Printf("%s\n%v\n", m.screen.Title("beside the plan"), b)
	if !p.Traced() || m.shown.traced {
		return nil
	}
	path, err := p.AddTrace(pass, m.cfg.Cluster)
	if err == nil {
		m.shown.traced = true
		m.screen.Printf("The trace shows the predicted pass next to the real one:\n%s\n", path)
	}
	return err
}
