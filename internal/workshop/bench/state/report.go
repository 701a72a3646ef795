package state

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// stateRow is one line of a table.
type stateRow struct {
	name    string
	bytes   int         // that are moved
	peer    float64     // PyTorch's figure, in the unit of the column; 0 if there is none
	against []*stateRow // rows for the ratios of bytes per second, by column
	times   []time.Duration
	foreign bool // of another process, whose memory is unknown
	// Memory of rank 0, and of the other rank with the most: the largest of all rounds; -1 if
	// unknown.
	rise [2]float64
}

// add adds a round.
func (r *stateRow) add(seconds float64, rises []float64) {
	r.times = append(r.times, time.Duration(seconds*float64(time.Second)))
	r.rise[0] = max(r.rise[0], rises[0])
	r.rise[1] = max(r.rise[1], slices.Max(rises[1:]))
	if slices.Min(rises) < 0 {
		r.rise = [2]float64{-1, -1}
	}
}

// speed returns the ratio of bytes per second: the median over rounds.
func (r *stateRow) speed(to *stateRow) float64 {
	return stats.Ratio(to.times, r.times) * float64(r.bytes) / float64(to.bytes)
}

// statePeerOf is the key of statePeer: a model and the number of its ranks.
type statePeerOf struct {
	model string
	ranks int
}

// statePeer are PyTorch's seconds until the state is consolidated on rank 0, over gloo:
// ZeroRedundancyOptimizer's broadcasts, the same with one of its conversions corrected, all_gather
// of each unit, and sends to rank 0.
type statePeer struct{ broadcast, fixed, allGather, gather float64 }

// statePeers were measured on a machine of 2 cores, with Torch on the CPU. In the all-gather of
// 300M, ranks other than 0 kept nothing; ours have the whole state.
var statePeers = map[statePeerOf]statePeer{
	{"30M", 2}:  {2.88, 0.34, 0.218, 0.117},
	{"30M", 4}:  {4.28, 0.60, 0.435, 0.145},
	{"300M", 2}: {29.6, 3.58, 3.56, 1.83},
	{"300M", 4}: {44.0, 7.51, 6.34, 2.16},
}

// stateFilePeer are PyTorch's MB/s of values and state: torch.distributed.checkpoint with fsync,
// loading from the page cache, and plain files there.
type stateFilePeer struct{ write, save, read, load float64 }

var stateFilePeers = map[statePeerOf]stateFilePeer{
	{"30M", 2}:  {4333, 977, 6779, 4536},
	{"300M", 2}: {4285, 1524, 6007, 4965},
}

// reportConsolidation prints the first table.
func (r *stateRank) reportConsolidation(rows []*stateRow, peer statePeer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d blocks of %d channels, %d experts each, %.1f million parameters, %d tensors of state; %d processes over %v, median of %d, slowest rank\n",
		r.Model, r.model.layers, r.model.dim, r.model.experts, float64(r.model.params())/1e6, 2*r.model.tensors(), r.Size, r.Transport, r.Rounds)
	against := []string{"of broadcast", "of new", "of warm"}
	if r.Torch != "" {
		against = append(against, "of PyTorch's", "of its ZeRO")
	}
	stateTable(&b, "  AdamW state whole, on", against, "PyTorch s", rows)
	if peer.broadcast > 0 {
		fmt.Fprintf(&b, "  PyTorch: another day, the same kind of machine; %.0f%% of its broadcast are a conversion in Python, without which it takes %.3g s\n",
			100*(1-peer.fixed/peer.broadcast), peer.fixed)
	}
	_, err := io.WriteString(r.out, b.String())
	return err
}

// reportCheckpoints prints the second.
func (r *stateRank) reportCheckpoints(rows []*stateRow) error {
	var b strings.Builder
	stateTable(&b, "  files of parameters and state", []string{"of plain"}, "PyTorch MB/s", rows)
	fmt.Fprintf(&b, "  plain: each of %d processes its part, from and to the same memory; saves are compared with fsync\n\n", r.Size)
	_, err := io.WriteString(r.out, b.String())
	return err
}

// stateTable prints rows under a heading.
func stateTable(w io.Writer, title string, against []string, peer string, rows []*stateRow) {
	fmt.Fprintf(w, "%-32s %6s %30s %7s", title, "MB", "seconds (min..max)", "MB/s")
	for _, name := range against {
		fmt.Fprintf(w, " %13s", name)
	}
	fmt.Fprintf(w, " %13s %20s\n", peer, "+MB rank 0 / other")
	for _, row := range rows {
		t := stats.Median(row.times).Seconds()
		fmt.Fprintf(w, "    %-28s %6.0f %30s %7.0f", row.name, stats.MB(row.bytes),
			fmt.Sprintf("%.3f (%.3f..%.3f)", t, slices.Min(row.times).Seconds(), slices.Max(row.times).Seconds()), stats.MB(row.bytes)/t)
		for _, to := range row.against {
			fmt.Fprintf(w, " %12.2fx", row.speed(to))
		}
		fmt.Fprintf(w, " %13s %20s\n", statePeerText(row.peer), row.memory())
	}
}

// memory describes the increase in memory.
func (r *stateRow) memory() string {
	if r.foreign || r.rise[0] < 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f / %.0f", r.rise[0]/1e6, r.rise[1]/1e6)
}

func statePeerText(v float64) string {
	if v == 0 {
		return "-"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
