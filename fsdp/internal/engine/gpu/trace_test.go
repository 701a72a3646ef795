//go:build linux && cgo

package gpu

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/nccl"
)

// TestWatch: an observer gets all collectives, in their order. Collectives of one launch have moved
// together, and after the launch before, however late the host has noticed its end.
func TestWatch(t *testing.T) {
	cuda, _ := doubles(t)
	cuda.Delay(3*time.Millisecond, 1)
	defer cuda.Delay(0, 0)
	const runs = 5
	flights := make([][]transport.Flight, 2)
	for r, err := range world(t, comm.Local(2), Options{}, func(m *member) error {
		k := m.links.find(m.meshOf(2).Shard)
		m.Watch(func(f transport.Flight) { flights[m.boot.Rank()] = append(flights[m.boot.Rank()], f) })
		m.onDevice(m.fill(), func(at uintptr) {
			for range runs {
				ok(m.links.enqueue(k, k.allGather(at, 4, comm.Float32), opOf(program.Gather, 0), "a"))
				ok(m.links.enqueue(k, k.reduceScatter(at, 4, comm.Float32), opOf(program.Reduce, 1), "b"))
				ok(m.links.launch())
				ok(m.links.enqueue(k, k.allReduce(at, 4, comm.Float32, nccl.Avg), outside, "c"))
				ok(m.links.launch())
			}
			ok(m.await(m.ctx, m.wire))
		})
		return nil
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	for r, list := range flights {
		require.Len(t, list, 3*runs)
		for i, f := range list {
			call := []string{`all-gather float32[8] "a"`, `reduce-scatter float32[8] sum "b"`, `all-reduce float32[4] avg "c"`}[i%3]
			want := transport.Flight{Group: "NCCL shards", Rank: r, Seq: uint64(i + 1), Call: call, Bytes: []int{32, 32, 16}[i%3]}
			want.Issued, want.Began, want.Done = f.Issued, f.Began, f.Done
			require.Equal(t, want, f)
			require.False(t, f.Began.Before(f.Issued))
			require.False(t, f.Done.Before(f.Began))
			if i%3 == 1 {
				require.Equal(t, list[i-1].Done, f.Done)
			} else if i > 0 {
				require.False(t, f.Began.Before(list[i-1].Done))
			}
		}
		require.True(t, slices.IsSortedFunc(list, func(a, b transport.Flight) int { return a.Done.Compare(b.Done) }))
	}
}

// TestQueues: a sum over replicas ends, and is reported, while the wire stands still.
func TestQueues(t *testing.T) {
	cuda, _ := doubles(t)
	for r, err := range world(t, comm.Local(4), Options{}, func(m *member) error {
		mesh := m.meshOf(2)
		shard, replica := m.links.find(mesh.Shard), m.links.find(mesh.Replica)
		told := make(chan transport.Flight, 2)
		m.Watch(func(f transport.Flight) { told <- f })
		m.onDevice(m.fill(), func(at uintptr) {
			cuda.Pause(t, m.wire.Handle())
			defer cuda.Resume(t, m.wire.Handle())
			ok(m.links.enqueue(shard, shard.allGather(at, 2, comm.Float32), opOf(program.Gather, 0), "a"))
			ok(m.links.enqueueOn(onReplicas, replica, replica.allReduce(at+8, 1, comm.Float32, nccl.Sum), opOf(program.Sync, 1), "b"))
			ok(m.links.launch())
			require.Equal(m, `all-reduce float32[1] sum "b"`, (<-told).Call)
			m.links.mu.Lock()
			require.Len(m, m.links.queues[onWire].flights, 1)
			m.links.mu.Unlock()
			cuda.Resume(t, m.wire.Handle())
			require.Equal(m, `all-gather float32[4] "a"`, (<-told).Call)
			ok(m.await(m.ctx, m.wire))
		})
		return nil
	}) {
		require.NoError(t, err, "rank %d", r)
	}
}
