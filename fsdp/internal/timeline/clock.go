package timeline

import (
	"context"
	"math"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// rounds is how often ranks look at their clocks together.
const rounds = 16

// offset returns what has to be added to the clock of this rank for it to agree with that of rank 0
// of g. It is a collective.
//
// No rank gets the result of an all-gather before every rank has come to it. So if o is the offset,
// and each rank notes when it came and when it left,
//
//	left + o >= came of rank 0,   left of rank 0 >= came + o
//
// Every round narrows the interval that o lies in, and its width is at most that of the fastest
// round: some microseconds on a host, and the round trip between hosts. Where the interval has 0
// in it, as on one host, the clocks agree as well as can be told, and are left alone.
func offset(ctx context.Context, g comm.Group, now func() time.Time) (time.Duration, error) {
	if g.Size() == 1 {
		return 0, nil
	}
	// The times of a rank: when it left the round before, and when it has come to this one.
	mine, all := make([]int64, 2), make([]int64, 2*g.Size())
	low, high := int64(math.MinInt64), int64(math.MaxInt64)
	var came int64 // to the round before, of this rank
	var first, left int64
	for round := range rounds + 1 {
		mine[0], mine[1] = left, now().UnixNano()
		if err := g.AllGather(comm.Of(all).Named("clock"), comm.Of(mine).Named("clock")).Wait(ctx); err != nil {
			return 0, err
		}
		left = now().UnixNano()
		if round > 0 { // about the round before: all[0] is when rank 0 left it, first when it came
			low, high = max(low, first-mine[0]), min(high, all[0]-came)
		}
		first, came = all[1], mine[1]
	}
	if low <= 0 && high >= 0 {
		return 0, nil
	}
	return time.Duration(low + (high-low)/2), nil
}
