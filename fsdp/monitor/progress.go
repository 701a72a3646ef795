package monitor

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Progress is the state of a run after a step.
type Progress struct {
	Step, Steps int           // done, and in all
	Estimated   bool          // Steps is a guess: the run ends by time
	Done        float64       // share of the run that is over, in [0, 1]
	Loss        float64       // smoothed, in nats per token
	Speed       float64       // tokens per second
	Memory      int           // bytes of one rank, the most so far
	LR          float64       // learning rate of the step
	Left        time.Duration // until the end of training

	Saving, Saved int // bytes of the checkpoint that is being written, if one is: in all, and so far
}

// barCells is the width of a progress bar with room around it, and minBarCells of the narrowest one
// worth drawing.
const (
	barCells    = 24
	minBarCells = 5
)

// Line draws p on one line of at most width columns: a bar, and as many of the numbers after it as
// fit, the most important ones first.
func (p Progress) Line(width int) string {
	line := p.numbers(fmt.Sprintf("%s  loss %.3f", p.steps(), p.Loss), width-len(gap)-minBarCells)
	if cells := min(barCells, width-len(line)-len(gap)); cells >= minBarCells {
		return bar(p.Done, cells) + gap + line
	}
	return line[:min(len(line), max(0, width))]
}

// Log writes p as one line of a log, to be read by people and by awk, of LogColumns unless the
// numbers of steps are huge.
func (p Progress) Log() string {
	return p.numbers(fmt.Sprintf("step %s  loss %.4f", p.steps(), p.Loss), LogColumns)
}

// gap is between two numbers.
const gap = "  "

// numbers adds to line as many of the other numbers as fit, the most important ones first.
func (p Progress) numbers(line string, width int) string {
	var rest []string
	if p.Saving > 0 {
		rest = append(rest, fmt.Sprintf("saving %s of %s", Bytes(p.Saved), Bytes(p.Saving)))
	}
	rest = append(rest, "left "+Duration(p.Left), Rate(p.Speed, "tok"), Bytes(p.Memory)+"/rank", fmt.Sprintf("lr %.1e", p.LR))
	for _, r := range rest {
		if len(line)+len(gap)+len(r) > width {
			break
		}
		line += gap + r
	}
	return line
}

func (p Progress) steps() string {
	total := fmt.Sprint(p.Steps)
	step := fmt.Sprintf("%*d", len(total), p.Step) // so that the line keeps its length
	if p.Estimated {
		return step + "/~" + total
	}
	return step + "/" + total
}

// bar draws a bar of a number of cells, an eighth of a cell exactly.
func bar(done float64, cells int) string {
	eighths := int(min(max(done, 0), 1)*float64(8*cells) + 0.5)
	b := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		b += string([]rune(" ▏▎▍▌▋▊▉")[part])
	}
	return b + strings.Repeat("░", cells-utf8.RuneCountInString(b))
}
