package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// timeline is the activity of a rank in each pass, as Config.Trace reports it.
type timeline struct {
	marks  []byte // by pass: e for the encoder, d for the decoder, v for both, t for training
	active []byte // by pass: 1 with a batch, 0 without
	last   int    // number of the last pass
}

// see is for Config.Trace.
func (t *timeline) see(e fsdp.Event) {
	if e.Pass > t.last {
		t.last = e.Pass
		t.marks, t.active = append(t.marks, ' '), append(t.active, 1)
		if e.Absent {
			t.active[len(t.active)-1] = 0
		}
	}
	mark := &t.marks[len(t.marks)-1]
	switch {
	case e.Kind == "turn":
		*mark = 't'
	case e.Kind != "forward":
	case strings.HasPrefix(e.Call, "encoder."):
		*mark = 'e'
	case *mark == 'e':
		*mark = 'v'
	case *mark == ' ':
		*mark = 'd'
	}
}

// draw prints the passes of all ranks since the last call, a row for each rank, and how many passes
// had a batch on each rank. All ranks call it. The text written on one rank shows all ranks.
func (t *timeline) draw(ctx context.Context, g comm.Group, w io.Writer) error {
	const width = 58
	ranks, err := comm.GatherBytes(ctx, g, t.active)
	if err != nil {
		return err
	}
	for from := 0; from < len(t.marks); from += width {
		to := min(from+width, len(t.marks))
		fmt.Fprintf(w, "  passes          %s\n", t.marks[from:to])
		for r, active := range ranks {
			count := fmt.Sprintf("%3d/%d", strings.Count(string(active), "\x01"), len(active))
			fmt.Fprintf(w, "  rank %d %-7s  %s\n", r, count, strings.NewReplacer("\x00", "░", "\x01", "█").Replace(string(active[from:to])))
		}
	}
	t.forget()
	return nil
}

// forget starts anew.
func (t *timeline) forget() { t.marks, t.active = nil, nil }
