// Package grouptest has what tests of several transports need.
package grouptest

import (
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/stretchr/testify/require"
)

// Floats returns a buffer of n elements.
func Floats(n int) transport.Buffer { return transport.Of(make([]float32, n)).Named("h.3") }

// PerRank calls f as every rank and returns the errors. Inside a synctest bubble
// a rank that hangs is a deadlock, which fails the test at once.
func PerRank(gs []transport.Group, f func(transport.Group) error) []error {
	errs := make([]error, len(gs))
	var ranks sync.WaitGroup
	for r, g := range gs {
		ranks.Go(func() { errs[r] = f(g) })
	}
	ranks.Wait()
	return errs
}

// CloseRanks closes the handles of all ranks, at the same time.
func CloseRanks(t testing.TB, gs []transport.Group) {
	t.Helper()
	var ranks sync.WaitGroup
	for _, g := range gs {
		ranks.Go(func() { require.NoError(t, g.Close()) })
	}
	ranks.Wait()
}
