package main

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
)

// collectives measures the collectives of the transports on a small and a large tensor, in memory
// of the group if it has some.
func collectives() (list []measurement) {
	ops := []struct {
		name string
		do   func(g comm.Group, full, shard comm.Buffer) comm.Work
	}{
		{"all-gather", func(g comm.Group, full, shard comm.Buffer) comm.Work { return g.AllGather(full, shard) }},
		{"reduce-scatter", func(g comm.Group, full, shard comm.Buffer) comm.Work {
			return g.ReduceScatter(shard, full, comm.Sum)
		}},
		{"all-reduce", func(g comm.Group, full, _ comm.Buffer) comm.Work { return g.AllReduce(full, comm.Sum) }},
	}
	for _, t := range []comm.Transport{0, comm.SharedMemory, comm.TCP} {
		transport := "local"
		if t != 0 {
			transport = t.String()
		}
		for _, op := range ops {
			for _, bytes := range []int{64 << 10, 16 << 20} {
				name := fmt.Sprintf("comm %s, %s of %d KiB", transport, op.name, bytes>>10)
				times := max(5, 32<<20/bytes)
				list = append(list, measurement{name, func(ctx context.Context, dir string) (func() (float64, error), error) {
					return collective(ctx, dir, t, bytes, times, op.do)
				}})
			}
		}
	}
	return list
}

// collective returns a round of the given number of collectives, one after the other.
func collective(ctx context.Context, dir string, t comm.Transport, bytes, times int,
	do func(g comm.Group, full, shard comm.Buffer) comm.Work) (func() (float64, error), error) {
	groups := comm.Local(ranks)
	if t != 0 {
		var err error
		if groups, err = connect(ctx, dir, t); err != nil {
			return nil, err
		}
	}
	full, shard := make([]comm.Buffer, ranks), make([]comm.Buffer, ranks)
	err := onAll(func(r int) (err error) {
		if full[r], err = buffer(groups[r], bytes); err == nil {
			shard[r], err = buffer(groups[r], bytes/ranks)
		}
		return err
	})
	return func() (float64, error) {
		begin := time.Now()
		err := onAll(func(r int) error {
			for range times {
				if err := do(groups[r], full[r], shard[r]).Wait(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		return time.Since(begin).Seconds() / float64(times), err
	}, err
}

// buffer returns zeros in memory of g, if it has any to give.
func buffer(g comm.Group, bytes int) (comm.Buffer, error) {
	a, ok := g.(comm.Allocator)
	if !ok {
		return comm.Of(make([]float32, bytes/4)), nil
	}
	b, err := a.Alloc(bytes)
	if err != nil {
		return comm.Buffer{}, err
	}
	return comm.Of(unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), bytes/4)), nil
}
