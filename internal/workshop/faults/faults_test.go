package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

// TestMain makes the test program serve as its own worker.
func TestMain(m *testing.M) {
	spare = time.Minute
	if serves() {
		return
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, parallel int) *runner {
	run, err := newRunner(parallel)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, run.close()) })
	return run
}

// A sample of the matrix: every incident on every transport, and some more.
func TestSample(t *testing.T) {
	run := open(t, 8)
	var cases []Case
	for i := range 2 * len(sorts) * len(transports) {
		c := caseOf(1, 1000+i)
		c.Bytes = min(c.Bytes, 64<<10)
		cases = append(cases, c)
	}
	var out bytes.Buffer
	require.Zero(t, matrix(context.Background(), run, &out, cases, false), "%s", &out)
}

// The checks of a case have to be able to fail: here is one whose incident is
// not what it says.
func TestCaseFails(t *testing.T) {
	run := open(t, 1)
	c := caseOf(1, 4) // an abort on the local transport
	require.Equal(t, commtest.Abort, c.Incident.What)
	c.Incident.At.Seq = 99
	v := run.run(context.Background(), c)
	require.Contains(t, v.Wrong, "the incident did not happen")
	require.Contains(t, v.Wrong[0], "the incident was not noticed")
}

// TestSuspended stops all ranks for twice the limit of no progress: then they go on.
func TestSuspended(t *testing.T) {
	run := open(t, 6)
	var out bytes.Buffer
	require.Zero(t, matrix(context.Background(), run, &out, suspensions(1, 6), false), "%s", &out)
}

// TestStrangers lays every intrusion that this user can.
func TestStrangers(t *testing.T) {
	var out bytes.Buffer
	require.Zero(t, strangers(t.Context(), &out), "%s", &out)
	require.Equal(t, len(intrusions), strings.Count(out.String(), "ok strangers, ")+strings.Count(out.String(), "not run: only root"), "%s", &out)
}

func TestSoakBriefly(t *testing.T) {
	var out bytes.Buffer
	run := open(t, 1)
	s := soaker{run: run, seed: 3, out: &out}
	require.Zero(t, s.soak(context.Background(), 3*time.Second), "%s", &out)
	require.Positive(t, s.rounds)
}

func TestCasesAreRepeatable(t *testing.T) {
	seen := map[cell]bool{}
	for i := range 2400 {
		c := caseOf(7, i)
		require.Equal(t, c, caseOf(7, i))
		require.Contains(t, moments(c.Incident.What), c.Moment)
		require.Equal(t, c.Incident.Rank, c.place(c.culprit()))
		require.Less(t, c.Incident.Rank, c.members())
		if c.Lag.What != "" {
			require.NotEqual(t, c.Incident.Rank, c.Lag.Rank, "nobody waits for itself")
		}
		seen[cell{c.Incident.What, c.Transport}] = true
	}
	processes := 4 // incidents that end a process do not happen to local worlds
	require.Len(t, seen, len(sorts)*len(transports)-processes)
}

// A sample of the payload flips, on every path.
func TestFlips(t *testing.T) {
	var out bytes.Buffer
	require.Zero(t, flips(context.Background(), &out, 1, 0, 48, false), "%s", &out)
}

// Without checksums the numbers are wrong, and only this tool knows.
func TestFlipUnnoticed(t *testing.T) {
	p, err := newFlipper()
	require.NoError(t, err)
	defer func() { require.NoError(t, p.close()) }()
	f := flipOf(1, 0)
	f.path, f.ranks, f.sums = pathPoll, 2, comm.ChecksumsOff
	f.trial = commtest.Trial{Kind: commtest.AllGather, Type: comm.Float32, Len: 100}
	wrong, _ := p.run(context.Background(), f)
	require.Contains(t, wrong, "completed with wrong values")
}
