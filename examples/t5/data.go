package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"hash/crc32"
	"io/fs"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// function is a function of the standard library with a comment.
type function struct {
	file    uint32 // hash of the file's name
	name    string
	source  string // without comments
	comment string // its first sentence, after the name

	reads, says []int // tokens of name and source, and of the comment
}

// corpus is the functions to train on, and the functions of files that are held out.
type corpus struct{ train, held []function }

// holdOut is the share of files that are held out: one in every n.
const holdOut = 20

// read returns the functions in a tree of Go files, without tests, always in the same order. It
// leaves out second copies, such as a function for another system.
func read(tree fs.FS) (c corpus, err error) {
	seen := make(map[string]bool)
	err = fs.WalkDir(tree, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := entry.Name(); {
		case entry.IsDir() && (name == "vendor" || name == "testdata"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(tree, path)
		if err != nil {
			return err
		}
		list, err := functions(path, text)
		for _, f := range list {
			if seen[f.source] {
				continue
			}
			seen[f.source] = true
			if f.file%holdOut == 0 {
				c.held = append(c.held, f)
			} else {
				c.train = append(c.train, f)
			}
		}
		return err
	})
	rnd := rand.New(rand.NewPCG(1, 0))
	rnd.Shuffle(len(c.held), func(i, j int) { c.held[i], c.held[j] = c.held[j], c.held[i] })
	return c, err
}

// tokenize returns the functions with their tokens: names and sources, cut to some, and without the
// functions whose comments have more than some.
func (v vocabulary) tokenize(all []function, source, target int) (list []function) {
	for _, f := range all {
		f.reads, f.says = append(append(v.tokens(f.name), end), v.tokens(f.source)...), v.tokens(f.comment)
		f.reads = f.reads[:min(len(f.reads), source)]
		if len(f.says) <= target {
			list = append(list, f)
		}
	}
	return list
}

// gofmt prints code as the command does.
var gofmt = printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 8}

// functions returns those functions of a file whose comments begin with their name.
func functions(path string, text []byte) (list []function, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		comment, ok := strings.CutPrefix(new(doc.Package).Synopsis(f.Doc.Text()), f.Name.Name+" ")
		if !ok {
			continue
		}
		f.Doc = nil
		var source bytes.Buffer
		if err := gofmt.Fprint(&source, set, f); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, f.Name, err)
		}
		list = append(list, function{crc32.ChecksumIEEE([]byte(path)), f.Name.Name, source.String(), comment, nil, nil})
	}
	return list, nil
}

// share returns the functions that rank i of n has. All functions of a file are on one rank, so
// ranks have different numbers of functions.
func share(all []function, i, n int) (mine []function) {
	for _, f := range all {
		if int(f.file/holdOut)%n == i {
			mine = append(mine, f)
		}
	}
	return mine
}

// shape returns the lengths that a function takes in a batch: multiples of 8, so that a few
// compiled programs serve all.
func (f function) shape() (source, target int) {
	return bucket(len(f.reads)), bucket(len(f.says) + 1)
}

func bucket(n int) int { return (n + 7) / 8 * 8 }

// group parts functions into batches of some rows at most, of one shape each.
func group(all []function, rows int) (batches [][]function) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, compare)
	for len(all) > 0 {
		n := 1
		for n < min(rows, len(all)) && compare(all[n], all[0]) == 0 {
			n++
		}
		batches = append(batches, all[:n])
		all = all[n:]
	}
	return batches
}

func compare(a, b function) int {
	s, t := a.shape()
	u, v := b.shape()
	return cmp.Or(s-u, t-v)
}

// tensors returns batches as the model takes them. Rows that the last batch of a shape lacks are
// empty and have no targets.
func tensors(batches [][]function, rows int) iter.Seq2[[]fsdp.Tensor, error] {
	return func(yield func([]fsdp.Tensor, error) bool) {
		for _, batch := range batches {
			s, t := batch[0].shape()
			tokens, mask := make([]int, rows*s), make([]int, rows*s)
			said, targets := make([]int, rows*t), slices.Repeat([]int{nn.IgnoreTarget}, rows*t)
			for i, f := range batch {
				copy(tokens[i*s:], f.reads)
				copy(mask[i*s:], slices.Repeat([]int{1}, len(f.reads)))
				copy(said[i*t+1:], f.says) // after end, which is 0
				copy(targets[i*t:], append(slices.Clone(f.says), end))
			}
			if !yield([]fsdp.Tensor{matrix(rows, s, tokens), matrix(rows, s, mask), matrix(rows, t, said), matrix(rows, t, targets)}, nil) {
				return
			}
		}
	}
}

func matrix(rows, columns int, data []int) fsdp.Tensor {
	return tensor.New(tensor.WithShape(rows, columns), tensor.WithBacking(data))
}

// targets counts the targets of a batch, which may be none.
func targets(batch []fsdp.Tensor) (n float64) {
	if batch == nil {
		return 0
	}
	for _, t := range batch[3].Data().([]int) {
		if t != nn.IgnoreTarget {
			n++
		}
	}
	return n
}
