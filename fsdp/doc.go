// Package fsdp trains models that are too big for one device: fully sharded data parallel training
// (ZeRO-3; Rajbhandari et al., 2020, arXiv:1910.02054) of models written with Gorgonia.
//
// Every rank owns 1/N of the parameters, gradients and optimizer state. A group of parameters is
// whole only while the calls that need it compute: it is all-gathered just in time in forward and
// again in backward, and freed at once. Its gradients are reduce-scattered as soon as they are
// complete. The training loop stays the user's:
//
//	err := comm.Run(ctx, ranks, func(ctx context.Context, g comm.Group) error {
//		m, err := fsdp.Wrap(gpt, fsdp.Config{Group: g, Wrap: fsdp.WrapTypes(&nn.Block{})})
//		defer m.Close()
//		opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Shards())
//		for batch, err := range m.Join(ctx, data) {
//			loss, err := m.Forward(ctx, batch...)
//			err = m.Backward(ctx)
//			norm, err := m.ClipGradNorm(ctx, 1)
//			err = opt.Step(lr(opt.Steps()))
//			m.ZeroGrad()
//		}
//		return nil
//	})
//
// # Modules, models, units
//
// A [Module] is a pure builder over Gorgonia nodes with a list of parameters. A [Model] is plain Go
// code that calls modules: a loop over blocks, an encoder whose output every layer sees, a head
// tied to an embedding. Wrap runs it once, without data, and records the calls. A [Policy] then
// puts the parameters of calls into units; what no unit takes is the root unit. The parameters of a
// unit lie end to end in a flat group, or in several groups where some are frozen, ignored, or
// travel in another type. Package graph makes a model of a Gorgonia graph that was written without
// this library.
//
//	model     Forward: wte ─▶ wpe ─▶ blocks.0 ─▶ blocks.1 ─▶ lnf ─▶ head ─▶ loss
//	units     WrapTypes(&nn.Block{}): {blocks.0} {blocks.1}, root {wte wpe lnf head}
//	schedule  gather root · gather blocks.0 · wait root · forward wte · gather blocks.1 · forward wpe
//	          · wait blocks.0 · …
//
// # Strategies
//
// A [Strategy] says what is cut over the ranks and what is whole when. FullShard cuts everything,
// ShardGradOp keeps parameters whole during a pass, NoShard copies everything to every rank (DDP).
// The hybrid strategies cut over the ranks of a host, say, and copy from host to host.
// Config.StrategyOf chooses for each unit; Config.GroupOf gives a unit, such as an expert, a
// process group of its own.
//
// # The step is data
//
// The order of everything is decided before a pass, not discovered while it runs. [Sharded.Plan]
// shows the schedule, the memory and the traffic, and the ranks compare their schedules before the
// first collective. The schedule of a pass (strategy, prefetch, wrapping, checkpointing, place of
// memory) does not change one bit of its result, the norm of [Sharded.ClipGradNorm] included. There
// are two exceptions, which round the sum over the ranks in another order: ShardRanks that is no
// power of two, and gradients that travel in 16 bits under a hybrid strategy.
//
// # Gradients
//
// Gradients are means over the ranks: each rank's loss should be a mean over its batch, and batches
// of equal size make the result that of the whole batch on one rank. [ByWeights] weighs unequal
// ones. Backward adds to the gradients that are there, until [Sharded.ZeroGrad]. Inside
// [Sharded.NoSync] it does so without communication, for the memory of whole gradients.
// [Sharded.Hold] puts a forward aside, so that several may come before their backwards. A parameter
// that no loss depended on has no gradient, and optimizers leave it alone.
//
// Frozen parameters have no gradient and no optimizer state. Backward gathers them only while
// something that is trained needs their value, and frees them directly after, inside NoSync as
// well; calls before the first trained parameter have no backward. [Sharded.Freeze] changes what is
// frozen between steps. What freeing them one by one saves stands in examples/lora.
//
// # Uneven ranks
//
// A rank that has no batch left goes on with empty ones in [Sharded.Join], as long as any rank has
// one: its passes run the same schedule without computing. All ranks leave the loop in the same
// place. [Sharded.EvalProgram] runs other ways through the model than its Forward, such as an
// encoder or one step of a decoder. Ranks may need different numbers of these. Inside
// [Sharded.JoinCalls] each rank makes calls of its own, whatever the others do: the others replay
// them.
// What a rank without a batch has accumulated inside NoSync is handed in, and its part of the model
// goes on learning. Without Join an uneven loop is an error on every rank that says who does what.
// All ranks must decide alike, such as to stop: [Sharded.Any] tells each what one of them knows, and
// [Sharded.Mean] is the mean of a number over those that have a batch. Package metrics adds up what
// each rank has seen.
//
// # Numbers
//
// Computation is in float32, or float64 for tests. With [BF16] it is in bfloat16, up to 1.8 times
// as fast where the processor multiplies that, and with half the memory for activations.
// [Precision] also lets parameters and gradients only travel in 16 bits, which halves the traffic.
// Whatever it says, shards, optimizer state and checkpoints are in float32, or float64.
// [Sharded.Unscale] undoes a loss scale.
//
// # State
//
// [Sharded.Save] writes a checkpoint, each rank what it owns, and [Sharded.SaveAsync] writes it
// while the training goes on. A checkpoint gets its name once all of it is on disk, so no crash
// leaves half of one; a full disk is an error on every rank. [Sharded.Load] continues from the
// last, on any number of ranks, with any strategy and units. On the same number of ranks and with
// the same configuration, a training continues bit for bit:
//
//	c, err := m.Load(ctx, "ckpt", opt)
//	switch {
//	case errors.Is(err, fsdp.ErrNoCheckpoint): // the first run
//	case err == nil:
//		err = c.Extra("data", &position)
//	}
//	…
//	v, err := m.SaveAsync(ctx, "ckpt", opt, fsdp.KeepLast(3), fsdp.Extra("data", position))
//
// A checkpoint has the parameters, the buffers of every rank, the state of the optimizer and its
// counts, and the number of passes, which with Config.Seed keys dropout. It has no gradients, so
// save after ZeroGrad and not between Forward and Backward. It has nothing that only the user
// knows, such as the position in the data and the loss scale: [Extra] and [RankExtra] add that. It
// has neither the model nor its Config, which the program has. Errors that can be found in advance
// are found before anything changes. A model that is only partly loaded is never trained on. What
// becomes of a damaged checkpoint is said at Load and [AllowOlder].
//
// [Sharded.Export] writes one file for other programs, and [Sharded.Import] reads theirs.
// [Sharded.FullState] and [Sharded.FullOptimState] return the same in memory, whole, as one process
// would have it; [Sharded.SetFull] and [Sharded.SetFullOptim] are the reverse.
//
// # What always holds
//
//   - While a call computes, only the units are whole that it and the Prefetch next ones read,
//     besides those that are kept: Prefetch+1, if no call reads more than one.
//   - Same seed, same number of ranks, same instruction set: same bits. Parameters start out the
//     same at every number of ranks.
//   - The peak of the counted memory is the planned one; passes put aside by Hold come on top.
//     Counted are parameters, gradients, optimizer state, activations, scratch and the snapshot of
//     SaveAsync; not counted are batches and results, constants, what stock Gorgonia operations
//     allocate while they run, and the packing buffers of matrix products, about 1 MiB a rank.
//   - Methods of [Sharded] that take a context are collective. Before a pass the ranks agree to run
//     it: if one cannot, because its batch has the wrong shape or its loss is NaN, all return an
//     error that says which rank and why, and parameters and gradients are as they were. An error
//     in the middle of a pass fails the group on every rank. Nothing hangs.
//   - What ranks do without asking each other must be the same: steps of optimizers with their
//     kind, numbers and learning rate, [Sharded.ZeroGrad] and [Sharded.ScaleGrads]. Ranks compare
//     it before the next Forward, Eval or Backward, and a difference is an error on all. They
//     cannot see what is done by optimizers that are not of package optim. Parameters in groups of
//     their own (Config.GroupOf) may differ. Loading a checkpoint makes up for a difference.
//
// # Memory
//
// What ranks send each other, namely shards, gathered parameters and gradients, lives in memory of
// the group if it is a [comm.Allocator]: ranks on one host then read and write it in place.
// Optimizer state, activations and scratch live on the Go heap. Config.OffloadDir puts shards,
// optimizer state and what Config.Spill selects into files instead. All of it is kept for the next
// step until [Sharded.Close] gives it back.
//
// [Plan] says how much that will be and [Sharded.Memory] how much it is, both to the byte.
// [Plan.Resident] adds what a process needs beside buffers, and says what it leaves out. Compiled
// programs are kept for batches of the same shapes, within bounds: see [Sharded.Memory].
//
// What a rank of a small GPT holds and sends in a step, as planned and as counted (make memory,
// half a minute). The first rows are DDP, the same model in one unit and by blocks, and adapters on
// it while it is frozen itself. In one unit all parameters and all gradients are whole at once,
// which takes back most of what sharding saves:
//
//	tiny: 4 layers, 128 channels; MB of a rank in a step with AdamW,
//	batch of 1 sequence of 64 bytes a rank; a frozen base has adapters of rank 8
//	                         ranks shard+grads  state   pass  planned  counted  sent
//	  NoShard (DDP)              2        6.94   6.94   3.26    17.14    17.14  3.47
//	  FullShard in one unit      2        3.47   3.47   8.65    15.58    15.58  3.47
//	  FullShard by blocks        2        3.47   3.47   4.85    11.78    11.78  4.26
//	  the same, frozen base      2        2.00   0.26   3.59     5.85     5.85  2.85
//	every strategy by blocks
//	  FullShard                  1        6.94   6.94   4.85    18.72    18.72  0.00
//	  FullShard                  2        3.47   3.47   4.85    11.78    11.78  4.26
//	  FullShard                  4        1.73   1.73   4.85     8.32     8.32  6.39
//	  FullShard                  8        0.87   0.87   4.85     6.58     6.58  7.46
//	  ShardGradOp                1        6.94   6.94   5.97    19.84    19.84  0.00
//	  ShardGradOp                2        3.47   3.47   5.97    12.91    12.91  3.47
//	  ShardGradOp                4        1.73   1.73   5.97     9.44     9.44  5.20
//	  ShardGradOp                8        0.87   0.87   5.97     7.70     7.70  6.07
//	  HybridShard over 2         4        3.47   3.47   5.31    12.25    12.25  6.00
//	  HybridShard over 2         8        3.47   3.47   5.31    12.25    12.25  6.86
//	  HybridShard over 4         8        1.73   1.73   5.31     8.78     8.78  7.26
//	  NoShard                    1        6.94   6.94   3.26    17.14    17.14  0.00
//	  NoShard                    2        6.94   6.94   3.26    17.14    17.14  3.47
//	  NoShard                    4        6.94   6.94   3.26    17.14    17.14  5.20
//	  NoShard                    8        6.94   6.94   3.26    17.14    17.14  6.07
package fsdp
