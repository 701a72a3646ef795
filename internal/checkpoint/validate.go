package checkpoint

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// validate checks all promises of a manifest that can be checked without its files.
func (m *Manifest) validate() error {
	if m.Step < 0 || m.World < 1 {
		return fmt.Errorf("step %d of %d ranks", m.Step, m.World)
	}
	for name := range m.Meta {
		if !utf8.ValidString(name) {
			return fmt.Errorf("the name %q of metadata is not UTF-8", name)
		}
	}
	if err := validateFiles(m.Files); err != nil {
		return err
	}
	if err := validateTensors(m.Tensors, m.Files); err != nil {
		return err
	}
	names := make(map[string]Key, len(m.Tensors))
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if t.Owner >= m.World {
			return fmt.Errorf("%s belongs to rank %d, but there are only %d ranks", t.Name(), t.Owner, m.World)
		}
		if err := t.covered(func(file int) string { return m.Files[file].Name }); err != nil {
			return err
		}
		if k, ok := names[t.Name()]; ok {
			return fmt.Errorf("%+v and %+v are both called %s", k, t.Key, t.Name())
		}
		names[t.Name()] = t.Key
	}
	return nil
}

// validateFiles checks that files have distinct names that stay in the checkpoint's directory, or
// in a subdirectory, on every system.
func validateFiles(files []File) error {
	seen := make(map[string]bool, len(files))
	for _, f := range files {
		// Names that differ only by case are one file to some file systems.
		name := strings.ToLower(f.Name)
		switch {
		case !isName(name):
			return fmt.Errorf("%q is not a valid file name of a checkpoint", f.Name)
		case seen[name]:
			return fmt.Errorf("file %s is listed twice", f.Name)
		case f.Size < 0:
			return fmt.Errorf("file %s has %d bytes", f.Name, f.Size)
		}
		seen[name] = true
	}
	return nil
}

// isName reports whether a file may have the lower-case name: the name of a file, or of a directory
// and a file in it.
func isName(name string) bool {
	parts := strings.Split(name, "/")
	return len(parts) <= 2 && !slices.ContainsFunc(parts, func(part string) bool {
		return part == "" || part == ManifestName || part[0] == '.' || strings.ContainsFunc(part, notInNames)
	})
}

// notInNames reports whether r may not be in the lower-case name of a file.
func notInNames(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}

// validateTensors checks each tensor, and that their keys ascend.
func validateTensors(tensors []Tensor, files []File) error {
	for i := range tensors {
		t := &tensors[i]
		if err := t.validate(files); err != nil {
			return fmt.Errorf("%s: %w", t.Name(), err)
		}
		if i > 0 && tensors[i-1].Compare(t.Key) >= 0 {
			return fmt.Errorf("%s is listed after %s", t.Name(), tensors[i-1].Name())
		}
	}
	return nil
}

// validate checks the fields of t, and that each of its pieces is inside t and inside its file, and
// has its checksums.
func (t *Tensor) validate(files []File) error {
	if t.Param == "" || !utf8.ValidString(t.Param) || !utf8.ValidString(t.Entry) {
		return fmt.Errorf("%q of parameter %q is not a valid name", t.Entry, t.Param)
	}
	if t.Owner < Shared || t.Steps < 0 {
		return fmt.Errorf("owner %d, %d steps", t.Owner, t.Steps)
	}
	n, err := elements(t.DType, t.Shape)
	if err != nil {
		return err
	}
	for w := t.walk(); ; {
		if ok, err := w.next(); err != nil {
			return err
		} else if !ok {
			return nil
		}
		p := &w.p
		if p.Offset < 0 || p.Len < 1 || p.Len > n-p.Offset {
			return fmt.Errorf("a piece has %d elements from element %d on, but the tensor has %d", p.Len, p.Offset, n)
		}
		if p.File < 0 || p.File >= len(files) {
			return fmt.Errorf("piece [%d:%d] is in file %d, but there are only %d files", p.Offset, p.end(), p.File, len(files))
		}
		bytes := p.Len * t.DType.Size()
		if f := files[p.File]; p.At < 0 || p.At > f.Size-int64(bytes) {
			return fmt.Errorf("piece [%d:%d] has %d bytes from byte %d of file %s on, which has only %d bytes",
				p.Offset, p.end(), bytes, p.At, f.Name, f.Size)
		}
	}
}

// elements returns the number of elements of a tensor, whose bytes also fit an int.
func elements(dtype safetensors.DType, shape []int) (int, error) {
	if dtype.Size() < 1 {
		return 0, fmt.Errorf("element type %q is unknown", dtype)
	}
	n, most := 1, math.MaxInt/dtype.Size()
	for _, d := range shape {
		if d < 0 || n > 0 && d > most/n {
			return 0, fmt.Errorf("a tensor of %s cannot have shape %v", dtype, shape)
		}
		n *= d
	}
	return n, nil
}

// covered checks that the pieces of t, which is valid, follow each other from its first element to
// its last. holder describes a file in messages.
func (t *Tensor) covered(holder func(file int) string) error {
	next, file := 0, 0 // where the piece before ends, and its file
	for p := range t.All() {
		if p.Offset < next {
			return fmt.Errorf("%s occurs twice: in %s and in %s", pieceName(t.Key, p.Offset, min(next, p.end())),
				holder(file), holder(p.File))
		}
		if p.Offset > next {
			return fmt.Errorf("%s is missing before the elements in %s", pieceName(t.Key, next, p.Offset), holder(p.File))
		}
		next, file = p.end(), p.File
	}
	if n := t.Len(); next < n {
		return fmt.Errorf("%s of %d elements is missing", pieceName(t.Key, next, n), n)
	}
	return nil
}
