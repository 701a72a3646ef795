package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/bench/stats"
)

// besideRows are the ways to shard whose steps are compared. The first is what the others are
// compared with.
var besideRows = []memoryRow{
	{name: "NoShard (DDP)", cfg: fsdp.Config{Strategy: fsdp.NoShard, Wrap: byBlocks}},
	{name: "FullShard in one unit"},
	{name: "FullShard by blocks", cfg: fsdp.Config{Wrap: byBlocks}},
}

// beside prints what a step on two ranks takes with FullShard beside NoShard, if bandwidth is not 0
// over a link of so many bytes a second. They run a step in turn, so that a busy machine disturbs
// all alike, and a step is compared with NoShard's of the same turn.
func beside(w io.Writer, s size, bandwidth float64, rounds int, seconds float64) (err error) {
	link, over := func(g comm.Group) comm.Group { return g }, ""
	if bandwidth > 0 {
		link = func(g comm.Group) comm.Group { return commtest.Slow(g, bandwidth, latency) }
		over = fmt.Sprintf(" over a link of %.0f MB/s and %v a collective", bandwidth/1e6, latency)
	}
	var list []*contestant
	for _, row := range besideRows {
		c, err := newRanks(row.name, 2, func(g comm.Group) (func() error, error) {
			cfg := row.cfg
			cfg.Group = link(g)
			t, err := newTrainer(context.Background(), s, cfg, s.batch/2)
			if err != nil {
				return nil, err
			}
			return t.step, nil
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		list = append(list, c)
	}
	for round := range rounds {
		if err := takeTurns(list, uint64(round), seconds*float64(len(list))); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "%s on 2 ranks%s: steps in turns\n", s.name, over)
	fmt.Fprintf(w, "  %-22s %28s %28s\n", "", "ms a step (min..max, n)", "of NoShard (middle half)")
	for _, c := range list {
		fmt.Fprintf(w, "  %-22s %28s %28s\n", c.name, stats.Spread(c.times), stats.RatioSpread(c.times, list[0].times))
	}
	return nil
}

// takeTurns runs a step of each contestant in turn, in an order that is another one every time, for
// some seconds. The first round warms up with one more.
func takeTurns(list []*contestant, round uint64, seconds float64) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(list[0].cores))
	order, rnd := make([]*contestant, len(list)), rand.New(rand.NewPCG(round, 0))
	for turn, begin := 0, time.Now(); turn < 2 || time.Since(begin).Seconds() < seconds; turn++ {
		for i, j := range rnd.Perm(len(list)) {
			order[i] = list[j]
		}
		for _, c := range order {
			t := time.Now()
			if err := c.step(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if turn > 0 || round > 0 {
				c.times = append(c.times, time.Since(t))
			}
		}
	}
	return nil
}
