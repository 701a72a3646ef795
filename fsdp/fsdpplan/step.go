package main

import (
	"io"
	"time"

	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/fsdp/profile"
)

// A step is the best step, played in time. A step with more than two passes is played with two: all
// passes but the first are alike.
type step struct {
	*query
	setting plan.Setting
	ranks   int
	pass    *plan.Pass
	line    *plan.Timeline
	samples []plan.Sample
}

// newStep plays the best step of an answer.
func newStep(q *query, a *answer) *step {
	st := &step{query: q, setting: a.choices[0].Setting, ranks: a.ranks, pass: a.best.Pass}
	st.line = st.pass.Time(q.cluster, min(st.setting.Passes, 2))
	st.samples = st.pass.Samples(st.line)
	return st
}

// trace writes the step for Perfetto.
func (st *step) trace(to io.Writer) error {
	return profile.WriteTrace(to, st.pass, st.line, "rank 0, predicted", 1, time.Unix(0, 1))
}
