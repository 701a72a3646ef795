// Train trains a small nn.GPT under one configuration of the library and writes the weights and a
// checkpoint. Samebits compiles it at two commits, so it imports public packages only, and of them
// the names that change least.
//
//	train -ranks 4 -strategy HybridShard -shard-ranks 2 -export weights.safetensors -save checkpoint
package main

import (
	"context"
	"flag"
	"log"
	"os"

	"github.com/gofsdp/gofsdp/comm"
)

// options are the flags.
type options struct {
	ranks, steps int
	export, save string // a file, a directory

	strategy              string // of every unit
	shardRanks, keepBelow int
	prefetch, inFlight    int
	gather, reduce        string // types that travel
	wide, tied, sgd       bool   // float64; head and embedding share a weight; momentum SGD
	dim                   int    // channels
	dropout               float64
	lora                  int // rank of the adapters

	frozen, ignored, recompute, keep, spill string // regular expressions
	offload                                 string // directory for shards, state and what spills
	experts                                 bool

	accumulate            int // passes without communication before each step's
	hold, uneven, byRows  bool
	scale                 float64 // of the loss, if not zero
	thaw, resume, reshape bool    // after half of the steps
}

// parse reads the flags.
func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("train", flag.ContinueOnError)
	f.IntVar(&o.ranks, "ranks", 2, "ranks, unless a launcher has started them")
	f.IntVar(&o.steps, "steps", 4, "updates")
	f.StringVar(&o.export, "export", "weights.safetensors", "`file` for the weights")
	f.StringVar(&o.save, "save", "checkpoint", "`directory` for the checkpoint")
	f.StringVar(&o.strategy, "strategy", "FullShard", "as fsdp names it")
	f.IntVar(&o.shardRanks, "shard-ranks", 0, "ranks to cut over, for the hybrid strategies")
	f.IntVar(&o.keepBelow, "keep-below", 0, "keep units of fewer elements whole")
	f.IntVar(&o.prefetch, "prefetch", 0, "as fsdp.Config has it")
	f.IntVar(&o.inFlight, "in-flight", 0, "bytes under way at most")
	f.StringVar(&o.gather, "gather", "", "type in which parameters travel")
	f.StringVar(&o.reduce, "reduce", "", "type in which gradients travel")
	f.BoolVar(&o.wide, "wide", false, "compute in float64")
	f.BoolVar(&o.tied, "tied", false, "tie the head to the embedding")
	f.BoolVar(&o.sgd, "sgd", false, "momentum SGD in place of AdamW")
	f.IntVar(&o.dim, "dim", 26, "channels, even: most leave uneven shards")
	f.Float64Var(&o.dropout, "dropout", 0.1, "rate of dropout")
	f.IntVar(&o.lora, "lora", 0, "rank of adapters")
	f.StringVar(&o.frozen, "frozen", "", "freeze parameters that match")
	f.StringVar(&o.ignored, "ignored", "", "do not shard parameters that match")
	f.StringVar(&o.recompute, "recompute", "", "keep only the inputs of calls that match")
	f.StringVar(&o.keep, "keep", "", "keep everything of calls that match")
	f.StringVar(&o.spill, "spill", "", "keep what calls that match keep in files")
	f.StringVar(&o.offload, "offload", "", "hold shards and optimizer state in files of this `directory`")
	f.BoolVar(&o.experts, "experts", false, "cut block 1 over the even and over the odd ranks")
	f.IntVar(&o.accumulate, "accumulate", 0, "passes without communication before each step's")
	f.BoolVar(&o.hold, "hold", false, "two forwards before two backwards")
	f.BoolVar(&o.uneven, "uneven", false, "rank r has r batches less")
	f.BoolVar(&o.byRows, "by-rows", false, "weigh the ranks by their rows")
	f.Float64Var(&o.scale, "scale", 0, "scale the loss by this at first")
	f.BoolVar(&o.thaw, "thaw", false, "after half of the steps freeze nothing")
	f.BoolVar(&o.resume, "resume", false, "after half of the steps go on from a checkpoint in another model")
	f.BoolVar(&o.reshape, "reshape", false, "resume with another strategy and other units")
	return o, f.Parse(args)
}

func main() {
	log.SetFlags(0)
	o, err := parse(os.Args[1:])
	if err == nil {
		err = comm.Run(context.Background(), o.ranks, func(ctx context.Context, g comm.Group) error { return run(ctx, g, o) })
	}
	if err != nil {
		log.Fatal(err)
	}
}
