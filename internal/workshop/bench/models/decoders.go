package models

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// decoders are of two layers with heads of 64 columns, on a batch of 4 sequences of 128 tokens.
const decoderLayers, decoderBatch, decoderLength, decoderVocab = 2, 4, 128, 256

// decoder is a contest of a language model.
func decoder(name string, m interface {
	fsdp.Model
	FLOPs(length int) int
}, script string, variants ...string) contest {
	const tokens = decoderBatch * decoderLength
	batch := ints(decoderVocab, decoderBatch, decoderLength)
	return contest{
		name: name, doc: fmt.Sprintf("%d layers, %d sequences of %d tokens", decoderLayers, decoderBatch, decoderLength),
		flops: float64(tokens * m.FLOPs(decoderLength)), batch: []fsdp.Tensor{batch, batch},
		ways: []way{{"nn", m}}, script: script, variants: variants,
	}
}

func gpt(dim int) *nn.GPT {
	return &nn.GPT{Vocab: decoderVocab, Context: decoderLength, Layers: decoderLayers, Dim: dim, Heads: dim / 64}
}

// llama has two query heads for each key head, and as many weights in a layer as gpt.
func llama(dim int) *nn.Llama {
	return &nn.Llama{Vocab: decoderVocab, Layers: decoderLayers, Dim: dim, Heads: dim / 64, KVHeads: dim / 128, Hidden: 3 * dim}
}

// llamas compares llama with the same model of stock operations.
func llamas(dim int) contest {
	c := decoder(fmt.Sprint("llama", dim), llama(dim), "llama.py", "joined", "apart")
	c.ways = append(c.ways, way{"stock operations", &stockLlama{*llama(dim)}})
	return c
}

// bert has two layers and the input of decoders; the mask hides nothing.
func bert() contest {
	m := &nn.BERT{Vocab: decoderVocab, Context: decoderLength, Layers: decoderLayers, Dim: 512, Heads: 8, Hidden: 2048}
	tokens := ints(decoderVocab, decoderBatch, decoderLength)
	return contest{
		name: "bert512", doc: fmt.Sprintf("%d layers, %d sequences of %d tokens", m.Layers, decoderBatch, decoderLength),
		flops: float64(decoderBatch * decoderLength * m.FLOPs(decoderLength)),
		batch: []fsdp.Tensor{tokens, ints(2, decoderBatch, decoderLength), ones(decoderBatch, decoderLength), tokens},
		ways:  []way{{"nn", m}}, script: "bert.py", variants: []string{""},
	}
}

// t5 has two layers in the encoder and in the decoder; the mask hides nothing, and PyTorch has
// none.
func t5() contest {
	m := &nn.T5{
		Vocab: decoderVocab, Encoder: decoderLayers, Decoder: decoderLayers, Dim: 512, Heads: 8, Hidden: 1024,
		Act: nn.GELUTanh, Gated: true,
	}
	tokens := ints(decoderVocab, decoderBatch, decoderLength)
	return contest{
		name: "t5_512", doc: fmt.Sprintf("%d and %d layers, %d pairs of %d tokens", m.Encoder, m.Decoder, decoderBatch, decoderLength),
		flops: float64(decoderBatch * m.FLOPs(decoderLength, decoderLength)),
		batch: []fsdp.Tensor{tokens, ones(decoderBatch, decoderLength), tokens, tokens},
		ways:  []way{{"nn", m}}, script: "t5.py", variants: []string{"", "written out"},
	}
}

// ones is a mask that hides nothing.
func ones(shape ...int) fsdp.Tensor {
	return tensor.Ones(tensor.Int, shape...)
}

// vit is of two layers, on a batch of 8 images of 64 patches.
func vit() contest {
	m := &nn.ViT{Height: 64, Width: 64, Patch: 8, Classes: 10, Layers: 2, Dim: 256, Heads: 4, Hidden: 1024}
	const images = 8
	return contest{
		name: "vit256", doc: fmt.Sprintf("%d layers, %d images of %d·%d pixels", m.Layers, images, m.Height, m.Width),
		flops: float64(images * m.FLOPs()), batch: []fsdp.Tensor{floats(images, 3, m.Height, m.Width), ints(m.Classes, images)},
		ways: []way{{"nn", m}}, script: "vit.py", variants: []string{""},
	}
}
