package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain makes the test program serve as its own worker.
func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		work(os.Stdin, os.Stdout)
		return
	}
	goleak.VerifyTestMain(m)
}

// TestSample runs one training of each sort: over both transports, with one kill and with two, with
// a spare process, a new one, and none.
func TestSample(t *testing.T) {
	seen, recovered := make(map[string]bool), 0
	for i := 0; len(seen) < 4+3; i++ {
		one := trainingOf(4, i)
		require.Equal(t, one, trainingOf(4, i))
		sort := fmt.Sprint("shared ", one.shared, " twice ", len(one.kills) > 1)
		if other := fmt.Sprint("fresh ", one.fresh, " spares ", one.spares > 0); !seen[sort] || !seen[other] {
			seen[sort], seen[other] = true, true
			require.NoError(t, one.run(t.Context()), "%v", one)
			recovered += len(one.pauses)
		}
	}
	require.Positive(t, recovered)
}

// TestRestart restarts all ranks from a checkpoint in files.
func TestRestart(t *testing.T) {
	one := trainingOf(4, 0)
	one.restart = true
	one.kills[0].step = 1
	require.NoError(t, one.run(t.Context()), "%v", one)
	require.NotEmpty(t, one.pauses)
}
