package arch

import (
	"go/ast"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFace bounds what a reader of package fsdp has to look at: it is the face of the library, and
// grows by packages below it.
func TestFace(t *testing.T) {
	type size struct{ methods, fields int }
	files, sizes := 0, make(map[string]size)
	for _, f := range sources(t, func(f *file) bool { return product(f) && f.dir == "fsdp" }) {
		files++
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					name := receiver(d.Recv.List[0].Type)
					sizes[name] = size{sizes[name].methods + 1, sizes[name].fields}
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if spec, ok := s.(*ast.TypeSpec); ok {
						of := sizes[spec.Name.Name]
						if kind, ok := spec.Type.(*ast.StructType); ok {
							for _, field := range kind.Fields.List {
								of.fields += max(1, len(field.Names))
							}
						}
						sizes[spec.Name.Name] = of
					}
				}
			}
		}
	}
	require.LessOrEqual(t, files, 24, "files of fsdp")
	for name, limit := range map[string]size{"Sharded": {49, 4}, "session": {34, 14}} {
		require.Positive(t, sizes[name].fields, name)
		require.LessOrEqual(t, sizes[name].methods, limit.methods, "methods of %s", name)
		require.LessOrEqual(t, sizes[name].fields, limit.fields, "fields of %s", name)
	}
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
