// Package op has differentiable operations over Gorgonia nodes with kernels of their own, for a
// module's Build (see [fsdp.Module]) and for graphs (see fsdp/graph). Package nn is made of them.
//
//	h, err := op.Linear(x, w, b)  // x [..., in], w [out, in], b [out]: [..., out]
//	h, err = op.GELU(h)
//
// A function adds its operation to the graph of its arguments, and returns the node of the result.
// Nothing is computed before the graph runs: under fsdp in planned memory, vectorised, in float32,
// float64 or bfloat16. A result depends on neither the number of ranks nor that of threads.
// Gorgonia's own operations can stand between those of this package.
//
// # Shapes
//
// Comments write shapes as [B, T, C]. "..." stands for any number of leading dimensions, so x [...,
// d] means that the operation works on rows of d elements. Tensors are dense and row-major. Nodes
// have their shapes when they are passed, as those that Build gets have. "Ints" are of type int and
// take no gradient; all other arguments are of the float type of the graph, and so are results.
//
// # Errors
//
// A nil argument, a wrong element type, and shapes that do not fit are errors of the function, with
// the name of the argument and its shape. Integers that point outside of a table or of the classes
// are errors of the pass, with the rank and the call.
//
// # Gradients
//
// Each operation has a gradient written by hand, for every float argument unless its comment says
// otherwise. Differentiation is Gorgonia's, and fsdp does it: Build returns outputs only. Backward
// computes cheap results again, such as those of activations and norms, instead of keeping them.
//
// # Operations of one's own
//
// What is missing here, and slow as a composition, can be written in Go: see [Custom].
package op
