package train

import (
	"fmt"
	"io"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/bench/stats"
)

// formats are types in which parameters and gradients travel. The second is what others are compared with.
var formats = []struct {
	name string
	fsdp.Precision
}{
	{"float32", fsdp.Precision{}},
	{"bfloat16", fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16}},
	{"bfloat16, gradients float32", fsdp.Precision{Gather: fsdp.BFloat16}},
	{"int8, gradients float32", fsdp.Precision{Gather: fsdp.Int8}},
	{"int8", fsdp.Precision{Gather: fsdp.Int8, Reduce: fsdp.Int8}},
}

// travel trains on two ranks over a link of a stated bandwidth, in turns with each format, and prints
// the time of a step.
func travel(w io.Writer, s size, bandwidth float64, rounds int, seconds float64) error {
	var lanes []*lane
	for _, f := range formats {
		l, err := newLane(s, f.Precision, 1, bandwidth, latency)
		if err != nil {
			return err
		}
		defer l.close()
		lanes = append(lanes, l)
	}
	for round := range rounds {
		for _, l := range lanes {
			if err := l.run(seconds/2, round == 0); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(w, "%s, %d x %d tokens, on 2 ranks over a link of %.0f MB/s and %v a collective\n", s.name, s.Batch, s.Context, bandwidth/1e6, latency)
	fmt.Fprintf(w, "  %-28s %11s %9s %13s %9s\n", "what travels", "ms a step", "MB sent", "link busy ms", "speedup")
	for i, l := range lanes {
		busy := time.Duration(float64(l.plan.Traffic)/bandwidth*1e9) + time.Duration(l.plan.Gathers+l.plan.Reduces)*latency
		fmt.Fprintf(w, "  %-28s %11.1f %9.2f %13.1f %8.2fx\n", formats[i].name, stats.Ms(stats.Median(l.times)), stats.MB(l.plan.Traffic), stats.Ms(busy),
			float64(stats.Median(lanes[1].times))/float64(stats.Median(l.times)))
	}
	return nil
}
