// Embed trains an encoder to find texts by their meaning, sharded over two ranks. It writes a
// directory that hf.Open and sentence-transformers read.
//
//	go run ./examples/embed                                       # Go functions, by their comments
//	go run ./examples/embed -find "waits for a command to finish" # then search
//	go run ./examples/embed -model DIR -data pairs.csv -lr 2e-5 -out embedder
//
// DIR has BERT, RoBERTa, DistilBERT or ModernBERT, or is a directory of sentence-transformers. The
// CSV file has the columns anchor, such as a question, and positive, the text to find for it. In a
// step, the positives of all other rows are the wrong answers, on all ranks: large steps learn
// more. -micro bounds the rows that are in memory at once, and does not change the result. At most
// 300 rows are held out. Without -data the anchors are comments of Go's standard library, and the
// positives their functions. Without -model the encoder is small and random, and its tokens are
// words.
//
// It takes a minute on two cores.
//
//	$ go run ./examples/embed -find "waits for a command to finish"
//	rows 2405 to learn from, 267 held out
//	before the training, recall@1 0.277
//	epoch 1: loss 1.3887, recall@1 0.805
//	epoch 2: loss 0.1528, recall@1 0.787
//	epoch 3: loss 0.0885, recall@1 0.809
//	waits for a command to finish
//	   exec.Cmd.Wait() error
//	   exec.Cmd.Run() error
//	   exec.Cmd.Start() error
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"hash/fnv"
	"io"
	"log"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
	"github.com/gofsdp/gofsdp/optim"
)

// config is the flags.
type config struct {
	model, data, out, find             string
	ranks, epochs, batch, micro, limit int // batch is of all ranks; limit is tokens of a text
	lr                                 float64
	packages                           []string // whose documentation is read
}

