// Package optim holds the optimizers that act element by element (SGD, Adam, AdamW) and learning-rate schedules.
//
// # Optimizers over shards
//
// Under fully sharded data parallelism a rank owns pieces of parameters: some interval of "h.0.fc.weight", the end of one
// bias, all of the next. An update that treats every element alike does not care where the pieces were cut, so each rank
// steps what it owns, without communication, and the ranks together compute exactly what one process would. That is why
// the state of Adam costs 1/N per rank. A [Param] is such a piece: the name and shape of the whole parameter, where the
// piece begins in it, and the value and gradient buffers of the model, which the optimizer updates in place:
//
//	opt, err := optim.AdamW{WeightDecay: 0.1, Rules: []optim.Rule{optim.NoDecay()}}.New(params)
//	lr := optim.WarmupCosine(3e-4, 3e-5, 100, 10000)
//	for … {
//		… // forward, backward: fills the gradients
//		err = opt.Step(lr(opt.Steps()))
//	}
//
// # State
//
// [AdamW.New] and the others allocate the state once: one buffer of the value's type per piece and entry ("exp_avg",
// "exp_avg_sq", "momentum_buffer"; PyTorch's names). [Optimizer.State] lists it by parameter name, entry and interval, and
// [Optimizer.Restore] takes back such a list however it was cut, so state written by 8 ranks loads on 3, or on one. The
// only other state is the number of steps taken.
//
// # What always holds
//
//   - Splitting a parameter into pieces, in any way, changes no bit of any result.
//   - Step allocates nothing and reads and writes every element once.
//   - A Step or Restore that returns an error has changed nothing.
//   - A rank may own nothing: an optimizer over no parameters is legal and counts its steps.
//
// An optimizer is for one goroutine at a time.
package optim
