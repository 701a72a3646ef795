package shard

import (
	"fmt"
	"math"
	"slices"
)

// A Cut says where a group may be cut, and how much each rank gets. The zero Cut cuts anywhere, in
// equal parts, as [New] does.
//
// Collectives move shards of equal length, and a parameter has no gap. So a cut at stated places
// leaves padding between parameters. Shards are as short as possible: shorter, rounded to the
// alignment, than the longest parameter or, if that is more, an equal share plus the longest block.
// With Weights the share is the share of the heaviest rank. If a parameter does not fit in the room
// of neighbouring ranks, shards grow until it does, so weights suit groups of many parameters.
type Cut struct {
	// Block returns how many consecutive elements of a parameter stay on one rank, counted from its
	// first: no cut is within such a block. 0 and 1 allow cuts anywhere; the parameter's length or
	// more keeps it whole on one rank. A nil Block allows cuts anywhere. See [Whole] and [Rows].
	Block func(p Param) int
	// Weights gives the room of each rank, relative to the others: a rank of twice the weight has
	// room for twice as many elements, alignment included, and a rank of weight zero owns nothing.
	// All ranks still have shards of the same length. Nil means equal weights.
	Weights []float64
}

// Whole as [Cut].Block keeps every parameter whole on one rank.
func Whole(p Param) int { return p.Len() }

// Rows returns a [Cut].Block that cuts parameters at multiples of k rows. A row is the elements at
// one index of the first dimension; a row of a vector is one element.
func Rows(k int) func(Param) int {
	return func(p Param) int {
		row := 1
		for _, d := range p.Shape[min(1, len(p.Shape)):] {
			row *= d
		}
		return k * row
	}
}

// New lays params out in the given order over world ranks, like the function New, but cut as c
// says. It also returns an error if a block is negative, if the number of weights is not world, if
// a weight is negative or not finite, or if all weights are zero.
func (c Cut) New(params []Param, world, align int) (*Layout, error) {
	l, err := New(params, world, align)
	if err != nil {
		return nil, err
	}
	if err := c.check(world); err != nil {
		return nil, err
	}
	if l.Len() == 0 || c.Block == nil && c.Weights == nil {
		return l, nil
	}
	f := &fitter{l: l, blocks: make([]int, len(params)), shares: make([]float64, world), offsets: make([]int, len(params))}
	for i, p := range l.params {
		f.blocks[i] = 1
		if c.Block == nil {
			continue
		}
		f.blocks[i] = max(c.Block(p), 1)
		if c.Block(p) < 0 {
			return nil, fmt.Errorf("shard: parameter %q: Block returns %d elements: must not be negative", p.Name, c.Block(p))
		}
	}
	for r := range f.shares {
		f.shares[r] = 1
		if c.Weights != nil {
			f.shares[r] = c.Weights[r] / slices.Max(c.Weights)
		}
	}
	return l, f.cut()
}

// check returns an error if the weights are invalid.
func (c Cut) check(world int) error {
	if c.Weights == nil {
		return nil
	}
	if len(c.Weights) != world {
		return fmt.Errorf("shard: %d weights for %d ranks: give each rank a weight", len(c.Weights), world)
	}
	for r, w := range c.Weights {
		if !(w >= 0) || math.IsInf(w, 0) {
			return fmt.Errorf("shard: the weight of rank %d is %v: must be finite and not negative", r, w)
		}
	}
	if slices.Max(c.Weights) == 0 {
		return fmt.Errorf("shard: the weights of all %d ranks are zero: at least one must be positive", world)
	}
	return nil
}

// fitter finds the shortest shards in which the parameters of a layout can be placed, in order.
type fitter struct {
	l       *Layout
	blocks  []int     // by parameter, at least 1
	shares  []float64 // by rank: the fraction of its shard that it may use, the largest 1
	offsets []int     // by parameter, of the last fit
}

