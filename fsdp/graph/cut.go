package graph

import (
	"slices"
	"strings"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
)

// cutter cuts the computed values of a graph into calls. The package comment gives the rule.
//
// The stage of a value in a call counts the operations on the way from a parameter of the call to
// the value, except for additions and rearrangements. A call with a value of stage 2 takes no more
// parameters.
type cutter struct {
	values []value
	order  []int // computed values, arguments before results
	cross  []int // bytes of the values that cross a cut before each position of order

	// The growing call.
	starts  []int        // first position of each call in order; the last is the growing call
	params  map[int]bool // parameters that it uses
	lastUse int          // last position at which it uses a parameter
	stage   map[int]int  // stage of its values
	closed  bool         // it takes no more parameters
}

// cut returns the computed values of each call, arguments before results.
func cut(r *reader) [][]int {
	c := &cutter{values: r.values}
	for i := range r.values {
		if r.values[i].origin == computed {
			c.order = append(c.order, i)
		}
	}
	c.measure()
	c.begin(0)
	for at, i := range c.order {
		if i >= r.trains && c.order[at-1] < r.trains { // training leaves out the rest
			c.begin(at)
		}
		c.place(at)
	}
	var calls [][]int
	for i, end := range append(c.starts[1:], len(c.order)) {
		calls = append(calls, c.order[c.starts[i]:end])
	}
	return calls
}

// begin starts a call at a position of order.
func (c *cutter) begin(at int) {
	c.starts = append(c.starts, at)
	c.params, c.stage, c.closed = make(map[int]bool), make(map[int]int), false
}

// place adds the value at a position of order to the growing call or to a new one. The new one may
// begin earlier, with values that use no parameter.
func (c *cutter) place(at int) {
	v := &c.values[c.order[at]]
	fresh := slices.ContainsFunc(v.params, func(p int) bool { return !c.params[p] })
	if fresh && len(c.params) > 0 && (c.closed || c.stageOf(v) > 1) {
		c.begin(c.narrowest(c.lastUse+1, at))
	}
	stage := c.stageOf(v)
	c.stage[c.order[at]] = stage
	c.closed = c.closed || stage > 1
	for _, p := range v.params {
		c.params[p], c.lastUse = true, at
	}
}

// stageOf returns the stage of v in the growing call. Values of other calls have stage 0.
func (c *cutter) stageOf(v *value) int {
	if len(v.reads) == 0 && len(v.params) > 0 { // a number made only of parameters, such as a norm
		return 2
	}
	stage := 0
	for _, i := range v.reads {
		stage = max(stage, c.stage[i])
	}
	if (stage > 0 || len(v.params) > 0) && !movesOrAdds(v.op) {
		stage++
	}
	return stage
}

// movesOrAdds reports whether op only rearranges or adds elements.
func movesOrAdds(op gorgonia.Op) bool {
	switch opType(op) {
	case "reshapeOp", "transposeOp", "repeatOp", "sliceOp", "concatOp", "im2colOp", "sumOp":
		return true
	case "elemBinOp":
		sign, _, _ := strings.Cut(op.String(), " ")
		return sign == "+" || sign == "-"
	}
	return false
}

// narrowest returns the position from first to last with the fewest bytes across a cut before it,
// and the last of several such positions.
func (c *cutter) narrowest(first, last int) int {
	best := last
	for at := last - 1; at >= first; at-- {
		if c.cross[at] < c.cross[best] {
			best = at
		}
	}
	return best
}

// measure computes cross. A value crosses every cut from its computation to its last use.
func (c *cutter) measure() {
	last := make(map[int]int)
	for at, i := range c.order {
		last[i] = at
		for _, from := range c.values[i].reads {
			last[from] = at
		}
	}
	c.cross = make([]int, len(c.order)+1)
	for at, i := range c.order {
		bytes := exec.Numel(c.values[i].shape) * int(c.values[i].dtype.Size())
		c.cross[at+1] += bytes
		c.cross[last[i]+1] -= bytes
	}
	for at := 1; at < len(c.cross); at++ {
		c.cross[at] += c.cross[at-1]
	}
}
