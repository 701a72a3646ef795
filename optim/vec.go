package optim

import (
	"errors"
	"reflect"
	"slices"

	"github.com/gofsdp/gofsdp/optim/vec"
)

// Vec is a vector of float32 or float64 that an optimizer works on: see [vec.Vec].
type Vec = vec.Vec

// Host is a [Vec] in ordinary memory.
type Host = vec.Host

// sliceHost returns elements [from, to) of h.
func sliceHost(h Host, from, to int) Host { return h.Slice(from, to).(Host) }

// hosted16 reports whether v stores bfloat16 in ordinary memory.
func hosted16(v Vec) bool {
	_, ok := v.(vec.Host16)
	return ok
}

// newHost returns n zeros.
func newHost(n int, float64s bool) Host {
	if float64s {
		return Host{F64: make([]float64, n)}
	}
	return Host{F32: make([]float32, n)}
}

// lenOf returns the number of elements of v, which may be nil.
func lenOf(v Vec) int {
	if v == nil {
		return 0
	}
	return v.Len()
}

// twoTypes reports whether v is a Host that is both float32 and float64.
func twoTypes(v Vec) bool {
	h, ok := v.(Host)
	return ok && h.F32 != nil && h.F64 != nil
}

// sameVec reports whether a and b are the same elements. It may return false for equal Vecs that
// are not Hosts.
func sameVec(a, b Vec) bool {
	x, isHost := a.(Host)
	y, both := b.(Host)
	switch {
	case isHost && both:
		return len(x.F32) > 0 && len(x.F32) == len(y.F32) && &x.F32[0] == &y.F32[0] ||
			len(x.F64) > 0 && len(x.F64) == len(y.F64) && &x.F64[0] == &y.F64[0]
	case isHost || both:
		return false
	}
	return reflect.ValueOf(a).Comparable() && a == b
}

// joinVecs copies srcs, one after the other, to dst, which has as many elements. It writes 8-bit
// blocks once, because their old contents would affect the rounding.
func joinVecs(dst Vec, srcs []Vec) error {
	to := dst
	blocks, narrow := dst.(*Blockwise)
	if narrow {
		to = newHost(dst.Len(), false)
	}
	at := 0
	for _, src := range srcs {
		if err := copyVec(to.Slice(at, at+src.Len()), src); err != nil {
			return err
		}
		at += src.Len()
	}
	if narrow {
		return blocks.Write(to.(Host))
	}
	return nil
}

// copyVec copies src to dst, which has the same length and type.
func copyVec(dst, src Vec) error {
	if to, ok := dst.(Host); ok {
		return src.Read(to)
	}
	return eachBlock(src, func(at int, b Host) error { return dst.Slice(at, at+b.Len()).Write(b) })
}

// isZero reports whether all elements of v are zero.
func isZero(v Vec) (bool, error) {
	err := eachBlock(v, func(_ int, b Host) error {
		if !hostIsZero(b) {
			return errNotZero
		}
		return nil
	})
	if err == errNotZero {
		return false, nil
	}
	return err == nil, err
}

var errNotZero = errors.New("not zero")

// eachBlock calls f with the elements of v in host memory: a Host at once, anything else one block
// at a time. A block is valid until f returns.
func eachBlock(v Vec, f func(at int, b Host) error) error {
	if h, ok := v.(Host); ok {
		return f(0, h)
	}
	const block = 1 << 16
	room := newHost(min(v.Len(), block), v.Float64())
	for at := 0; at < v.Len(); at += block {
		b := sliceHost(room, 0, min(v.Len()-at, block))
		if err := v.Slice(at, at+b.Len()).Read(b); err != nil {
			return err
		}
		if err := f(at, b); err != nil {
			return err
		}
	}
	return nil
}

// hostIsZero reports whether all elements of h are zero.
func hostIsZero(h Host) bool {
	return !slices.ContainsFunc(h.F32, func(x float32) bool { return x != 0 }) &&
		!slices.ContainsFunc(h.F64, func(x float64) bool { return x != 0 })
}
