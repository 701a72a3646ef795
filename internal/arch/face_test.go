package arch

import (
	"go/ast"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFace bounds what a reader of package fsdp has to look at: it is the face of the library, and
// grows by packages below it.
func TestFace(t *testing.T) {
	files, methods, fields := 0, 0, 0
	for _, f := range sources(t, func(f *file) bool { return product(f) && f.dir == "fsdp" }) {
		files++
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil && receiver(d.Recv.List[0].Type) == "Sharded" {
					methods++
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if spec, ok := s.(*ast.TypeSpec); ok && spec.Name.Name == "Sharded" {
						for _, field := range spec.Type.(*ast.StructType).Fields.List {
							fields += max(1, len(field.Names))
						}
					}
				}
			}
		}
	}
	require.Positive(t, fields)
	require.LessOrEqual(t, files, 24, "files of fsdp")
	require.LessOrEqual(t, methods, 49, "methods of Sharded")
	require.LessOrEqual(t, fields, 15, "fields of Sharded")
}

// receiver returns the name of a method's type.
func receiver(x ast.Expr) string {
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	if name, ok := x.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}
