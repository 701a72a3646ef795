package monitor

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// progress is the state of a run after a step.
type progress struct {
	step, steps int           // done and total; 0 if unknown
	estimated   bool          // steps is an estimate: the run ends by time
	done        float64       // share of the run that is over, in [0, 1]
	elapsed     time.Duration // since the beginning
	left        time.Duration // until the end
	curve       string        // name of the loss
	loss        float64       // smoothed
	hasLoss     bool
	rest        []string // other numbers, the most important ones first
}

// barCells is the width of a progress bar with enough room, and minBarCells the width of the
// smallest useful bar.
const (
	barCells    = 24
	minBarCells = 5
)

// line draws p on one line of at most width columns: a bar, and as many of the numbers after it as
// fit, the most important ones first.
func (p progress) line(width int) string {
	line := p.numbers(p.text("", 3), width-len(gap)-minBarCells)
	if cells := min(barCells, width-utf8.RuneCountInString(line)-len(gap)); p.steps > 0 && cells >= minBarCells {
		return bar(p.done, cells) + gap + line
	}
	runes := []rune(line)
	return string(runes[:min(len(runes), max(0, width))])
}

// log formats p as one line of a log, for people and for awk. The line has at most LogColumns
// columns unless the numbers of steps are huge.
func (p progress) log() string { return p.numbers(p.text("step ", 4), LogColumns) }

// gap separates two numbers.
const gap = "  "

// text returns the step, and the loss with the given number of digits.
func (p progress) text(prefix string, digits int) string {
	if p.steps == 0 {
		prefix = "step "
	}
	if !p.hasLoss {
		return prefix + p.count()
	}
	return fmt.Sprintf("%s%s%s%s %.*f", prefix, p.count(), gap, p.curve, digits, p.loss)
}

// numbers adds to line as many of the other numbers as fit, the most important ones first.
func (p progress) numbers(line string, width int) string {
	at := "left " + Duration(p.left)
	if p.steps == 0 {
		at = Duration(p.elapsed)
	}
	for _, r := range append([]string{at}, p.rest...) {
		if utf8.RuneCountInString(line)+len(gap)+utf8.RuneCountInString(r) > width {
			break
		}
		line += gap + r
	}
	return line
}

// count returns the step and the total.
func (p progress) count() string {
	if p.steps == 0 {
		return fmt.Sprint(p.step)
	}
	total := fmt.Sprint(p.steps)
	step := fmt.Sprintf("%*d", len(total), p.step) // so that the line keeps its length
	if p.estimated {
		return step + "/~" + total
	}
	return step + "/" + total
}

// bar draws a bar of the given number of cells, to an eighth of a cell.
func bar(done float64, cells int) string {
	eighths := int(min(max(done, 0), 1)*float64(8*cells) + 0.5)
	b := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		b += string([]rune(" ▏▎▍▌▋▊▉")[part])
	}
	return b + strings.Repeat("░", cells-utf8.RuneCountInString(b))
}

// saved returns the progress of the current save, if there is one.
func (m *Monitor) saved() []string {
	if m.saving == nil {
		return nil
	}
	select {
	case <-m.saving.Done():
		m.saving = nil
		return nil
	default:
		written, size := m.saving.Progress()
		return []string{fmt.Sprintf("saving %s of %s", Bytes(int(written)), Bytes(int(size)))}
	}
}

// speeds returns the smoothed units per second, and the use of compute and memory.
func (m *Monitor) speeds() (texts []string) {
	rate := m.state.Count.value() / m.state.Seconds.value()
	if !finite(rate) {
		rate = 0
	}
	if rate > 0 {
		texts = append(texts, Rate(rate, m.cfg.Unit))
	}
	if m.state.Masked > 0 && rate > 0 {
		texts = append(texts, Rate(m.state.Counted.value()/m.state.Seconds.value(), "targets"))
	}
	flops := rate * m.flops
	if flops > 0 && m.cfg.Peak > 0 {
		texts = append(texts, fmt.Sprintf("MFU %.1f%%", 100*m.utilisation(flops)))
	}
	if m.memory > 0 {
		texts = append(texts, Bytes(m.memory)+"/rank")
	}
	if flops > 0 && m.cfg.Peak == 0 {
		number, prefix := short(flops)
		texts = append(texts, number+" "+prefix+"FLOP/s")
	}
	return texts
}
