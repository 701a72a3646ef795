package arch

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root     = "../.."
	module   = "github.com/gofsdp/gofsdp"
	workshop = "internal/workshop" // a module of tools
)

// file is a Go source file of the library or of its workshop.
type file struct {
	path      string // from the root, with slashes
	dir       string // of the package
	src       []byte
	ast       *ast.File
	set       *token.FileSet
	test      bool
	generated bool
	tool      bool // part of the workshop
}

// imports returns the paths that f imports.
func (f *file) imports() []string {
	var list []string
	for _, i := range f.ast.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// at returns the position of n for messages.
func (f *file) at(n ast.Node) string {
	return f.path + ":" + strconv.Itoa(f.set.Position(n.Pos()).Line)
}

// files parses the library and its workshop once.
var files = sync.OnceValues(func() ([]*file, error) {
	var list []*file
	set := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.IsDir() && name != root && (base == "testdata" || base == "vendor" || base[0] == '.' || base[0] == '_') {
			return filepath.SkipDir
		}
		_, err = os.Stat(filepath.Join(name, "go.mod"))
		if d.IsDir() && name != root && name != filepath.Join(root, workshop) && err == nil {
			return filepath.SkipDir // another module
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		tree, err := parser.ParseFile(set, name, src, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		list = append(list, &file{
			path: rel, dir: path.Dir(rel), src: src, ast: tree, set: set,
			test: strings.HasSuffix(rel, "_test.go"), generated: ast.IsGenerated(tree), tool: strings.HasPrefix(rel, workshop+"/"),
		})
		return nil
	})
	return list, err
})

// sources returns the files for which keep is true.
func sources(t *testing.T, keep func(*file) bool) []*file {
	all, err := files()
	require.NoError(t, err)
	list := slices.DeleteFunc(slices.Clone(all), func(f *file) bool { return !keep(f) })
	require.NotEmpty(t, list, "no such files: the rule would hold for nothing")
	return list
}

// product reports whether f is part of the library.
func product(f *file) bool { return !f.test && !f.tool }

// code reports whether f is part of the library or of a tool.
func code(f *file) bool { return !f.test }

// TestNoCgo checks that only the packages that load native libraries use cgo.
func TestNoCgo(t *testing.T) {
	for _, f := range sources(t, func(*file) bool { return true }) {
		loaders := []string{"nccl/", "internal/blaslt/", "internal/device/", "internal/gpudouble/", "internal/gpu/kernels/nvrtc/", "comm/mpi/"}
		native := slices.ContainsFunc(loaders, func(p string) bool { return strings.HasPrefix(f.dir+"/", p) })
		if slices.Contains(f.imports(), "C") && !native {
			t.Errorf("%s uses cgo", f.path)
		}
	}
}

// TestPackagesAreDocumented checks that every package has one doc comment, in one file.
func TestPackagesAreDocumented(t *testing.T) {
	docs := make(map[string][]string)
	for _, f := range sources(t, code) {
		if _, ok := docs[f.dir]; !ok {
			docs[f.dir] = nil
		}
		if f.ast.Doc == nil {
			continue
		}
		docs[f.dir] = append(docs[f.dir], f.path)
		want := "Package " + f.ast.Name.Name + " "
		if f.ast.Name.Name != "main" && !strings.HasPrefix(f.ast.Doc.Text(), want) {
			t.Errorf("%s: the package comment does not begin with %q", f.path, want)
		}
	}
	for dir, in := range docs {
		if len(in) != 1 {
			t.Errorf("package %s has %d package comments, want one: %v", dir, len(in), in)
		}
	}
}

// TestNamesAreDocumented checks that every exported name has a comment. The names of a group share
// one; a method that implements an interface needs one, too.
func TestNamesAreDocumented(t *testing.T) {
	for _, f := range sources(t, func(f *file) bool { return !f.test && f.ast.Name.Name != "main" }) {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && receiverIsExported(d) && d.Doc == nil && !standardMethod(d) {
					t.Errorf("%s: %s has no comment", f.at(d), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					checkSpec(t, f, d, s)
				}
			}
		}
	}
}

