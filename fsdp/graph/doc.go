// Package graph makes models for package fsdp from Gorgonia graphs that were written without it.
//
// [Model] takes the nodes that a program passes to Gorgonia's own machines and solvers:
//
//	model, err := graph.Model(cost, gorgonia.Nodes{x, y}, m.learnables())
//	s, err := fsdp.Wrap(model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach()}) // but see Calls for recurrent nets
//	loss, err := s.Forward(ctx, xTensor, yTensor)
//	err = s.Backward(ctx)
//
// Training starts from the values that are bound to the learnables. [Constants] names leaves that
// are neither inputs nor learnables and keep their value, such as the first state of a recurrent
// net. [Results] names nodes that an evaluation returns in addition to the cost, such as
// predictions.
//
// This library runs Gorgonia's operations with its own kernels where it has them; [fsdp.Plan].Stock
// lists the others. Functions of package op can be used between them, and run in Gorgonia's
// machines, too:
//
//	h, err := op.LayerNorm(x, gain, bias, 1e-5)
//
// # Calls
//
// The graph is cut into calls of few parameters each, so that the wrap policies can group them. The
// cuts do not depend on the policies: to gather several calls together, give them one name in
// Config.WrapPolicy.
//
//	graph    y = tanh(x·w0 + b0)·w1 + b1
//	call w0  h = tanh(x·w0 + b0)           owns w0.w0, w0.b0
//	call w1  y = h·w1 + b1                 owns w1.w1, w1.b1
//
// A call takes no further parameter once one of its values, or the value that would use that
// parameter, has been through more than one operation since the call's own parameters, other than
// additions and rearrangements. So x·w + b is one
// call, and so is x·wx + h·wh + b, but relu(x·w0 + b0)·w1 is two. The cut is where the fewest bytes
// cross, between the last use of one call's parameters and the first use of the next call's
// parameters.
//
// A parameter belongs to the first call that uses it. Later calls, such as the later time steps of
// a recurrent net, are tied to it. Calls that compute the same from the same tied parameters share
// one module, which is compiled once.
//
// So [fsdp.WrapEach] suits nets whose layers follow each other, and not recurrent nets. There each
// time step uses every parameter, so a pass would gather every unit once for each step, forward and
// backward. For recurrent nets leave Config.WrapPolicy nil, which gathers all parameters once, or
// give all calls of a recurrent layer one name. Wrap warns of units that a pass gathers more than 4
// times.
//
// Constants are computed in every call that uses them, and so are values that depend only on
// parameters and constants, such as a transposed weight: passing it on would keep an unsharded
// weight alive. A single number, such as a norm, is computed once and passed on.
//
// A call is named after its first parameter. A parameter's full name consists of the call's name
// and its own: the nodes w0 and b0 of one layer are "w0.w0" and "w0.b0". Spaces and # become _, a
// node without a name is "unnamed", and duplicate names get a suffix such as @2.
//
// # Limits
//
//   - Gorgonia counts in global variables while a graph is made, without a lock. Ranks that are
//     goroutines of one process must make their graphs one after another.
//   - The graph must have its shapes, and a batch must have the shapes of the inputs.
//   - [fsdp.Precision].Compute must be the float type of the graph, or BFloat16 for a graph of
//     float32. The first pass checks it.
//   - Operations whose results or gradients are wrong in Gorgonia, or that keep state between
//     forward and backward, are refused with the name of the node: AveragePool2D, BatchNorm and
//     others. The error names a replacement. Dropout draws its masks from Config.Seed, and drops
//     nothing in Eval. Gorgonia's own Dropout does not run in its TapeMachine and has a wrong
//     gradient.
//   - UniformRandomNode, GaussianRandomNode and BinomialRandomNode draw from Config.Seed, too:
//     other numbers on each rank, in each training pass and call, and the same numbers in every
//     Eval.
//   - A convolution is refused if another dilation would give a result of the same shape, because
//     Gorgonia does not distinguish the two.
//   - Gorgonia returns the same node for two constants of equal name, two equal inputs, two random
//     nodes of one shape, whatever their distributions (reshape one of another shape), two Dropouts
//     or SoftMax and LogSoftMax of one value, or two Slices of equal length whose beginnings differ
//     by a multiple of 256. This happens before this package gets the graph.
//   - Read the results of a TapeMachine with gorgonia.Read: the machine overwrites the Value of
//     nodes in the middle of a graph.
//
// Gorgonia's examples convnet, charRNN and stacked_autoencoder train from the graphs that they
// build. A charRNN has a graph for each sentence, so it needs a model for each, or one model of a
// cost that is the sum of several.
//
// # Ranks
//
// All ranks must start from the same values. Wrap checks that by their hashes. Gorgonia's own
// initialisers differ from process to process, so seed them or load the values from a file.
//
// Gorgonia's graph functions share package-level nodes: ranks that are goroutines must not build
// graphs at the same time. Build one, and give its model to all.
package graph
