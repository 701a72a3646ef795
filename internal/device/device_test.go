package device

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrors(t *testing.T) {
	load := &LoadError{What: "NCCL", Tried: []string{"a: not there", "b: nor there"}, Hint: "install it"}
	require.EqualError(t, load, "NCCL is not available on this machine (a: not there, b: nor there): install it")
	require.EqualError(t, &LoadError{What: "NCCL"}, "NCCL is not available on this machine")
	require.ErrorIs(t, fmt.Errorf("rank 3: %w", load), ErrUnavailable)
	failed := fmt.Errorf("device 1: %w", &Error{Op: "cuMemAlloc", Code: 2, Text: "CUDA_ERROR_OUT_OF_MEMORY, out of memory"})
	require.EqualError(t, failed, "device 1: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY, out of memory (CUresult 2)")
	require.False(t, errors.Is(failed, ErrUnavailable))
}

// TestSameNamesEverywhere compares what the package exports with and without cgo.
func TestSameNamesEverywhere(t *testing.T) {
	with, without := exported(t, "linux", "cgo"), exported(t, "linux")
	require.Greater(t, len(with), 40)
	require.Equal(t, with, without)
	require.Equal(t, without, exported(t, "darwin", "cgo"))
	require.Equal(t, without, exported(t, "windows"))
}

// exported returns the exported functions, methods, constants, variables and types of a build with
// the tags: of functions the signatures, of structs without exported fields the names.
func exported(t *testing.T, tags ...string) map[string]string {
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := make(map[string]string)
	for _, name := range names {
		text := read(t, name)
		if strings.HasSuffix(name, "_test.go") || !built(t, text, tags) {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		if !ast.FileExports(file) {
			continue
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				receiver := ""
				if d.Recv != nil {
					receiver = strings.TrimPrefix(render(t, set, d.Recv.List[0].Type), "*") + "."
				}
				if receiver == "" || ast.IsExported(receiver) {
					found[receiver+d.Name.Name] = render(t, set, d.Type)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						found[s.Name.Name] = render(t, set, s.Type.(*ast.StructType).Fields)
					case *ast.ValueSpec:
						found[s.Names[0].Name] = render(t, set, s.Values[0])
					}
				}
			}
		}
	}
	return found
}

// built tells whether a file is part of a build with the tags.
func built(t *testing.T, text string, tags []string) bool {
	line, _, _ := strings.Cut(text, "\n")
	if !constraint.IsGoBuild(line) {
		return true
	}
	x, err := constraint.Parse(line)
	require.NoError(t, err)
	return x.Eval(func(tag string) bool {
		for _, have := range tags {
			if tag == have {
				return true
			}
		}
		return false
	})
}

func render(t *testing.T, set *token.FileSet, node any) string {
	if fields, ok := node.(*ast.FieldList); ok {
		var lines []string
		for _, f := range fields.List {
			for _, n := range f.Names {
				lines = append(lines, n.Name+" "+render(t, set, f.Type))
			}
		}
		return strings.Join(lines, "\n")
	}
	var b bytes.Buffer
	require.NoError(t, printer.Fprint(&b, set, node))
	return b.String()
}

func read(t *testing.T, name string) string {
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// TestWithoutADriver runs where there is none to load, or no cgo to load it with.
func TestWithoutADriver(t *testing.T) {
	t.Setenv(EnvCUDA, filepath.Join(t.TempDir(), "none.so"))
	if err := Load(""); err != nil { // another test may have loaded one
		require.ErrorIs(t, err, ErrUnavailable)
		_, err := Open(0)
		require.ErrorIs(t, err, ErrUnavailable)
		_, err = Count()
		require.ErrorIs(t, err, ErrUnavailable)
		require.Zero(t, Symbol("cuInit"))
		require.Nil(t, new(HostMemory).Bytes(), runtime.GOOS)
	}
}
