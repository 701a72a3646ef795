package simulate

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// step is something that all ranks do together.
type step struct {
	name string
	do   func(r *rank, number int) error
}

// drawSteps draws the program of a job.
func drawSteps(rng *rand.Rand, size, count int) (steps []step) {
	for range count {
		n := 1 + rng.IntN(200) // elements of a rank
		if rng.IntN(10) == 0 {
			n = 5000
		}
		root := rng.IntN(size)
		steps = append(steps, [...]step{
			{"all-gather", func(r *rank, k int) error { return r.allGather(k, n) }},
			{"reduce-scatter", func(r *rank, k int) error { return r.reduceScatter(k, n) }},
			{"all-reduce", func(r *rank, k int) error { return r.allReduce(r.group, k, n) }},
			{"broadcast", func(r *rank, k int) error { return r.broadcast(k, n, root) }},
			{"gather", func(r *rank, k int) error { return r.gather(k, n, root) }},
			{"barrier", func(r *rank, _ int) error { return r.group.Barrier(r.ctx) }},
			{"split", func(r *rank, k int) error { return r.split(k, n) }},
			{"agreement", func(r *rank, k int) error { return r.agree(k, root, n%2 == 0) }},
			{"save", func(r *rank, k int) error { return r.save(k) }},
		}[rng.IntN(9)])
	}
	return steps
}

// value is element i of rank no in a step. Sums of many are exact.
func value(step, no, i int) float32 { return float32((step*31 + no*7 + i*3) % 101) }

func values(step, no, n int) []float32 {
	list := make([]float32, n)
	for i := range list {
		list[i] = value(step, no, i)
	}
	return list
}

// expect compares element i of what has come with what was due.
func expect(got []float32, want func(i int) float32) error {
	for i, v := range got {
		if w := want(i); v != w {
			return fmt.Errorf("%w: element %d is %v, not %v", errWrong, i, v, w)
		}
	}
	return nil
}

func (r *rank) allGather(step, n int) error {
	dst := make([]float32, n*r.size)
	if err := r.group.AllGather(comm.Of(dst), comm.Of(values(step, r.no, n))).Wait(r.ctx); err != nil {
		return err
	}
	return expect(dst, func(i int) float32 { return value(step, i/n, i%n) })
}

func (r *rank) reduceScatter(step, n int) error {
	dst := make([]float32, n)
	if err := r.group.ReduceScatter(comm.Of(dst), comm.Of(values(step, r.no, n*r.size)), comm.Sum).Wait(r.ctx); err != nil {
		return err
	}
	return expect(dst, func(i int) (sum float32) {
		for no := range r.size {
			sum += value(step, no, r.no*n+i)
		}
		return sum
	})
}

// allReduce is about a group of the ranks that have the same rest by the world's size over the
// group's.
func (r *rank) allReduce(g comm.Group, step, n int) error {
	buf := values(step, r.no, n)
	if err := g.AllReduce(comm.Of(buf), comm.Max).Wait(r.ctx); err != nil {
		return err
	}
	every := (r.size + g.Size() - 1) / g.Size()
	return expect(buf, func(i int) (most float32) {
		for no := r.no % every; no < r.size; no += every {
			most = max(most, value(step, no, i))
		}
		return most
	})
}

func (r *rank) broadcast(step, n, root int) error {
	buf := values(step, r.no, n)
	if err := r.group.Broadcast(comm.Of(buf), root).Wait(r.ctx); err != nil {
		return err
	}
	return expect(buf, func(i int) float32 { return value(step, root, i) })
}

func (r *rank) gather(step, n, root int) error {
	counts := make([]int, r.size)
	for no := range counts {
		counts[no] = n + no%3
	}
	var dst []float32
	for _, c := range counts {
		dst = append(dst, make([]float32, c)...)
	}
	if err := r.group.Gather(comm.Of(dst), comm.Of(values(step, r.no, counts[r.no])), counts, root).Wait(r.ctx); err != nil || r.no != root {
		return err
	}
	for no, c := range counts {
		if err := expect(dst[:c], func(i int) float32 { return value(step, no, i) }); err != nil {
			return err
		}
		dst = dst[c:]
	}
	return nil
}

// split makes two groups, of even and of odd ranks, and uses its own: rank k of "world/1" is 2k+1.
func (r *rank) split(step, n int) error {
	g, err := r.group.Split(r.ctx, r.no%2, 0)
	if err != nil {
		return err
	}
	if err := r.allReduce(g, step, n); err != nil {
		r.group.Abort(err) // as a model does: ranks of the other group must not wait for this one
		return errors.Join(err, g.Close())
	}
	return g.Close()
}

