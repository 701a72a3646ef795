//go:build gpu && linux && cgo

package gpucheck

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/nccl"
)

// TestBandwidth measures all-gathers and reduce-scatters of float32, as NCCL runs them, beside
// copies inside the GPU.
//
// The size is that of the whole buffer, of which every rank has a part, and the rate is that size
// by the time. The bus is what a rank sends: (n-1)/n of it. A copy reads and writes its size.
func TestBandwidth(t *testing.T) {
	if !isRank() {
		inEach(t)
		return
	}
	m := join(t)
	s := open(t, m)
	m.printf("  %8s %12s %12s %8s %16s %8s   GB/s\n", "MiB", "copy", "all-gather", "bus", "reduce-scatter", "bus")
	for mib := 1; mib <= *largest; mib *= 4 {
		s.measure(t, mib<<20)
	}
	s.close(t)
}

// printf prints on rank 0.
func (m member) printf(format string, args ...any) {
	if m.Rank() == 0 {
		fmt.Printf(format, args...)
	}
}

// stand is what a rank measures with.
type stand struct {
	member
	c        *nccl.Communicator
	stream   *nccl.Stream
	from, to *nccl.Event // timers

	whole, other *nccl.Memory // of the largest size
}

func open(t *testing.T, m member) *stand {
	var id nccl.UniqueID
	var err error
	if m.Rank() == 0 {
		id, err = nccl.NewUniqueID()
		require.NoError(t, err)
	}
	require.NoError(t, m.Broadcast(comm.Of(id[:]), 0).Wait(t.Context()))
	s := &stand{member: m}
	s.c, err = nccl.NewCommunicator(t.Context(), m.dev, m.Size(), id, m.Rank(), nccl.Config{})
	require.NoError(t, err)
	s.stream, err = m.dev.NewStream()
	require.NoError(t, err)
	s.from, err = m.dev.NewTimer()
	require.NoError(t, err)
	s.to, err = m.dev.NewTimer()
	require.NoError(t, err)
	s.whole, err = m.dev.Alloc(*largest << 20)
	require.NoError(t, err)
	s.other, err = m.dev.Alloc(*largest << 20)
	require.NoError(t, err)
	return s
}

func (s *stand) close(t *testing.T) {
	require.NoError(t, s.c.Finalize(t.Context()))
	require.NoError(t, s.c.Destroy())
	require.NoError(t, s.whole.Free())
	require.NoError(t, s.other.Free())
	require.NoError(t, s.from.Close())
	require.NoError(t, s.to.Close())
	require.NoError(t, s.stream.Close())
}

// measure prints a line about buffers of so many bytes.
func (s *stand) measure(t *testing.T, size int) {
	n, r := s.Size(), s.Rank()
	count := size / 4 / n // elements of a part
	part, size := 4*count, 4*count*n
	whole, other := s.whole.Addr(), s.other.Addr()
	mine := whole + uintptr(r*part)
	require.NoError(t, s.stream.Set(mine, byte(r+1), part))

	gather := s.time(t, func() error { return s.c.AllGather(mine, whole, count, nccl.Float32, s.stream.Handle()) })
	for i := range n {
		require.Equal(t, element(i), s.read(t, whole+uintptr((i+1)*part-4)), "all-gather of %d bytes: last element of rank %d", size, i)
	}
	reduce := s.time(t, func() error {
		return s.c.ReduceScatter(whole, other, count, nccl.Float32, nccl.Sum, s.stream.Handle())
	})
	require.InEpsilon(t, float64(n)*float64(element(r)), s.read(t, other+uintptr(part-4)), 1e-5, "reduce-scatter of %d bytes", size)
	duplicate := s.time(t, func() error { return s.stream.CopyDevice(other, whole, size) })

	bus := float64(n-1) / float64(n)
	rate := func(d time.Duration) float64 { return float64(size) / d.Seconds() / 1e9 }
	s.printf("  %8.4g %12.4g %12.4g %8.4g %16.4g %8.4g\n", float64(size)/(1<<20), rate(duplicate),
		rate(gather), rate(gather)*bus, rate(reduce), rate(reduce)*bus)
}

// element is the float32 of which every byte is rank+1.
func element(rank int) float32 { return math.Float32frombits(uint32(rank+1) * 0x01010101) }

// time returns how long the stream takes for what one call of f gives it. All ranks call it with
// the same.
func (s *stand) time(t *testing.T, f func() error) time.Duration {
	run := func(times int) time.Duration {
		require.NoError(t, s.Barrier(t.Context()))
		require.NoError(t, s.from.Record(s.stream))
		for range times {
			require.NoError(t, f())
		}
		require.NoError(t, s.to.Record(s.stream))
		require.NoError(t, s.to.Sync())
		took, err := s.to.Elapsed(s.from)
		require.NoError(t, err)
		return max(took, time.Microsecond)
	}
	run(2) // channels are made, and clocks go up
	once := run(1)
	times := []float64{float64(min(max(100*time.Millisecond/once, 1), 100))}
	require.NoError(t, s.Broadcast(comm.Of(times), 0).Wait(t.Context()))
	return run(int(times[0])) / time.Duration(times[0])
}

// read returns a number of the device, after what the stream was given.
func (s *stand) read(t *testing.T, address uintptr) float32 {
	return math.Float32frombits(word(t, s.dev, s.stream, address))
}

// word returns four bytes of a device, after everything that the stream was given.
func word(t *testing.T, dev *nccl.Device, stream *nccl.Stream, address uintptr) uint32 {
	h, err := dev.AllocHost(4)
	require.NoError(t, err)
	require.NoError(t, stream.CopyToHost(h, 0, address, 4))
	require.NoError(t, stream.Sync())
	v := binary.NativeEndian.Uint32(h.Bytes())
	require.NoError(t, h.Free())
	return v
}
