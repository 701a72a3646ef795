package models

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
)

// RankCommand is the subcommand by which Run starts this program again, as one of our ways.
const RankCommand = "models-rank"

// Serve is a way of a contest, as text says. For every line of in, a number of passes, it runs so
// many and answers on out with the seconds that they took, the loss and the norm of the gradients.
func Serve(ctx context.Context, in io.Reader, out io.Writer, text string) (err error) {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	i := slices.IndexFunc(contests, func(c contest) bool { return c.name == j.Contest })
	if i < 0 {
		return fmt.Errorf("unknown contest %q", j.Contest)
	}
	c := contests[i]
	m, err := fsdp.WrapContext(ctx, c.ways[j.Way].model, fsdp.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if j.Way == 0 {
		err = m.Export(ctx, j.Weights)
	} else {
		err = m.Import(ctx, j.Weights)
	}
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		begin, loss := time.Now(), 0.0
		for range n {
			m.ZeroGrad()
			if loss, err = m.Forward(ctx, c.batch...); err != nil {
				return err
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
		}
		seconds := time.Since(begin).Seconds()
		norm, err := m.ClipGradNorm(ctx, math.MaxFloat32)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, seconds, loss, norm)
	}
	return nil
}
