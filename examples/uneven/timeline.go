package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// timeline is what a rank did in each pass, as Config.Trace tells it.
type timeline struct {
	mark   byte   // of the passes to come
	marks  []byte // by pass
	active []byte // by pass: 1 with a batch, 0 without
	last   int    // number of the last pass
}

// see is for Config.Trace.
func (t *timeline) see(e fsdp.Event) {
	if e.Pass == t.last {
		return
	}
	t.last = e.Pass
	t.marks = append(t.marks, t.mark)
	if e.Absent {
		t.active = append(t.active, 0)
	} else {
		t.active = append(t.active, 1)
	}
}

// draw prints the passes of all ranks since the last time, a row for each rank, and who had a batch
// in how many of how many passes. All ranks call it; what is written on one is of all.
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
