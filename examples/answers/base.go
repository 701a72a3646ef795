package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
	"github.com/gofsdp/gofsdp/optim"
)

//go:embed testdata/base
var files embed.FS // a tokenizer of 768 tokens, with the chat template of ChatML

// library is the packages whose documentation the base model learns.
var library = []string{"bufio", "bytes", "fmt", "io", "math", "net/http", "net/url", "os", "path/filepath", "reflect", "slices", "strconv",
	"strings", "sync", "time"}

// makeBase trains a small chat model and writes it to the directory of the model, unless it is
// there.
func (r *rank) makeBase(ctx context.Context) (err error) {
	if _, err := os.Stat(filepath.Join(r.model, "config.json")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if r.group.Rank() == 0 { // Wrap of the others waits
		if err := r.copyFiles(); err != nil {
			return err
		}
	}
	m, err := hf.New(&nn.Llama{Vocab: 768, Context: 256, Layers: 3, Dim: 128, Heads: 4, Hidden: 384, Tied: true, Packed: r.pack})
	if err != nil {
		return err
	}
	s, err := fsdp.Wrap(m.Model, fsdp.Config{Group: r.group, WrapPolicy: fsdp.WrapTypes(&nn.Layer{}), Seed: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	t := training{Sharded: s}
	if t.opt, err = (optim.AdamW{WeightDecay: 0.1}).New(s.Params()); err != nil {
		return err
	}
	words, err := tokenizer.Open(r.model)
	if err != nil {
		return err
	}
	chats, err := documentation(r.packages)
	if err != nil {
		return err
	}
	if t.batches, err = r.loader("", rows(words, data.Of(chats), r.limit), r.base); err != nil {
		return err
	}
	steps := t.batches.Steps()
	t.rate = optim.WarmupCosine(3e-3, 3e-4, steps/20, steps)
	fmt.Fprintf(r.out, "a base model learns the documentation of %d functions of Go\n", len(chats))
	if t.mon, err = monitor.New(monitor.Config{Group: r.group, Steps: steps, Unit: "targets", Out: r.out}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.mon.Close()) }()
	if err := t.train(ctx, math.MaxInt, r.interrupted); err != nil {
		return err
	}
	if t.opt.Steps() < steps {
		return errors.New("interrupted before the base model was complete: run the command again")
	}
	return m.Save(ctx, s, r.model, nil)
}

// copyFiles writes the files of the tokenizer to the directory of the model.
func (r *rank) copyFiles() error {
	if err := os.MkdirAll(r.model, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		text, err := files.ReadFile("testdata/base/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.model, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// wordings of a question.
var wordings = []string{"What does %s do?", "What is %s for?", "Explain %s.", "Tell me about %s.", "When do I need %s?"}

// documentation returns questions about functions of packages of the standard library, with the
// first sentences of their documentation as answers.
func documentation(packages []string) (chats []tokenizer.Chat, err error) {
	for _, path := range packages {
		p, err := build.Import(path, "", 0)
		if err != nil {
			return nil, fmt.Errorf("reading the source of the standard library: %w", err)
		}
		set, parsed := token.NewFileSet(), []*ast.File(nil)
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			parsed = append(parsed, f)
		}
		described, err := doc.NewFromFiles(set, parsed, path)
		if err != nil {
			return nil, err
		}
		functions := described.Funcs
		for _, t := range described.Types {
			functions = append(append(functions, t.Funcs...), t.Methods...)
		}
		for _, f := range functions {
			if answer := described.Synopsis(f.Doc); answer != "" {
				chats = append(chats, tokenizer.Chat{Messages: []tokenizer.Message{
					{Role: "user", Content: fmt.Sprintf(wordings[len(chats)%len(wordings)], f.Name)}, {Role: "assistant", Content: answer},
				}})
			}
		}
	}
	return chats, nil
}