// cut places the parameters of the layout anew.
//
// A parameter that fills the shard of a rank between two others needs a shard of whole blocks. So
// cut tries, for zero and for every length of a parameter that is cut at blocks, shards of at least
// this length that are multiples of the alignment and of the blocks of all longer parameters that
// are not whole. Among these a longer shard always fits if a shorter one does.
func (f *fitter) cut() error {
	l := f.l
	most := math.MaxInt / l.world / l.align * l.align
	enough, fits := roundUp(l.end(), l.align) // one rank has room for all
	if !fits {
		enough = most
	}
	enough = max(min(enough, most), l.align)
	best := 0
	for _, longest := range f.lengths() {
		step := f.step(longest)
		if step == 0 {
			continue
		}
		lo, hi := max(l.shardLen, longest, 1)/step, (enough+step-1)/step // lo may be too short, or just right
		if lo*step < max(l.shardLen, longest) {
			lo++
		}
		for lo < hi {
			if mid := lo + (hi-lo)/2; f.fit(mid * step) {
				hi = mid
			} else {
				lo = mid + 1
			}
		}
		if lo <= most/step && (best == 0 || lo*step < best) && f.fit(lo*step) {
			best = lo * step
		}
	}
	if best == 0 || !f.fit(best) {
		return fmt.Errorf("shard: %d elements over %d ranks, cut at blocks, are more than an int can count", l.end(), l.world)
	}
	for i := range l.params {
		l.ends[i] += f.offsets[i] - l.offsets[i]
		l.offsets[i] = f.offsets[i]
	}
	l.excess, l.shardLen = best-l.shardLen, best
	return nil
}

// lengths returns zero and the different lengths of parameters that are cut at blocks.
func (f *fitter) lengths() []int {
	list := []int{0}
	for i, p := range f.l.params {
		if n := p.Len(); f.blocks[i] > 1 {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// step returns the least multiple of the alignment and the blocks of all longer parameters that are
// not whole, or 0 if that is too large to be useful.
func (f *fitter) step(longest int) int {
	step := f.l.align
	for i, p := range f.l.params {
		if n := p.Len(); n > longest && f.blocks[i] < n {
			step = multiple(step, f.blocks[i])
		}
		if step > max(f.l.end(), f.l.align) {
			return 0
		}
	}
	return step
}

// multiple returns the least common multiple of a and b, or the largest int if that is less.
func multiple(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	if a/x > math.MaxInt/b {
		return math.MaxInt
	}
	return a / x * b
}

// fit places the parameters in shards of n elements, each as early as possible, and reports whether
// they all fit.
func (f *fitter) fit(n int) bool {
	rank, at, free := 0, 0, f.room(0, n)
	for i, p := range f.l.params {
		for length := p.Len(); ; rank, at, free = rank+1, (rank+1)*n, f.room(rank+1, n) {
			if rank == f.l.world {
				if length > 0 {
					return false
				}
				f.offsets[i] = at
				break
			}
			at, _ = roundUp(at, f.l.align)
			room := max(min(free, (rank+1)*n-at), 0)
			if length <= room {
				f.offsets[i] = at
				at, free = at+length, room-length
				break
			}
			head := f.head(i, length, room)
			if last, rest, ok := f.spread(i, rank, length-head, n); head > 0 && ok {
				f.offsets[i] = (rank+1)*n - head
				rank, at, free = last, f.offsets[i]+length, f.room(last, n)-rest
				break
			}
		}
	}
	return true
}

// head returns how many elements of parameter i, from its beginning, a rank with some room can have
// before a cut.
func (f *fitter) head(i, length, room int) int {
	if f.blocks[i] >= length {
		return 0
	}
	unit := multiple(f.blocks[i], f.l.align) // because a cut is also at a multiple of the alignment
	return room / unit * unit
}

// spread returns the last of the ranks after rank that the rest of parameter i fills, and how many
// elements are there.
func (f *fitter) spread(i, rank, rest, n int) (last, left int, ok bool) {
	for rank++; rank < f.l.world; rank++ {
		room := f.room(rank, n)
		if rest <= room {
			return rank, rest, true
		}
		if room < n || n%f.blocks[i] != 0 {
			break
		}
		rest -= n
	}
	return 0, 0, false
}

// room returns how many elements of its shard a rank may have.
func (f *fitter) room(rank, n int) int {
	if rank >= f.l.world {
		return 0
	}
	if f.shares[rank] == 1 {
		return n
	}
	return int(float64(n)*f.shares[rank]) / f.l.align * f.l.align
}
