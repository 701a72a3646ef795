package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// workerVariable is set in the environment of the processes of a training.
const workerVariable = "GOFSDP_KILLS_WORKER"

// work is the program of a process. It ends without an error when the training is over.
func work(in io.Reader, out io.Writer) error {
	orders := json.NewDecoder(in)
	r := rank{say: func(e event) {
		if err := json.NewEncoder(out).Encode(e); err != nil {
			os.Exit(3) // the parent has ended
		}
	}}
	if err := orders.Decode(&r.order); err != nil {
		return err
	}
	go func() {
		if err := orders.Decode(new(struct{})); err != nil {
			os.Exit(0) // the parent has ended
		}
		r.over.Store(true)
	}()
	return r.run(context.Background())
}

// A rank is the process of a rank.
type rank struct {
	order
	say  func(event)
	over atomic.Bool // the parent has all that it wants

	last  fsdp.MemoryCheckpoint
	world comm.Group
	list  []int      // the processes of world
	group comm.Group // the ranks of world that train; nil if this rank waits
	model *fsdp.Sharded
	opt   optim.Optimizer
}

// at reports that a part of the training begins.
func (r *rank) at(part string) {
	e := event{What: part, Ranks: r.list}
	if r.opt != nil {
		e.Step = r.opt.Steps()
	}
	r.say(e)
}

// run is the loop of a program that goes on when ranks are lost.
func (r *rank) run(ctx context.Context) (err error) {
	cfg := comm.Config{
		Rank: r.Rank, Size: r.Size, LocalRank: -1, Rendezvous: "file://" + r.Dir, Job: "kills", Secret: []byte("known to this program only"),
		Timeout: patience, JoinTimeout: patience, Transport: comm.TCP, Join: r.Join,
	}
	if r.Shared {
		cfg.Transport = comm.SharedMemory
	}
	if r.Apart { // the first group meets in a directory nevertheless
		cfg.Members, cfg.Listen = filepath.Join(r.Dir, fmt.Sprint("host", r.Rank)), "127.0.0.1"
	}
	if r.Fresh {
		cfg.ReplaceTimeout = patience
	}
	r.at(partConnect)
	r.world, err = comm.Connect(ctx, cfg)
	for err == nil {
		err = r.train(ctx)
		if lost := new(comm.RankError); !errors.As(err, &lost) || r.Files {
			return errors.Join(err, r.world.Close())
		}
		r.at(partReconnect)
		former := r.world
		if r.world, err = comm.Reconnect(ctx, former); err == nil {
			_ = former.Close() // it has failed
		}
	}
	return err
}

// train trains from the last step to the end.
func (r *rank) train(ctx context.Context) (err error) {
	r.model, r.opt, r.list = nil, nil, nil
	defer func() {
		if r.model != nil {
			err = errors.Join(err, r.model.Close())
		}
	}()
	if err := r.begin(ctx); err != nil {
		return err
	}
	for r.group != nil && r.opt.Steps() < steps {
		if err := r.step(ctx); err != nil {
			return err
		}
		if r.group != r.world {
			if _, err := r.more(ctx, true); err != nil {
				return err
			}
		}
	}
	if r.group != nil {
		if err := r.end(ctx); err != nil {
			return err
		}
	}
	for more := true; more && err == nil; {
		more, err = r.more(ctx, r.group != nil && !r.over.Load())
	}
	return err
}

// more is a collective of the world after each step, so that ranks that wait notice a loss. It
// reports whether a rank has more to do.
func (r *rank) more(ctx context.Context, more bool) (bool, error) {
	n := []int32{0}
	if more {
		n[0] = 1
	}
	err := r.world.AllReduce(comm.Of(n), comm.Max).Wait(ctx)
	return n[0] != 0, err
}

// begin makes the training, and loads the last step. If the number of ranks does not divide the
// virtual ranks, the next lower number that does trains, and the other ranks wait. If Uneven is
// set, only ranks wait for which there is no virtual rank.
func (r *rank) begin(ctx context.Context) (err error) {
	r.at(partWrap)
	n, virtual := r.world.Size(), r.Virtual
	for r.Virtual > 0 && (n > r.Virtual || !r.Uneven && r.Virtual%n != 0) {
		n, virtual = n-1, 0
	}
	r.group = r.world
	if err := r.wrap(virtual); err != nil {
		return err
	}
	list, self := make([]int64, r.world.Size()), []int64{int64(os.Getpid())}
	if err := r.world.AllGather(comm.Of(list), comm.Of(self)).Wait(ctx); err != nil {
		return err
	}
	r.at(partLoad)
	if r.Files {
		_, err = r.model.Load(ctx, r.files(), r.opt, nil)
	} else {
		_, err = r.last.Load(ctx, r.model, r.opt)
	}
	if err != nil && !errors.Is(err, fsdp.ErrNoCheckpoint) { // before the first step
		return err
	}
	made := r.opt.Steps()
	if n < r.world.Size() {
		if err := r.divide(ctx, n); err != nil {
			return err
		}
	}
	for _, process := range list {
		r.list = append(r.list, int(process))
	}
	r.say(event{What: partReady, Ranks: r.list, Trainers: n, Step: made})
	return nil
}