// agree has the ranks agree on a call, or, when one cannot, that it fails.
func (r *rank) agree(step, root int, fails bool) error {
	a := ranks.NewAgreement(r.group, func(no int, message string) error { return fmt.Errorf("rank %d: %s", no, message) })
	var mine error
	if fails && r.no == root {
		mine = errors.New("no disk")
	}
	answer, err := a.Agree(r.ctx, &ranks.Ask{Call: "Step", Number: step, Value: float64(r.no)}, mine)
	var lost *ranks.LostError
	switch {
	case errors.As(err, &lost):
		return err
	case fails && r.no == root && !errors.Is(err, mine), fails && r.no != root && (err == nil || !mentions(err.Error(), root)):
		return fmt.Errorf("%w: rank %d cannot, and the agreement is %v", errWrong, root, err)
	case !fails && (err != nil || answer.Largest != float64(r.size-1)):
		return fmt.Errorf("%w: the agreement is %v, %v", errWrong, answer, err)
	}
	return nil
}

// where the checkpoints are.
const folder = "ckpt"

// tensor is what checkpoints hold: so many elements of each rank.
var tensor = checkpoint.Key{Param: "w", Owner: checkpoint.Shared}

const share = 10

// content is the part of a rank in the checkpoint of a step.
func content(step, no int) []byte {
	b := make([]byte, 4*share)
	for i := range b {
		b[i] = byte((step*13 + no*5 + i) % 61) // floats are finite
	}
	return b
}

// save saves a checkpoint as a training does: every rank a file, then rank 0 the manifest.
func (r *rank) save(step int) error {
	d := &disk{FS: r.disk, rank: r}
	name := make([]byte, 256)
	var keep *checkpoint.Store
	var draft *checkpoint.Draft
	if r.no == 0 {
		var err error
		if keep, draft, err = begin(r, d, step); err != nil {
			r.group.Abort(err)
			return err
		}
		defer func() { _ = keep.Close() }() // the lock ends with the process, too
		copy(name, draft.Dir())
	}
	if err := r.group.Broadcast(comm.Of(name), 0).Wait(r.ctx); err != nil {
		return err
	}
	dir := string(name[:indexZero(name)])
	shard, err := checkpoint.WriteShard(r.ctx, d, dir, checkpoint.FileName("rank", r.no, r.size), []checkpoint.Part{{
		Key: tensor, DType: safetensors.F32, Shape: []int{share * r.size}, Offset: share * r.no, Data: content(step, r.no),
	}}, nil)
	if err != nil {
		r.group.Abort(err)
		return err
	}
	text, err := shard.Encode()
	if err != nil {
		return err
	}
	return r.commit(keep, draft, step, text)
}

func indexZero(b []byte) int {
	for i, c := range b {
		if c == 0 {
			return i
		}
	}
	return len(b)
}

func begin(r *rank, d *disk, step int) (*checkpoint.Store, *checkpoint.Draft, error) {
	s, err := checkpoint.Open(d, folder)
	if err != nil {
		return nil, nil, err
	}
	if err := s.Lock(r.ctx); err != nil {
		return nil, nil, err
	}
	draft, err := s.Begin(step)
	return s, draft, err
}

// commit brings the records of all ranks to rank 0, which commits, and tells all that it has.
func (r *rank) commit(s *checkpoint.Store, draft *checkpoint.Draft, step int, text []byte) error {
	lengths := make([]int64, r.size)
	if err := r.group.AllGather(comm.Of(lengths), comm.Of([]int64{int64(len(text))})).Wait(r.ctx); err != nil {
		return err
	}
	counts := make([]int, r.size)
	total := 0
	for no, n := range lengths {
		counts[no] = int(n)
		total += counts[no]
	}
	all := make([]byte, total)
	if err := r.group.Gather(comm.Of(all), comm.Of(text), counts, 0).Wait(r.ctx); err != nil {
		return err
	}
	if r.no == 0 {
		if err := r.commitAll(s, draft, step, all, counts); err != nil {
			r.group.Abort(err)
			return err
		}
	}
	return r.group.Barrier(r.ctx)
}

func (r *rank) commitAll(s *checkpoint.Store, draft *checkpoint.Draft, step int, all []byte, counts []int) error {
	var shards []*checkpoint.Shard
	for _, n := range counts {
		shard, err := checkpoint.DecodeShard(all[:n])
		if err != nil {
			return err
		}
		shards, all = append(shards, shard), all[n:]
	}
	files, tensors, err := checkpoint.Merge(shards)
	if err != nil {
		return err
	}
	if _, err := s.Commit(draft, &checkpoint.Manifest{Step: step, World: r.size, Files: files, Tensors: tensors}); err != nil {
		return err
	}
	r.mu.Lock()
	r.committed = append(r.committed, step)
	r.mu.Unlock()
	return nil
}
