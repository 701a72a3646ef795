package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/gofsdp/gofsdp/fsdp/plan"
)

// The size of a picture.
const (
	width  = 25 * vg.Centimeter
	height = 15 * vg.Centimeter

	margin      = 8 // points
	legendWidth = 6 * vg.Centimeter
	slack       = 1.2 // by so much other fonts may be wider than the one that text is measured in
)

func init() { plot.DefaultFont.Variant = "Sans" }

func rgb(x uint32) color.Color { return color.RGBA{byte(x >> 16), byte(x >> 8), byte(x), 255} }

// classes are the kinds of memory, from below.
var classes = []struct {
	name  string
	color color.Color
	of    func(m plan.Memory) int
}{
	{"parameters and gradients", rgb(0x3b6ea5), func(m plan.Memory) int { return m.Shard }},
	{"optimizer state", rgb(0x8fb3d9), func(m plan.Memory) int { return m.State }},
	{"gathered parameters", rgb(0xe3a335), func(m plan.Memory) int { return m.Gathered }},
	{"whole gradients", rgb(0xd1603d), func(m plan.Memory) int { return m.Gradient }},
	{"kept for backward", rgb(0x4f9d69), func(m plan.Memory) int { return m.Saved }},
	{"between calls", rgb(0x9ccfa8), func(m plan.Memory) int { return m.Activation }},
	{"scratch", rgb(0xb9b4c7), func(m plan.Memory) int { return m.Work }},
}

// activities are what a stream does.
var activities = []struct {
	name  string
	color color.Color
	is    func(e plan.Event, k plan.Kind) bool
}{
	{"optimizer", rgb(0x7a5ea8), func(e plan.Event, _ plan.Kind) bool { return e.Op < 0 }},
	{"waits", rgb(0xe0e0e0), func(e plan.Event, _ plan.Kind) bool { return e.Waiting }},
	{"forward", rgb(0x4f9d69), func(_ plan.Event, k plan.Kind) bool { return k == plan.Forward }},
	{"backward", rgb(0x3b6ea5), func(_ plan.Event, k plan.Kind) bool { return k == plan.Backward }},
	{"gather", rgb(0xe3a335), func(_ plan.Event, k plan.Kind) bool { return k == plan.Gather }},
	{"reduce", rgb(0xd1603d), func(plan.Event, plan.Kind) bool { return true }},
}

// activity returns which activity an event is.
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