func main() {
	c := config{packages: []string{
		"archive/tar", "archive/zip", "bufio", "bytes", "compress/flate", "compress/gzip", "context", "crypto/cipher", "crypto/rsa", "crypto/sha256",
		"crypto/tls", "crypto/x509", "database/sql", "encoding/base64", "encoding/binary", "encoding/csv", "encoding/gob", "encoding/hex",
		"encoding/json", "encoding/xml", "errors", "flag", "fmt", "go/ast", "go/build", "go/constant", "go/doc", "go/format", "go/parser",
		"go/printer", "go/scanner", "go/token", "go/types", "hash/crc32", "html", "html/template", "image", "image/color", "image/draw", "image/png",
		"io", "io/fs", "log", "log/slog", "maps", "math", "math/big", "math/bits", "math/cmplx", "math/rand/v2", "mime", "mime/multipart", "net",
		"net/http", "net/http/httptest", "net/mail", "net/netip", "net/textproto", "net/url", "os", "os/exec", "os/signal", "path",
		"path/filepath", "reflect", "regexp", "runtime", "runtime/debug", "runtime/pprof", "slices", "sort", "strconv", "strings", "sync",
		"sync/atomic", "testing", "testing/fstest", "text/scanner", "text/tabwriter", "text/template", "text/template/parse", "time", "unicode",
		"unicode/utf16", "unicode/utf8",
	}}
	flag.StringVar(&c.model, "model", "", "`directory` of an encoder and its tokenizer")
	flag.StringVar(&c.data, "data", "", "CSV `file` of anchors and positives")
	flag.StringVar(&c.out, "out", "", "write the encoder to this `directory`")
	flag.StringVar(&c.find, "find", "", "find the best positives for this `text` at the end")
	flag.IntVar(&c.ranks, "ranks", 2, "`ranks` to shard over")
	flag.IntVar(&c.epochs, "epochs", 3, "passes over the rows")
	flag.IntVar(&c.batch, "batch", 128, "`rows` of a step, over all ranks")
	flag.IntVar(&c.micro, "micro", 64, "`rows` that a rank computes at once, at most")
	flag.IntVar(&c.limit, "limit", 48, "`tokens` of a text at most")
	flag.Float64Var(&c.lr, "lr", 2e-3, "learning rate; 2e-5 suits published encoders")
	flag.Parse()
	if err := run(context.Background(), c, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run trains, validates and searches.
func run(ctx context.Context, c config, out io.Writer) error {
	rows, err := read(c)
	if err != nil {
		return err
	}
	learn, held := data.Split(data.Of(rows), min(300, len(rows)/10), 1)
	return comm.Run(ctx, c.ranks, func(ctx context.Context, g comm.Group) error {
		r := &rank{config: c, group: g, out: io.Discard}
		if g.Rank() == 0 {
			r.out = out
		}
		if err := r.open(ctx); err != nil {
			return err
		}
		defer r.Close()
		fmt.Fprintf(r.out, "rows %d to learn from, %d held out\n", learn.Len(), held.Len())
		if err := r.validate(ctx, "before the training", held); err != nil {
			return err
		}
		for epoch := range c.epochs {
			loss, err := r.epoch(ctx, data.Shuffle(learn, uint64(epoch), 1))
			if err != nil {
				return err
			}
			if err := r.validate(ctx, fmt.Sprintf("epoch %d: loss %.4f", epoch+1, loss), held); err != nil {
				return err
			}
		}
		if c.find != "" {
			if err := r.search(ctx, rows); err != nil {
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
}

// A row is a text, and the text to find for it.
type row struct {
	Anchor   string `data:"anchor"`
	Positive string `data:"positive"`
}

// rank is one rank's part of the training.
type rank struct {
	config
	*fsdp.Sharded
	group  comm.Group
	out    io.Writer
	hf     *hf.Model
	encode func(text string) []int
	opt    optim.Optimizer
}

// open makes the model and gives each rank its shard.
func (r *rank) open(ctx context.Context) (err error) {
	if err := r.openModel(); err != nil {
		return err
	}
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

// openModel opens the encoder and its tokenizer, or makes a small one whose tokens are words.
func (r *rank) openModel() (err error) {
	if r.model == "" {
		r.hf, err = hf.New(&nn.BERT{
			Vocab: 8192, Context: r.limit, Kinds: -1, Layers: 1, Dim: 128, Heads: 4, Hidden: 256, Task: nn.EmbedSequences, MeanPool: true, Normalize: true,
		})
		r.encode = words
		return err
	}
	if _, missing := os.Stat(filepath.Join(r.model, "modules.json")); missing == nil { // of sentence-transformers, with its pooling
		r.hf, err = hf.Open(r.model)
	} else {
		r.hf, err = hf.OpenWithHead(r.model, hf.Head{Task: nn.EmbedSequences, MeanPool: true, Normalize: true})
	}
	if err != nil {
		return err
	}
	t, err := tokenizer.Open(r.model)
	if err == nil {
		r.encode = t.Encode
		r.limit = min(r.limit, cmp.Or(r.hf.MaxTokens, r.limit))
	}
	return err
}

// word matches the words of texts and of names such as ReadAll and sha256.
var word = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+|\d+`)

// words returns a token for each word: a hash without capitals and the last letter s.
func words(text string) (tokens []int) {
	for _, w := range word.FindAllString(text, -1) {
		h := fnv.New32a()
		io.WriteString(h, strings.TrimSuffix(strings.ToLower(w), "s"))
		tokens = append(tokens, 1+int(h.Sum32()%8191))
	}
	return tokens
}

// collate makes a batch of rows: the anchor and the positive of a row are two sequences, one after
// the other.
func (r *rank) collate(b *data.Batch, rows []row) error {
	var texts []string
	for _, row := range rows {
		texts = append(texts, row.Anchor, row.Positive)
	}
	return r.texts(b, texts)
}

// texts makes the tensors of texts that the encoder takes, except the targets.
func (r *rank) texts(b *data.Batch, texts []string) error {
	tokens := func(text string) []int {
		t := r.encode(text)
		return t[:min(len(t), r.limit)]
	}
	width, err := data.Pad(b, texts, tokens, nil, 0)
	if err != nil {
		return err
	}
	if inputs := r.hf.Model.(interface{ Inputs() []string }).Inputs(); slices.Contains(inputs, "kinds") {
		data.Tensor[int](b, len(texts), width)
	}
	data.Mask[int](b, texts, func(text string) int { return len(tokens(text)) }, width)
	return nil
}

// epoch trains on all rows once and returns the mean loss of the steps.
func (r *rank) epoch(ctx context.Context, rows data.Source[row]) (mean float64, err error) {
	loader, err := data.NewLoader(rows, r.collate, data.Config{Group: r.group, Batch: r.batch, Micro: r.micro, Progress: "training"})
	if err != nil {
		return 0, err
	}
	var step [][]fsdp.Tensor
	for batch, err := range r.Join(ctx, loader.Batches(ctx)) {
		if err != nil {
			return 0, err
		}
		if step = append(step, batch); !loader.StepEnds() {
			continue
		}
		loss, err := nn.InfoNCE{}.ForwardBackward(ctx, r.Sharded, step...)
		if err != nil {
			return 0, err
		}
		if _, err := r.ClipGradNorm(ctx, 1); err != nil {
			return 0, err
		}
		if err := r.opt.Step(r.lr); err != nil {
			return 0, err
		}
		r.ZeroGrad()
		step, mean = nil, mean+loss/float64(loader.Steps())
	}
	return mean, nil
}

// vectors returns the vectors of texts on every rank: all ranks compute all texts.
func (r *rank) vectors(ctx context.Context, texts []string) (list [][]float32, err error) {
	loader, err := data.NewLoader(data.Of(texts), r.texts, data.Config{Group: comm.Local(1)[0], Batch: 2 * r.micro})
	if err != nil {
		return nil, err
	}
	for batch, err := range loader.Batches(ctx) {
		var out []fsdp.Tensor
		if err == nil {
			out, err = r.EvalProgram(ctx, nn.EmbedProgram, batch...)
		}
		if err != nil {
			return nil, err
		}
		list = slices.AppendSeq(list, slices.Chunk(out[0].Data().([]float32), out[0].Shape()[1]))
	}
	return list, nil
}

// nearest returns the vectors of list in the order of their distance from v, the nearest first.
func nearest(v []float32, list [][]float32) []int {
	order, score := make([]int, len(list)), make([]float32, len(list))
	for i, w := range list {
		order[i] = i
		for k := range v {
			score[i] += v[k] * w[k]
		}
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(score[j], score[i]) })
	return order
}

// validate prints how often the positive of a row is the nearest among all that are held out.
func (r *rank) validate(ctx context.Context, when string, held data.Source[row]) error {
	var anchors, positives []string
	for i := range held.Len() {
		row, err := held.At(i)
		if err != nil {
			return err
		}
		anchors, positives = append(anchors, row.Anchor), append(positives, row.Positive)
	}
	a, err := r.vectors(ctx, anchors)
	if err != nil {
		return err
	}
	p, err := r.vectors(ctx, positives)
	if err != nil {
		return err
	}
	found := 0
	for i, v := range a {
		if nearest(v, p)[0] == i {
			found++
		}
	}
	fmt.Fprintf(r.out, "%s, recall@1 %.3f\n", when, float64(found)/float64(len(a)))
	return nil
}

// search prints the positives of all rows that are nearest to a text.
func (r *rank) search(ctx context.Context, rows []row) error {
	texts := []string{r.find}
	for _, row := range rows {
		texts = append(texts, row.Positive)
	}
	v, err := r.vectors(ctx, texts)
	if err != nil {
		return err
	}
	fmt.Fprintln(r.out, r.find)
	for _, i := range nearest(v[0], v[1:])[:min(3, len(rows))] {
		fmt.Fprintln(r.out, "  ", rows[i].Positive)
	}
	return nil
}

// read returns the rows of a CSV file or, without one, of documentation.
func read(c config) (rows []row, err error) {
	if c.data == "" {
		return functions(c.packages)
	}
	f, err := data.OpenCSV[row](c.data)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows = make([]row, f.Len())
	for i := range rows {
		if rows[i], err = f.At(i); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// functions returns the functions of packages of the standard library. The anchor of a row is the
// first paragraph of the comment without the function's name, and the positive is the declaration.
func functions(packages []string) (rows []row, err error) {
	seen := make(map[string]bool)
	for _, name := range packages {
		p, err := build.Import(name, "", 0)
		if err != nil {
			return nil, fmt.Errorf("reading the source of the standard library: %w", err)
		}
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || !fn.Name.IsExported() || fn.Doc == nil {
					continue
				}
				of := path.Base(name)
				if fn.Recv != nil {
					receiver := strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*")
					if !ast.IsExported(receiver) {
						continue
					}
					of += "." + receiver
				}
				first, _, _ := strings.Cut(fn.Doc.Text(), "\n\n")
				own := regexp.MustCompile(`\b` + fn.Name.Name + `\b`)
				text := strings.Join(strings.Fields(own.ReplaceAllString(first, "")), " ")
				if len(text) < 30 || seen[text] {
					continue
				}
				seen[text] = true
				rows = append(rows, row{text, of + "." + fn.Name.Name + strings.TrimPrefix(types.ExprString(fn.Type), "func")})
			}
		}
	}
	return rows, nil
}