// checkSpec checks the names of one line of a declaration.
func checkSpec(t *testing.T, f *file, d *ast.GenDecl, s ast.Spec) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
			t.Errorf("%s: %s has no comment", f.at(s), s.Name.Name)
		}
	case *ast.ValueSpec:
		if s.Names[0].IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
			t.Errorf("%s: %s has no comment", f.at(s), s.Names[0].Name)
		}
	}
}

// receiverIsExported tells whether d is a function, or a method of an exported type.
func receiverIsExported(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

// standardMethod tells whether d implements error: what Error returns and Unwrap unwraps needs no
// words.
func standardMethod(d *ast.FuncDecl) bool {
	return d.Recv != nil && (d.Name.Name == "Error" || d.Name.Name == "Unwrap")
}

// maxLines is the length of a file that nobody should have to scroll beyond.
const maxLines = 500

// TestFilesAreShort checks the length of every file that a person wrote, tests apart.
func TestFilesAreShort(t *testing.T) {
	for _, f := range sources(t, func(f *file) bool { return !f.test && !f.generated }) {
		if n := bytes.Count(f.src, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, at most %d are meant", f.path, n, maxLines)
		}
	}
}

// TestNoCatchAllPackages checks that no package is named after nothing in particular.
func TestNoCatchAllPackages(t *testing.T) {
	for _, f := range sources(t, code) {
		switch name := path.Base(f.dir); name {
		case "util", "utils", "helper", "helpers", "common", "misc", "manager":
			t.Errorf("%s: package %s says nothing of what it is about", f.path, name)
		}
	}
}

// needs is the one file whose code skips tests, and only on devices in place of the processor: see
// kit.Needs.
const needs = "fsdp/internal/accept/kit/needs.go"

// TestTestsRun checks that tests neither sleep nor skip: one that waits for time proves nothing on
// a busy machine, one that skips proves nothing at all. In a synctest bubble time is not real, and
// sleeping is a way to be late.
func TestTestsRun(t *testing.T) {
	for _, f := range sources(t, func(f *file) bool { return f.test || f.dir == path.Dir(needs) && f.path != needs }) {
		bubbles := bubbleMakers(f)
		for _, d := range f.ast.Decls {
			bubble := len(methodCalls(d, "synctest", "Test")) > 0 || callsAny(d, bubbles)
			for _, c := range methodCalls(d, "time", "Sleep") {
				if !bubble {
					t.Errorf("%s sleeps: wait for an event, or use testing/synctest", f.at(c))
				}
			}
			for _, x := range []string{"t", "b", "f", "tb"} {
				for _, c := range methodCalls(d, x, "Skip", "Skipf", "SkipNow") {
					t.Errorf("%s skips: a test that cannot run everywhere belongs behind a build tag", f.at(c))
				}
			}
		}
	}
}

// bubbleMakers returns the names of the functions of f that run something in a synctest bubble.
func bubbleMakers(f *file) (names []string) {
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && len(methodCalls(d, "synctest", "Test")) > 0 {
			names = append(names, fn.Name.Name)
		}
	}
	return names
}

// callsAny tells whether n calls a function of one of the names.
func callsAny(n ast.Node, names []string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			id, ok := call.Fun.(*ast.Ident)
			found = found || ok && slices.Contains(names, id.Name)
		}
		return !found
	})
	return found
}

// methodCalls returns the calls x.name below n.
func methodCalls(n ast.Node, x string, names ...string) []*ast.CallExpr {
	var list []*ast.CallExpr
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(names, sel.Sel.Name) {
				if id, ok := sel.X.(*ast.Ident); ok && id.Name == x {
					list = append(list, call)
				}
			}
		}
		return true
	})
	return list
}
