package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// stateRank is a rank with its part of a model.
type stateRank struct {
	stateJob
	model stateModel
	group comm.Group
	held  *stateHolder
	out   io.Writer
}

// stateHolder is a model on some ranks with its optimizer, both filled with numbers that depend on
// their position.
type stateHolder struct {
	*fsdp.Sharded
	params []optim.Param
	opt    optim.Optimizer
}

// Serve runs the rank that text describes. Rank 0 prints to w.
func Serve(ctx context.Context, w io.Writer, text string) (err error) {
	r := stateRank{out: w}
	if err := json.Unmarshal([]byte(text), &r.stateJob); err != nil {
		return err
	}
	if r.model, err = stateModelOf(r.Model); err != nil {
		return err
	}
	r.group, err = comm.Connect(ctx, comm.Config{
		Rank: r.Rank, Size: r.Size, Rendezvous: "file://" + r.Dir, Job: "bench-state", Transport: r.Transport,
		Timeout: 10 * time.Minute, // a rank may wait while others write to a slow disk
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.group.Close()) }()
	if r.held, err = r.hold(ctx, r.group); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.held.Close()) }()
	if err := r.consolidate(ctx); err != nil {
		return err
	}
	if r.model.ranksOnly {
		return nil
	}
	return r.checkpoint(ctx)
}

// hold has the model on the ranks of g.
func (r *stateRank) hold(ctx context.Context, g comm.Group) (*stateHolder, error) {
	m, err := fsdp.WrapContext(ctx, r.model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&stateBlock{})})
	if err != nil {
		return nil, err
	}
	h := &stateHolder{Sharded: m, params: m.Params()}
	if h.opt, err = (optim.AdamW{}).New(h.params); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return h, h.fill()
}

// Forward implements fsdp.Model.
func (m stateModel) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	x := in[0]
	for i := range m.layers {
		x = t.Call(fmt.Sprintf("blocks.%d", i), &stateBlock{nn.Block{Dim: m.dim, Heads: m.dim / 32}, m.experts}, x)
	}
	return []fsdp.Ref{x}, nil
}

// stateBlock is a Block with experts, whose initial values cost nothing.
type stateBlock struct {
	nn.Block
	experts int
}

// Params implements fsdp.Module.
func (b *stateBlock) Params() []fsdp.Param {
	list := b.Block.Params()
	for _, p := range list {
		if !strings.HasPrefix(p.Name, "fc.") && !strings.HasPrefix(p.Name, "out.") {
			continue
		}
		for e := 1; e < b.experts; e++ {
			more := p
			more.Name = fmt.Sprintf("experts.%d.%s", e, p.Name)
			list = append(list, more)
		}
	}
	for i := range list {
		list[i].Init = fsdp.Constant(0)
	}
	return list
}

// fill sets every element of the values and of the state to a number of its place, and sets the
// optimizer's step to match.
func (h *stateHolder) fill() error {
	for _, p := range h.params {
		fillState(p.Name, p.Offset, p.Value.(optim.Host).F32)
	}
	entries := h.opt.State()
	for i := range entries {
		e := &entries[i]
		fillState(e.Name+":"+e.Param, e.Offset, e.Data.(optim.Host).F32)
		e.Steps = 1
	}
	return h.opt.Adopt(1, entries)
}

// forget overwrites the values and, if asked to, the state with zeros.
func (h *stateHolder) forget(state bool) {
	for _, p := range h.params {
		clear(p.Value.(optim.Host).F32)
	}
	if !state {
		return
	}
	for _, e := range h.opt.State() {
		clear(e.Data.(optim.Host).F32)
	}
}

// check returns an error unless values and state are as set by fill.
func (h *stateHolder) check() error {
	for _, p := range h.params {
		if err := checkState(p.Name, p.Offset, p.Value.(optim.Host).F32); err != nil {
			return err
		}
	}
	for _, e := range h.opt.State() {
		if err := checkState(e.Name+":"+e.Param, e.Offset, e.Data.(optim.Host).F32); err != nil {
			return err
		}
	}
	return nil
}

// memory gives the memory of all values and state, as an iterator.
func (h *stateHolder) memory(yield func([]byte) bool) {
	for _, p := range h.params {
		if !yield(comm.Of(p.Value.(optim.Host).F32).Bytes()) {
			return
		}
	}
	for _, e := range h.opt.State() {
		if !yield(comm.Of(e.Data.(optim.Host).F32).Bytes()) {
			return
		}
	}
}

// stateSalt distinguishes tensors.
func stateSalt(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return h.Sum32()
}

// stateNumber is element i of a tensor, in [0, 1).
func stateNumber(salt uint32, i int) float32 {
	return float32((uint32(i)*2654435761^salt)>>8) / (1 << 24)
}

func fillState(name string, first int, dst []float32) {
	salt := stateSalt(name)
	for i := range dst {
		dst[i] = stateNumber(salt, first+i)
	}
}

func checkState(name string, first int, got []float32) error {
	salt := stateSalt(name)
	for i, v := range got {
		if want := stateNumber(salt, first+i); v != want {
			return fmt.Errorf("element %d of %s is %v, want %v", first+i, name, v, want)
		}
	}
	return nil
}

// stateTrial is an operation that all ranks do at once, and that is timed. Results are in new
// memory every time, as for an operation that is done once: earlier memory has been returned to the
// system.
type stateTrial struct {
	// run calls lap between rows
	rows    []*stateRow
	prepare func(context.Context) error                 // if not nil, runs before and is not timed
	run     func(ctx context.Context, lap func()) error // of the whole rank
	finish  func(first bool) error                      // if not nil, runs after and is not timed
}

// measure runs the trials in turn, in each round. A run before checks the results and warms up.
func (r *stateRank) measure(ctx context.Context, trials []*stateTrial) error {
	for round := -1; round < r.Rounds; round++ {
		for _, t := range trials {
			times, rises, err := r.try(ctx, t, round < 0)
			if err != nil {
				return fmt.Errorf("%s: %w", t.rows[0].name, err)
			}
			if round < 0 {
				continue
			}
			for i, row := range t.rows {
				row.add(times[i], rises)
			}
		}
	}
	return nil
}

// try runs a trial once. It returns the seconds of the slowest rank up to the end of each row, and
// the increase in memory of each rank.
func (r *stateRank) try(ctx context.Context, t *stateTrial, first bool) (seconds, rises []float64, err error) {
	if t.prepare != nil {
		if err := t.prepare(ctx); err != nil {
			return nil, nil, err
		}
	}
	debug.FreeOSMemory()
	if err := r.group.Barrier(ctx); err != nil {
		return nil, nil, err
	}
	memory := watchMemory()
	var mine []float64
	begin := time.Now()
	lap := func() { mine = append(mine, time.Since(begin).Seconds()) }
	if err := t.run(ctx, lap); err != nil {
		return nil, nil, err
	}
	lap()
	mine = append(mine, memory.rise())
	if len(mine) != len(t.rows)+1 {
		return nil, nil, fmt.Errorf("%d times for %d rows", len(mine)-1, len(t.rows))
	}
	all := make([]float64, len(mine)*r.Size)
	if err := r.group.AllGather(comm.Of(all), comm.Of(mine)).Wait(ctx); err != nil {
		return nil, nil, err
	}
	seconds = make([]float64, len(t.rows))
	for ; len(all) > 0; all = all[len(mine):] {
		for i := range seconds {
			seconds[i] = math.Max(seconds[i], all[i])
		}
		rises = append(rises, all[len(seconds)])
	}
	if t.finish != nil {
		err = t.finish(first)
	}
	return seconds, rises, err
}
