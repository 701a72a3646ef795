package monitor

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// curve is a chart of losses over steps. The scale is logarithmic if all losses are positive.
// Otherwise the first steps of a training would flatten all later ones.
type curve struct {
	train      []Point // smoothed to a line, with the range of the points behind it
	validation []Point // marks with a dotted line
	name, unit string  // name and unit of the losses
	width      int     // total number of columns
	height     int     // number of rows of the plot
	color      bool
}

// A braille character is a grid of dotsX × dotsY dots.
const (
	dotsX = 2
	dotsY = 4
)

// margin is the number of columns left of the plot: a label and the axis.
const margin = 8

// dotBits has the bit of each dot in the code point of a braille character, from U+2800 (Unicode,
// chapter 21).
var dotBits = [dotsY][dotsX]rune{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}

const (
	mark  = '●'
	faint = '·' // a cell that only the range reaches
)

// cell is a character and its style.
type cell struct {
	r     rune
	style string
}

// plot is a curve under construction: its cells[y][x], from the top left, and the ranges of its
// axes.
type plot struct {
	cells      [][]cell
	cols, rows int  // cells
	last       int  // step at the right edge; the left edge is step 0
	log        bool // lo and hi are logarithms
	lo, hi     float64
}

// String draws the curve. It returns "" if there is no point or no room.
func (c curve) String() string {
	p := &plot{cols: c.width - margin - 1, rows: c.height, last: 1}
	for _, q := range slices.Concat(c.train, c.validation) {
		p.last = max(p.last, q.Step)
	}
	if p.cols < 1 || p.rows < 1 {
		return ""
	}
	line := average(smooth(c.train), p.x)
	if !p.scale(slices.Concat(line, c.train, c.validation)) {
		return ""
	}
	p.shade(c.train)
	p.line(c.validation, yellow, 3)
	p.line(line, cyan, 1)
	for _, v := range c.validation {
		p.cells[p.y(v)/dotsY][p.x(v)/dotsX] = cell{mark, yellow}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%*s%s: %s  %s validation\n", margin-1, c.name, p.about(c.unit),
		paint(c.color, cyan, "⠒⠒ train"), paint(c.color, yellow, string(mark)))
	for y, row := range p.cells {
		p.row(&b, y, row, c.color)
	}
	p.axis(&b)
	return b.String()
}

// smooth returns points with means of their neighborhoods: a fortieth of all points to each side,
// fewer near the beginning, where losses fall fast.
func smooth(points []Point) []Point {
	sums := make([]float64, len(points)+1)
	for i, q := range points {
		sums[i+1] = sums[i] + q.Loss
	}
	means := make([]Point, len(points))
	for i, q := range points {
		w := min(i, len(points)/40)
		from, to := i-w, min(i+w+1, len(points))
		means[i] = Point{q.Step, (sums[to] - sums[from]) / float64(to-from)}
	}
	return means
}

// average returns one point for each column of dots with points: the first step and the mean loss
// of these points.
func average(points []Point, column func(Point) int) []Point {
	var means []Point
	for len(points) > 0 {
		n, sum := 0, 0.
		for n < len(points) && column(points[n]) == column(points[0]) {
			sum += points[n].Loss
			n++
		}
		means = append(means, Point{points[0].Step, sum / float64(n)})
		points = points[n:]
	}
	return means
}

// thin returns at most n points that draw nearly the same curve: the averages of n equal parts of
// the run. points are in order of their steps.
func thin(points []Point, n int) []Point {
	if len(points) <= n {
		return points
	}
	last := max(points[len(points)-1].Step, 1)
	return average(points, func(q Point) int { return (q.Step - 1) * n / last })
}

// scale sets the range of losses to the range of points and clears the plot. It returns false if
// there is no such range.
func (p *plot) scale(points []Point) bool {
	p.log = !slices.ContainsFunc(points, func(q Point) bool { return q.Loss <= 0 })
	p.lo, p.hi = math.Inf(1), math.Inf(-1)
	for _, q := range points {
		p.lo, p.hi = min(p.lo, p.height(q.Loss)), max(p.hi, p.height(q.Loss))
	}
	if span := p.hi - p.lo; math.IsInf(span, 0) || math.IsNaN(span) {
		return false
	}
	if p.hi-p.lo < 1e-3 { // a flat curve goes through the middle
		p.lo, p.hi = p.lo-1e-3, p.hi+1e-3
	}
	p.cells = make([][]cell, p.rows)
	for y := range p.cells {
		p.cells[y] = slices.Repeat([]cell{{r: ' '}}, p.cols)
	}
	return true
}

