// Package fsdp trains models that are too big for one device: fully sharded data parallel training
// (ZeRO-3; Rajbhandari et al., 2020, arXiv:1910.02054) of models written with Gorgonia.
//
// Every rank owns 1/N of the parameters, gradients and optimizer state. A group of parameters is
// whole only while the calls that need it compute: it is all-gathered just in time in forward and
// again in backward, and freed at once. Its gradients are reduce-scattered as soon as they are
// complete. The training loop stays the user's:
//
//	err := comm.Run(ctx, ranks, func(ctx context.Context, g comm.Group) error {
//		m, err := fsdp.Wrap(gpt, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
//		defer m.Close()
//		opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
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
// groups the parameters of calls into units. Parameters that no unit takes form the root unit. The
// parameters of a unit are stored end to end in a flat group, or in several groups if some are
// frozen, ignored, or travel in another type. Package graph makes a model of a Gorgonia graph that
// was written without this library.
//
//	model     Forward: wte ─▶ wpe ─▶ blocks.0 ─▶ blocks.1 ─▶ lnf ─▶ head ─▶ loss
//	units     WrapTypes(&nn.Block{}): {blocks.0} {blocks.1}, root {wte wpe lnf head}
//	schedule  gather root · gather blocks.0 · wait root · forward wte · gather blocks.1 · forward wpe
//	          · wait blocks.0 · …
//
// # Strategies
//
// A [Strategy] decides what is cut over the ranks and when parameters are whole. FullShard cuts
// everything, ShardGradOp keeps parameters whole during a pass, NoShard copies everything to every
// rank (DDP). The hybrid strategies cut over the ranks of a host, for example, and copy from host
// to host. SecondaryShard gathers twice, but only once from other hosts (hpZ of ZeRO++).
// Config.Unit chooses for each unit. It can also give a unit, such as an expert, a separate process
// group, and decide where a unit may be cut (between rows, or nowhere within a tensor) and how much
// each of unequal machines gets. Optimizers update the shards that a rank owns. [optim.Muon], the
// optimizer for matrices, needs whole matrices: its ranks exchange their parts by the method that
// should be fastest.
//
// # The step is data
//
// The order of all operations is decided before a pass, not discovered while it runs.
// [Sharded.Plan] shows the schedule, the memory and the traffic. The ranks compare their schedules
// before the first collective. The schedule of a pass (strategy, prefetch, wrapping, checkpointing,
// place of memory) does not change one bit of its result, including the norm of
// [Sharded.ClipGradNorm]. There are two exceptions, which round the sum over the ranks in another
// order: ShardRanks that is not a power of two, and gradients that travel in 16 bits under a hybrid
// strategy. With a HashDir of Config.Observers ranks record hashes of their computation, and the
// command fsdpdiff finds the first difference between two trainings.
//
// # Gradients
//
// Each rank's loss should be a mean over its batch. With [Share] the gradients of a step equal the
// gradients of all its batches as one batch, on one rank. Batches may be of unequal size, have
// targets that do not count, or be several on a rank. Without Share, Config.GradAverage decides.
// Its default weighs all ranks alike. Backward adds to the existing gradients until
// [Sharded.ZeroGrad]. Inside [Sharded.NoSync] it does so without communication, and needs memory
// for whole gradients. [Sharded.Hold] puts a forward aside, so that several forwards may run before
// their backwards. A parameter that no loss depended on has no gradient, and optimizers do not
// change it.
//
// Frozen parameters have no gradient and no optimizer state. Backward gathers them only while the
// gradient of a trained parameter needs their value, and frees them directly after, inside NoSync
// as well. Calls before the first trained parameter have no backward. [Sharded.Freeze] changes
// which parameters are frozen between steps. [Sharded.FrozenParams] returns their values. A program
// may write them between passes, for example to let a teacher follow its student. examples/lora
// shows the memory saved by freeing frozen parameters one by one.
//
// # Uneven ranks
//
// A rank that has no batch left continues with empty ones in [Sharded.Join], as long as any rank
// has one: its passes run the same schedule without computing. All ranks leave the loop in the same
// place. [Sharded.EvalProgram] runs other paths through the model than its Forward, such as an
// encoder or one step of a decoder. Ranks may need different numbers of these runs. Inside
// [Sharded.JoinCalls] ranks may make different calls, and other ranks replay them. Gradients that a
// rank without a batch accumulated inside NoSync are still reduced, and its part of the model
// continues to learn. Without Join, an uneven loop is an error on every rank, and the error names
// the ranks and their calls. A rank may lack a part of a batch, such as an image, and with it the
// calls that need it: see [Tape.Optional]. The units of these calls are gathered and reduced all
// the same, and nothing is computed for them. All ranks must make some decisions alike, such as the
// decision to stop. [Sharded.Any] reports on every rank whether a condition is true on one of them.
// [Sharded.Mean] is the mean of a number over the ranks that have a batch. Package metrics adds up
// the observations of all ranks.
//
// [CopyState] lets ranks leave and join between two steps, without a checkpoint. With
// Config.VirtualRanks the training has the same bits as one whose ranks never changed. A
// [MemoryCheckpoint] keeps the last step in the memory of the ranks: if a rank is lost in the
// middle of a step, the others continue from there in a new group.
//
// # Virtual ranks
//
// With Config.VirtualRanks = V a training has the same bits on every number N of ranks up to V:
// parameters, gradients, norms, clipping, dropout, the result of [Sharded.Forward] for a batch, and
// the state of the optimizer. They are the bits of a training on V ranks. A step is then ⌈V/N⌉
// micro-batches on each rank, and no method that needs gradients may be called in the middle of a
// step. So a step of 64 ranks can be repeated on one, a checkpoint continues on another number of
// ranks as if the number had not changed, and a training that has lost one of its ranks continues
// on all others. The k-th micro-batch of a step on rank r, both from 0, belongs to virtual rank
//
//	k·N + r        if every Backward is outside of NoSync
//	r·V/N + k      if all but the last are inside of it        V/N is a power of two, or N is 1
//
// If N does not divide V, ranks with k·N + r ≥ V have no virtual rank left for the last
// micro-batch. They take part with nothing: they call Forward without a batch, and Backward. In
// [Sharded.Join] a missing or nil batch does this. A rank that runs fewer or more batches is an
// error on all ranks:
//
//	for first := 0; first < V; first += N {
//		var batch []fsdp.Tensor
//		if v := first + g.Rank(); v < V {
//			batch = batchOf(step, v)
//		}
//		_, err := m.Forward(ctx, batch...)
//		err = m.Backward(ctx)
//	}
//
// A Forward without a Backward, repeated in the middle of a step, draws other dropout on fewer
// ranks. Package data deals batches in this order. The last micro-batch may be inside NoSync, too,
// with SyncGrads after it.
//
// Between the micro-batches a rank keeps ⌈log2(V/N)⌉ pieces of the size of its gradients, or inside
// NoSync ⌊log2(V/N)⌋ pieces of the size of all gradients of the model: see Plan.VirtualBytes.
// Outside of NoSync, if N is not a power of two that divides V, ranks send each other gradients
// without adding them, as many bytes as in other reductions. A rank then keeps ⌈log2(V)⌉ pieces,
// and the gradients of a unit take up to twice the memory while they are whole. With replicas, as
// with NoShard, the sums return to all ranks in the last micro-batch of a step only: Plan.Traffic
// is of that one.
//
//	the same bits                              not the same bits, and the response
//	all strategies, wrapping, prefetch         hybrid over a number that is no power of two: refused
//	Float32, Float64, BFloat16, Float16;       hybrid with Reduce in 16 bits, which rounds twice: refused
//	Reduce in 16 bits, in 32 if V > N
//	Frozen, Ignored, Activations, Threads      groups of units, buffers of the model: refused
//	ByRanks, the mean over V; ByOne; ByActive  ByWeights with gradients that travel as Float16: refused
//	and ByWeights, over all of a step          ByActive with calls that may be absent: refused
//	Join, where virtual ranks have no batch;   Forward in JoinCalls, Hold: refused
//	calls that are absent, by Tape.Optional
//	ranks as goroutines, processes, hosts      groups that do not sum in the order of package comm, such
//	ranks with GPUs of one kind                as NCCL's, processors and GPUs: not noticed
//	AdamW, SGD, ClipGradNorm, Unscale;         Muon by Gram, whose sums are over ranks, and state in 8
//	Muon by Owner or Gather                    bits, whose blocks the ranks cut: not noticed
//	metrics.Mean                               Sharded.Mean, over values of ranks, not of batches
//	any N up to V                              inside NoSync: N that does not divide V, and 9 on 3: refused
//
// # Numbers
//
// Computation is in float32, or float64 for tests. With [BF16] it is in bfloat16, with half the
// memory for activations: up to 1.8 times as fast on AMD processors that multiply bfloat16, and 3
// to 4 times as fast on Intel processors with AMX. GPUs also compute in float16. [Precision] can
// also change only the type in which parameters and gradients travel: 16 bits halve the traffic,
// and 8 bits are possible too, see [Int8]. Each parameter may have different types. Shards of
// parameters and gradients are in float32, or float64, or in bfloat16 if Precision.Master says so.
// Checkpoints are always in float32, or float64. [Sharded.Unscale] undoes a loss scale.
//
// # State
//
// [Sharded.Save] writes a checkpoint: each rank writes the shards that it owns. [Sharded.SaveAsync]
// writes it while the training continues. A checkpoint gets its name once all of it is on disk, so
// no crash leaves half of one. A full disk is an error on every rank. [Sharded.Load] continues from
// the last checkpoint, on any number of ranks, with any strategy and units. On the same number of
// ranks and with the same configuration, a training continues bit for bit:
//
//	c, err := m.Load(ctx, "ckpt", opt, nil)
//	switch {
//	case errors.Is(err, fsdp.ErrNoCheckpoint): // the first run
//	case err == nil:
//		err = c.Extra("data", &position)
//	}
//	…
//	v, err := m.SaveAsync(ctx, "ckpt", opt, &fsdp.SaveOptions{KeepLast: 3, Extra: map[string]any{"data": position}})
//
// A checkpoint has the parameters, the buffers of every rank, the state of the optimizer and its
// counts, and the number of passes, which with Config.Seed keys dropout. It has no gradients, so
// save after ZeroGrad and not between Forward and Backward. With SaveOptions.TrainedOnly it has no
// frozen parameters either: checkpoints of adapters are then small. Save drops the rounding errors
// of gradients that travel as [Int8]. A checkpoint has nothing that only the user knows, such as
// the position in the data and the loss scale: [SaveOptions] add it. It has neither the model nor
// its Config, which the program has. Errors that can be found in advance are found before anything
// changes. A model that is only partly loaded is never trained on. See Load and [LoadOptions] for
// damaged checkpoints.
//
// [Sharded.Export] writes one file for other programs, and [Sharded.Import] reads their files.
// [Sharded.StateDict] and [Sharded.OptimStateDict] return the same state in memory, whole, as one
// process would have it. [Sharded.LoadStateDict] and [Sharded.LoadOptimStateDict] are the reverse.
//
// # What always holds
//
//   - While a call computes, only its units and the units of the next Prefetch stages are whole,
//     besides units that are kept. A stage is a run of calls that read the same units. If no call
//     reads more than one unit, at most Prefetch+1 units are whole.
//   - The same seed, number of ranks or of virtual ranks, and instruction set give the same bits.
//     Initial parameters are the same at every number of ranks. Wrap warns if ranks compute with
//     different instruction sets.
//   - The peak of the counted memory equals the plan. Passes that Hold puts aside come on top. The
//     count includes parameters, gradients, optimizer state, activations, scratch and the snapshot
//     of SaveAsync. It excludes batches and results, constants, the memory that stock Gorgonia
//     operations allocate while they run, and the packing buffers of matrix products, 1 MiB a
//     thread, and 3 MiB with bfloat16.
//   - Methods of [Sharded] that take a context are collective. Before a pass the ranks agree to run
//     it. If one rank cannot, because its batch has the wrong shape or its loss is NaN, all ranks
//     return an error that names the rank and the cause, and parameters and gradients do not
//     change. An error in the middle of a pass fails the group on every rank. Nothing hangs.
//   - Operations that are not collective must still be the same on all ranks: optimizer steps, with
//     kind, numbers and learning rate, [Sharded.ZeroGrad] and [Sharded.ScaleGrads]. Ranks compare
//     them before the next Forward, Eval or Backward, and a difference is an error on all.
//     Optimizers outside package optim cannot be compared. Parameters in separate groups
//     (Config.Unit) may differ. Loading a checkpoint removes a difference.
//
// # Memory
//
// Ranks send each other shards, gathered parameters and gradients. These live in memory of the
// group if it is a [comm.Allocator]: ranks on one host then read and write it in place. Optimizer
// state, activations and scratch live on the Go heap. Config.Offload.Dir puts shards, optimizer
// state and the data selected by Config.Activations.Offload into files instead. All of it is kept
// for the next step until [Sharded.Close] frees it.
//
// With Config.Device all of it lives in the memory of a GPU. With Config.Offload.Pinned, shards and
// optimizer state live in pinned memory of the host: see package fsdp/gpu.
//
// A [Planner] plans a training without ranks, memory or random numbers, on a [comm.World] of any
// size. Package fsdp/plan predicts the step time on a cluster from it, and lists the memory held
// for each unit meanwhile. If memory is short, [Planner.Fits] reports the data that takes it, and
// the changes that save most. [Planner.Tune] finds the fastest settings.
//
// A Profile in Config.Observers counts the time of operations while a training runs. Package
// fsdp/profile reports from it which rank or link the others wait for, and the differences from the
// plan.
//
// [Plan] predicts the memory and [Sharded.Memory] reports it, both to the byte. [Plan.Resident]
// adds the memory that a process needs besides buffers, and says what it leaves out. Compiled
// programs are kept for batches of the same shapes, within bounds: see [Sharded.Memory].
//
// The table shows what a rank of a small GPT holds and sends in a step, as planned and as counted
// (make memory, half a minute). The first rows are DDP, the same model in one unit and by blocks,
// and adapters on the frozen model. In one unit all parameters and all gradients are whole at once,
// which takes back most of the savings of sharding:
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
