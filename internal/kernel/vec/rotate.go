package vec

// Rotate rotates the points (x, y) by angles given by cos and sin: a = x·cos - y·sin and b = x·sin
// + y·cos. Call it with x and y swapped, and a and b swapped, to rotate back. a may be x, and b may
// be y.
func Rotate[T Float](a, b, x, y, cos, sin []T) {
	n := len(a)
	same("Rotate", n, len(b), len(x), len(y), len(cos), len(sin))
	k := table[T]().rotate
	for i := 0; i < n; i += piece {
		j := min(i+piece, n)
		k(a[i:j], b[i:j], x[i:j], y[i:j], cos[i:j], sin[i:j])
	}
}
