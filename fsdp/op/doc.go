// Package op has differentiable operations over Gorgonia nodes with kernels of their own, for a
// module's Build (see [fsdp.Module]) and for graphs (see fsdp/graph). Package nn is made of them.
//
//	h, err := op.Linear(x, w, b)  // x [..., in], w [out, in], b [out]: [..., out]
//	h, err = op.GELU(h)
//
// A function adds its operation to the graph of its arguments, and returns the node of the result.
// Nothing is computed before the graph runs: under fsdp in planned memory, vectorised, in float32,
// float64 or bfloat16. A result depends on neither the number of ranks nor that of threads.
//
//	Linear         x·wᵀ + b
//	AddLinear      y + x·wᵀ, as low-rank adapters need it
//	Embedding      rows of a table
//	AddPositions   a table of learned positions (GPT-2, Radford et al., 2019)
//	Rope           rotary positions (Su et al., 2021), scaled as in Llama 3
//	RelativeBias   positions by distance (T5, Raffel et al., 2020)
//	SDPA           attention with grouped keys, windows, masks and biases, by blocks (Dao et al., 2022)
//	SelfAttention  the same of queries, keys and values that are joined
//	LayerNorm      Ba et al., 2016
//	RMSNorm        Zhang and Sennrich, 2019
//	GroupNorm      Wu and He, 2018
//	BatchNorm      Ioffe and Szegedy, 2015
//	Conv2D         strided, padded, dilated and grouped convolutions of images [B, C, H, W]
//	MaxPool2D, AvgPool2D
//	ReLU, Tanh, Sigmoid
//	GELU           Hendrycks and Gimpel, 2016; GELUTanh is its approximation
//	SiLU           Elfwing et al., 2017
//	GLU, SwiGLU, GEGLU, GEGLUTanh, ReGLU  an activation of one half times the other (Shazeer, 2020)
//	Scale          c·x
//	Columns        some of the columns
//	Dropout        Srivastava et al., 2014; no mask is kept
//	Softmax, LogSoftmax
//	CrossEntropy   of logits and targets; SmoothCrossEntropy has label smoothing and z-loss
//	LinearCrossEntropy  of a linear layer, without its logits in memory
//	MSE, BCE       mean squared error, binary cross-entropy of logits; WeightedMSE, WeightedBCE
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
// # Gorgonia's operations
//
// They can stand between those of this package. Most run by kernels of this library as well:
// element-wise ones, broadcasts, products of matrices and of batches of them, sums and maxima over
// any axes, transpositions, slices, concatenations, softmaxes, look-ups of rows, convolutions (each
// becomes one [Conv2D]), MaxPool2D, Dropout. The others run by Gorgonia, slowly: [fsdp.Plan].Stock
// lists them. Those that Gorgonia gets wrong are refused, and the error says what to use instead.
//
// # Operations of one's own
//
// What is missing here, and slow as a composition, can be written in Go: see [Custom].
package op
