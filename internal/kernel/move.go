package kernel

// CopyRows copies rows of the given width. They begin at multiples of to in y, and of from in x.
func CopyRows[T Element](y, x []T, rows, width, to, from int) {
	if width == 1 {
		for i := range rows {
			y[i*to] = x[i*from]
		}
		return
	}
	for i := range rows {
		copy(y[i*to:][:width], x[i*from:][:width])
	}
}

// square is the edge of the squares in which [Transpose] visits two axes, so that the elements read
// and written stay in the level-one cache.
const square = 16

// Transpose writes the elements of x to y in the order in which the layout reads them. Threads
// share the longest axis of y.
func Transpose[T Element](c *Context, y, x []T, l Layout) {
	check("Transpose", "x", len(x), numel(l.Shape))
	check("Transpose", "y", len(y), len(x))
	var m mover[T]
	m.y, m.x = y, x
	size, longest := len(y), 0
	for i := range l.Shape {
		n, stride := l.Axis(i)
		size /= max(1, n)
		last := m.axes - 1
		switch {
		case n == 1:
			continue
		case last >= 0 && m.from[last] == n*stride: // it continues the axis before
			m.n[last], m.to[last], m.from[last] = m.n[last]*n, size, stride
		default:
			m.n[m.axes], m.to[m.axes], m.from[m.axes] = n, size, stride
			m.axes++
		}
	}
	if m.axes == 0 {
		m.axes, m.n[0] = 1, 1
	}
	for i := range m.axes {
		if m.n[i] > m.n[longest] {
			longest = i
		}
	}
	lo, hi := c.Share(m.n[longest], square)
	m.n[longest] = hi - lo
	m.move(0, lo*m.to[longest], lo*m.from[longest])
}

// mover moves elements along axes. It has their lengths and their strides in y and x. The stride of
// the last axis in y is 1.
type mover[T Element] struct {
	y, x        []T
	axes        int
	n, to, from [MaxAxes]int
}

// move moves the elements along axis and all later axes, whose first elements are at to and from.
func (m *mover[T]) move(axis, to, from int) {
	last := m.axes - 1
	switch {
	case axis == last && m.from[last] == 1:
		copy(m.y[to:to+m.n[last]], m.x[from:])
		return
	case axis == last:
		for i := range m.n[last] {
			m.y[to+i] = m.x[from+i*m.from[last]]
		}
		return
	case m.from[axis] == 1:
		m.squares(axis, to, from)
		return
	}
	for range m.n[axis] {
		m.move(axis+1, to, from)
		to, from = to+m.to[axis], from+m.from[axis]
	}
}

// squares is move for an axis that is the last of x and not of y: it visits both axes in squares.
func (m *mover[T]) squares(axis, to, from int) {
	if last := m.axes - 1; axis < last-1 { // the axes in between come first
		n, a, b := m.n[axis+1], m.to[axis+1], m.from[axis+1]
		m.n[axis+1], m.to[axis+1], m.from[axis+1] = m.n[axis], m.to[axis], m.from[axis]
		for range n {
			m.move(axis+1, to, from)
			to, from = to+a, from+b
		}
		m.n[axis+1], m.to[axis+1], m.from[axis+1] = n, a, b
		return
	}
	rows, columns, down, right := m.n[axis], m.n[axis+1], m.to[axis], m.from[axis+1]
	for i := 0; i < rows; i += square {
		for j := 0; j < columns; j += square {
			width := min(square, columns-j)
			for r := i; r < min(rows, i+square); r++ {
				y, x := m.y[to+r*down+j:][:width], m.x[from+r+j*right:]
				for k := range y {
					y[k] = x[k*right]
				}
			}
		}
	}
}

// NaiveTranspose is the twin of [Transpose].
func NaiveTranspose(_ *Context, y, x []float64, l Layout) {
	for i := range y {
		rest, from := i, 0
		for axis := len(l.Shape) - 1; axis >= 0; axis-- {
			n, stride := l.Axis(axis)
			from += rest % n * stride
			rest /= n
		}
		y[i] = x[from]
	}
}
