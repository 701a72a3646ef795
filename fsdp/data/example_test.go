package data_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// Two ranks train a language model on windows of a text, for three epochs.
func Example() {
	text := []byte(strings.Repeat("the quick brown fox jumps over the lazy dog. ", 40))
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		model := &nn.GPT{Vocab: 128, Context: 16, Layers: 1, Dim: 16, Heads: 2}
		m, err := fsdp.Wrap(model, fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		defer m.Close()
		opt, err := optim.AdamW{}.New(m.Params())
		if err != nil {
			return err
		}
		windows := data.Shuffle(data.Windows(text, 17, 16), 1, 3)
		loader, err := data.NewLoader(windows, data.TokensAndTargets[byte](16), data.Config{Group: g, Batch: 8})
		if err != nil {
			return err
		}
		var first, last float64
		for batch, err := range m.Join(ctx, loader.Batches(ctx)) {
			if err != nil {
				return err
			}
			if last, err = m.Forward(ctx, batch...); err != nil {
				return err
			}
			if first == 0 {
				first = last
			}
			if err := m.Backward(ctx, loader.Share()); err != nil {
				return err
			}
			if err := opt.Step(0.02); err != nil {
				return err
			}
			m.ZeroGrad()
		}
		if g.Rank() == 0 {
			fmt.Println(opt.Steps(), "of", loader.Steps(), "steps; learned:", last < first/2)
			fmt.Printf("%+v\n", loader.Position())
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// 42 of 42 steps; learned: true
	// {Samples:336 Source:Shuffle(Windows(1800 × uint8, length 17, step 16), seed 1, 3 epochs) Sum:c465b88c}
}

// Samples are structs, and the batch has a tensor of each of their fields.
func ExampleStack() {
	type flower struct {
		size    []float32
		species int
	}
	flowers := data.Of([]flower{{[]float32{5.1, 1.4}, 0}, {[]float32{7.0, 4.7}, 1}, {[]float32{6.3, 6.0}, 2}})
	collate := func(b *data.Batch, samples []flower) error {
		data.Column(b, samples, func(f flower) int { return f.species })
		return data.Stack(b, samples, func(f flower) []float32 { return f.size })
	}
	loader, err := data.NewLoader(flowers, collate, data.Config{Batch: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Batches(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch[0].Data(), batch[1].Shape(), batch[1].Data())
	}
	// Output:
	// [0 1] (2, 2) [5.1 1.4 7 4.7]
	// [2] (1, 2) [6.3 6]
}

// Three quarters of a mixture are code, in any longer part of it.
func ExampleMix() {
	code, prose := data.Of([]string{"if", "for", "go"}), data.Of([]string{"we", "are"})
	mixed := data.Mix(1, data.Part[string]{Source: code, Weight: 3}, data.Part[string]{Source: prose, Weight: 1})
	count := make(map[string]int)
	for i := range 65536 {
		word, err := mixed.At(i)
		if err != nil {
			log.Fatal(err)
		}
		count[word]++
	}
	fmt.Println(count)
	fmt.Println(mixed)
	// Output:
	// map[are:8192 for:16384 go:16384 if:16384 we:8192]
	// Mix(seed 1, 3 of Of(3 × string), 1 of Of(2 × string))
}

// member is a rank of a group, as a comm.Group is.
type member struct{ rank, size int }

func (m member) Rank() int { return m.rank }
func (m member) Size() int { return m.size }

// Two ranks make two steps, then three ranks go on.
func ExampleLoader_Resume() {
	source := data.Func(15, func(i int) (int, error) { return i, nil })
	collate := func(b *data.Batch, samples []int) error {
		data.Column(b, samples, func(i int) int { return i })
		return nil
	}
	run := func(ranks, steps int, from data.Position) (to data.Position) {
		for rank := range ranks {
			loader, err := data.NewLoader(source, collate, data.Config{Group: member{rank, ranks}, Batch: 4})
			if err != nil {
				log.Fatal(err)
			}
			if err := loader.Resume(from); err != nil {
				log.Fatal(err)
			}
			step := 0
			for batch, err := range loader.Batches(context.Background()) {
				if err != nil {
					log.Fatal(err)
				}
				if batch == nil {
					fmt.Print("none ")
				} else {
					fmt.Print(batch[0].Data(), " ")
				}
				if step++; step == steps {
					break
				}
			}
			fmt.Println("on rank", rank)
			to = loader.Position()
		}
		return to
	}
	position := run(2, 2, data.Position{Source: "Func(15 samples)"})
	fmt.Printf("%+v\n", position)
	run(3, 9, position)
	// Output:
	// [0 1] [4 5] on rank 0
	// [2 3] [6 7] on rank 1
	// {Samples:8 Source:Func(15 samples) Sum:d1a72658}
	// [8 9] [12 13] on rank 0
	// [10] [14] on rank 1
	// [11] none on rank 2
}

// Documents of different lengths fill samples of eight tokens. A model of package nn that is Packed
// computes each of them as if it were alone.
func ExamplePackWhole() {
	documents := data.Of([][]int{{1, 1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3}, {4, 4, 4, 4}})
	lengths := data.Measure(documents, func(d []int) int { return len(d) })
	packed := data.PackWhole(documents, lengths, 8)
	for i := range packed.Len() {
		sample, err := packed.At(i)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(sample.Elements, "documents at", sample.Starts)
	}
	fmt.Println("padding:", packed.Padding)
	// Output:
	// [1 1 1 1 1 3 3 3] documents at [0 5]
	// [2 2 2 2 4 4 4 4] documents at [0 4]
	// padding: 0
}
