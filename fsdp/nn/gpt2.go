package nn

import (
	"regexp"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
)

// ToGPT2 returns the options for [fsdp.Sharded.Export] that write a GPT with the tensor names and
// layouts of Hugging Face's gpt2, and of other programs that read GPT-2's weights:
//
//	wte.weight               wte.weight
//	wpe.weight               wpe.weight
//	blocks.0.ln1.*           h.0.ln_1.*
//	blocks.0.qkv.*           h.0.attn.c_attn.*
//	blocks.0.proj.*          h.0.attn.c_proj.*
//	blocks.0.ln2.*           h.0.ln_2.*
//	blocks.0.fc.*            h.0.mlp.c_fc.*
//	blocks.0.out.*           h.0.mlp.c_proj.*
//	lnf.*                    ln_f.*
//	head.weight              lm_head.weight
//
// In the file, the weights of a block's linear layers are transposed, [in, out]. The weights of the
// embeddings and the head are not. A head that is tied to the embedding is not in the file.
//
// The prefix precedes every name except the head's: it is empty for the files of the gpt2 models
// themselves, and "transformer." for files that GPT2LMHeadModel saves.
func ToGPT2(prefix string) *fsdp.ExportOptions {
	return &fsdp.ExportOptions{
		Rename:    func(name string) string { return gpt2Name(prefix, name) },
		Transpose: isGPT2Transposed,
	}
}

// FromGPT2 returns the options for [fsdp.Sharded.Import] that read such a file. They skip the
// causal masks that some files have as tensors. A model that computes the same as GPT-2 has
//
//	&nn.GPT{
//		Vocab: 50257, Context: 1024, Layers: 12, Dim: 768, Heads: 12, Act: nn.GELUTanh, Tied: true,
//	}
func FromGPT2(prefix string) *fsdp.ImportOptions {
	to := ToGPT2(prefix)
	return &fsdp.ImportOptions{Rename: to.Rename, Transpose: to.Transpose, AllowExtra: func(name string) bool {
		name, ok := strings.CutPrefix(name, prefix)
		return ok && gpt2Mask.MatchString(name)
	}}
}

// gpt2Names has GPT-2's names of the parts of a block.
var gpt2Names = map[string]string{
	"ln1": "ln_1", "qkv": "attn.c_attn", "proj": "attn.c_proj", "ln2": "ln_2", "fc": "mlp.c_fc", "out": "mlp.c_proj",
}

// gpt2Mask matches the buffers of an attention: the mask [1, 1, context, context] and the value
// that replaces hidden scores.
var gpt2Mask = regexp.MustCompile(`^h\.\d+\.attn\.(masked_)?bias$`)

// gpt2Name returns GPT-2's name of a parameter of GPT.
func gpt2Name(prefix, name string) string {
	part := strings.Split(name, ".")
	switch {
	case part[0] == "head":
		return "lm_" + name
	case part[0] == "lnf":
		part[0] = "ln_f"
	case part[0] == "blocks" && len(part) > 3:
		part[0] = "h"
		if theirs, ok := gpt2Names[part[2]]; ok {
			part[2] = theirs
		}
	}
	return prefix + strings.Join(part, ".")
}

// isGPT2Transposed reports whether a parameter of GPT is the weight of a linear layer of a block.
func isGPT2Transposed(name string) bool {
	return strings.HasPrefix(name, "blocks.") && strings.HasSuffix(name, ".weight") && !strings.Contains(name, ".ln")
}