// svg draws the memory of the step above its two streams.
func (st *step) svg(to io.Writer) error {
	upper, classes, err := st.memoryPlot()
	if err != nil {
		return err
	}
	lower, activities := st.streamsPlot()
	canvas := vgsvg.New(width, height)
	dc := draw.Crop(draw.New(canvas), vg.Points(margin), -vg.Points(margin), vg.Points(margin), -vg.Points(margin))
	title := vg.Points(24)
	dc.FillText(fitting(upper.Title.TextStyle, st.title(), dc.Max.X-dc.Min.X), vg.Point{X: dc.Center().X, Y: dc.Max.Y - title/2}, st.title())
	dc.Max.Y -= title
	tall := dc.Max.Y - dc.Min.Y
	above, below := draw.Crop(dc, 0, -legendWidth, 0.36*tall, 0), draw.Crop(dc, 0, -legendWidth, 0, -0.64*tall)
	// Both have the same seconds below each other: what stands left of the data takes equal room.
	left, other := upper.DataCanvas(above).Min.X, lower.DataCanvas(below).Min.X
	above, below = draw.Crop(above, max(0, other-left), 0, 0, 0), draw.Crop(below, max(0, left-other), 0, 0, 0)
	upper.Draw(above)
	lower.Draw(below)
	beside := dc.Max.X - dc.Min.X - legendWidth + vg.Points(12)
	classes.Draw(draw.Crop(dc, beside, 0, 0.36*tall, 0))
	activities.Draw(draw.Crop(dc, beside, 0, 0, -0.64*tall))
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return err
	}
	// Letters of Arial are as wide as those of Liberation Sans, which many systems have not.
	_, err = to.Write(bytes.ReplaceAll(text.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")))
	return err
}

// fitting returns style, smaller if s would be wider than width.
func fitting(style draw.TextStyle, s string, width vg.Length) draw.TextStyle {
	if fits := width / (slack * style.Width(s)); fits < 1 {
		style.Font.Size *= fits
	}
	return style
}

// title says what is drawn.
func (st *step) title() string {
	s := st.setting
	text := fmt.Sprintf("%s on %s of %s: %s by %s, micro batch %s, checkpoint %s", st.name, gpus(st.ranks), st.cluster.Name, s.Strategy, s.Wrap, cut(s), s.Checkpoint)
	if s.Passes > 2 {
		text += ", two passes"
	}
	return text
}

// newPlot returns a plot over the time of the step, and a legend to stand beside it.
func (st *step) newPlot() (*plot.Plot, *plot.Legend) {
	p, legend := plot.New(), plot.NewLegend()
	p.X.Min, p.X.Max = 0, st.line.Total
	p.X.Padding = 0
	p.Title.TextStyle.XAlign, p.Title.TextStyle.YAlign = draw.XCenter, draw.YCenter
	legend.Top, legend.Left, legend.Padding, legend.ThumbnailWidth = true, true, vg.Points(3), vg.Points(12)
	legend.TextStyle.Font.Size = vg.Points(10)
	return p, &legend
}

// memoryPlot draws memory by class, stacked.
func (st *step) memoryPlot() (*plot.Plot, *plot.Legend, error) {
	p, legend := st.newPlot()
	p.Y.Label.Text = "memory, GB"
	base := make([]int, len(st.samples))
	for _, class := range classes {
		line := make(plotter.XYs, 0, 4*len(base)+4)
		var lower plotter.XYs
		for i, s := range st.samples {
			end := st.line.Total
			if i+1 < len(st.samples) {
				end = st.samples[i+1].At
			}
			top := base[i] + class.of(s.Live)
			line = append(line, plotter.XY{X: s.At, Y: float64(top) / 1e9}, plotter.XY{X: end, Y: float64(top) / 1e9})
			lower = append(lower, plotter.XY{X: s.At, Y: float64(base[i]) / 1e9}, plotter.XY{X: end, Y: float64(base[i]) / 1e9})
			base[i] = top
		}
		for i := len(lower) - 1; i >= 0; i-- {
			line = append(line, lower[i])
		}
		area, err := plotter.NewPolygon(line)
		if err != nil {
			return nil, nil, err
		}
		area.Color, area.LineStyle.Width = class.color, 0
		p.Add(area)
		legend.Add(class.name, area)
	}
	limit, err := plotter.NewLine(plotter.XYs{{X: 0, Y: float64(st.memory) / 1e9}, {X: st.line.Total, Y: float64(st.memory) / 1e9}})
	if err != nil {
		return nil, nil, err
	}
	limit.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(limit)
	p.Y.Min, p.Y.Max = 0, 1.05*max(p.Y.Max, float64(st.memory)/1e9)
	legend.Add("memory of a GPU", limit)
	return p, legend, nil
}

// streamsPlot draws what the streams do.
func (st *step) streamsPlot() (*plot.Plot, *plot.Legend) {
	p, legend := st.newPlot()
	p.X.Label.Text = "seconds"
	p.NominalY("communication", "compute")
	p.Add(bars{st})
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, st.line.Total, -0.5, 1.5
	for _, a := range activities {
		legend.Add(a.name, &plotter.Polygon{Color: a.color})
	}
	return p, legend
}

// bars are the events of a step, each stream in a row.
type bars struct{ *step }

// Plot implements plot.Plotter.
func (b bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for _, e := range b.line.Events {
		row := 1.0
		if e.Stream == plan.Communicating {
			row = 0
		}
		x0, x1, y0, y1 := x(e.Begin), x(e.End), y(row-0.4), y(row+0.4)
		c.FillPolygon(activities[b.activity(e)].color, []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}})
	}
}
