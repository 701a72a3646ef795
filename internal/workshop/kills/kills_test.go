package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain makes the test program serve as the process of a rank.
func TestMain(m *testing.M) {
	if serves() {
		return
	}
	goleak.VerifyTestMain(m)
}

// TestSample runs a training of each sort, until kills of each sort have happened.
func TestSample(t *testing.T) {
	c, seen := newCampaign(), make(map[string]bool)
	for i := 0; len(seen) < 8; i++ {
		one := trainingOf(4, i)
		require.Equal(t, one, trainingOf(4, i))
		fresh := false
		for _, sort := range one.sorts() {
			fresh = fresh || !seen[sort]
		}
		if !fresh {
			continue
		}
		require.NoError(t, c.run(t.Context(), one, false), "%v", one)
		for sort := range c.survived.sorts {
			seen[sort] = true
		}
	}
	require.NotEmpty(t, c.survived.pauses)
	require.Positive(t, c.survived.kills())
}

// TestRestart restarts all ranks from a checkpoint in files.
func TestRestart(t *testing.T) {
	one := trainingOf(4, 0)
	one.spares, one.kills = 0, []kill{{part: partUpdate, step: 1}}
	c := newCampaign()
	require.NoError(t, c.run(t.Context(), one, true), "%v", one)
	require.NotEmpty(t, c.restarted.pauses)
	require.Equal(t, 1, c.restarted.kills())
}