// divide lets the first n ranks train, and the others wait.
func (r *rank) divide(ctx context.Context, n int) (err error) {
	color := 0
	if r.world.Rank() >= n {
		color = -1
	}
	all, opt := r.model, r.opt
	defer func() { err = errors.Join(err, all.Close()) }()
	r.model, r.opt = nil, nil
	if r.group, err = r.world.Split(ctx, color, r.world.Rank()); err != nil {
		return err
	}
	if r.group != nil {
		if err := r.wrap(r.Virtual); err != nil {
			return err
		}
	}
	if err := fsdp.CopyState(ctx, all, r.model, opt, r.opt); err != nil || r.group == nil || opt.Steps() == 0 {
		return err
	}
	return r.last.Save(ctx, r.model, r.opt, nil)
}

// wrap makes the model and its optimizer.
func (r *rank) wrap(virtual int) (err error) {
	model := &nn.GPT{Vocab: 61, Context: 16, Layers: 2, Dim: 32, Heads: 4, Dropout: 0.1}
	if r.model, err = fsdp.Wrap(model, fsdp.Config{Group: r.group, VirtualRanks: virtual, Seed: 3, WrapPolicy: fsdp.WrapEach()}); err == nil {
		r.opt, err = optim.AdamW{WeightDecay: 0.1}.New(r.model.Params())
	}
	return err
}

// files is the directory of checkpoints in files.
func (r *rank) files() string { return filepath.Join(filepath.Dir(r.Dir), "checkpoints") }

// step makes a step.
func (r *rank) step(ctx context.Context) error {
	if err := r.passes(ctx); err != nil {
		return err
	}
	r.at(partSums)
	if _, err := r.model.ClipGradNorm(ctx, 0.5); err != nil {
		return err
	}
	r.at(partUpdate)
	if err := r.opt.Step(1e-3); err != nil {
		return err
	}
	r.model.ZeroGrad()
	r.say(event{What: partSave, Ranks: r.list, Step: r.opt.Steps() - 1})
	if r.Files {
		return r.model.Save(ctx, r.files(), r.opt, &fsdp.SaveOptions{KeepLast: 2})
	}
	return r.last.Save(ctx, r.model, r.opt, nil)
}

// passes makes the passes of a step.
func (r *rank) passes(ctx context.Context) error {
	step, n, rank := r.opt.Steps(), r.group.Size(), r.group.Rank()
	switch r.Passes {
	case passesHeld: // two passes, the first Backward last
		r.at(partForward)
		if _, err := r.model.Forward(ctx, batch(step*2*n+rank)...); err != nil {
			return err
		}
		first := r.model.Hold()
		if err := r.pass(ctx, batch((step*2+1)*n+rank)); err != nil {
			return err
		}
		return first.Backward(ctx)
	case passesJoined: // ranks have one to three batches
		data := func(yield func([]fsdp.Tensor, error) bool) {
			for k := range 1 + (step+rank)%3 {
				if !yield(batch((step*3+k)*n+rank), nil) {
					return
				}
			}
		}
		for b, err := range r.model.Join(ctx, data) {
			if err != nil {
				return err
			}
			if err := r.pass(ctx, b); err != nil {
				return err
			}
		}
		return nil
	}
	for first := 0; first < r.Virtual; first += n {
		var mine []fsdp.Tensor
		if v := first + rank; v < r.Virtual {
			mine = batch(step*r.Virtual + v)
		}
		if err := r.pass(ctx, mine); err != nil {
			return err
		}
	}
	return nil
}

// pass makes a Forward and its Backward.
func (r *rank) pass(ctx context.Context, batch []fsdp.Tensor) error {
	r.at(partForward)
	if _, err := r.model.Forward(ctx, batch...); err != nil {
		return err
	}
	r.at(partBackward)
	return r.model.Backward(ctx)
}

// batch returns the tokens and targets of a seed.
func batch(seed int) []fsdp.Tensor { return []fsdp.Tensor{tokens(2 * seed), tokens(2*seed + 1)} }

func tokens(seed int) *tensor.Dense {
	const rows, cols = 2, 16
	data := make([]int, rows*cols)
	for i := range data {
		data[i] = (seed*7919 + i*i*31 + i*seed) % 61
	}
	return tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))
}

// end reports a hash of the whole state, which the first rank has.
func (r *rank) end(ctx context.Context) error {
	r.at(partEnd)
	values, err := r.model.StateDict(ctx, nil)
	if err != nil {
		return err
	}
	state, err := r.model.OptimStateDict(ctx, r.opt, nil)
	if err != nil {
		return err
	}
	e := event{What: partEnded, Ranks: r.list}
	if r.group.Rank() == 0 {
		h := sha256.New()
		for _, name := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprint(h, name)
			_ = binary.Write(h, binary.LittleEndian, values[name].Data()) // a hash takes all
		}
		for _, e := range state.Entries() {
			fmt.Fprint(h, e.Param, e.Name, e.Steps)
			_ = binary.Write(h, binary.LittleEndian, e.Data.(optim.Host).F32)
		}
		e.Hash = fmt.Sprintf("%x", h.Sum(nil)[:8])
	}
	r.say(e)
	return nil
}
