// Classify fine-tunes an encoder to give texts one of several labels, sharded over two ranks. It
// writes a directory that hf.Open and transformers read, and can answer over HTTP.
//
//	go run ./examples/classify                                           # which package is a comment from?
//	go run ./examples/classify -model DIR -data rows.csv -out classifier # DIR has BERT, RoBERTa or DistilBERT
//	go run ./examples/classify -out classifier -serve localhost:8080     # then POST a text to it
//
// A row of the CSV file is a text and its label; the first row has names. Every tenth row is held
// out. Without -data the texts are comments of three packages of Go's standard library. Without
// -model the encoder is small and random, and its tokens are bytes.
//
// It takes half a minute on two cores.
//
//	$ go run ./examples/classify
//	rows 6824 to learn from, 758 held out, labels ["crypto/tls" "go/types" "math/big"]
//	epoch 1: accuracy 0.648, mean F1 0.440
//	epoch 2: accuracy 0.701, mean F1 0.608
//	epoch 3: accuracy 0.703, mean F1 0.656
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
	"github.com/gofsdp/gofsdp/optim"
)

// config is the flags.
type config struct {
	model, data, out, serve string
	ranks, epochs, batch    int // batch is of all ranks
	limit                   int // tokens of a text at most
	lr                      float64
}

