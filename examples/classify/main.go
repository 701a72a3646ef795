// Classify fine-tunes an encoder to give texts one of several labels, sharded over two ranks. It
// writes a directory that hf.Open and transformers read, and can answer over HTTP.
//
//	go run ./examples/classify                                           # which package is a comment from?
//	go run ./examples/classify -model DIR -data rows.csv -out classifier # DIR has BERT, RoBERTa or DistilBERT
//	go run ./examples/classify -out classifier -serve localhost:8080     # then POST a text to it
//
// The CSV file has the columns text and label. A tenth of the rows is held out. Without -data the
// texts are comments of three packages of Go's standard library. Without -model the encoder is
// small and random, and its tokens are bytes.
//
// It takes half a minute on two cores.
//
//	$ go run ./examples/classify
//	rows 6824 to learn from, 758 held out, labels ["crypto/tls" "go/types" "math/big"]
//	epoch 1: accuracy 0.632, mean F1 0.410
//	epoch 2: accuracy 0.689, mean F1 0.568
//	epoch 3: accuracy 0.763, mean F1 0.724
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
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

// run trains, and then serves if it is asked to.
func run(ctx context.Context, c config, out io.Writer) error {
	rows, err := read(c.data)
	if err != nil {
		return err
	}
	encode, err := encoder(c)
	if err != nil {
		return err
	}
	labels := labelsOf(rows)
	samples := data.Map(data.Of(rows), func(r row) (sample, error) {
		return sample{encode(r.Text), slices.Index(labels, r.Label)}, nil
	})
	learn, held := data.Split(samples, len(rows)/10, 1)
	first := false // this process has rank 0
	err = comm.Run(ctx, c.ranks, func(ctx context.Context, g comm.Group) error {
		r := &rank{config: c, group: g, out: io.Discard, labels: labels}
		if g.Rank() == 0 {
			r.out, first = out, true
		}
		if err := r.open(ctx); err != nil {
			return err
		}
		defer r.Close()
		fmt.Fprintf(r.out, "rows %d to learn from, %d held out, labels %q\n", learn.Len(), held.Len(), labels)
		for epoch := range c.epochs {
			if err := r.epoch(ctx, data.Shuffle(learn, uint64(epoch), 1)); err != nil {
				return err
			}
			if err := r.validate(ctx, epoch, held); err != nil {
				return err
			}
		}
		if c.out == "" {
			return nil
		}
		if err := r.hf.Save(ctx, r.Sharded, c.out, nil); err != nil {
			return err
		}
		fmt.Fprintln(r.out, "written to", c.out)
		return nil
	})
	if err != nil || c.serve == "" || !first {
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
	group   comm.Group
	out     io.Writer
	labels  []string
	hf      *hf.Model
	collate data.Collate[sample]
	opt     optim.Optimizer
}

// open makes the model and gives each rank its shard.
func (r *rank) open(ctx context.Context) (err error) {
	if r.model != "" {
		r.hf, err = hf.OpenWithHead(r.model, hf.Head{Task: nn.ClassifySequences, Labels: r.labels})
	} else if r.hf, err = hf.New(&nn.BERT{
		Vocab: 257, Context: r.limit, Layers: 2, Dim: 64, Heads: 4, Hidden: 128, Task: nn.ClassifySequences, Classes: len(r.labels),
	}); err == nil {
		r.hf.Labels = r.labels
	}
	if err != nil {
		return err
	}
	r.collate = collate(r.hf.Model.(*nn.BERT))
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

// batches returns a loader of this rank's part of the samples, which logs its progress.
func (r *rank) batches(what string, samples data.Source[sample]) (*data.Loader[sample], error) {
	return data.NewLoader(samples, r.collate, data.Config{Group: r.group, Batch: r.batch, Progress: what})
}

// epoch trains on all samples once.
func (r *rank) epoch(ctx context.Context, samples data.Source[sample]) error {
	loader, err := r.batches("training", samples)
	if err != nil {
		return err
	}
	for batch, err := range r.Join(ctx, loader.Batches(ctx)) {
		if err != nil {
			return err
		}
		if _, err := r.Forward(ctx, batch...); err != nil {
			return err
		}
		if err := r.Backward(ctx, loader.Share()); err != nil {
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

// validate prints metrics of the samples that are held out. Ranks may have different numbers of
// them: every sample counts once.
func (r *rank) validate(ctx context.Context, epoch int, held data.Source[sample]) error {
	loader, err := r.batches("validation", held)
	if err != nil {
		return err
	}
	accuracy, confusion := &metrics.Accuracy{}, &metrics.Confusion{Classes: len(r.labels)}
	set := metrics.Set{"accuracy": accuracy, "f1": confusion}
	for batch, err := range r.Join(ctx, loader.Batches(ctx)) {
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
		classes := batch[len(batch)-1]
		if err := errors.Join(accuracy.Add(out[1], classes), confusion.Add(out[1], classes)); err != nil {
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
		loader, err := data.NewLoader(data.Of([]sample{{tokens: encode(string(text))}}), collate(m.Model.(*nn.BERT)), data.Config{Batch: 1})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		one.Lock()
		defer one.Unlock()
		for batch, err := range loader.Batches(q.Context()) {
			var out []fsdp.Tensor
			if err == nil {
				out, err = s.Eval(q.Context(), batch...)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			logits := out[1].Data().([]float32)
			fmt.Fprintln(w, m.Labels[slices.Index(logits, slices.Max(logits))])
		}
	}), nil
}
