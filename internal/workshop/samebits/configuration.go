package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A configuration is one way to train.
type configuration struct {
	name      string
	ranks     int
	transport string // shm or tcp: ranks are processes; else goroutines
	program   string
	args      string // with $DIR for an empty directory
}

// Programs and arguments that several configurations share.
const (
	gpt   = "gpt"
	train = "train"

	// The example's own defaults are for people who watch.
	tiny = "-size tiny -steps 4 -batch 5 -sample-bytes 0 -eval-bytes 1 -plain -data $DIR/../../../text -holdout 2"
)

// configurations are all that is compared.
var configurations = []configuration{
	{"gpt, 1 rank", 1, "", gpt, tiny},
	{"gpt, 2 ranks", 2, "", gpt, tiny},
	{"gpt, 3 ranks, shm", 3, "shm", gpt, tiny},
	{"gpt, 4 ranks, tcp", 4, "tcp", gpt, tiny + " -dropout 0.1"},

	{"FullShard, 1 rank", 1, "", train, ""},
	{"FullShard, 2 ranks, shm", 2, "shm", train, ""},
	{"FullShard, 3 ranks", 3, "", train, "-dim 90"},
	{"FullShard, 4 ranks, tcp", 4, "tcp", train, ""},
	{"ShardGradOp, 2 ranks, tcp", 2, "tcp", train, "-strategy ShardGradOp"},
	{"ShardGradOp, 3 ranks", 3, "", train, "-strategy ShardGradOp"},
	{"NoShard, 1 rank", 1, "", train, "-strategy NoShard"},
	{"NoShard, 3 ranks, shm", 3, "shm", train, "-strategy NoShard"},
	{"HybridShard over 2, 4 ranks", 4, "", train, "-strategy HybridShard -shard-ranks 2"},
	{"HybridShard over 2, 4 ranks, shm", 4, "shm", train, "-strategy HybridShard -shard-ranks 2"},
	{"HybridGradOp over 2, 4 ranks, tcp", 4, "tcp", train, "-strategy HybridGradOp -shard-ranks 2"},
	{"HybridGradOp over 1, 3 ranks", 3, "", train, "-strategy HybridGradOp -shard-ranks 1"},
	{"SecondaryShard over 2, 4 ranks, shm", 4, "shm", train, "-strategy SecondaryShard -shard-ranks 2"},
	{"small units whole", 3, "", train, "-keep-below 3000"},
	{"no prefetch", 3, "", train, "-prefetch -1"},
	{"prefetch 3, few bytes in flight", 2, "shm", train, "-prefetch 3 -in-flight 20000"},

	{"bf16 travels", 3, "", train, "-gather bfloat16 -reduce bfloat16"},
	{"f16 travels, loss scaled", 4, "tcp", train, "-gather float16 -reduce float16 -scale 1048576 -steps 8"},
	{"bf16 travels, HybridShard", 4, "shm", train, "-gather bfloat16 -reduce bfloat16 -strategy HybridShard -shard-ranks 2"},
	{"float64, tied, SGD", 3, "", train, "-wide -tied -sgd"},

	{"frozen blocks", 3, "", train, `-frozen blocks\.[02]`},
	{"frozen, then thawed", 3, "shm", train, `-frozen blocks\.1 -thaw`},
	{"adapters on a frozen base", 2, "", train, `-lora 4 -frozen (weight|bias)$`},
	{"ignored parameters", 3, "", train, "-ignored ln"},
	{"recomputed blocks", 3, "", train, "-recompute blocks"},
	{"one block recomputed, one kept", 2, "tcp", train, `-recompute blocks\.0 -keep blocks\.1`},
	{"offloaded", 3, "", train, "-offload $DIR"},
	{"offloaded, blocks spilled, shm", 2, "shm", train, "-offload $DIR -spill blocks"},
	{"experts", 4, "", train, "-experts"},
	{"experts, tcp", 4, "tcp", train, "-experts -recompute blocks"},

	{"accumulated without communication", 3, "", train, "-accumulate 2"},
	{"passes held", 2, "", train, "-hold"},
	{"held and accumulated, frozen", 3, "", train, `-hold -accumulate 1 -frozen blocks\.0`},
	{"uneven numbers of batches", 4, "", train, "-uneven -steps 6"},
	{"uneven, tcp, ShardGradOp", 3, "tcp", train, "-uneven -steps 6 -strategy ShardGradOp"},
	{"uneven, accumulated", 3, "shm", train, "-uneven -accumulate 1 -steps 6"},
	{"weighted by rows", 3, "", train, "-by-rows"},
	{"resumed", 3, "", train, "-resume"},
	{"resumed with other units, shm", 4, "shm", train, "-resume -reshape"},
	{"resumed offloaded", 2, "", train, "-resume -offload $DIR"},
}

// limit is how long a program may take.
const limit = time.Minute

// one runs a configuration with the programs in bin, which write to dir.
func (b *bench) one(ctx context.Context, c configuration, bin, dir string) (s sums, err error) {
	empty := filepath.Join(dir, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return s, err
	}
	weights, checkpoint := filepath.Join(dir, "weights"), filepath.Join(dir, "checkpoint")
	program := filepath.Join(bin, c.program)
	args := strings.Fields(strings.ReplaceAll(c.args, "$DIR", empty))
	args = append(args, "-export", weights, "-save", checkpoint)
	if c.transport == "" {
		args = append(args, "-ranks", fmt.Sprint(c.ranks))
	} else {
		args = append([]string{"-n", fmt.Sprint(c.ranks), "-transport", c.transport, program}, args...)
		program = filepath.Join(bin, "fsdprun")
	}
	if err := execute(ctx, program, args...); err != nil {
		return s, err
	}
	merged := filepath.Join(dir, "merged")
	if err := execute(ctx, filepath.Join(b.bins[1], "fsdpckpt"), "merge", "-optimizer", checkpoint, merged); err != nil {
		return s, err
	}
	if s.weights, err = sum(weights); err != nil {
		return s, err
	}
	s.state, err = sum(merged)
	return s, err
}

// execute runs a program and returns what it printed as an error, if it fails.
func execute(ctx context.Context, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}
