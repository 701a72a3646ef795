//go:build linux && cgo

package nccl

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// A group allocates its staging memory once, whatever grows: to free memory of a device
// waits for all that the device does.
func TestGroupStagesInOneAllocation(t *testing.T) {
	cuda, _ := doubles(t)
	for r, err := range groupOf(t, 1, GroupConfig{}, func(m *member) error {
		check(m.AllReduce(comm.Of(make([]float32, 1)), comm.Sum).Wait(m.me.ctx))
		before := cuda.Calls("cuMemAllocHost") + cuda.Calls("cuMemAlloc") + cuda.Calls("cuMemFree")
		for _, n := range []int{10, 1000, 100_000} {
			check(m.AllReduce(comm.Of(make([]float32, n)), comm.Sum).Wait(m.me.ctx))
		}
		require.Equal(m.me, before, cuda.Calls("cuMemAllocHost")+cuda.Calls("cuMemAlloc")+cuda.Calls("cuMemFree"))
		return nil
	}) {
		require.NoError(t, err, "rank %d", r)
	}
}
