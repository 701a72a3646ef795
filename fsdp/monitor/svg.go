package monitor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/regular"
)

// SVG returns a writer of a picture of the run: the smoothed loss with the range of its values and
// the validation loss, then units per second and memory. The loss is the value "loss", or the first
// value of a row. The file is written again every ten seconds, and at the end. Its metadata has the
// points, so that a resumed run continues the picture.
func SVG(path string) Writer { return &picture{path: path} }

type picture struct {
	path  string
	drawn time.Time
	run   series
}

// series are the points of a picture.
type series struct {
	Name                           string // of the loss
	Loss, Validation, Rate, Memory []Point
}

// The metadata of the file is one line.
const (
	metadataBegin = "<metadata>"
	metadataEnd   = "</metadata>\n"
)

func (w *picture) Open(step int) error {
	w.run, w.drawn = series{}, time.Now()
	if err := os.MkdirAll(filepath.Dir(w.path), 0o777); err != nil {
		return err
	}
	if step == 0 {
		to, _, err := regular.PutAside(w.path)
		if to != "" {
			slog.Warn("monitor: a picture of an earlier run was moved, because this run begins at step 0", "file", w.path, "to", to)
		}
		return err
	}
	text, err := os.ReadFile(w.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, text, _ = bytes.Cut(text, []byte(metadataBegin))
	text, _, _ = bytes.Cut(text, []byte(metadataEnd))
	if err := json.Unmarshal(text, &w.run); err != nil {
		return fmt.Errorf("%s is not a picture of a monitor: %w", w.path, err)
	}
	for _, points := range w.run.all() {
		*points = slices.DeleteFunc(*points, func(q Point) bool { return q.Step > step })
	}
	return nil
}

func (s *series) all() []*[]Point { return []*[]Point{&s.Loss, &s.Validation, &s.Rate, &s.Memory} }

func (w *picture) Write(r *Row) error {
	if w.run.Name == "" && len(r.Values) > 0 {
		w.run.Name = strings.TrimPrefix(r.Values[0].Name, "validation/")
	}
	for _, v := range r.Values {
		if v.Name == "loss" {
			w.run.Name = v.Name
		}
	}
	for _, v := range r.Values {
		i := slices.Index([]string{w.run.Name, "validation/" + w.run.Name, "run/units_per_second", "run/memory"}, v.Name)
		if i >= 0 && finite(v.Value) {
			points := w.run.all()[i]
			*points = thinned(append(*points, Point{r.Step, v.Value}))
		}
	}
	if r.Time.Sub(w.drawn) < 10*time.Second {
		return nil
	}
	w.drawn = r.Time
	return w.draw()
}

// Close implements Writer.
func (w *picture) Close() error { return w.draw() }

// draw writes the file anew. The old one stays until the new one is complete.
func (w *picture) draw() error {
	text, err := w.run.svg()
	if err != nil {
		return err
	}
	next := w.path + ".new"
	f, err := regular.Open(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return os.Rename(next, w.path)
}

// Sizes of a picture, in pixels.
const (
	svgWidth  = 860
	svgLeft   = 70 // of the plots
	svgRight  = 130
	svgTall   = 260
	svgShort  = 90
	svgMargin = 46 // above a plot
)

// svg draws the points.
func (s *series) svg() (string, error) {
	points, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	top, last := 0., 1
	for _, list := range s.all() {
		for _, q := range *list {
			last = max(last, q.Step)
		}
	}
	for _, p := range []struct {
		title            string
		line, validation []Point
		height           float64
		show             func(float64) string
	}{
		{s.Name, s.Loss, s.Validation, svgTall, label},
		{"units per second", s.Rate, nil, svgShort, func(v float64) string { return strings.TrimSuffix(Rate(v, ""), " /s") }},
		{"memory of a rank", s.Memory, nil, svgShort, func(v float64) string { return Bytes(int(v)) }},
	} {
		v := &panel{top: top + svgMargin, height: p.height, last: last, show: p.show}
		if len(p.line)+len(p.validation) == 0 {
			continue
		}
		v.scale(slices.Concat(p.line, p.validation), p.title == s.Name)
		v.draw(&b, p.title, p.line, p.validation)
		top += svgMargin + p.height
	}
	for _, at := range []float64{0, 0.5, 1} {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%.0f</text>`+"\n", svgLeft+at*(svgWidth-svgLeft-svgRight), top+20, at*float64(last))
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %[1]d %[2]g" font-family="Helvetica,Arial,sans-serif" font-size="13">`+"\n",
		svgWidth, top+36) + metadataBegin + string(points) + metadataEnd + `<rect width="100%" height="100%" fill="#ffffff"/>` + "\n" + b.String() + "</svg>\n", nil
}

// panel is one of the plots.
type panel struct {
	top, height float64
	last        int
	log         bool
	lo, hi      float64
	show        func(float64) string
}

// scale sets the range of the axis. For losses it is the range of the points; for other values it
// starts at 0.
func (v *panel) scale(points []Point, loss bool) {
	v.log = loss && !slices.ContainsFunc(points, func(q Point) bool { return q.Loss <= 0 })
	if loss {
		v.lo, v.hi = math.Inf(1), math.Inf(-1)
	}
	for _, q := range points {
		v.lo, v.hi = min(v.lo, v.value(q)), max(v.hi, v.value(q))
	}
	if v.hi-v.lo < 1e-3 {
		v.lo, v.hi = v.lo-1e-3, v.hi+1e-3
	}
}

func (v *panel) value(q Point) float64 {
	if v.log {
		return math.Log(q.Loss)
	}
	return q.Loss
}

func (v *panel) x(q Point) float64 {
	return svgLeft + float64(q.Step)/float64(v.last)*(svgWidth-svgLeft-svgRight)
}

func (v *panel) y(q Point) float64 {
	return v.top + (v.hi-v.value(q))/(v.hi-v.lo)*v.height
}

func (v *panel) path(points []Point) string {
	var b strings.Builder
	for _, q := range points {
		fmt.Fprintf(&b, " %.1f,%.1f", v.x(q), v.y(q))
	}
	return strings.TrimPrefix(b.String(), " ")
}

// draw draws the axes, the range, the line, and the validation with its best value.
func (v *panel) draw(b *strings.Builder, title string, line, validation []Point) {
	fmt.Fprintf(b, `<text x="%d" y="%.1f" font-weight="bold">%s</text>`+"\n", svgLeft, v.top-12, html.EscapeString(title))
	for _, at := range []float64{0, 0.5, 1} {
		level := v.hi - at*(v.hi-v.lo)
		if v.log {
			level = math.Exp(level)
		}
		y := v.top + at*v.height
		fmt.Fprintf(b, `<path d="M%d %.1fH%d" stroke="#dddddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			svgLeft, y, svgWidth-svgRight, svgLeft-8, y+4, v.show(level))
	}
	low, high := extremes(line, v.last, 100)
	slices.Reverse(low)
	fmt.Fprintf(b, `<polygon points="%s" fill="#3b6ea5" fill-opacity="0.2"/>`+"\n", v.path(slices.Concat(high, low)))
	smoothed := smooth(line)
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="#3b6ea5" stroke-width="1.8"/>`+"\n", v.path(smoothed))
	if len(validation) == 0 {
		v.name(b, smoothed, "#3b6ea5", "", 4)
		return
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="#d1603d" stroke-dasharray="3 3"/>`+"\n", v.path(validation))
	for _, q := range validation {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="#d1603d"/>`, v.x(q), v.y(q))
	}
	b.WriteByte('\n')
	run := State{Train: line, Validation: validation}
	if what, best, ok := run.best(); ok {
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end" fill="#d1603d">validation, %s %s at step %d</text>`+"\n",
			svgWidth-svgRight, v.top-12, what, v.show(best.Loss), best.Step)
	}
	shift := 12. // the upper line has its name above it, the other one below
	if len(smoothed) > 0 && smoothed[len(smoothed)-1].Loss > validation[len(validation)-1].Loss {
		shift = -4
	}
	v.name(b, smoothed, "#3b6ea5", "training ", shift)
	v.name(b, validation, "#d1603d", "validation ", 8-shift)
}

// name writes the last value to the right of a line.
func (v *panel) name(b *strings.Builder, points []Point, color, name string, shift float64) {
	if len(points) > 0 {
		q := points[len(points)-1]
		fmt.Fprintf(b, `<text x="%d" y="%.1f" fill="%s">%s%s</text>`+"\n", svgWidth-svgRight+8, v.y(q)+shift, color, name, v.show(q.Loss))
	}
}

// extremes returns the lowest and the highest point of each of n equal parts of a run.
func extremes(points []Point, last, n int) (low, high []Point) {
	for len(points) > 0 {
		part := points[0].Step * n / last
		count := slices.IndexFunc(points, func(q Point) bool { return q.Step*n/last != part })
		if count < 0 {
			count = len(points)
		}
		lo, hi := points[0], points[0]
		for _, q := range points[:count] {
			lo.Loss, hi.Loss = min(lo.Loss, q.Loss), max(hi.Loss, q.Loss)
		}
		low, high, points = append(low, lo), append(high, hi), points[count:]
	}
	return low, high
}
