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
//			err = m.Backward(ctx, fsdp.Share(batch))
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
// The hybrid strategies cut over the ranks of a host, say, and copy from host to host;
// SecondaryShard gathers twice and only once from other hosts (hpZ of ZeRO++). Config.StrategyOf
// chooses for each unit; Config.GroupOf gives a unit, such as an expert, a process group of its
// own. Config.CutOf says where a unit may be cut: between rows, or nowhere within a tensor; and how
// much each of unequal machines gets. Optimizers step what a rank owns; that of matrices,
// [optim.Muon], brings them together as it plans.
//
// # The step is data
//
// The order of everything is decided before a pass, not discovered while it runs. [Sharded.Plan]
// shows the schedule, the memory and the traffic, and the ranks compare their schedules before the
// first collective. The schedule of a pass (strategy, prefetch, wrapping, checkpointing, place of
// memory) does not change one bit of its result, the norm of [Sharded.ClipGradNorm] included. There
// are two exceptions, which round the sum over the ranks in another order: ShardRanks that is no
// power of two, and gradients that travel in 16 bits under a hybrid strategy. With Config.HashDir
// ranks record hashes of what they compute, and the command fsdpdiff says where two trainings part.
//
// # Gradients
//
// Each rank's loss should be a mean over its batch. With [Share] the gradients of a step are then those
// of all its batches as one, on one rank: batches may be of unequal size, have targets that do not
// count, or be several on a rank. Without it Config.Divide decides, which weighs all ranks alike where
// it says nothing. Backward adds to the gradients that are there, until [Sharded.ZeroGrad]. Inside
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
// them. What a rank without a batch has accumulated inside NoSync is handed in, and its part of the
// model goes on learning. Without Join an uneven loop is an error on every rank that says who does
// what. A rank may lack a part of a batch, such as an image, and with it the calls that need it:
// see [Tape.Optional]. Their units are gathered and reduced all the same, and nothing is computed
// for them. All ranks must decide alike, such as to stop: [Sharded.Any] tells each what one of them
// knows, and [Sharded.Mean] is the mean of a number over those that have a batch. Package metrics
// adds up what each rank has seen.
//
// # Virtual ranks
//
// With Config.VirtualRanks = V a training has the same bits on all numbers N of ranks that divide
// V: parameters, gradients, norms, clipping, dropout, what [Sharded.Forward] returns for a batch,
// and the state of the optimizer. They are those of a training on V ranks. A step is then V/N
// micro-batches on each rank, and no method that needs gradients may be called in the middle of
// one. So a step of 64 ranks can be repeated on one, and a checkpoint goes on on another number of
// ranks as if it had not changed. The k-th micro-batch of a step on rank r, both from 0, is that of
// virtual rank
//
//	k·N + r        if every Backward is outside of NoSync      N is a power of two
//	r·V/N + k      if all but the last are inside of it        V/N is a power of two, or N is 1
//
// A Forward without a Backward, repeated in the middle of a step, draws other dropout on fewer
// ranks. Package data deals batches in this order. Either way is for any N where V is a power of
// two, or three times one: at V = 12 on 1, 2 and 4 ranks the first, on 1, 3 and 6 the second, on 12
// both. The last micro-batch may be inside NoSync, too, with SyncGrads after it. What a rank keeps
// between the micro-batches is ⌈log2(V/N)⌉ pieces of the size of its gradients, or inside NoSync
// ⌊log2(V/N)⌋ of those of the whole model: Plan.VirtualBytes.
//
//	the same bits                              not, and what is said
//	all strategies, wrapping, prefetch         hybrid over a number that is no power of two: refused
//	Float32, Float64, BFloat16, Reduce in 16   hybrid with Reduce in 16 bits, which rounds twice: refused
//	bits, which then travels in 32 if V > N
//	Frozen, Ignored, Checkpoint, Threads       GroupOf, buffers of the model: refused
//	ByRanks, the mean over V; ByOne; ByActive  ByWeights with gradients that travel as Float16: refused
//	and ByWeights, over all of a step          ByActive with calls that may be absent: refused
//	Join, where virtual ranks have no batch;   Forward in JoinCalls, Hold: refused
//	calls that are absent, by Tape.Optional
//	ranks as goroutines, processes, hosts      Config.Device: refused; groups that do not sum in the order
//	                                           of package comm, such as NCCL's: not noticed
//	AdamW, SGD, ClipGradNorm, Unscale;         Muon by Gram, whose sums are over ranks, and state in 8
//	Muon by Owner or Gather                    bits, whose blocks the ranks cut: not noticed
//	metrics.Mean                               Sharded.Mean, over what ranks give it, not over batches
//	V/N or N a power of two, or both           neither, as 9 on 3: refused
//
// # Numbers
//
// Computation is in float32, or float64 for tests. With [BF16] it is in bfloat16, up to 1.8 times
// as fast where the processor multiplies that, and with half the memory for activations.
// [Precision] also lets parameters and gradients only travel in 16 bits, which halves the traffic,
// or in 8, see [Int8], each parameter in types of its own. Whatever it says, shards, optimizer
// state and checkpoints are in float32, or float64. [Sharded.Unscale] undoes a loss scale.
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
// save after ZeroGrad and not between Forward and Backward. What they have lost as [Int8] a Save
// drops. It has nothing that only the user
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
//   - Same seed, same number of ranks or of virtual ranks, same instruction set: same bits. Parameters
//     start out the same at every number of ranks. Wrap warns if ranks compute with different sets.
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
// With Config.Device all of it lives in the memory of a GPU, or with Config.Offload what lasts in
// pinned memory of the host: see package fsdp/gpu.
//
// [Dry] says what a training will take without ranks, memory or random numbers, on a [comm.World]
// of any size; package fsdp/plan tells from it how long a step takes on a cluster, and what is held
// for which unit meanwhile. [Fits] says what is in the way where memory is short, and which changes
// save how much, and [Tune] which settings are fastest.
//
// Config.Profile counts what operations take while a training runs: package fsdp/profile tells from
// it which rank or link the others wait for, and what differs from the plan.
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
//	  FullShard                  1        6.94   6.94   3.26    17.14    17.14  0.00
//	  FullShard                  2        3.47   3.47   4.85    11.78    11.78  4.26
//	  FullShard                  4        1.73   1.73   4.85     8.32     8.32  6.39
//	  FullShard                  8        0.87   0.87   4.85     6.58     6.58  7.46
//	  ShardGradOp                1        6.94   6.94   3.26    17.14    17.14  0.00
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
