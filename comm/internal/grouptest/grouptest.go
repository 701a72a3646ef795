// Package grouptest has what tests of several transports need.
package grouptest

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// Floats returns a buffer of n elements.
func Floats(n int) transport.Buffer { return transport.Of(make([]float32, n)).Named("h.3") }

// PerRank calls f for every rank at once, with the rank's element of a list, such as its handle,
// and returns the errors. Inside a synctest bubble a rank that hangs is a deadlock, which fails the
// test at once.
func PerRank[T any](all []T, f func(T) error) []error {
	errs := make([]error, len(all))
	var ranks sync.WaitGroup
	for r, x := range all {
		ranks.Go(func() { errs[r] = f(x) })
	}
	ranks.Wait()
	return errs
}

// CloseRanks closes the handles of all ranks, at the same time.
func CloseRanks(t testing.TB, gs []transport.Group) {
	t.Helper()
	require.NoError(t, errors.Join(PerRank(gs, transport.Group.Close)...))
}

// TimeRanks returns the seconds per call when every rank makes that many calls.
func TimeRanks(gs []transport.Group, calls int, f func(transport.Group)) float64 {
	var ranks sync.WaitGroup
	start := time.Now()
	for _, g := range gs {
		ranks.Go(func() {
			for range calls {
				f(g)
			}
		})
	}
	ranks.Wait()
	return time.Since(start).Seconds() / float64(calls)
}

// FreeAddr returns a loopback address at which only the test listens: until the test ends, a
// connection keeps the kernel from giving the port to another process.
func FreeAddr(t testing.TB) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	there, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	here, err := ln.Accept()
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	t.Cleanup(func() { require.NoError(t, errors.Join(there.Close(), here.Close())) })
	return ln.Addr().String()
}
