package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/template"
	"unicode/utf8"

	"github.com/gofsdp/gofsdp/fsdp/plan"
)

// The layout of a picture, in pixels. Memory is above the two streams, over the same seconds;
// legends are to the right of both.
const (
	width, height = 920, 540
	left, right   = 100, 700 // of the data
	memoryTop     = 60
	memoryBottom  = 320
	streamsTop    = 350
	rowHeight     = 70
	streamsBottom = streamsTop + 2*rowHeight
	legendLeft    = right + 24

	titleSize, textSize = 16, 11
	letter              = 0.6 // width of a letter relative to its height: more than the width of most letters of most fonts
)

// classes are the kinds of memory, from the bottom.
var classes = []struct {
	name, color string
	of          func(m plan.Memory) int
}{
	{"parameters and gradients", "#3b6ea5", func(m plan.Memory) int { return m.Shard }},
	{"optimizer state", "#8fb3d9", func(m plan.Memory) int { return m.State }},
	{"gathered parameters", "#e3a335", func(m plan.Memory) int { return m.Gathered }},
	{"whole gradients", "#d1603d", func(m plan.Memory) int { return m.Gradient }},
	{"kept for backward", "#4f9d69", func(m plan.Memory) int { return m.Saved }},
	{"between calls", "#9ccfa8", func(m plan.Memory) int { return m.Activation }},
	{"scratch", "#b9b4c7", func(m plan.Memory) int { return m.Work }},
}

// activities are the activities of a stream.
var activities = []struct {
	name, color string
	is          func(e plan.Event, k plan.Kind) bool
}{
	{"optimizer", "#7a5ea8", func(e plan.Event, _ plan.Kind) bool { return e.Op < 0 }},
	{"waits", "#e0e0e0", func(e plan.Event, _ plan.Kind) bool { return e.Waiting }},
	{"forward", "#4f9d69", func(_ plan.Event, k plan.Kind) bool { return k == plan.Forward }},
	{"backward", "#3b6ea5", func(_ plan.Event, k plan.Kind) bool { return k == plan.Backward }},
	{"gather", "#e3a335", func(_ plan.Event, k plan.Kind) bool { return k == plan.Gather }},
	{"reduce", "#d1603d", func(plan.Event, plan.Kind) bool { return true }},
}

// activity returns the index of an event's activity.
func (st *step) activity(e plan.Event) int {
	var k plan.Kind
	if e.Op >= 0 {
		k = st.pass.Ops[e.Op].Kind
	}
	for i, a := range activities {
		if a.is(e, k) {
			return i
		}
	}
	panic("the last activity is any")
}

// A picture is shapes and labels, drawn in this order.
type picture struct {
	Width, Height int
	Shapes        []shape
	Labels        []label
}

// A shape is a polygon, or a line if it has no Fill.
type shape struct{ Points, Fill, Stroke, Dashes string }

// A label is a text at a point, which is its start, middle or end.
type label struct {
	X, Y, Size   float64
	Anchor, Text string
}

