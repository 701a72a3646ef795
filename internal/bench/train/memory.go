package train

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/bench/stats"
)

// memoryRow is a strategy, and over how many ranks it cuts if that is not all.
type memoryRow struct {
	strategy fsdp.Strategy
	shards   int
}

var memoryRows = []memoryRow{
	{fsdp.FullShard, 0}, {fsdp.ShardGradOp, 0}, {fsdp.HybridShard, 2}, {fsdp.HybridShard, 4}, {fsdp.NoShard, 0},
}

// memory prints the bytes of a rank for each strategy and number of ranks: as planned, and as
// counted in a step with AdamW. It is an error if they differ.
func memory(w io.Writer, s size) error {
	fmt.Fprintf(w, "%s: %d layers, %d channels; MB of a rank in a step with AdamW, batch of 1 sequence of %d bytes a rank\n", s.name, s.layers, s.dim, s.context)
	fmt.Fprintf(w, "  %-26s %5s %12s %8s %8s %9s %9s %13s\n", "", "ranks", "shard+grads", "state", "pass", "planned", "counted", "sent per pass")
	for _, row := range memoryRows {
		for _, ranks := range []int{1, 2, 4, 8} {
			if row.shards > 0 && ranks <= row.shards {
				continue
			}
			if err := memoryOf(w, s, row, ranks); err != nil {
				return fmt.Errorf("%v on %d ranks: %w", row.strategy, ranks, err)
			}
		}
	}
	return nil
}

// memoryOf prints one row.
func memoryOf(w io.Writer, s size, row memoryRow, ranks int) error {
	plans, counted := make([]*fsdp.Plan, ranks), make([]int, ranks)
	err := comm.Run(context.Background(), ranks, func(ctx context.Context, g comm.Group) (err error) {
		t, err := newTrainer(ctx, s, fsdp.Config{Group: g, Strategy: row.strategy, ShardRanks: row.shards, Wrap: fsdp.WrapTypes(&nn.Block{})}, 1)
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
	name := row.strategy.String()
	if row.shards > 0 {
		name += fmt.Sprintf(" over %d", row.shards)
	}
	p := plans[0]
	for r := range plans {
		if plans[r].Peak() != counted[r] {
			return fmt.Errorf("rank %d: %d bytes planned, %d counted", r, plans[r].Peak(), counted[r])
		}
	}
	fmt.Fprintf(w, "  %-26s %5d %12.2f %8.2f %8.2f %9.2f %9.2f %13.2f\n", name, ranks, stats.MB(p.ShardBytes), stats.MB(p.StateBytes), stats.MB(p.PassBytes),
		stats.MB(p.Peak()), stats.MB(counted[0]), stats.MB(p.Traffic))
	return nil
}
