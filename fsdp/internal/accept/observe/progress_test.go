package observe_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/plan"
)

// TestProgress: a Wrap and a Tune that take longer than a second log how far they are.
func TestProgress(t *testing.T) {
	kit.Needs(t, kit.FakeTime)
	log := kit.CaptureDefault(t)
	synctest.Test(t, func(t *testing.T) {
		gpt := kit.TinyGPT(1)
		slow := func(trace time.Duration) fsdp.Model {
			return kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
				time.Sleep(trace)
				return gpt.Forward(t, in...)
			})
		}
		m := kit.Wrap(t, slow(1500*time.Millisecond), fsdp.Config{})
		require.NoError(t, m.Close())
		_, _, err := fsdp.Planner{
			Model: slow(200 * time.Millisecond), Config: fsdp.Config{Group: comm.World{Ranks: 2}},
			Batch: []fsdp.Shape{fsdp.Ints(1, 4), fsdp.Ints(1, 4)},
		}.Tune(plan.Clusters()["h100"], 1<<30)
		require.NoError(t, err)
	})
	require.Contains(t, log(), `msg="fsdp: wrapping the model" for=1s`)
	require.Regexp(t, `msg="fsdp: tuning, settings planned" done=[45] for=1s`, log())
}
