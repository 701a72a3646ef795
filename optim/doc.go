// Package optim holds optimizers that act element by element (SGD, Adam, AdamW) and one that acts on
// matrices ([Muon]), averages of parameters, learning-rate schedules and loss scaling.
//
// # Optimizers over shards
//
// Under fully sharded data parallelism a rank owns pieces of parameters: some interval of
// "h.0.fc.weight", the end of one bias, all of the next. An update that treats every element alike
// does not depend on where the pieces were cut. So each rank steps what it owns, without
// communication, and the ranks together compute exactly what one process would. That is why the
// state of Adam costs 1/N per rank. A [Param] is such a piece: the name and shape of the whole
// parameter, where the piece begins in it, and the value and gradient of the model, which the
// optimizer updates in place:
//
//	opt, err := optim.AdamW{WeightDecay: 0.1, Rules: []optim.Rule{optim.NoDecay()}}.New(params)
//	lr := optim.WarmupCosine(3e-4, 3e-5, 100, 10000)
//	for … {
//		… // forward, backward: fills the gradients
//		err = opt.Step(lr(opt.Steps()))
//	}
//
// # Memory
//
// A [Vec] is a vector wherever it lies, such as on a device; [Host] is one in ordinary memory.
// Every vector of a piece lies in the same place. State that has left the optimizers is always on
// the host.
//
// # State
//
// [AdamW.New] and the others allocate the state once: one vector of the value's type, or in 8 bits,
// per piece and entry ("exp_avg", "exp_avg_sq", "momentum_buffer"; PyTorch's names). A piece with [Param.Alloc]
// keeps its state where that says, such as in a file. [Optimizer.State] lists it by parameter name,
// entry and interval. [Optimizer.Restore] takes back such a list however it was cut, so state
// written by 8 ranks loads on 3, or on one.
//
// A [FullState] is the state of all ranks as whole tensors by parameter name, with nothing in it
// that depends on how many ranks there were. FullOptimState and SetFullOptim of package fsdp collect
// and spread it. [FullState.Entries] lists it for Restore and Adopt of any rank of any number of
// ranks, each of which takes what it needs:
//
//	rank 0   State()  w[0:5]         ┐                  ┌  w[0:3]   Restore, rank 0
//	rank 1   State()  w[5:8] b[0:1]  ├  w[0:8] b[0:4]  ─┼  w[3:8]   Restore, rank 1
//	rank 2   State()  b[1:4]         ┘                  └  b[0:4]   Restore, rank 2
//
// # State in 8 bits
//
// With Bits 8, Adam and AdamW keep the moments of parameters of 4,096 elements and more in 8 bits an
// element, block by block: see [Blockwise]. A [Rule] says so, or otherwise, of single parameters:
// embeddings whose rows have very different gradients are better left in 32 bits. Everywhere but in
// the optimizer the state is the float32 numbers that the codes stand for, so files and full states
// are those of 32 bits, and what has one number of bits loads what had another. Settings tell which
// it was. Loading into the same pieces gives the same bits; where pieces are cut elsewhere, the
// blocks at the old and new cuts are rounded again, which depends on nothing but the numbers.
//
// # Settings
//
// [Groups] tells what an optimizer updates its parameters with, as PyTorch's param_groups do, and
// [Regroup] gives it the settings of another. A [FullState] has them, and so have checkpoints and
// exported files, as JSON with PyTorch's names:
//
//	optim.Settings                 torch.optim
//	Kind                           name of the class: SGD, Adam, AdamW, Muon
//	LR times LRScale               lr
//	WeightDecay                    weight_decay
//	Betas, Eps                     betas, eps, with amsgrad and maximize False
//	Bits                           8 for AdamW8bit and Adam8bit of bitsandbytes, which have 8 bits
//	Momentum, Nesterov             momentum, nesterov, with dampening 0 and maximize False
//	Scale, NSSteps                 adjust_lr_fn, ns_steps of Muon
//	FullState.Params[…].Steps      state[…]["step"]
//	FullState.Params[…].Entries    state[…]["exp_avg"] and so on
//
// The learning rate is an argument of Step. So it is no setting that could differ between a state
// and an optimizer: LR is the last one, for those who have no schedule.
//
// # Several optimizers
//
// [Rule] gives parameters other learning rates. Where they need another kind of optimizer,
// [Compose] makes one of several:
//
//	matrices, err := optim.Muon{}.New(hidden)
//	rest, err := optim.AdamW{}.New(others)
//	opt, err := optim.Compose(matrices, rest)
//
// # Matrices
//
// [Muon] orthogonalises the update of a matrix, for which all of it must come together. A Param says
// which ranks have the rest ([Peers]), so a Step of Muon communicates, alone among these optimizers. What
// it takes is known before: [Muon.Plan].
//
// # Averages
//
// [EMA] makes an optimizer keep an exponential moving average of each parameter, as one more state
// entry, "ema": it is saved, loaded and cut like the others. [Swap] puts the averages in the place of
// the values, to evaluate the model that they make, and back.
//
// # Freezing
//
// Every piece counts its own updates ([Entry.Steps]). Schedules go by the calls of Step
// ([Optimizer.Steps]). A piece without a gradient ([Param.Absent]) is passed over, so a parameter
// unfrozen at step 100 starts as in a new optimizer, with the bias correction of a first update:
//
//	call of Step       0    1    …    99   100  101
//	Steps before it    0    1    …    99   100  101
//	t of "wte"         1    2    …    100  101  102
//	t of "head"        -    -    …    -    1    2       absent until 100
//
// Where the model is wrapped anew for the change, a new optimizer takes over what the old one had,
// by [Optimizer.Adopt].
//
// # Loss scaling
//
// A [LossScaler] keeps the factor that brings small gradients into the range of float16. Around
// every update:
//
//	… // backward of the loss times scaler.Scale()
//	finite := … // is the gradient finite, on every rank?
//	if finite {
//		… // divide the gradient by scaler.Scale()
//		err = opt.Step(lr(opt.Steps()))
//	}
//	scaler.Update(finite)
//
// # What always holds
//
//   - Splitting a parameter into pieces, in any way, changes no bit of any result, as long as its
//     pieces are absent together. With state in 8 bits that is so of cuts at multiples of 256, and of
//     Muon by [Gram] within rounding.
//   - Step allocates nothing and reads and writes every element once, but for Muon.
//   - A Step, Restore or Adopt that returns an error has changed nothing, in no part of a composed
//     optimizer. Only memory that fails ([Vec]), and a group that fails under Muon, leave values and
//     state undefined.
//   - Restoring what State returned, into pieces cut alike, always works.
//   - State that has had no update is zero.
//   - A rank may own nothing: an optimizer over no parameters is legal and counts its steps.
//
// An optimizer is for one goroutine at a time.
package optim
