// Moe shows process groups: it trains a language model whose feed-forward layers are experts for
// domains of text (DEMix: Gururangan et al., 2021, arXiv:2108.05036). Ranks 0 and 1 learn Go code,
// ranks 2 and 3 the English of its comments. All ranks share the trunk, which is sharded over all
// four. The experts of a domain are sharded over its two ranks, a process group that Config.Unit
// names. The rank of a token decides which experts it meets, so no token travels.
//
// It takes about 20 seconds on two cores, and prints the losses of both groups of experts on both
// texts, the share of the parameters that each rank owns, and checksums of the parameters that it
// uses:
//
//	$ go run ./examples/moe
//	nats per byte     on code  on prose
//	experts of code   2.696    3.091
//	experts of prose  3.788    2.532
//	rank 0 owns 153408 of 391008 parameters; trunk e92db803, experts af2b3537
//	rank 1 owns 153408 of 391008 parameters; trunk e92db803, experts af2b3537
//	rank 2 owns 153408 of 391008 parameters; trunk e92db803, experts bce15c79
//	rank 3 owns 153408 of 391008 parameters; trunk e92db803, experts bce15c79
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/build"
	"hash"
	"hash/crc32"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

const (
	ranks  = 4   // unless a launcher has started others
	rows   = 8   // of a batch on each rank
	length = 64  // of a row, in tokens; a token is a byte
	steps  = 300 // of the training
)

// demix is a GPT whose feed-forward layers are calls of their own: the experts.
type demix struct{ layers, dim, heads int }

// Forward implements fsdp.Model.
func (m *demix) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	norm := &nn.LayerNorm{Dim: m.dim}
	x := t.Call("wte", &nn.Embedding{Rows: 256, Dim: m.dim}, in[0])
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
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: m.dim, Classes: 256}, x, in[1])}, nil
}

// isExpert reports whether a unit or a parameter belongs to an expert.
func isExpert(name string) bool { return strings.Contains(name, ".expert") }

func main() {
	code, prose, err := texts()
	if err != nil {
		log.Fatal(err)
	}
	err = comm.Run(context.Background(), ranks, func(ctx context.Context, g comm.Group) error {
		return run(ctx, g, [][]byte{code, prose}, steps, os.Stdout)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// texts returns the code of some packages of the Go standard library, and the English of its
// comments.
func texts() (code, prose []byte, err error) {
	for _, path := range []string{"bytes", "crypto/tls", "database/sql", "go/types", "math/big", "net", "net/http", "os", "reflect", "runtime", "time"} {
		p, err := build.Import(path, "", 0)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the source of the standard library: %w", err)
		}
		for _, name := range p.GoFiles {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, nil, err
			}
			for line := range bytes.Lines(src) {
				if english, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("// ")); ok {
					prose = append(append(prose, english...), '\n')
				} else {
					code = append(code, line...)
				}
			}
		}
	}
	return code, prose, nil
}

// run is the program of one rank. The first half of the ranks learns from the first text, the
// second half from the second text.
func run(ctx context.Context, g comm.Group, domains [][]byte, steps int, out io.Writer) (err error) {
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
		WrapPolicy: fsdp.WrapNames(regexp.MustCompile(`^blocks\.\d+(\.expert)?`)), // units blocks.i and blocks.i.expert
		Unit: func(u *fsdp.UnitConfig) {
			if isExpert(u.Name) {
				u.Group = experts // not all ranks
			}
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := train(ctx, m, g.Rank(), steps, domains[domain]); err != nil {
		return err
	}
	if err := report(ctx, m, g, out, domain, domains); err != nil {
		return err
	}
	return compare(ctx, m, g, out)
}

// windows returns a loader of windows of a text for this rank alone, in an order of its own. held
// chooses the last twentieth of the text, which is held out, or the rest.
func windows(text []byte, rank int, held bool) (*data.Loader[[]byte], error) {
	cut := len(text) - len(text)/20
	part := text[:cut]
	if held {
		part = text[cut:]
	}
	samples := data.Shuffle(data.Windows(part, length+1, 1), uint64(rank), data.Endless)
	return data.NewLoader(samples, data.TokensAndTargets[byte](length), data.Config{Group: comm.Local(1)[0], Batch: rows})
}

// train trains m on the text of a rank's own domain.
func train(ctx context.Context, m *fsdp.Sharded, rank, steps int, text []byte) error {
	opt, err := optim.AdamW{Rules: []optim.Rule{optim.NoDecay()}}.New(m.Params())
	if err != nil {
		return err
	}
	batches, err := windows(text, rank, false)
	if err != nil {
		return err
	}
	lr := optim.WarmupCosine(3e-3, 3e-4, steps/20, steps)
	for batch, err := range batches.Batches(ctx) {
		if err != nil {
			return err
		}
		if _, err := m.Forward(ctx, batch...); err != nil {
			return err
		}
		if err := m.Backward(ctx); err != nil {
			return err
		}
		if err := opt.Step(lr(opt.Steps())); err != nil {
			return err
		}
		m.ZeroGrad()
		if opt.Steps() == steps {
			break
		}
	}
	return nil
}

// report prints the losses of each domain's experts on the held-out part of each text.
func report(ctx context.Context, m *fsdp.Sharded, g comm.Group, out io.Writer, domain int, domains [][]byte) error {
	loss := make([]float64, 4) // [experts, text]
	const count = 10
	for i, text := range domains {
		batches, err := windows(text, g.Rank(), true)
		if err != nil {
			return err
		}
		n := 0
		for batch, err := range batches.Batches(ctx) {
			if err != nil {
				return err
			}
			result, err := m.Eval(ctx, batch...)
			if err != nil {
				return err
			}
			loss[2*domain+i] += float64(result[0].Data().([]float32)[0]) / count / float64(g.Size()/2)
			if n++; n == count {
				break
			}
		}
	}
	if err := g.AllReduce(comm.Of(loss), comm.Sum).Wait(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "nats per byte     on code  on prose\nexperts of code   %.3f    %.3f\nexperts of prose  %.3f    %.3f\n",
		loss[0], loss[1], loss[2], loss[3])
	return nil
}

// compare prints checksums of the trunk and of the experts on every rank, and checks which of them
// are equal.
func compare(ctx context.Context, m *fsdp.Sharded, g comm.Group, out io.Writer) error {
	sums, total, own := [2]hash.Hash32{crc32.NewIEEE(), crc32.NewIEEE()}, 0, 0 // sums of trunk and experts
	err := m.Summon(ctx, nil, func(params map[string]*tensor.Dense) error {    // with the experts of this rank's domain
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
	for _, p := range m.Params() {
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
			return fmt.Errorf("rank %d has another trunk than rank 0, or not the experts of its domain", r)
		}
	}
	return nil
}
