package shard

import (
	"fmt"
	"math"
	"slices"
	"sort"
)

// DefaultAlign is the alignment, in elements, that suits every device: 16 float32 are 64 bytes,
// which is one AVX-512 vector and one cache line, so kernels never split a load at the start of a
// parameter and two ranks of one process never write to the same line. It is also a multiple of the
// 16 bytes from which NCCL and GPU kernels use vector loads, down to 2-byte elements (32 bytes).
// The price is at most 15 elements per parameter and per shard.
const DefaultAlign = 16

// Param is one named tensor of a group.
type Param struct {
	// Name is the full name, unique in the model, such as "h.3.mlp.fc.weight".
	Name string
	// Shape is row-major. A scalar has no dimensions; a dimension of zero is legal and makes the
	// parameter empty.
	Shape []int
}

// Len returns the number of elements: the product of the dimensions, 1 for a scalar. It assumes a
// shape that [New] accepts.
func (p Param) Len() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// validLen is Len for an unchecked shape.
func (p Param) validLen() (int, error) {
	for _, d := range p.Shape {
		if d < 0 {
			return 0, fmt.Errorf("shard: parameter %q: negative dimension in shape %v", p.Name, p.Shape)
		}
	}
	if slices.Contains(p.Shape, 0) {
		return 0, nil
	}
	n := 1
	for _, d := range p.Shape {
		if d > math.MaxInt/n {
			return 0, fmt.Errorf("shard: parameter %q: shape %v has more elements than an int can count", p.Name, p.Shape)
		}
		n *= d
	}
	return n, nil
}

// Layout says where the parameters of one group are in a flat buffer that is cut into equal shards,
// one per rank. [New] and [Cut.New] make it, and it never changes; the zero Layout is empty and has
// no ranks. All lengths and positions are in elements.
type Layout struct {
	params   []Param
	offsets  []int // offsets[i] is the flat position of element 0 of params[i]: ascending multiples of align
	ends     []int // ends[i] = offsets[i] + params[i].Len() <= offsets[i+1]
	world    int
	align    int
	shardLen int // multiple of align; world*shardLen >= ends[last]
	excess   int // difference to the shardLen of a Cut anywhere in equal parts
}

// New lays params out in the given order over world ranks. It returns an error if world or align is
// below 1, if a name is empty or occurs twice, if a dimension is negative, or if the total does not
// fit an int. No parameters, or only empty ones, make a layout of length zero. The parameters are
// copied.
func New(params []Param, world, align int) (*Layout, error) {
	if world < 1 {
		return nil, fmt.Errorf("shard: world size %d: must be at least 1", world)
	}
	if align < 1 {
		return nil, fmt.Errorf("shard: alignment %d: must be at least 1 element", align)
	}
	l := &Layout{
		params:  make([]Param, 0, len(params)),
		offsets: make([]int, 0, len(params)),
		ends:    make([]int, 0, len(params)),
		world:   world,
		align:   align,
	}
	names := make(map[string]bool, len(params))
	for _, p := range params {
		if names[p.Name] {
			return nil, fmt.Errorf("shard: two parameters are named %q", p.Name)
		}
		if err := l.place(p); err != nil {
			return nil, err
		}
		names[p.Name] = true
	}
	perRank := l.end() / world
	if l.end()%world != 0 {
		perRank++
	}
	shardLen, fits := roundUp(perRank, align)
	if !fits || shardLen > math.MaxInt/world {
		return nil, fmt.Errorf("shard: %d elements over %d ranks, aligned to %d, are more than an int can count",
			l.end(), world, align)
	}
	l.shardLen = shardLen
	return l, nil
}

// place appends p at the next aligned position.
func (l *Layout) place(p Param) error {
	if p.Name == "" {
		return fmt.Errorf("shard: parameter %d has no name", len(l.params))
	}
	n, err := p.validLen()
	if err != nil {
		return err
	}
	offset, fits := roundUp(l.end(), l.align)
	if !fits || n > math.MaxInt-offset {
		return fmt.Errorf("shard: parameter %q: the group has more elements than an int can count", p.Name)
	}
	l.params = append(l.params, Param{Name: p.Name, Shape: slices.Clone(p.Shape)})
	l.offsets = append(l.offsets, offset)
	l.ends = append(l.ends, offset+n)
	return nil
}

// end returns where the last parameter placed so far ends.
func (l *Layout) end() int {
	if len(l.ends) == 0 {
		return 0
	}
	return l.ends[len(l.ends)-1]
}

// roundUp returns the least multiple of m that is at least n, and whether it fits an int.
func roundUp(n, m int) (int, bool) {
	rest := n % m
	if rest == 0 {
		return n, true
	}
	return n + (m - rest), n <= math.MaxInt-(m-rest)
}

// Params returns the parameters in layout order. The slice is shared and must not be modified.
func (l *Layout) Params() []Param { return l.params }

// World returns the number of ranks.
func (l *Layout) World() int { return l.world }

// Align returns the alignment of parameters and shards in elements.
func (l *Layout) Align() int { return l.align }

// Len returns the length of the flat buffer in elements, padding included: World × ShardLen.
func (l *Layout) Len() int { return l.world * l.shardLen }

// ShardLen returns the length of every rank's shard in elements, padding included.
func (l *Layout) ShardLen() int { return l.shardLen }

// Excess returns how many elements each shard is longer than if the group were cut anywhere, in
// equal parts.
func (l *Layout) Excess() int { return l.excess }

// Offset returns the position of parameter i in the flat buffer: its elements are [Offset(i),
// Offset(i)+Params()[i].Len()). Like a slice index, i must be a valid index of Params.
func (l *Layout) Offset(i int) int { return l.offsets[i] }

// Interval is a piece of a named parameter: elements [Offset, Offset+Len) in row-major order.
type Interval struct {
	Name        string
	Offset, Len int
}

// String formats the interval as name[from:to].
func (iv Interval) String() string {
	return fmt.Sprintf("%s[%d:%d]", iv.Name, iv.Offset, iv.Offset+iv.Len)
}

// Segment places an interval in a rank's shard.
type Segment struct {
	Interval
	At    int // position of the first element in the shard
	Param int // index of the parameter in Layout.Params
}

// Segments returns the segments that a rank owns, in shard order; no segment is empty. A rank may
// own nothing, and a rank outside [0, World) owns nothing.
func (l *Layout) Segments(rank int) []Segment {
	if rank < 0 || rank >= l.world {
		return nil
	}
	lo, hi := rank*l.shardLen, (rank+1)*l.shardLen
	var segs []Segment
	first := sort.Search(len(l.ends), func(i int) bool { return l.ends[i] > lo })
	for i := first; i < len(l.params) && l.offsets[i] < hi; i++ {
		from, to := max(lo, l.offsets[i]), min(hi, l.ends[i])
		if from < to {
			segs = append(segs, Segment{
				Interval: Interval{Name: l.params[i].Name, Offset: from - l.offsets[i], Len: to - from},
				At:       from - lo,
				Param:    i,
			})
		}
	}
	return segs
}

// Span is a range of the flat buffer: elements [Start, End).
type Span struct{ Start, End int }

// Padding returns the ranges of the flat buffer that belong to no parameter, ascending, none empty,
// no two adjacent. A buffer that is reduced or measured as a whole must be zero there.
func (l *Layout) Padding() []Span {
	var spans []Span
	end := 0
	for i, offset := range l.offsets {
		if end < offset {
			spans = append(spans, Span{end, offset})
		}
		end = l.ends[i]
	}
	if end < l.Len() {
		spans = append(spans, Span{end, l.Len()})
	}
	return spans
}
