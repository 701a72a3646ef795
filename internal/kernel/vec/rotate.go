package vec

// Rotate turns the points (x, y) by the angles of which cos and sin are given: a = x·cos - y·sin and
// b = x·sin + y·cos. The roles of x and y, and of a and b, swapped turn them back. a may be x, and b
// may be y.
func Rotate[T Float](a, b, x, y, cos, sin []T) {
	n := len(a)
	same("Rotate", n, len(b), len(x), len(y), len(cos), len(sin))
	k := table[T]().rotate
	for i := 0; i < n; i += piece {
		j := min(i+piece, n)
		k(a[i:j], b[i:j], x[i:j], y[i:j], cos[i:j], sin[i:j])
	}
}
