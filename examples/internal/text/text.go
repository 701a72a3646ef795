// Package text has two texts in two languages for the examples: the Go code and the English prose
// of the standard library's source, which is on every machine that has Go. A token is a byte.
package text

import (
	"bytes"
	"fmt"
	"go/build"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
)

// Vocab is the number of tokens.
const Vocab = 256

// Text is a text to learn from and a part of it that is held out to test on.
type Text struct{ Train, Held []byte }

// heldOut is the share of a text that is held out: its end.
const heldOut = 0.05

// packages are those whose source is read: some megabytes.
var packages = []string{
	"bufio", "bytes", "compress/flate", "context", "crypto/tls", "database/sql", "encoding/json", "fmt", "go/ast", "go/parser",
	"go/types", "html/template", "image", "io", "math/big", "net", "net/http", "os", "reflect", "regexp", "runtime", "sort",
	"strconv", "strings", "sync", "testing", "text/template", "time", "unicode/utf8",
}

// Load returns the code without its comments, and the comments.
func Load() (code, prose Text, err error) {
	for _, path := range packages {
		p, err := build.Import(path, "", 0)
		if err != nil {
			return code, prose, fmt.Errorf("reading the source of the standard library: %w", err)
		}
		for _, name := range p.GoFiles {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return code, prose, err
			}
			c, english, err := split(src)
			if err != nil {
				return code, prose, err
			}
			code.Train, prose.Train = append(code.Train, c...), append(prose.Train, english...)
		}
	}
	code.holdOut()
	prose.holdOut()
	return code, prose, nil
}

func (t *Text) holdOut() {
	cut := len(t.Train) - int(heldOut*float64(len(t.Train)))
	t.Train, t.Held = t.Train[:cut:cut], t.Train[cut:]
}

var (
	blank       = regexp.MustCompile(`(?m)^[ \t]*\n`)
	boilerplate = regexp.MustCompile(`(?m)^(Copyright .*|Use of this source code .*|license that can be .*|TODO.*)\n`)
)

// split parts the source of a Go file into code and comments. Comments at the end of a line of
// code, which are seldom sentences, are in neither.
func split(src []byte) (code, prose []byte, err error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "", src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	from := 0
	for _, c := range f.Comments {
		lo, hi := set.PositionFor(c.Pos(), false), set.PositionFor(c.End(), false)
		code, from = append(code, src[from:lo.Offset]...), hi.Offset
		if before := src[lo.Offset-lo.Column+1 : lo.Offset]; len(bytes.TrimSpace(before)) == 0 {
			prose = append(prose, boilerplate.ReplaceAllString(c.Text(), "")...)
		}
	}
	return blank.ReplaceAll(append(code, src[from:]...), nil), prose, nil
}

// Batch returns windows of context tokens at random places of a text, as tokens and targets: ints
// [rows, context]. The text must be longer than that.
func Batch(t []byte, rnd *rand.Rand, rows, context int) []fsdp.Tensor {
	x, y := make([]int, rows*context), make([]int, rows*context)
	for r := range rows {
		at := rnd.IntN(len(t) - context)
		for i := range context {
			x[r*context+i], y[r*context+i] = int(t[at+i]), int(t[at+i+1])
		}
	}
	shape := tensor.WithShape(rows, context)
	return []fsdp.Tensor{tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y))}
}
