// Command pictures draws the pictures of the README:
//
//	docs/memory.svg    the memory of a rank on 1, 2, 4 and 8 ranks, FullShard and copies of everything (DDP)
//	docs/step.svg      a step of FullShard: computation and communication overlap
//	docs/training.svg  a training, from the record in the metadata of the picture itself. The record was made by
//	                   go run ./examples/gpt -size tiny -steps 600 -log run, which writes run/run.svg.
//
// The first two come from plans.
// "go generate" of this package writes them.
package main

//go:generate go run . ../../../docs

import (
	_ "embed"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/optim"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: pictures DIRECTORY")
	}
	for name, draw := range map[string]func() (string, error){"memory.svg": memory, "step.svg": step} {
		text, err := draw()
		if err == nil {
			err = os.WriteFile(filepath.Join(os.Args[1], name), []byte(text), 0o644)
		}
		if err != nil {
			log.Fatalf("pictures: %s: %v", name, err)
		}
	}
	run := monitor.SVG(filepath.Join(os.Args[1], "training.svg"))
	if err := run.Open(math.MaxInt); err != nil { // read the record
		log.Fatalf("pictures: %v", err)
	}
	if err := run.Close(); err != nil { // draw it again
		log.Fatalf("pictures: %v", err)
	}
}

// dry plans the training of a model in bfloat16 on a number of ranks, with a number of rows of
// 1,024 tokens on each.
func dry(model *nn.GPT, ranks, rows int, s fsdp.Strategy) (*fsdp.Plan, error) {
	blocks := fsdp.WrapTypes(&nn.Block{})
	return fsdp.Planner{Model: model, Config: fsdp.Config{
		Group: comm.World{Ranks: ranks}, WrapPolicy: blocks, Activations: fsdp.Activations{Recompute: blocks}, Strategy: s, Precision: fsdp.BF16(), Prefetch: 1,
	}, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{fsdp.Ints(rows, 1024), fsdp.Ints(rows, 1024)}}.Plan()
}

// A rect is a bar of a picture, in pixels.
type rect struct {
	X, Y, Width, Height float64
	Color, Title        string
}

// A label is text at a point.
type label struct {
	X, Y   float64
	Text   string
	Anchor string // start, middle or end
}

// A picture is bars and labels.
type picture struct {
	Width, Height int
	Title         string
	Rects         []rect
	Labels        []label
}

//go:embed picture.svg.tmpl
var svg string

func (p *picture) text() (string, error) {
	var b strings.Builder
	err := template.Must(template.New("svg").Parse(svg)).Execute(&b, p)
	return b.String(), err
}

// add adds a label.
func (p *picture) add(x, y float64, anchor, format string, args ...any) {
	p.Labels = append(p.Labels, label{x, y, fmt.Sprintf(format, args...), anchor})
}

// classes are the kinds of memory, from below.
var classes = []struct {
	name, color string
	bytes       func(m plan.Memory) int
}{
	{"parameters and gradients", "#3b6ea5", func(m plan.Memory) int { return m.Shard }},
	{"optimizer state", "#8fb3d9", func(m plan.Memory) int { return m.State }},
	{"gathered parameters", "#e3a335", func(m plan.Memory) int { return m.Gathered }},
	{"whole gradients", "#d1603d", func(m plan.Memory) int { return m.Gradient }},
	{"activations", "#4f9d69", func(m plan.Memory) int { return m.Saved + m.Activation + m.Work }},
}

var gpt2 = &nn.GPT{Vocab: 50257, Context: 1024, Layers: 12, Dim: 768, Heads: 12, Tied: true}

