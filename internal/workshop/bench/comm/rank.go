package comm

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// period of the test pattern, as in peers/peer.h.
const period = 61

// rank is one of our ranks with its tensors.
type rank struct {
	group       comm.Group
	full, shard []float32
}

// serveRank answers the driver's commands with the collectives of g until the driver hangs up.
func serveRank(conn net.Conn, g comm.Group, full, shard []float32) error {
	r := &rank{g, full, shard}
	if _, err := fmt.Fprintf(conn, "hello %d %d\n", g.Rank(), os.Getpid()); err != nil {
		return err
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		c, err := parseCommand(lines.Text())
		if err != nil {
			return err
		}
		seconds, err := r.do(context.Background(), c)
		switch {
		case refused(err):
			_, err = fmt.Fprintf(conn, "error %v\n", err)
		case err == nil:
			_, err = fmt.Fprintf(conn, "ok %g\n", seconds)
		}
		if err != nil {
			return err
		}
	}
	return lines.Err()
}

// do executes one command and returns the seconds it took.
func (r *rank) do(ctx context.Context, c command) (float64, error) {
	n := c.bytes / elementSize
	if n > len(r.full) {
		return 0, refusal{fmt.Sprintf("%d elements do not fit %d", n, len(r.full))}
	}
	collective := r.operation(c.op, n)
	if collective == nil {
		return 0, refusal{"no such operation"}
	}
	if c.check {
		return 0, r.check(ctx, c.op, n, collective)
	}
	if err := collective(ctx); err != nil {
		return 0, err
	}
	if err := r.group.Barrier(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	for range c.iterations {
		if err := collective(ctx); err != nil {
			return 0, err
		}
	}
	return time.Since(start).Seconds(), nil
}

// operation returns one collective on a full tensor of n elements, or nil if it is unknown.
func (r *rank) operation(op string, n int) func(context.Context) error {
	g, full, shard := r.group, comm.Of(r.full[:n]), comm.Of(r.shard[:n/r.group.Size()])
	flag := comm.Of(r.full[:1])
	next, turns := 0, strings.HasSuffix(op, inTurns)
	root := func() (rank int) {
		rank = next
		if turns {
			next = (next + 1) % g.Size()
		}
		return rank
	}
	switch op {
	case "barrier":
		return g.Barrier
	case "flag":
		return func(ctx context.Context) error { return g.AllReduce(flag, comm.Max).Wait(ctx) }
	case "all-gather":
		return func(ctx context.Context) error { return g.AllGather(full, shard).Wait(ctx) }
	case "reduce-scatter":
		return func(ctx context.Context) error { return g.ReduceScatter(shard, full, comm.Sum).Wait(ctx) }
	case "all-reduce":
		return func(ctx context.Context) error { return g.AllReduce(full, comm.Sum).Wait(ctx) }
	case "broadcast", "broadcast" + inTurns:
		return func(ctx context.Context) error { return g.Broadcast(full, root()).Wait(ctx) }
	case "gather", "gather" + inTurns:
		counts := slices.Repeat([]int{shard.Len()}, g.Size())
		return func(ctx context.Context) error { return g.Gather(full, shard, counts, root()).Wait(ctx) }
	}
	return nil
}

// check runs one collective on the test pattern and checks the result.
func (r *rank) check(ctx context.Context, op string, n int, collective func(context.Context) error) error {
	rank, size := r.group.Rank(), r.group.Size()
	op = strings.TrimSuffix(op, inTurns) // it is the first turn
	full, shard, first := r.full[:n], r.shard[:n/size], rank*(n/size)
	fill(full, 0, float32(rank+1))
	fill(shard, first, 1)
	if op == "gather" {
		clear(full) // otherwise the result would already be right on the root
	}
	if err := collective(ctx); err != nil {
		return err
	}
	sum := float32(size * (size + 1) / 2)
	switch op {
	case "flag":
		return verify(full[:1], 0, float32(size))
	case "all-gather", "broadcast":
		return verify(full, 0, 1)
	case "gather":
		if rank > 0 {
			return verify(full, 0, 0) // as it was
		}
		return verify(full, 0, 1)
	case "all-reduce":
		return verify(full, 0, sum)
	case "reduce-scatter":
		return verify(shard, first, sum)
	}
	return nil
}

// pattern is factor times the test pattern at element i of the full tensor; its sums are exact.
func pattern(factor float32, i int) float32 { return factor * float32(1+i%period) }

func fill(s []float32, first int, factor float32) {
	for i := range s {
		s[i] = pattern(factor, first+i)
	}
}

func verify(s []float32, first int, factor float32) error {
	for i, v := range s {
		if want := pattern(factor, first+i); v != want {
			return refusal{fmt.Sprintf("element %d is %g, want %g", first+i, v, want)}
		}
	}
	return nil
}
