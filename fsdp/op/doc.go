// Package op has differentiable operations over Gorgonia nodes, with their own kernels, for a
// module's Build (see [fsdp.Module]) and for graphs (see fsdp/graph). Package nn consists of them.
//
//	h, err := op.Linear(x, w, b)  // x [..., in], w [out, in], b [out]: [..., out]
//	h, err = op.GELU(h)
//
// A function adds its operation to the graph of its arguments, and returns the node of the result.
// Nothing is computed before the graph runs: under fsdp in planned memory, vectorised, in float32,
// float64 or bfloat16. A result depends neither on the number of ranks nor on the number of
// threads.
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
// Comments write shapes as [B, T, C]. "..." is any number of leading dimensions, so x [..., d]
// means that the operation works on rows of d elements. Tensors are dense and row-major. Nodes must
// have their shapes when they are passed, as the inputs of Build have. "Ints" are of type int and
// take no gradient. All other arguments and the results have the float type of the graph.
//
// # Errors
//
// A nil argument, a wrong element type, or shapes that do not fit are errors of the function, with
// the name of the argument and its shape. Integers outside of a table or of the classes are errors
// of the pass, with the rank and the call.
//
// # Gradients
//
// Each operation has a gradient written by hand, for every float argument unless its comment says
// otherwise. Gorgonia differentiates, and fsdp calls it: Build returns only outputs. Backward
// computes cheap results again, such as the results of activations and norms, instead of keeping
// them.
//
// # Gorgonia's operations
//
// They can be used between the operations of this package. Kernels of this library run most of
// them, too: element-wise ones, broadcasts, products of matrices and of batches of matrices, sums
// and maxima over any axes, transpositions, slices, concatenations, softmaxes, look-ups of rows,
// convolutions (each becomes one [Conv2D]), MaxPool2D, Dropout. Gorgonia runs the others, slowly:
// [fsdp.Plan].Stock lists them. Operations that Gorgonia gets wrong are refused, and the error
// names a replacement.
//
// # Speed
//
// These are the times of a pass on one core of an AMD EPYC with AVX-512, and how many times as fast
// it is as PyTorch 2.15, eager and at its best: MKL takes the path for Intel's processors,
// attention is scaled_dot_product_attention, and images have channels last, each where this is
// faster (2026-11-23, load 13 to 38, at real-time priority). Shapes are the shapes of the first
// argument: 512 channels, 8 heads, 2048 hidden channels, 8192 classes. Each operation is a separate
// module here. So the result of a norm and gradients of several arguments are copied out, which a
// layer need not do.
//
//	                                             forward backward  times PyTorch       bfloat16 times
//	                                                  ms       ms  forw. back.  both       ms  PyT.
//	Linear [2048 512]                              44.71    96.51   0.96  0.93  0.94    69.68  1.08
//	AddLinear [2048 512]                            0.95     1.40   1.58  1.09  1.28     1.65  0.96
//	Embedding [8192 512]                            0.85     1.48   1.35  1.49  1.44     1.55  1.08
//	AddPositions [4 512 512]                        0.42     0.39   0.94  1.01  0.99     0.74  1.60
//	Rope [4 512 512]                                0.81     0.76   4.89  5.35  5.11     1.95  1.74
//	Rope, interleaved [4 512 512]                   1.27     1.28   0.56  0.64  0.58     3.04  1.00
//	RelativeBias [32 8]                             1.13     1.14   3.52 11.41  7.73     1.70 11.06
//	SDPA [4 512 512]                               31.20    77.90   1.01  0.93  0.96    71.82  1.29
//	SDPA, causal [4 512 512]                       18.67    47.06   2.00  1.75  1.84    48.20  1.94
//	SDPA, causal, 2 heads of keys [4 512 512]      16.47    35.21   1.61  1.72  1.68    34.22  2.02
//	SDPA, window of 128 [4 512 512]                11.60    28.40   2.73  2.46  2.54    30.80  2.57
//	SDPA, mask [4 512 512]                         34.41    75.27   0.94  0.98  0.97    92.17  0.82
//	SDPA, bias [4 512 512]                         31.26    80.66   1.70  0.72  0.99    80.07  0.80
//	SelfAttention, causal [4 512 1536]             16.58    39.50   1.77  1.76  1.77    42.60  1.80
//	LayerNorm [2048 512]                            0.94     2.00   0.76  0.58  0.63     2.34  0.83
//	RMSNorm [2048 512]                              0.67     1.26   2.10  3.99  3.35     1.90  2.22
//	GroupNorm, 32 groups [8 64 56 56]               1.11     2.45   0.69  0.51  0.57     5.82  0.23
//	BatchNorm [8 64 56 56]                          1.27     2.21   0.74  0.72  0.73     5.10  0.37
//	BatchNorm of rows [2048 512]                    0.75     1.19   0.72  0.68  0.69     3.10  0.36
//	Conv2D 3x3 to 64 [8 64 56 56]                  19.31    39.18   0.88  1.02  0.98    63.93  0.45
//	Conv2D 3x3 to 256 [8 256 14 14]                20.14    42.80   0.82  0.87  0.87    63.10  0.42
//	Conv2D 1x1 to 256 [8 64 56 56]                 14.07    25.37   0.98  0.83  0.91    45.19  0.38
//	Conv2D 7x7 to 64, stride 2 [8 3 112 112]        7.17     6.70   0.75  0.93  0.84    14.41  0.49
//	Conv2D 3x3, depthwise [8 64 56 56]              2.02     5.59   1.15  0.88  0.97    10.16  0.34
//	MaxPool2D 3x3, stride 2 [8 64 56 56]            5.63    15.14   0.31  0.10  0.16    22.65  0.10
//	MaxPool2D 2x2 [8 64 56 56]                      0.15     0.31   8.73  4.66  5.99     1.62  1.53
//	AvgPool2D 2x2 [8 64 56 56]                      0.93     1.15   1.11  1.06  1.09     2.64  0.69
//	AvgPool2D 7x7 [8 512 7 7]                       0.12     0.09   1.67  3.02  2.26     0.24  3.22
//	ReLU [2048 2048]                                2.70     3.99   0.94  0.98  0.97     3.58  0.87
//	Tanh [2048 2048]                                1.80     2.43   1.16  1.51  1.37     4.81  1.83
//	Sigmoid [2048 2048]                             2.21     3.51   1.23  1.04  1.09     6.83  0.82
//	GELU [2048 2048]                                3.17     3.86   1.19  2.04  1.60     8.86  0.86
//	GELUTanh [2048 2048]                            1.84     3.04   4.32  3.05  3.53     5.87  3.14
//	SiLU [2048 2048]                                1.72     2.70   1.40  1.42  1.40     5.98  1.23
//	GLU [2048 2048]                                 2.95     9.92   1.79  1.19  1.33    13.36  0.64
//	SwiGLU [2048 2048]                              2.72     8.54   1.66  0.90  1.12     8.85  0.98
//	SwiGLU, joined [2048 4096]                      3.91     5.92   1.92  4.34  3.36    10.23  2.11
//	GEGLU [2048 2048]                               3.20    10.02   2.13  1.57  1.67    12.52  0.87
//	GEGLUTanh [2048 2048]                           3.82    12.41   3.07  1.32  1.74    12.64  1.84
//	ReGLU [2048 2048]                               3.90    11.57   1.20  0.75  0.87     8.53  0.79
//	Scale [2048 2048]                               2.34     2.32   0.86  0.96  0.90     1.71  0.96
//	Columns [2048 2048]                             0.54     1.03   1.96  1.97  1.96     0.60  1.83
//	Dropout [2048 2048]                             1.69     1.65  22.28  1.96 11.75     3.69  8.33
//	Softmax of 128 [4096 128]                       0.52     0.34   0.90  1.07  0.96     1.08  0.78
//	Softmax of 2048 [2048 2048]                     3.78     4.48   1.38  1.24  1.30     7.50  0.97
//	LogSoftmax of 128 [4096 128]                    0.76     0.58   0.78  0.77  0.77     1.57  0.69
//	LogSoftmax of 2048 [2048 2048]                  4.25     5.54   0.90  0.56  0.71     6.26  0.94
//	CrossEntropy [2048 8192]                       12.54    14.37   1.59  3.35  2.45    27.16  1.30
//	SmoothCrossEntropy [2048 8192]                 10.91     9.32   1.96  3.45  2.62    40.16  1.03
//	LinearCrossEntropy [2048 512]                 384.52   376.40   0.47  1.01  0.74   397.22  0.89
//	MSE [2048 512]                                  0.32     0.36   2.87  2.77  2.82     1.53  1.38
//	BCE [2048 512]                                  2.29     0.89   1.65  1.89  1.73     4.18  1.22
//
// To measure again: chrt -r 10 make bench-ops TORCH=python, with the python of a venv with PyTorch.
// The rows are in internal/workshop/bench/models/ops.go. Where everything else is in bfloat16,
// convolutions, pooling, GroupNorm and BatchNorm compute in float32 between conversions.
// LinearCrossEntropy computes the logits twice, as it does not keep them.
//
// # User-defined operations
//
// Write an operation in Go if it is missing here and slow as a composition: see [Custom].
package op
