// Moe trains a language model with experts for domains of text (DEMix: Gururangan et al., 2021,
// arXiv:2108.05036), its feed-forward layers. Ranks 0 and 1 learn from Go code, 2 and 3 from the
// English of its comments. All share the trunk, which is cut over the four; the experts of a domain
// are cut over its two ranks, a process group that Config.GroupOf names. Which experts a token
// meets depends on the rank it is on, so no token travels. At the end each rank prints what it owns
// of the parameters that it uses, and checksums of these:
//
//	$ go run ./examples/moe
//	nats per byte     on code  on prose
//	experts of code   2.539    3.174
//	experts of prose  3.280    2.534
//	rank 0 owns 153408 of 391008 parameters; trunk ffd84b21, experts f3f27511
//	rank 1 owns 153408 of 391008 parameters; trunk ffd84b21, experts f3f27511
//	rank 2 owns 153408 of 391008 parameters; trunk ffd84b21, experts 6a841b95
//	rank 3 owns 153408 of 391008 parameters; trunk ffd84b21, experts 6a841b95
package main

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/examples/internal/text"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

const (
	ranks  = 4   // unless a launcher has started others
	rows   = 8   // of a batch on each rank
	length = 64  // of a row, in tokens
	steps  = 300 // of the training
)

// demix is a GPT whose feed-forward layers are calls of their own: the experts.
type demix struct{ layers, dim, heads int }

// Forward implements fsdp.Model.
func (m *demix) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	norm := &nn.LayerNorm{Dim: m.dim}
	x := t.Call("wte", &nn.Embedding{Rows: text.Vocab, Dim: m.dim}, in[0])
	x = t.Call("wpe", &nn.Positions{Rows: length, Dim: m.dim}, x)
	for i := range m.layers {
		block := fmt.Sprintf("blocks.%d.", i)
		h := t.Call(block+"ln1", norm, x)
		h = t.Call(block+"attn", &nn.Attention{Dim: m.dim, Heads: m.heads, Causal: true}, h)
		x = t.Call(block+"add1", &nn.Add{}, x, h)
		h = t.Call(block+"ln2", norm, x)
		h = t.Call(block+"expert", &nn.MLP{Dim: m.dim, Hidden: 4 * m.dim, Act: nn.ReLU}, h)
		x = t.Call(block+"add2", &nn.Add{}, x, h)
	}
	x = t.Call("lnf", norm, x)
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: m.dim, Classes: text.Vocab}, x, in[1])}, nil
}

// isExpert tells whether a unit or a parameter belongs to an expert.
func isExpert(name string) bool { return strings.Contains(name, ".expert") }

func main() {
	code, prose, err := text.Load()
	if err != nil {
		log.Fatal(err)
	}
	err = comm.Run(context.Background(), ranks, func(ctx context.Context, g comm.Group) error {
		return run(ctx, g, []text.Text{code, prose}, steps, os.Stdout)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// run is one rank: the first half of them learn from the first text, the others from the second.
func run(ctx context.Context, g comm.Group, domains []text.Text, steps int, out io.Writer) (err error) {
	if g.Rank() != 0 {
		out = io.Discard
	}
	if g.Size()%len(domains) != 0 {
		return fmt.Errorf("%d ranks do not divide into %d domains", g.Size(), len(domains))
	}
	domain := g.Rank() * len(domains) / g.Size()
	experts, err := g.Split(ctx, domain, g.Rank())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, experts.Close()) }()
	m, err := fsdp.WrapContext(ctx, &demix{layers: 3, dim: 96, heads: 4}, fsdp.Config{
		Group: g, Seed: 1,
		Wrap: fsdp.WrapNames(regexp.MustCompile(`^blocks\.\d+(\.expert)?`)), // units blocks.i and blocks.i.expert
		GroupOf: func(u fsdp.UnitInfo) comm.Group {
			if isExpert(u.Name) {
				return experts
			}
			return nil // all ranks
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := train(ctx, m, g.Rank(), steps, domains[domain].Train); err != nil {
		return err
	}
	if err := report(ctx, m, g, out, domain, domains); err != nil {
		return err
	}
	return compare(ctx, m, g, out)
}

// train trains m on a rank's own domain.
func train(ctx context.Context, m *fsdp.Sharded, rank, steps int, data []byte) error {
	opt, err := optim.AdamW{Rules: []optim.Rule{optim.NoDecay()}}.New(m.Shards())
	if err != nil {
		return err
	}
	rnd := rand.New(rand.NewPCG(1, uint64(rank)))
	lr := optim.WarmupCosine(3e-3, 3e-4, steps/20, steps)
	for step := range steps {
		if _, err := m.Forward(ctx, text.Batch(data, rnd, rows, length)...); err != nil {
			return err
		}
		if err := m.Backward(ctx); err != nil {
			return err
		}
		if err := opt.Step(lr(step)); err != nil {
			return err
		}
		m.ZeroGrad()
	}
	return nil
}

// report prints the losses of each domain's experts on what is held out of each text.
func report(ctx context.Context, m *fsdp.Sharded, g comm.Group, out io.Writer, domain int, domains []text.Text) error {
	loss := make([]float64, 4) // [experts, text]
	const batches = 10
	for i, t := range domains {
		rnd := rand.New(rand.NewPCG(2, uint64(g.Rank())))
		for range batches {
			result, err := m.Eval(ctx, text.Batch(t.Held, rnd, rows, length)...)
			if err != nil {
				return err
			}
			loss[2*domain+i] += float64(result[0].Data().([]float32)[0]) / batches / float64(g.Size()/2)
		}
	}
	if err := g.AllReduce(comm.Of(loss), comm.Sum).Wait(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "nats per byte     on code  on prose\nexperts of code   %.3f    %.3f\nexperts of prose  %.3f    %.3f\n",
		loss[0], loss[1], loss[2], loss[3])
	return nil
}

// compare prints what every rank has of the trunk and of experts, and checks which are equal.
func compare(ctx context.Context, m *fsdp.Sharded, g comm.Group, out io.Writer) error {
	sums, total, own := [2]hash.Hash32{crc32.NewIEEE(), crc32.NewIEEE()}, 0, 0 // sums of trunk and experts
	err := m.Full(ctx, nil, func(params map[string]*tensor.Dense) error {      // with the experts of this rank's domain
		for _, name := range slices.Sorted(maps.Keys(params)) {
			part := 0
			if isExpert(name) {
				part = 1
			}
			total += params[name].DataSize()
			fmt.Fprint(sums[part], params[name].Float32s()) // in as many digits as it takes to tell them apart
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range m.Shards() {
		own += p.Value.Len()
	}
	mine := []int64{int64(own), int64(sums[0].Sum32()), int64(sums[1].Sum32())}
	all := make([]int64, len(mine)*g.Size())
	if err := g.AllGather(comm.Of(all), comm.Of(mine)).Wait(ctx); err != nil {
		return err
	}
	for r := range g.Size() {
		its := all[r*len(mine):]
		fmt.Fprintf(out, "rank %d owns %d of %d parameters; trunk %08x, experts %08x\n", r, its[0], total, its[1], its[2])
		if its[1] != all[1] || (its[2] == all[2]) != (r < g.Size()/2) {
			return fmt.Errorf("rank %d does not use the trunk of all with the experts of its domain", r)
		}
	}
	return nil
}
