// Package nn has the building blocks of transformers and of convolutional nets as modules for
// package fsdp, and models made of them:
//
//	GPT            a decoder with learned positions (GPT-2, Radford et al., 2019)
//	Llama          Llama 2 and 3, Mistral, Qwen2, Qwen3 and Gemma 3 (Touvron et al., 2023)
//	T5             an encoder and a decoder, v1.0 and v1.1 (Raffel et al., 2020)
//	BERT           an encoder of text (Devlin et al., 2018)
//	ModernBERT     an encoder of text (Warner et al., 2024)
//	ViT            an encoder of images (Dosovitskiy et al., 2021)
//
// Package nn/hf reads and writes them in the directories of Hugging Face's transformers.
//
// The modules, with the operations of package op that they use:
//
//	Linear                 Linear; AddLinear for its adapter, see LoRA
//	Embedding              Embedding
//	Positions              AddPositions
//	RelativePositions      RelativeBias
//	Attention              SelfAttention or SDPA, and Rope, between linear layers
//	MLP                    an activation or a gated unit, as SwiGLU, between linear layers
//	Block                  norms, Attention and MLP on a residual, as in GPT-2
//	Layer                  the same of any Attention and MLP
//	LayerNorm, RMSNorm     LayerNorm, RMSNorm
//	GroupNorm, BatchNorm   GroupNorm, BatchNorm
//	Conv2d                 Conv2D
//	MaxPool2d, AvgPool2d   MaxPool2D, AvgPool2D
//	Pointwise              an activation: GELU, GELUTanh, ReLU, SiLU, Tanh, Sigmoid
//	Dropout                Dropout
//	CrossEntropy           CrossEntropy
//	Head                   Linear and CrossEntropy or SmoothCrossEntropy, or LinearCrossEntropy
//	Add, First             the sum of two values; the first row of sequences
//	Flatten, Patches       images as rows; images as sequences
//
// Each is a plain struct whose fields are its hyper-parameters. It has no weights: fsdp holds the
// weights, sharded. Use modules as pointers. Sizes are not inferred from the batch. Mistakes are
// reported with the shapes when the model is wrapped or first run.
//
// Shapes are written [B, T, C]: B sequences of T tokens of C channels. Images are [B, C, H, W]: B
// images of C channels of H rows of W pixels (NCHW, as in PyTorch and Gorgonia), for convolutions,
// pooling, GroupNorm and BatchNorm. Weights of linear layers are [out, in], as PyTorch stores them,
// so y = x·wᵀ + b. Matrix weights start normal with mean 0 and standard deviation Std (0.02 if
// zero), biases at zero, norm gains at one (GPT-2, Radford et al., 2019). The parameters of norms
// are not rounded to 16 bits under any Config.Precision: they set fsdp.Param.Full.
//
// The operations are fused kernels with hand-written gradients. Your own modules may use them, too,
// together with Gorgonia's: see the example of the package. Operations of Gorgonia that are known
// to be wrong are refused, with the reason: random nodes, BatchNorm, GroupNorm, AveragePool2D, CTC
// loss, Sparsemax, YOLO, some convolutions.
//
// # Packed rows
//
// A row may have several documents, one after the other, so that less of a batch is padding. GPT,
// Llama and BERT with Packed take one more tensor at the end of a batch: positions, ints [B, T],
// which begin at 0 in each document, as position_ids do in Hugging Face's models. A token attends
// to its own document only, its learned or rotary position is the given one, and windows end at the
// document. So losses and gradients are the same as if each document had a row to itself, and
// attention is no slower. Padding has position 0. data.TokensAndPositions makes such batches.
//
// T5 and ViT have no Packed. A row of T5 is a pair of texts, whose cross-attention would need
// documents on both sides: make batches of like length by data.Bucket. All images of a ViT have the
// same number of patches, so there is no padding to save.
//
// # Speed
//
// These are the times of forward and backward on one core of an AMD EPYC with AVX-512, and how many
// times as fast the models are as PyTorch 2.15, eager. There MKL takes the path for Intel's
// processors, and images have channels last where that is faster (2026-11-23, load 24, at real-time
// priority). The number in a name is the number of channels. Models of text have two layers, T5 two
// and two, and four sequences of 128 tokens.
//
//	                                             forward backward  times PyTorch       bfloat16 times
//	                                                  ms       ms  forw. back.  both       ms  PyT.
//	mlp       Linear, 3 layers, 128 rows            2.08     2.89   1.26  1.04  1.13     2.82  1.17
//	gpt512    GPT                                  78.05   164.27   1.04  0.98  1.01   129.27  1.38
//	llama512  Llama, KVHeads 4                     72.72   155.14   1.15  1.00  1.04   122.21  1.17
//	bert512   BERT                                 78.00   164.13   1.11  1.01  1.01   137.91  1.11
//	t5_512    T5 v1.1                             158.91   343.05   1.10  0.99  1.02   275.89  1.21
//	vit256    ViT, 8 images of 64·64               21.51    41.68   1.18  1.05  1.10    37.83  1.49
//	digits    Conv2d, MaxPool2d, 32 images          4.11     7.92   1.40  1.17  1.27    14.38  0.68
//	residual  Conv2d, BatchNorm, 8 images          14.98    29.82   1.06  1.10  1.09    48.13  0.56
//
// To measure again: chrt -r 10 make bench-models TORCH=python, with the python of a venv with
// PyTorch. The comment of package internal/workshop/bench/models describes each model. Modules that
// are one operation are as fast as the operation: see package op.
package nn
