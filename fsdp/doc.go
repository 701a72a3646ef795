// Package fsdp trains models that are too big for one device: fully sharded data parallel training (ZeRO-3; Rajbhandari et
// al., 2020, arXiv:1910.02054) of models written with Gorgonia.
//
// Every rank owns 1/N of the parameters, gradients and optimizer state. A group of parameters is whole only while the calls
// that need it compute: it is all-gathered just in time in forward and again in backward, and freed at once. Its gradients
// are reduce-scattered as soon as they are complete. The training loop stays the user's:
//
//	err := comm.Run(ctx, ranks, func(ctx context.Context, g comm.Group) error {
//		m, err := fsdp.Wrap(gpt, fsdp.Config{Group: g, Wrap: fsdp.WrapType[*nn.Block]()})
//		defer m.Close()
//		opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Shards())
//		for step := range steps {
//			loss, err := m.Forward(ctx, batch(step, g)...)
//			err = m.Backward(ctx)
//			norm, err := m.ClipGradNorm(ctx, 1)
//			err = opt.Step(lr(step))
//			m.ZeroGrad()
//		}
//		return nil
//	})
//
// # Modules, models, groups
//
// A [Module] is a pure builder over Gorgonia nodes with a list of parameters. A [Model] is plain Go code that calls modules:
// a loop over blocks, an encoder whose output every layer sees, a head tied to an embedding. Wrap runs it once, without data,
// to learn the calls. A [Policy] then groups the parameters of calls into units; what no unit takes is the root group.
//
//	model     Forward: wte ─▶ wpe ─▶ blocks.0 ─▶ blocks.1 ─▶ lnf ─▶ head ─▶ loss
//	groups    WrapType[*nn.Block]: {blocks.0} {blocks.1}, root {wte wpe lnf head}
//	schedule  gather root · gather blocks.0 · wait root · forward wte · forward wpe · wait blocks.0 · forward blocks.0 · …
//
// # The step is data
//
// The order of everything is decided by Wrap, not discovered while running: [Sharded.Plan] shows the schedule, the memory and
// the traffic of a pass before it runs, and the ranks compare their schedules before the first collective. The knobs of the
// schedule (prefetch, wrapping, checkpointing) do not change one bit of the result, with one exception: the norm of
// [Sharded.ClipGradNorm] is summed in the order of the layout, so wrapping changes its last bits, and those of the gradients
// that it scales.
//
// # What always holds
//
//   - At most Prefetch+1 groups besides the root are whole at any time, if no call needs more than one.
//   - Same seed, same number of ranks, same instruction set: same bits. Parameters start out the same at every number of ranks.
//   - The peak of the counted memory is the planned one. Counted are parameters, gradients, activations and scratch; not
//     counted are the optimizer's state, batches and results, constants, what stock Gorgonia operations allocate while they
//     run, and the packing buffers of matrix products, about 1 MiB a rank.
//   - Methods of [Sharded] that take a context are collective. Before a pass the ranks agree to run it: if one cannot, because
//     its batch has the wrong shape or its loss is NaN, all return an error that says which rank and why, and parameters and
//     gradients are as they were. An error in the middle of a pass fails the group on every rank. Nothing hangs.
//
// # Memory
//
// What ranks send each other, namely shards, gathered parameters and gradients, lives in memory of the group if that has
// any to give (see [comm.Allocator]): ranks on one host then read and write it in place. Activations and scratch live on the
// Go heap. Both are kept for the next step until [Sharded.Close] gives them back.
//
// # Numbers
//
// Computation is in float32, or float64 for tests. Gradients are means over the ranks: each rank's loss should be a mean over
// its batch, and batches of equal size make the result that of the whole batch on one rank; [Scale] weighs unequal ones.
package fsdp
