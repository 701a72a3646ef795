package nn

import (
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp"
)

// decoding is the batch of [generate.Program].
type decoding struct {
	tokens, positions, mask, rows, targets fsdp.Ref
	past                                   []fsdp.Ref // keys and values of each layer, and the inputs after them
}

func newDecoding(in []fsdp.Ref) decoding {
	return decoding{in[0], in[1], in[2], in[3], in[4], in[5:]}
}

// layers calls n layers. kept has the keys and values of each call: its results after the first.
func (d *decoding) layers(t *fsdp.Tape, name string, n int, layer func(i int) fsdp.Module, x fsdp.Ref) (_ fsdp.Ref, kept []fsdp.Ref) {
	for i := range n {
		x = t.Call(fmt.Sprintf("%s.%d", name, i), layer(i), x, d.mask, d.positions, d.past[2*i], d.past[2*i+1])
		kept = append(kept, x.At(1), x.At(2))
	}
	return x, kept
}

// results returns the results of the program: logits, and the keys and values of each layer.
func (d *decoding) results(logits fsdp.Ref, kept []fsdp.Ref) []fsdp.Ref {
	return append([]fsdp.Ref{logits}, kept...)
}
