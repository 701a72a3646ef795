package timeline

import (
	"context"
	"math"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// rounds is how often ranks compare their clocks.
const rounds = 16

// offset returns the difference to be added to the clock of this rank so that it agrees with the
// clock of rank 0 of g. It is a collective.
//
// No rank gets the result of an all-gather before every rank has entered it. So if o is the offset,
// and each rank notes when it came and when it left,
//
//	left + o >= came of rank 0,   left of rank 0 >= came + o
//
// Every round narrows the interval that contains o. Its width is at most the width of the fastest
// round: some microseconds on a host, and the round trip between hosts. If the interval contains 0,
// as on one host, the clocks agree as far as can be measured, and the offset is 0.
func offset(ctx context.Context, g comm.Group, now func() time.Time) (time.Duration, error) {
	if g.Size() == 1 {
		return 0, nil
	}
	// The times of a rank: when it left the previous round, and when it came to this one.
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
		if round > 0 { // about the previous round: all[0] is when rank 0 left it, first when it came
			low, high = max(low, first-mine[0]), min(high, all[0]-came)
		}
		first, came = all[1], mine[1]
	}
	if low <= 0 && high >= 0 {
		return 0, nil
	}
	return time.Duration(low + (high-low)/2), nil
}