func main() {
	var c config
	flag.StringVar(&c.model, "model", "", "`directory` of an encoder and its tokenizer")
	flag.StringVar(&c.data, "data", "", "CSV `file` of texts and labels")
	flag.StringVar(&c.out, "out", "", "write the classifier to this `directory`")
	flag.StringVar(&c.serve, "serve", "", "answer at this `address` after the training")
	flag.IntVar(&c.ranks, "ranks", 2, "`ranks` to shard over")
	flag.IntVar(&c.epochs, "epochs", 3, "passes over the rows")
	flag.IntVar(&c.batch, "batch", 32, "`texts` of a step, over all ranks")
	flag.IntVar(&c.limit, "limit", 64, "`tokens` of a text at most")
	flag.Float64Var(&c.lr, "lr", 1e-3, "learning rate; 2e-5 suits published encoders")
	flag.Parse()
	if c.serve != "" && c.out == "" {
		log.Fatal("-serve answers with the classifier in -out: give both")
	}
	if err := run(context.Background(), c, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// A row is a text as tokens, with its class.
type row struct {
	tokens []int
	class  int
}

// run trains, and then serves if it is asked to.
func run(ctx context.Context, c config, out io.Writer) error {
	texts, err := read(c.data)
	if err != nil {
		return err
	}
	encode, err := encoder(c)
	if err != nil {
		return err
	}
	var labels []string
	for _, t := range texts {
		labels = append(labels, t[1])
	}
	slices.Sort(labels)
	labels = slices.Compact(labels)
	var train, held []row
	for i, t := range texts {
		r := row{encode(t[0]), slices.Index(labels, t[1])}
		if i%10 == 9 {
			held = append(held, r)
		} else {
			train = append(train, r)
		}
	}
	if len(train) < c.batch || len(held) == 0 || c.batch < c.ranks {
		return fmt.Errorf("%d rows to learn from and %d held out, want at least a batch of %d, at least one for each of %d ranks, and one held out", len(train), len(held), c.batch, c.ranks)
	}
	err = comm.Run(ctx, c.ranks, func(ctx context.Context, g comm.Group) error {
		r := &rank{config: c, group: g, out: out}
		if g.Rank() != 0 {
			r.out = io.Discard
		}
		if err := r.open(ctx, labels); err != nil {
			return err
		}
		defer r.Close()
		fmt.Fprintf(r.out, "rows %d to learn from, %d held out, labels %q\n", len(train), len(held), labels)
		for epoch := range c.epochs {
			if err := r.epoch(ctx, epoch, train); err != nil {
				return err
			}
			if err := r.validate(ctx, epoch, held); err != nil {
				return err
			}
		}
		if c.out != "" {
			if err := r.hf.Save(ctx, r.Sharded, c.out, nil); err != nil {
				return err
			}
			fmt.Fprintln(r.out, "written to", c.out)
		}
		return nil
	})
	if err != nil || c.serve == "" {
		return err
	}
	h, err := handler(c.out, encode)
	if err != nil {
		return err
	}
	return http.ListenAndServe(c.serve, h)
}

// rank is one rank's part of the training.
type rank struct {
	config
	*fsdp.Sharded
	group  comm.Group
	out    io.Writer
	hf     *hf.Model
	inputs []string // of a batch
	opt    optim.Optimizer
	labels []string
}

// open makes the model and gives each rank its shard.
func (r *rank) open(ctx context.Context, labels []string) (err error) {
	r.labels = labels
	if r.model != "" {
		r.hf, err = hf.OpenWithHead(r.model, hf.Head{Task: nn.ClassifySequences, Labels: labels})
	} else if r.hf, err = hf.New(&nn.BERT{
		Vocab: 257, Context: r.limit, Layers: 2, Dim: 64, Heads: 4, Hidden: 128, Task: nn.ClassifySequences, Classes: len(labels),
	}); err == nil {
		r.hf.Labels = labels
	}
	if err != nil {
		return err
	}
	r.inputs = r.hf.Model.(*nn.BERT).Inputs()
	r.Sharded, err = fsdp.Wrap(r.hf.Model, fsdp.Config{Group: r.group, WrapPolicy: fsdp.WrapTypes(&nn.Layer{}), Seed: 1})
	if err != nil {
		return err
	}
	if r.model != "" {
		if err := r.hf.Load(ctx, r.Sharded); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	if r.opt, err = (optim.AdamW{WeightDecay: 0.01}).New(r.Params()); err != nil {
		return errors.Join(err, r.Close())
	}
	return nil
}

// epoch takes a step for each full batch of the rows, in another order in each epoch.
func (r *rank) epoch(ctx context.Context, epoch int, rows []row) error {
	order := rand.New(rand.NewPCG(1, uint64(epoch))).Perm(len(rows))
	for lo := 0; lo+r.batch <= len(rows); lo += r.batch {
		var own []row
		for i := lo + r.group.Rank(); i < lo+r.batch; i += r.ranks {
			own = append(own, rows[order[i]])
		}
		batch := batchOf(r.inputs, own)
		if _, err := r.Forward(ctx, batch...); err != nil {
			return err
		}
		if err := r.Backward(ctx, fsdp.Share(batch)); err != nil {
			return err
		}
		if _, err := r.ClipGradNorm(ctx, 1); err != nil {
			return err
		}
		if err := r.opt.Step(r.lr); err != nil {
			return err
		}
		r.ZeroGrad()
	}
	return nil
}

// validate prints metrics of the rows that are held out. Ranks may have different numbers of
// batches: every row counts once.
func (r *rank) validate(ctx context.Context, epoch int, rows []row) error {
	var own []row
	for i := r.group.Rank(); i < len(rows); i += r.ranks {
		own = append(own, rows[i])
	}
	var batches [][]fsdp.Tensor
	for part := range slices.Chunk(own, r.batch) {
		batches = append(batches, batchOf(r.inputs, part))
	}
	accuracy, confusion := &metrics.Accuracy{}, &metrics.Confusion{Classes: len(r.labels)}
	set := metrics.Set{"accuracy": accuracy, "f1": confusion}
	for batch, err := range r.Join(ctx, fsdp.Batches(batches...)) {
		if err != nil {
			return err
		}
		out, err := r.Eval(ctx, batch...)
		if err != nil {
			return err
		}
		if batch == nil {
			continue // another rank has more
		}
		targets := batch[len(batch)-1]
		if err := errors.Join(accuracy.Add(out[1], targets), confusion.Add(out[1], targets)); err != nil {
			return err
		}
	}
	values, err := set.Reduce(ctx, r.group)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "epoch %d: accuracy %.3f, mean F1 %.3f\n", epoch+1, values["accuracy"], values["f1"])
	return nil
}

// handler returns the handler that answers a text with its label, by the classifier in a directory.
// A request is a batch of one row, whatever the batches of the training were.
func handler(dir string, encode func(text string) []int) (http.Handler, error) {
	m, err := hf.Open(dir)
	if err != nil {
		return nil, err
	}
	s, err := fsdp.Wrap(m.Model, fsdp.Config{})
	if err != nil {
		return nil, err
	}
	if err := m.Load(context.Background(), s); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	var one sync.Mutex // an Eval at a time
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, q.Body, 1<<16))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		one.Lock()
		defer one.Unlock()
		out, err := s.Eval(q.Context(), batchOf(m.Model.(*nn.BERT).Inputs(), []row{{tokens: encode(string(text))}})...)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		logits := out[1].Data().([]float32)
		fmt.Fprintln(w, m.Labels[slices.Index(logits, slices.Max(logits))])
	}), nil
}
