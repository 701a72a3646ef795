package fsdp_test

import (
	"fmt"
	"log"
	"regexp"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// Speller is an encoder and a decoder. The decoder's input has the encoder's result added to it.
type Speller struct{ Letters, Length, Dim, Layers int }

func (m *Speller) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	half := func(name string, x fsdp.Ref, full bool) fsdp.Ref {
		for i := range m.Layers {
			x = t.Call(fmt.Sprintf("%s.%d", name, i), &nn.Block{Dim: m.Dim, Heads: 2, Full: full}, x)
		}
		return t.Call(name+".norm", &nn.LayerNorm{Dim: m.Dim}, x)
	}
	x := t.Call("letters", &nn.Embedding{Rows: m.Letters, Dim: m.Dim}, in[0])
	x = t.Call("places", &nn.Positions{Rows: m.Length, Dim: m.Dim}, x)
	x = half("decoder", t.Call("add", &nn.Add{}, x, half("encoder", x, true)), false)
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: m.Dim, Classes: m.Letters}, x, in[1])}, nil
}

// Policies compose: by types, several at once; what any of them selects; and all but what one selects.
// A type that no call has, or only as a part, is a warning that says so.
func ExampleWrapAny() {
	blocks := fsdp.WrapTypes(&nn.Block{})
	ends := fsdp.WrapTypes(&nn.Embedding{}, &nn.Positions{}, &nn.Head{})
	decoder := fsdp.WrapNames(regexp.MustCompile(`^decoder`))
	for _, c := range []struct {
		name   string
		policy fsdp.Policy
	}{
		{"blocks", blocks},
		{"blocks and ends", fsdp.WrapAny(blocks, ends)},
		{"all but the ends", fsdp.WrapAllBut(ends)},
		{"the decoder in one, blocks apart elsewhere", fsdp.WrapAny(decoder, blocks)},
	} {
		m, err := fsdp.Wrap(&Speller{Letters: 30, Length: 8, Dim: 16, Layers: 2}, fsdp.Config{WrapPolicy: c.policy})
		if err != nil {
			log.Fatal(err)
		}
		plan, err := m.Plan(counting(0, 1, 8))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s:", c.name)
		for _, g := range plan.Groups {
			fmt.Printf(" %s", g.Name)
		}
		fmt.Println()
	}
	// Output:
	// blocks: root encoder.0 encoder.1 decoder.0 decoder.1
	// blocks and ends: root letters places encoder.0 encoder.1 decoder.0 decoder.1 head
	// all but the ends: root encoder.0 encoder.1 encoder.norm decoder.0 decoder.1 decoder.norm
	// the decoder in one, blocks apart elsewhere: root encoder.0 encoder.1 decoder
}