var pictureText = template.Must(template.New("svg").Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}" viewBox="0 0 {{.Width}} {{.Height}}" font-family="Liberation Sans,Arial,Helvetica,sans-serif">
<rect width="100%" height="100%" fill="white"/>
{{range .Shapes}}<poly{{if .Fill}}gon{{else}}line{{end}} points="{{.Points}}" fill="{{or .Fill "none"}}"{{with .Stroke}} stroke="{{.}}"{{end}}{{with .Dashes}} stroke-dasharray="{{.}}"{{end}}/>
{{end}}{{range .Labels}}<text x="{{.X}}" y="{{.Y}}" font-size="{{.Size}}" text-anchor="{{.Anchor}}">{{html .Text}}</text>
{{end}}</svg>
`))

// svg draws the memory of the step above its two streams.
func (st *step) svg(to io.Writer) error { return pictureText.Execute(to, st.picture()) }

func (st *step) picture() *picture {
	p := &picture{Width: width, Height: height}
	title := st.title()
	p.label(width/2, 28, min(titleSize, width/(letter*float64(utf8.RuneCountInString(title)))), "middle", title)
	st.drawMemory(p)
	st.drawStreams(p)
	return p
}

func (p *picture) label(x, y, size float64, anchor, text string) {
	p.Labels = append(p.Labels, label{rounded(x), rounded(y), rounded(size), anchor, text})
}

// rounded returns x with a digit after the point.
func rounded(x float64) float64 { return math.Round(10*x) / 10 }

// title describes the picture.
func (st *step) title() string {
	s := st.setting
	text := fmt.Sprintf("%s on %s of %s: %s by %s, micro batch %s, recompute %s", st.name, gpus(st.ranks), st.cluster.Name, s.Strategy, s.Units, cut(s), s.Recompute)
	if s.Passes > 2 {
		text += ", two passes"
	}
	return text
}

// x returns the position of a second.
func (st *step) x(second float64) float64 { return left + second/st.line.Total*(right-left) }

// points lists points for a shape.
type points struct{ strings.Builder }

func (p *points) add(x, y float64) { fmt.Fprintf(p, "%.1f,%.1f ", x, y) }

func (p *points) String() string { return strings.TrimSpace(p.Builder.String()) }

// box returns the corners of a rectangle.
func box(x0, y0, x1, y1 float64) string {
	var p points
	p.add(x0, y0)
	p.add(x1, y0)
	p.add(x1, y1)
	p.add(x0, y1)
	return p.String()
}

// legend adds the i-th line of a legend.
func (p *picture) legend(top float64, i int, color, name string) {
	y := top + 18*float64(i)
	p.Shapes = append(p.Shapes, shape{Points: box(legendLeft, y, legendLeft+12, y+12), Fill: color})
	p.label(legendLeft+18, y+10, textSize, "start", name)
}

// drawMemory draws memory by class, stacked, and the memory of a GPU as a line.
func (st *step) drawMemory(p *picture) {
	most := float64(st.memory)
	for _, s := range st.samples {
		most = max(most, float64(s.Live.Total()))
	}
	most *= 1.05
	y := func(bytes float64) float64 { return memoryBottom - bytes/most*(memoryBottom-memoryTop) }
	base := make([]int, len(st.samples))
	for n, class := range classes {
		var area points
		for i, s := range st.samples {
			at := y(float64(base[i] + class.of(s.Live)))
			area.add(st.x(s.At), at)
			area.add(st.x(st.sampleEnd(i)), at)
		}
		for i := len(st.samples) - 1; i >= 0; i-- {
			at := y(float64(base[i]))
			area.add(st.x(st.sampleEnd(i)), at)
			area.add(st.x(st.samples[i].At), at)
			base[i] += class.of(st.samples[i].Live)
		}
		p.Shapes = append(p.Shapes, shape{Points: area.String(), Fill: class.color})
		p.legend(memoryTop, n, class.color, class.name)
	}
	var limit, mark points
	at := memoryTop + 18*float64(len(classes)) + 6
	mark.add(legendLeft, at)
	mark.add(legendLeft+12, at)
	limit.add(left, y(float64(st.memory)))
	limit.add(right, y(float64(st.memory)))
	p.Shapes = append(p.Shapes, shape{limit.String(), "", "black", "4 3"}, shape{mark.String(), "", "black", "4 3"})
	p.label(legendLeft+18, at+4, textSize, "start", "memory of a GPU")
	p.label(left, memoryTop-8, textSize, "middle", "memory, GB")
	for _, t := range ticks(most / 1e9) {
		p.label(left-8, y(1e9*t)+4, textSize, "end", strconv.FormatFloat(t, 'g', 4, 64))
	}
	p.frame(memoryTop, memoryBottom)
}

// sampleEnd returns the second at which the next sample begins, or the step ends.
func (st *step) sampleEnd(i int) float64 {
	if i+1 < len(st.samples) {
		return st.samples[i+1].At
	}
	return st.line.Total
}

// drawStreams draws the events of the streams, each stream in a row.
func (st *step) drawStreams(p *picture) {
	for _, e := range st.line.Events {
		y := float64(streamsTop)
		if e.Stream == plan.Communicating {
			y += rowHeight
		}
		p.Shapes = append(p.Shapes, shape{Points: box(st.x(e.Begin), y+7, st.x(e.End), y+rowHeight-7), Fill: activities[st.activity(e)].color})
	}
	for i, a := range activities {
		p.legend(streamsTop, i, a.color, a.name)
	}
	for i, name := range []string{"compute", "communication"} {
		p.label(left-8, streamsTop+(float64(i)+0.5)*rowHeight+4, textSize, "end", name)
	}
	for _, t := range ticks(st.line.Total) {
		p.label(st.x(t), streamsBottom+16, textSize, "middle", strconv.FormatFloat(t, 'g', 4, 64))
	}
	p.label((left+right)/2, streamsBottom+34, textSize, "middle", "seconds")
	p.frame(streamsTop, streamsBottom)
}

// frame draws the axes.
func (p *picture) frame(top, bottom float64) {
	var axes points
	axes.add(left, top)
	axes.add(left, bottom)
	axes.add(right, bottom)
	p.Shapes = append(p.Shapes, shape{Points: axes.String(), Stroke: "black"})
}

// ticks returns 5 to 11 round numbers from 0 to most.
func ticks(most float64) (list []float64) {
	step := math.Pow(10, math.Floor(math.Log10(most)))
	switch {
	case most < 2*step:
		step /= 5
	case most < 5*step:
		step /= 2
	}
	for i := 0.0; i*step <= most; i++ {
		list = append(list, i*step)
	}
	return list
}
