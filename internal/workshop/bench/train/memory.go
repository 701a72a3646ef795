package train

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// memoryRow is a way to shard, on some numbers of ranks. If there are none, it is a heading.
type memoryRow struct {
	name     string
	ranks    []int
	cfg      fsdp.Config
	adapters int // their rank
}

// byBlocks makes a unit of each block.
var byBlocks = fsdp.WrapTypes(&nn.Block{})

var memoryRows = []memoryRow{
	{name: "NoShard (DDP)", ranks: []int{2}, cfg: fsdp.Config{Strategy: fsdp.NoShard, WrapPolicy: byBlocks}},
	{name: "FullShard in one unit", ranks: []int{2}},
	{name: "FullShard by blocks", ranks: []int{2}, cfg: fsdp.Config{WrapPolicy: byBlocks}},
	{
		name: "the same, frozen base", ranks: []int{2}, adapters: 8,
		cfg: fsdp.Config{WrapPolicy: byBlocks, Frozen: func(name string) bool { return !nn.IsAdapter(name) }},
	},
	{name: "every strategy by blocks"},
	{name: "FullShard", ranks: []int{1, 2, 4, 8}, cfg: fsdp.Config{WrapPolicy: byBlocks}},
	{name: "ShardGradOp", ranks: []int{1, 2, 4, 8}, cfg: fsdp.Config{Strategy: fsdp.ShardGradOp, WrapPolicy: byBlocks}},
	{name: "HybridShard over 2", ranks: []int{4, 8}, cfg: fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2, WrapPolicy: byBlocks}},
	{name: "HybridShard over 4", ranks: []int{8}, cfg: fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 4, WrapPolicy: byBlocks}},
	{name: "NoShard", ranks: []int{1, 2, 4, 8}, cfg: fsdp.Config{Strategy: fsdp.NoShard, WrapPolicy: byBlocks}},
}

// memory prints the bytes of a rank, as planned and as counted in a step with AdamW: first the
// usual comparison, then every strategy and number of ranks. It returns an error if plan and count
// differ.
func memory(w io.Writer, s size) error {
	fmt.Fprintf(w, "%s: %d layers, %d channels; MB of a rank in a step with AdamW,\n", s.name, s.Layers, s.Dim)
	fmt.Fprintf(w, "batch of 1 sequence of %d bytes a rank; a frozen base has adapters of rank 8\n", s.Context)
	fmt.Fprintf(w, "  %-22s %5s %11s %6s %6s %8s %8s %5s\n", "", "ranks", "shard+grads", "state", "pass", "planned", "counted", "sent")
	for _, row := range memoryRows {
		if row.ranks == nil {
			fmt.Fprintln(w, row.name)
		}
		for _, ranks := range row.ranks {
			if err := row.print(w, s, ranks); err != nil {
				return fmt.Errorf("%s on %d ranks: %w", row.name, ranks, err)
			}
		}
	}
	return nil
}

// print prints the row for a number of ranks.
func (row memoryRow) print(w io.Writer, s size, ranks int) error {
	s.adapters = row.adapters
	plans, counted := make([]*fsdp.Plan, ranks), make([]int, ranks)
	err := comm.Run(context.Background(), ranks, func(ctx context.Context, g comm.Group) (err error) {
		cfg := row.cfg
		cfg.Group = g
		t, err := newTrainer(ctx, s, cfg, 1)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.model.Close()) }()
		if plans[g.Rank()], err = t.model.Plan(t.batch...); err != nil {
			return err
		}
		t.model.ResetPeak()
		err = t.step()
		counted[g.Rank()] = t.model.Memory().Peak
		return err
	})
	if err != nil {
		return err
	}
	p := plans[0]
	for r := range plans {
		if plans[r].Peak() != counted[r] {
			return fmt.Errorf("rank %d: %d bytes planned, %d counted", r, plans[r].Peak(), counted[r])
		}
	}
	fmt.Fprintf(w, "  %-22s %5d %11.2f %6.2f %6.2f %8.2f %8.2f %5.2f\n", row.name, ranks, stats.MB(p.ShardBytes), stats.MB(p.StateBytes),
		stats.MB(p.PassBytes), stats.MB(p.Peak()), stats.MB(counted[0]), stats.MB(p.Traffic))
	return nil
}
