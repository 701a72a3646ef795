package train

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/calibrate"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/process"
)

// A candidate that does not answer within patience hangs. After it is told to end, it has grace.
const (
	patience = 5 * time.Minute
	grace    = 20 * time.Second
)

// candidate is a way to train, in processes that are stopped between turns.
type candidate struct {
	way
	processes []*process.Process
	cancel    context.CancelFunc // ends the processes at once
	times     []time.Duration    // of a step, in each turn
	loss      float64            // of the last step
}

// start starts the processes of a way.
func start(ctx context.Context, s size, w way, t *peer, dir string, export bool) (*candidate, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	meet, err := os.MkdirTemp(dir, "meet")
	if err != nil {
		return nil, err
	}
	c := &candidate{way: w}
	ctx, c.cancel = context.WithCancel(ctx)
	for i := range w.Processes {
		text, err := json.Marshal(job{size: s, way: w, Process: i, Meet: meet, Weights: filepath.Join(dir, weights), Export: export})
		if err != nil {
			return nil, err
		}
		command := exec.CommandContext(ctx, self, RankCommand, string(text))
		command.Env = append(os.Environ(), fmt.Sprint("GOMAXPROCS=", w.Ranks*w.Threads))
		if w.torch {
			command = t.Command(ctx, w.Threads, t.script, string(text))
		}
		p, err := process.Start(command)
		if err != nil {
			c.close()
			return nil, err
		}
		c.processes = append(c.processes, p)
	}
	return c, nil
}

// run runs some steps on all processes at once and returns the time of the slowest process.
func (c *candidate) run(steps int) (time.Duration, error) {
	defer time.AfterFunc(patience, c.cancel).Stop()
	var mu sync.Mutex
	slowest, loss := 0.0, 0.0
	err := calibrate.Each(len(c.processes), func(i int) error {
		var seconds, part float64
		text, err := c.processes[i].Ask(fmt.Sprint(steps))
		if err == nil {
			_, err = fmt.Sscan(text, &seconds, &part)
		}
		if err != nil {
			c.cancel() // the others may wait for it
			return fmt.Errorf("%s: process %d: %w", c.name, i, err)
		}
		mu.Lock()
		defer mu.Unlock()
		slowest, loss = max(slowest, seconds), loss+part/float64(c.Processes)
		return nil
	})
	c.loss = loss
	return time.Duration(slowest / float64(max(1, steps)) * 1e9), err
}

// close ends the processes.
func (c *candidate) close() {
	defer c.cancel()
	defer time.AfterFunc(grace, c.cancel).Stop()
	calibrate.Each(len(c.processes), func(i int) error {
		c.processes[i].Stop()
		return nil
	})
}
