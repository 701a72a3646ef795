package generate

import "slices"

// cache has the keys and values of some rows: for each layer an array [rows, capacity, width]. The
// tokens are at the beginning of a row. With a window they are at the end, so that the distance of
// two keys is the distance of their tokens, and the oldest tokens move out at the beginning.
type cache[T float] struct {
	arrays   [][]T // keys and values of layer 0, of layer 1, …
	width    int
	window   int // 0: none
	rows     int
	capacity int
	spare    []T // no larger than an array
	moves    []move
	readers  []int // by row: number of moves that read it
}

// A move copies a row, from, to another one, to.
type move struct{ to, from int }

type float interface{ float32 | float64 }

func newCache[T float](s Size) *cache[T] {
	return &cache[T]{arrays: make([][]T, 2*s.Layers), width: s.Width, window: s.Window}
}

// need returns the capacity for n tokens in a row.
func (c *cache[T]) need(n int) int {
	if c.window > 0 {
		n = min(n, c.window)
	}
	return bucket(max(n, smallest))
}

// held returns the range of a row that holds n tokens, or the last of them if the window has no
// room for all.
func (c *cache[T]) held(n int) (lo, hi int) {
	if c.window > 0 {
		return max(0, c.capacity-n), c.capacity
	}
	return 0, n
}

// arrange copies row from[i], with tokens[i] tokens, to row i, for the given number of rows and
// capacity. The last rows may be unused. Rows that stay in place are not touched unless the number
// of rows or the capacity changes.
func (c *cache[T]) arrange(from, tokens []int, rows, capacity int) {
	if rows == c.rows && capacity == c.capacity {
		c.permute(from, tokens)
		return
	}
	old := *c
	c.rows, c.capacity = rows, capacity
	for i, src := range c.arrays {
		dst := grown(c.spare, rows*capacity*c.width)
		for to, row := range from {
			a, b := old.held(tokens[to])
			x, y := c.held(b - a)
			n := min(b-a, y-x)
			copy(dst[(to*capacity+y-n)*c.width:][:n*c.width], src[(row*old.capacity+b-n)*c.width:][:n*c.width])
		}
		c.arrays[i], c.spare = dst, src
	}
}

// saved is the row of a move that reads or writes spare.
const saved = -1

// permute copies row from[i], with tokens[i] tokens, to row i, in place.
func (c *cache[T]) permute(from, tokens []int) {
	c.plan(from)
	c.spare = grown(c.spare, c.capacity*c.width)
	for _, a := range c.arrays {
		for _, m := range c.moves {
			lo, hi := 0, c.capacity // a saved row may be read for rows of any length
			if m.to != saved {
				lo, hi = c.held(tokens[m.to])
			}
			copy(c.row(a, m.to)[lo*c.width:hi*c.width], c.row(a, m.from)[lo*c.width:])
		}
	}
}

// row returns a row of an array.
func (c *cache[T]) row(array []T, i int) []T {
	if i == saved {
		return c.spare
	}
	return array[i*c.capacity*c.width:][:c.capacity*c.width]
}

// plan orders the moves so that each row is read before it is written. If no move can be first, it
// saves one row at a time, whose reader is written next.
func (c *cache[T]) plan(from []int) {
	c.moves, c.readers = c.moves[:0], grown(c.readers, c.rows)
	clear(c.readers)
	var waiting []move
	for to, f := range from {
		if to != f {
			waiting = append(waiting, move{to, f})
			c.readers[f]++
		}
	}
	for len(waiting) > 0 {
		free := slices.IndexFunc(waiting, func(m move) bool { return c.readers[m.to] == 0 })
		if free < 0 { // each is read by one other row: circles
			free = 0
			c.moves = append(c.moves, move{saved, waiting[0].to})
			for i := range waiting {
				if waiting[i].from == waiting[0].to {
					waiting[i].from = saved
				}
			}
		}
		m := waiting[free]
		c.moves = append(c.moves, m)
		if m.from != saved {
			c.readers[m.from]--
		}
		waiting = slices.Delete(waiting, free, free+1)
	}
}

// add appends n new tokens to the old ones of a row, from row i of news, [rows, length, width] for
// each array.
func (c *cache[T]) add(row, old, n int, news [][]T, length int) {
	for i, a := range c.arrays {
		a = a[row*c.capacity*c.width:][:c.capacity*c.width]
		from := news[i][row*length*c.width:][:n*c.width]
		if c.window == 0 {
			copy(a[old*c.width:], from)
			continue
		}
		from = from[max(0, len(from)-len(a)):]
		copy(a, a[len(from):])
		copy(a[len(a)-len(from):], from)
	}
}

// grown returns s with n elements. It allocates if s has no room for them.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// smallest is the least capacity of a cache: fewer tokens would not be faster.
const smallest = 16

// bucket returns the least power of two that is at least n.
func bucket(n int) int {
	b := 1
	for b < n {
		b *= 2
	}
	return b
}
