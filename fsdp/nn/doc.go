// Package nn has the building blocks of transformers as modules for package fsdp: Linear,
// Embedding, Positions, LayerNorm, RMSNorm, BatchNorm, GroupNorm, Conv2d, MaxPool2d, AvgPool2d,
// Flatten, Attention, MLP, Dropout, Add, Block, Layer, RelativePositions, Patches, First, Head,
// CrossEntropy, and models made of them: GPT, Llama, T5, BERT and ViT. Linear layers and what is made
// of them take low-rank adapters: see LoRA.
//
// Each is a plain struct whose fields are its hyper-parameters. It has no weights: fsdp holds
// those, sharded. Use modules as pointers. Sizes are not inferred from the batch, and a mistake is
// reported with the shapes when the model is wrapped or first run.
//
// Shapes are written [B, T, C]: B sequences of T tokens of C channels; images are [B, C, H, W]: B
// images of C channels of H rows of W pixels (NCHW, as PyTorch's and Gorgonia's), for convolutions,
// pooling, GroupNorm and BatchNorm alike. Weights of linear layers are
// [out, in], as PyTorch stores them, so y = x·wᵀ + b. Matrix weights start normal with mean 0 and
// standard deviation Std (0.02 if zero), biases at zero, norm gains at one (GPT-2, Radford et al.,
// 2019). The parameters of norms are not rounded to 16 bits under any Config.Precision: they set
// fsdp.Param.Full.
//
// The operations are those of package op, fused kernels with hand-written gradients, which its
// comment lists. A module of one's own may use them too, and Gorgonia's beside them: see the example
// of the package. Those of Gorgonia's that are known to be wrong are refused, with the reason:
// random nodes, BatchNorm, GroupNorm, AveragePool2D, CTC loss, Sparsemax, YOLO, some convolutions.
package nn
