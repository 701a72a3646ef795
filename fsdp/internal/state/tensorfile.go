package state

import (
	"context"
	"fmt"
	"io"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// A matrix [out, in] of the model may be transposed in a file, [in, out]. Whole rows of the file
// are picked out of the matrix, or spread over it, as many at a time as fit the scratch.
//
//	model [2, 3]   0 1 2     file [3, 2]   0 3
//	               3 4 5                   1 4
//	                                       2 5

// scratchBytes is how much of a tensor is converted at a time, float64Bytes the size of the largest
// element.
const (
	scratchBytes = 1 << 20
	float64Bytes = 8
)

// writeTensor writes the elements of a tensor in another type. If rows is not 0, the tensor is a
// matrix with this number of rows, and writeTensor transposes it.
func writeTensor(w io.Writer, to safetensors.DType, whole []byte, from safetensors.DType, rows int) error {
	if rows == 0 && to == from {
		_, err := w.Write(whole)
		return err
	}
	es := from.Size()
	n := len(whole) / es
	step, cols := scratchBytes/es, 0
	if rows > 0 {
		cols = n / rows
		step = rows * max(1, step/rows)
	}
	scratch := make([]byte, min(step, n)*(es+to.Size()))
	for at := 0; at < n; at += step {
		count := min(step, n-at)
		part := whole[at*es : min(len(whole), (at+count)*es)]
		if rows > 0 {
			part = scratch[:count*es]
			pickRows(part, whole, es, rows, cols, at/rows, count/rows)
		}
		out := scratch[min(step, n)*es:][:count*to.Size()]
		if err := safetensors.Convert(out, to, part, from); err != nil {
			return err
		}
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	return nil
}

// pickRows sets dst [n, rows] to columns first, first+1, … of src [rows, cols]. es is the size of
// an element.
func pickRows(dst, src []byte, es, rows, cols, first, n int) {
	if es == float64Bytes {
		pick(elements[float64](dst), elements[float64](src), rows, cols, first, n)
	} else {
		pick(elements[float32](dst), elements[float32](src), rows, cols, first, n)
	}
}

func pick[T float32 | float64](dst, src []T, rows, cols, first, n int) {
	for r := range rows {
		for c, x := range src[r*cols+first:][:n] {
			dst[c*rows+r] = x
		}
	}
}

// A tensorReader reads tensors of a file.
type tensorReader struct {
	file    io.ReaderAt
	as      safetensors.DType // the wanted type of the elements, F32 or F64
	scratch []byte
}

// read reads elements offset, offset+1, … of a tensor of the model to dst, and nothing else of the
// file. cols is the number of columns of a matrix that is transposed in the file, or 0.
func (r *tensorReader) read(ctx context.Context, t safetensors.Tensor, dst []byte, offset, cols int) (err error) {
	n := len(dst) / r.as.Size()
	switch {
	case n == 0:
	case cols > 0:
		err = r.readTransposed(ctx, t, dst, offset, cols)
	case t.DType == r.as:
		err = r.readAt(ctx, dst, t.Offset+int64(offset*t.DType.Size()))
	default:
		es, step := t.DType.Size(), scratchBytes/float64Bytes
		for at := 0; at < n && err == nil; at += step {
			count := min(step, n-at)
			err = r.convert(ctx, dst[at*r.as.Size():][:count*r.as.Size()], t, t.Offset+int64((offset+at)*es))
		}
	}
	if err != nil {
		return fmt.Errorf("elements [%d:%d] of tensor %s: %w", offset, offset+n, t.Name, err)
	}
	return nil
}

// convert reads elements at a place of the file.
func (r *tensorReader) convert(ctx context.Context, dst []byte, t safetensors.Tensor, at int64) error {
	raw := r.room(len(dst) / r.as.Size() * t.DType.Size())
	if err := r.readAt(ctx, raw, at); err != nil {
		return err
	}
	return safetensors.Convert(dst, r.as, raw, t.DType)
}

// readTransposed reads the part of every row of the file that is in the wanted rows of the model: a
// few rows of the file at a time, with the data between them, if that is less work than one by one.
func (r *tensorReader) readTransposed(ctx context.Context, t safetensors.Tensor, dst []byte, offset, cols int) error {
	const block = 4096 // bytes that are worth a separate read
	as, es := r.as.Size(), t.DType.Size()
	rows, n := int(t.Size)/es/cols, len(dst)/as
	first := offset / cols
	width := (offset+n-1)/cols - first + 1 // of the wanted part of a row of the file
	step := 1
	if width*es < block {
		step = max(1, scratchBytes/(rows*float64Bytes))
	}
	wide := make([]byte, ((min(step, cols)-1)*rows+width)*as)
	for c := 0; c < cols; c += step {
		count := min(step, cols-c)
		part := wide[:((count-1)*rows+width)*as]
		if err := r.convert(ctx, part, t, t.Offset+int64((c*rows+first)*es)); err != nil {
			return err
		}
		at := first*cols + c - offset // in dst, of the first element
		if as == float64Bytes {
			spread(elements[float64](dst), elements[float64](part), at, rows, cols, width, count)
		} else {
			spread(elements[float32](dst), elements[float32](part), at, rows, cols, width, count)
		}
	}
	return nil
}

// spread puts n columns of a matrix into dst, which has some of its elements, row by row. In src
// the columns follow one another: width elements of each, and rows from one to the next. In dst the
// first element has index at, which may be out of range, and rows are cols elements long.
func spread[T float32 | float64](dst, src []T, at, rows, cols, width, n int) {
	for w := range width {
		for c := range n {
			if to := at + w*cols + c; to >= 0 && to < len(dst) {
				dst[to] = src[c*rows+w]
			}
		}
	}
}

// readAt reads all of b, a part at a time: a slow file system is not one that does not respond.
func (r *tensorReader) readAt(ctx context.Context, b []byte, at int64) error {
	for done := 0; done < len(b); {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		part := b[done:min(len(b), done+scratchBytes)]
		n, err := r.file.ReadAt(part, at+int64(done))
		done += n
		if n == len(part) {
			continue
		}
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("bytes [%d:%d]: %w", at, at+int64(len(b)), err)
	}
	return nil
}

// room returns n bytes of scratch.
func (r *tensorReader) room(n int) []byte {
	if len(r.scratch) < n {
		r.scratch = make([]byte, n)
	}
	return r.scratch[:n]
}