// about returns the unit and the scale of the losses.
func (p *plot) about(unit string) (text string) {
	if unit != "" {
		text = " in " + unit
	}
	if p.log {
		text += ", logarithmic"
	}
	return text
}

// height returns the position of a loss between lo and hi, and loss the loss at a position.
func (p *plot) height(loss float64) float64 {
	if p.log {
		return math.Log(loss)
	}
	return loss
}

func (p *plot) loss(height float64) float64 {
	if p.log {
		return math.Exp(height)
	}
	return height
}

// x returns the column of dots of a point, from the left.
func (p *plot) x(q Point) int {
	return int(float64(q.Step) / float64(p.last) * float64(p.cols*dotsX-1))
}

// y returns the row of dots of a point, from the top.
func (p *plot) y(q Point) int {
	return int(math.Round((p.hi - p.height(q.Loss)) / (p.hi - p.lo) * float64(p.rows*dotsY-1)))
}

// shade fills the cells between the lowest and the highest point of each column.
func (p *plot) shade(points []Point) {
	for len(points) > 0 {
		x, n := p.x(points[0])/dotsX, 0
		top, bottom := p.rows, 0
		for ; n < len(points) && p.x(points[n])/dotsX == x; n++ {
			y := p.y(points[n]) / dotsY
			top, bottom = min(top, y), max(bottom, y)
		}
		for y := top; y <= bottom; y++ {
			p.cells[y][x] = cell{faint, dim}
		}
		points = points[n:]
	}
}

// line draws points, which are in order of their steps, and connects them by every so many dots.
func (p *plot) line(points []Point, style string, every int) {
	for i, q := range points {
		from := points[max(0, i-1)]
		p.segment(p.x(from), p.y(from), p.x(q), p.y(q), style, every)
	}
}

// segment sets the dots from (x0, y0) to (x1, y1), x0 <= x1. A line does not share cells with
// another one.
func (p *plot) segment(x0, y0, x1, y1 int, style string, every int) {
	n := max(x1-x0, y1-y0, y0-y1, 1)
	for i := 0; i <= n; i += every {
		x := x0 + (x1-x0)*i/n
		y := y0 + (y1-y0)*i/n
		c := &p.cells[y/dotsY][x/dotsX]
		if c.style != style {
			*c = cell{0x2800, style}
		}
		c.r |= dotBits[y%dotsY][x%dotsX]
	}
}

// row writes a row of cells. Every third row has a label: the loss at the middle of the row.
func (p *plot) row(b *strings.Builder, y int, cells []cell, color bool) {
	if y%3 == 0 || y == p.rows-1 && y%3 == 2 {
		middle := (float64(y) + 0.5) / float64(p.rows)
		fmt.Fprintf(b, "%*s ┤", margin-2, label(p.loss(p.hi-middle*(p.hi-p.lo))))
	} else {
		fmt.Fprintf(b, "%*s│", margin-1, "")
	}
	for len(cells) > 0 && cells[len(cells)-1].r == ' ' {
		cells = cells[:len(cells)-1]
	}
	for len(cells) > 0 {
		var text strings.Builder
		style := cells[0].style
		for ; len(cells) > 0 && cells[0].style == style; cells = cells[1:] {
			text.WriteRune(cells[0].r)
		}
		b.WriteString(paint(color, style, text.String()))
	}
	b.WriteByte('\n')
}

// label writes a loss in at most six columns, unless the loss is -1e100 or less.
func label(v float64) string {
	switch size := math.Abs(v); {
	case size >= 99999.5, size > 0 && size < 0.001:
		return strconv.FormatFloat(v, 'e', 0, 64)
	case size >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case size >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case size > 0 && size < 0.1:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// axis writes the axis of the steps, with the first, the middle and the last step.
func (p *plot) axis(b *strings.Builder) {
	line := []rune(strings.Repeat("─", p.cols))
	labels := []rune(strings.Repeat(" ", p.cols+margin))
	for _, at := range []float64{0, 0.5, 1} {
		x := int(at * float64(p.cols-1))
		line[x] = '┬'
		text := []rune(fmt.Sprint(int(math.Round(at * float64(p.last)))))
		if at == 0 {
			text = []rune("0 steps")
		}
		from := max(0, margin+x-len(text)/2)
		if at == 1 {
			from = margin + p.cols - len(text)
		} else if at == 0 {
			from = margin
		}
		if strings.TrimSpace(string(labels[max(0, from-1):])) == "" {
			copy(labels[from:], text)
		}
	}
	fmt.Fprintf(b, "%*s└%s\n%s\n", margin-1, "", string(line), strings.TrimRight(string(labels), " "))
}