// memory draws the memory of a rank at the peak of a step.
func memory() (string, error) {
	const left, bottom, bar, gap, scale = 70.0, 330.0, 46.0, 8.0, 100.0 / 1e9 // pixels a byte
	p := &picture{Width: 860, Height: 400, Title: "Peak memory of a rank: GPT-2 (124 million parameters), AdamW, bfloat16"}
	for i := range 3 {
		y := bottom - float64(i)*1e9*scale
		p.Rects = append(p.Rects, rect{left, y, 560, 0.6, "#cccccc", ""})
		p.add(left-8, y+4, "end", "%d GB", i)
	}
	for i, ranks := range []int{1, 2, 4, 8} {
		at := left + 24 + float64(i)*136
		for j, s := range []fsdp.Strategy{fsdp.NoShard, fsdp.FullShard} {
			pl, err := dry(gpt2, ranks, 1, s)
			if err != nil {
				return "", err
			}
			live, x, y := pl.Pass.Ops[pl.Pass.Peak()].Live, at+float64(j)*(bar+gap), bottom
			for _, c := range classes {
				h := float64(c.bytes(live)) * scale
				y -= h
				r := rect{x, y, bar, h, c.color, fmt.Sprintf("%s: %s", c.name, plan.Bytes(c.bytes(live)))}
				if s == fsdp.NoShard {
					r.Color = "#b8b8b8"
				}
				p.Rects = append(p.Rects, r)
			}
			p.add(x+bar/2, y-6, "middle", "%.2f", float64(live.Total())/1e9)
			p.add(x+bar/2, bottom+18, "middle", "%s", [2]string{"DDP", "here"}[j])
		}
		p.add(at+bar+gap/2, bottom+40, "middle", "%d rank%s", ranks, map[bool]string{true: "s"}[ranks > 1])
	}
	p.legend(650, 110, "#b8b8b8", "a copy on every rank (DDP)")
	for i := range classes {
		c := classes[len(classes)-1-i]
		p.legend(650, 140+24*float64(i), c.color, c.name)
	}
	return p.text()
}

// legend adds a square with its meaning.
func (p *picture) legend(x, y float64, color, text string) {
	p.Rects = append(p.Rects, rect{x, y - 11, 13, 13, color, ""})
	p.add(x+20, y, "start", "%s", text)
}

// activities are the kinds of work of a stream.
var activities = []struct{ name, color string }{
	{"forward", "#4f9d69"}, {"backward", "#3b6ea5"}, {"optimizer", "#7a5ea8"}, {"waits", "#dddddd"}, {"all-gather", "#e3a335"}, {"reduce-scatter", "#d1603d"},
}

// activity returns the activity of an event, or -1 for operations that take no time.
func activity(e plan.Event, ops []plan.Op) int {
	switch {
	case e.Op < 0:
		return 2
	case e.Waiting:
		return 3
	}
	switch ops[e.Op].Kind {
	case plan.Forward:
		return 0
	case plan.Backward:
		return 1
	case plan.Gather:
		return 4
	default:
		return 5
	}
}

// step draws the streams of a step on 8 GPUs.
func step() (string, error) {
	const left, width, row = 130.0, 700.0, 44.0
	model := &nn.GPT{Vocab: 50304, Context: 1024, Layers: 8, Dim: 4096, Heads: 32, Tied: true}
	pl, err := dry(model, 32, 2, fsdp.FullShard)
	if err != nil {
		return "", err
	}
	line := pl.Pass.Time(plan.Clusters()["a100-80"], 1)
	p := &picture{Width: 860, Height: 220, Title: fmt.Sprintf("A step of 8 layers of 4,096 channels on 32 A100 GPUs: %.0f ms, predicted by package plan", line.Total*1000)}
	for i, name := range []string{"computation", "communication"} {
		p.add(left-12, 92+float64(i)*(row+12), "end", "%s", name)
	}
	for _, e := range line.Events {
		a := activities[activity(e, pl.Pass.Ops)]
		y := 64 + float64(e.Stream)*(row+12)
		text := a.name
		if e.Op >= 0 {
			text = pl.Pass.Text(pl.Pass.Ops[e.Op])
		}
		p.Rects = append(p.Rects, rect{left + e.Begin/line.Total*width, y, (e.End - e.Begin) / line.Total * width, row, a.color, text})
	}
	for i, a := range activities {
		p.legend(left+float64(i)*118, 200, a.color, a.name)
	}
	return p.text()
}
