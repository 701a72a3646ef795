package train

import (
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// formats are types of sent parameters and gradients, each with the entry that it is compared with.
var formats = []struct {
	name string
	fsdp.Precision
	beside int
}{
	{"float32", fsdp.Precision{}, 1},
	{"bfloat16", fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16}, 1},
	{"bfloat16, gradients float32", fsdp.Precision{Gather: fsdp.BFloat16}, 1},
	{"int8, gradients float32", fsdp.Precision{Gather: fsdp.Int8}, 1},
	{"int8", fsdp.Precision{Gather: fsdp.Int8, Reduce: fsdp.Int8}, 1},
	{"bfloat16 computed, bfloat16", fsdp.Precision{Compute: fsdp.BFloat16, Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16}, 5},
	{"bfloat16 computed, int8", fsdp.Precision{Compute: fsdp.BFloat16, Gather: fsdp.Int8, Reduce: fsdp.Int8}, 5},
}

// journey is a training over a slow link.
type journey struct {
	size
	prefetch  int
	bandwidth float64
	text      []byte  // to be learned, byte by byte
	loss      float64 // training ends at this mean loss of the last smooth steps
	most      int     // steps
}

// smooth is the number of steps over which losses are averaged, and turn the number of steps that a
// format makes before the next format takes its turn.
const smooth, turn = 20, 3

// traveler is a format during the training.
type traveler struct {
	*lane
	losses []float64
	there  bool
}

// travel trains on two ranks with each format whose name matches, in turns and with the same data,
// until the loss is reached. It prints the time of a step and the total time.
func travel(w io.Writer, j journey, match *regexp.Regexp) error {
	if len(j.text) <= j.Context {
		return fmt.Errorf("a text of %d bytes: want more than the %d of a sequence", len(j.text), j.Context)
	}
	list := make([]*traveler, len(formats))
	for i, f := range formats {
		if !match.MatchString(f.name) {
			continue
		}
		l, err := newLane(j.size, f.Precision, j.prefetch, j.bandwidth, latency)
		if err != nil {
			return err
		}
		defer l.close()
		l.feed = j.feed
		list[i] = &traveler{lane: l}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for left := true; left; {
		left = false
		for i, t := range list {
			if t == nil || t.there {
				continue
			}
			if err := t.advance(j.loss); err != nil {
				return err
			}
			left = left || !t.there
			if !t.there && len(t.losses) > j.most {
				return fmt.Errorf("%s: a loss of %.3f after %d steps, not %.3f", formats[i].name, t.smoothed(), len(t.losses), j.loss)
			}
		}
	}
	j.report(w, list)
	return nil
}

// advance trains for a turn, or to a loss.
func (t *traveler) advance(loss float64) error {
	for i := 0; i < turn && !t.there; i++ {
		begin := time.Now()
		if err := t.step(); err != nil {
			return err
		}
		t.times, t.losses = append(t.times, time.Since(begin)), append(t.losses, t.loss())
		t.there = t.smoothed() <= loss
	}
	return nil
}

// smoothed returns the mean of the last losses.
func (t *traveler) smoothed() (sum float64) {
	last := t.losses[max(0, len(t.losses)-smooth):]
	for _, x := range last {
		sum += x / float64(len(last))
	}
	return sum
}

// took returns the time of all steps.
func (t *traveler) took() (sum time.Duration) {
	for _, d := range t.times {
		sum += d
	}
	return sum
}

func (j journey) report(w io.Writer, list []*traveler) {
	fmt.Fprintf(w, "%s, %d x %d tokens, prefetch %d, on 2 ranks over a link of %.0f MB/s and %v a collective, to a loss of %.2f\n",
		j.name, j.Batch, j.Context, j.prefetch, j.bandwidth/1e6, latency, j.loss)
	fmt.Fprintf(w, "  %-28s %10s %9s %13s %6s %8s %9s %8s\n", "what travels", "ms a step", "MB sent", "link busy ms", "steps", "seconds", "per step", "in all")
	for i, t := range list {
		if t == nil {
			continue
		}
		busy := time.Duration(float64(t.plan.Traffic)/j.bandwidth*1e9) + time.Duration(t.plan.Gathers+t.plan.Reduces)*latency
		fmt.Fprintf(w, "  %-28s %10.1f %9.2f %13.1f %6d %8.2f", formats[i].name, stats.Ms(stats.Median(t.times)), stats.MB(t.plan.Traffic), stats.Ms(busy),
			len(t.times), t.took().Seconds())
		if b := list[formats[i].beside]; b != nil {
			fmt.Fprintf(w, " %8.2fx %7.2fx", float64(stats.Median(b.times))/float64(stats.Median(t.times)), b.took().Seconds()/t.took().Seconds())
		}
		fmt.Fprintln(w)
	}
}

// feed sets the batch of a rank to sequences of the text, the same ones for every format.
func (j journey) feed(t *trainer, rank, step int) {
	tokens, targets := t.batch[0].Data().([]int), t.batch[1].Data().([]int)
	r := rand.New(rand.NewPCG(uint64(step), uint64(rank)))
	for i := 0; i < len(tokens); i += j.Context {
		at := r.IntN(len(j.text) - j.Context)
		for k := range j.Context {
			tokens[i+k], targets[i+k] = int(j.text[at+k]), int(j.text[at+k+1])
		}
	}
}

// goSource returns the Go files of a directory, up to a number of bytes.
func goSource(dir string, most int) (text []byte, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case len(text) >= most:
			return filepath.SkipAll
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		b, err := os.ReadFile(path)
		text = append(text, b...)
		return err
	})
	return text[:min(len(text), most)], err
}
