// Package optim holds optimizers that act element by element (SGD, Adam, AdamW), one that acts on
// matrices ([Muon]), averages of parameters, learning-rate schedules and loss scaling.
//
// # Optimizers over shards
//
// Under fully sharded data parallelism a rank owns pieces of parameters: some interval of
// "h.0.fc.weight", the end of one bias, all of the next. An update that treats every element alike
// does not depend on where the pieces were cut. So each rank steps its own pieces without
// communication, and the ranks together compute exactly the result of one process. That is why the
// state of Adam costs 1/N per rank. A [Param] is such a piece. It has the name and shape of the
// whole parameter, the offset of the piece in it, and the value and gradient of the model. The
// optimizer updates the value in place:
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
// A [Vec] is a vector in any memory, such as a device's; [Host] is one in ordinary memory. All
// vectors of a piece are in the same memory. State outside the optimizers is always on the host.
//
// # State
//
// [AdamW.New] and the others allocate the state once: one vector of the value's type, or in 8 or 16
// bits, per piece and entry ("exp_avg", "exp_avg_sq", "momentum_buffer"; PyTorch's names).
// [Param.Alloc] can place the state of a piece elsewhere, such as in a file. [Optimizer.State]
// lists the state by parameter name, entry and interval. [Optimizer.Restore] accepts such a list
// however it was cut: state written by 8 ranks loads on 3 ranks, or on one.
//
// A [FullState] is the state of all ranks as whole tensors by parameter name. Nothing in it depends
// on the number of ranks. OptimStateDict and LoadOptimStateDict of package fsdp collect and
// distribute it. [FullState.Entries] lists it for Restore and Adopt of any rank of any number of
// ranks. Each rank takes the entries that it needs:
//
//	rank 0   State()  w[0:5]         ┐                  ┌  w[0:3]   Restore, rank 0
//	rank 1   State()  w[5:8] b[0:1]  ├  w[0:8] b[0:4]  ─┼  w[3:8]   Restore, rank 1
//	rank 2   State()  b[1:4]         ┘                  └  b[0:4]   Restore, rank 2
//
// # State in 8 bits
//
// With Bits 8, Adam and AdamW keep the moments of parameters of 4,096 or more elements in 8 bits
// per element, block by block: see [Blockwise]. A [Rule] can choose otherwise for single
// parameters: embeddings whose rows have very different gradients should stay in 32 bits. Outside
// the optimizer the state is the float32 numbers that the codes stand for. So files and full states
// have the format of 32 bits, and 8-bit and 32-bit optimizers can load each other's state. Settings
// record the number of bits. Loading into the same pieces gives the same bits. If pieces are cut
// elsewhere, the blocks at the old and new cuts are rounded again, which depends only on the
// numbers.
//
// # State in 16 bits
//
// With Bits 16, the moments of Adam and AdamW and the momentum of SGD are bfloat16, rounded at
// random: see [BFloat16]. Every element is rounded by itself, so any cut gives the same bits, and
// no parameters need more bits. State in files and full states is float32, as with 8 bits. State of
// other optimizers is rounded to the nearest value of bfloat16 when it is loaded.
//
// # Values in 16 bits
//
// Values and gradients may be bfloat16, in a [vec.Host16]: see Precision.Master of package fsdp.
// SGD, Adam and AdamW compute in float32 and round new values at random, like state in 16 bits. The
// random numbers depend on the optimizer's Steps. Any cut gives the same bits. State and averages
// do not change their types.
//
// # Settings
//
// [Groups] returns the settings with which an optimizer updates its parameters, like PyTorch's
// param_groups. [Regroup] gives an optimizer the settings of another. A [FullState], checkpoints
// and exported files contain them, as JSON with PyTorch's names:
//
//	optim.Settings                 torch.optim
//	Kind                           name of the class: SGD, Adam, AdamW, Muon
//	LR times LRScale               lr
//	WeightDecay                    weight_decay
//	Betas, Eps                     betas, eps, with amsgrad and maximize False
//	Bits                           8 for AdamW8bit and Adam8bit of bitsandbytes, which have 8 bits;
//	                               16 for parameters in bfloat16, whose state has their type
//	Momentum, Nesterov             momentum, nesterov, with dampening 0 and maximize False
//	Scale, NSSteps                 adjust_lr_fn, ns_steps of Muon
//	Numbers                        what else an Elementwise has
//	FullState.Params[…].Steps      state[…]["step"]
//	FullState.Params[…].Entries    state[…]["exp_avg"] and so on
//
// The learning rate is an argument of Step. So it is no setting that could differ between a state
// and an optimizer. LR is the rate of the last Step, for callers without a schedule.
//
// # Several optimizers
//
// [Rule] gives parameters other learning rates. If some parameters need another kind of optimizer,
// [Compose] makes one from several:
//
//	matrices, err := optim.Muon{}.New(hidden)
//	rest, err := optim.AdamW{}.New(others)
//	opt, err := optim.Compose(matrices, rest)
//
// # Your own optimizer
//
// [Elementwise] makes an optimizer from a function with its formula, if the formula treats every
// element alike. State, loading, comparison between ranks and planning are done for you. An
// optimizer of another kind implements [Optimizer].
//
// # Matrices
//
// [Muon] orthogonalises the update of a matrix, for which it needs the whole matrix. [Peers] of a
// Param describe the ranks that have the rest. So Step of Muon communicates, unlike the other
// optimizers. [Muon.Plan] returns its cost in advance.
//
// # Averages
//
// [EMA] makes an optimizer keep an exponential moving average of each parameter, as the state entry
// "ema". It is saved, loaded and cut like other entries. [Swap] exchanges values and averages, to
// evaluate the averaged model, and back. [UpdateEMA] has a frozen model follow a trained one, as a
// teacher follows its student.
//
// # Freezing
//
// Every piece counts its own updates ([Entry.Steps]). Schedules use the number of calls of Step
// ([Optimizer.Steps]). Step skips a piece without a gradient ([Param.Absent]). So a parameter
// unfrozen at step 100 starts as in a new optimizer, with the bias correction of a first update:
//
//	call of Step       0    1    …    99   100  101
//	Steps before it    0    1    …    99   100  101
//	t of "wte"         1    2    …    100  101  102
//	t of "head"        -    -    …    -    1    2       absent until 100
//
// If the model is wrapped anew for the change, a new optimizer takes over the old one's state with
// [Optimizer.Adopt].
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
//     pieces are absent together. With state in 8 bits this holds for cuts at multiples of 256, and
//     with Muon by [Gram] it holds within rounding.
//   - Step allocates nothing and reads and writes every element once, except in Muon.
//   - A Step, Restore or Adopt that returns an error has changed nothing, in no part of a composed
//     optimizer. Only memory that fails ([Vec]), and a group that fails under Muon, leave values and
//     state undefined.
//   - Restoring the result of State into pieces that are cut alike always works.
//   - State that has had no update is zero.
//   - A rank may own nothing: an optimizer over no parameters is legal and counts its steps.
//
// An optimizer is for one goroutine at a time.
package optim
