//go:build linux && cgo && !asan

package nccl

import (
	"fmt"
	"testing"
)

// The address sanitizer moves to the heap whatever C sees.
func TestCollectivesAllocateNothing(t *testing.T) {
	doubles(t)
	inWorld(t, 1, Config{}, func(r *rank) error {
		r.alloc(64, func(p uintptr) {
			s := r.stream.Handle()
			group := []Op{
				{Kind: Send, Send: p, Count: 4, Type: Float32},
				{Kind: Recv, Recv: p + 32, Count: 4, Type: Float32},
			}
			for _, f := range []func() error{
				func() error { return r.AllGather(p, p, 16, Float32, s) },
				func() error { return r.ReduceScatter(p, p, 16, Float32, Avg, s) },
				func() error { return r.AllReduce(p, p, 16, Float32, Sum, s) },
				func() error { return r.Broadcast(p, p, 16, Float32, 0, s) },
				func() error { return r.Reduce(p, p, 16, Float32, Sum, 0, s) },
				func() error { return r.Group(group, s) },
				r.AsyncError,
			} {
				if n := testing.AllocsPerRun(100, func() { check(f()) }); n != 0 {
					panic(fmt.Errorf("%v allocations", n))
				}
				check(r.stream.Sync())
			}
		})
		return nil
	})
}
