package train

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// RankCommand is the subcommand by which Run starts this program again, to train in one of our
// ways.
const RankCommand = "train-rank"

// weights is the file with the initial weights, in the directory of a contest.
const weights = "weights.safetensors"

// job is the argument of a process, ours or PyTorch's: its part of a way to train a size.
type job struct {
	size
	way
	Process int    // number of the process in the way
	Meet    string // where they meet
	Weights string // the file with the initial weights
	Export  bool   // this process must write the file
}

// Serve trains as text describes. For every line of in, a number of steps, it runs these steps and
// writes to out their time in seconds and the loss before the last.
func Serve(ctx context.Context, in io.Reader, out io.Writer, text string) (err error) {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	precision, ok := precisions[j.Precision]
	if !ok {
		return fmt.Errorf("nothing computes in %q", j.Precision)
	}
	groups := comm.Local(j.Ranks)
	if j.Processes > 1 {
		transport, err := comm.ParseTransport(j.Transport)
		if err != nil {
			return err
		}
		g, err := comm.Connect(ctx, comm.Config{
			Rank: j.Process, Size: j.Processes, Rendezvous: "file://" + j.Meet, Job: RankCommand,
			Transport: transport, Timeout: patience, // others may take turns meanwhile
		})
		if err != nil {
			return err
		}
		groups = []comm.Group{g}
	}
	trainers := make([]*trainer, len(groups))
	c, err := newRanks(groups, func(g comm.Group) (func() error, error) {
		cfg := fsdp.Config{Group: g, WrapPolicy: byBlocks, Precision: precision, Threads: j.Threads, Activations: fsdp.Activations{Save: fsdp.WrapEach()}}
		if j.NoShard {
			cfg.Strategy = fsdp.NoShard
		}
		t, err := newTrainer(ctx, j.size, cfg, j.Batch/g.Size())
		if err != nil {
			return nil, err
		}
		trainers[g.Rank()%len(groups)] = t
		return t.step, nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if j.Export {
		if err := trainers[0].model.Export(ctx, j.Weights, nil); err != nil {
			return err
		}
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		steps, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		begin, loss := time.Now(), 0.0
		for range steps {
			if err := c.step(); err != nil {
				return err
			}
		}
		seconds := time.Since(begin).Seconds()
		for _, t := range trainers {
			loss += t.loss / float64(len(trainers))
		}
		fmt.Fprintln(out, seconds, loss)
	}
	return nil
}
