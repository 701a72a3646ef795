package optim

import (
	"context"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
)

// A muonRun carries out the plan of a team, in buffers that live from the first Step on.
//
//	mine    what this rank has of every matrix: first by owner, as it is sent to them and comes back
//	theirs  what every rank has of the matrices that this one owns, by rank
type muonRun[T float32 | float64] struct {
	*muonTeam
	mine, theirs       []T
	mineAt, theirsAt   []int   // by owner, and by rank: where its elements begin; the last is the end
	there, back        [][]int // by root: counts of the exchange with owners, and of the one back
	cursor             []int   // by rank, in theirs
	pieces             []piece
	direction          func(j *muonJob, to []T) error           // computes the direction of the elements of a matrix on this rank
	whole              func(x []T, rows, cols int) ([]T, error) // orthogonalises a matrix
	gathered           []T
	gatherCounts       []int // by rank
	grams              []float64
	gramLen            int // of the small matrices of each owner, padded to the longest
	polynomials        []T
	works              []comm.Work
	scratch            newtonSchulz[T]
	chunk, p64, q64, s []float64 // of Gram
}

func newMuonRun[T float32 | float64](t *muonTeam) *muonRun[T] {
	r := &muonRun[T]{
		muonTeam: t, mineAt: make([]int, t.size+1), theirsAt: make([]int, t.size+1), cursor: make([]int, t.size),
		there: make([][]int, t.size), back: make([][]int, t.size), gatherCounts: make([]int, t.size),
	}
	for i := range t.size {
		r.there[i], r.back[i] = make([]int, t.size), make([]int, t.size)
	}
	mine, largest, side, small, gramLen := 0, 0, 0, 0, make([]int, t.size)
	for i := range t.jobs {
		j := &t.jobs[i]
		mine += j.here.End - j.here.Start
		largest, side = max(largest, j.rows*j.cols), max(side, min(j.rows, j.cols))
		if j.method == Gram {
			gramLen[j.owner] += j.cols * j.cols
			r.gramLen, small = max(r.gramLen, gramLen[j.owner]), max(small, j.cols)
		}
		for rank := range t.size {
			s := j.part(rank % t.places)
			switch {
			case j.method == Owner:
				r.back[rank][j.owner] += s.End - s.Start
				if rank/t.places == j.owner/t.places {
					r.there[j.owner][rank] += s.End - s.Start
				}
			case j.method == Gather && rank < t.places:
				r.gatherCounts[rank] += s.End - s.Start
			}
		}
	}
	for i := range t.size {
		r.mineAt[i+1] = r.mineAt[i] + r.back[t.rank][i]
		r.theirsAt[i+1] = r.theirsAt[i] + r.back[i][t.rank]
	}
	gathered := 0
	for _, n := range r.gatherCounts {
		gathered += n
	}
	r.mine, r.theirs, r.gathered = make([]T, mine), make([]T, r.theirsAt[t.size]), make([]T, gathered)
	r.grams, r.polynomials = make([]float64, r.gramLen*t.size), make([]T, r.gramLen*t.size)
	r.scratch = newtonSchulz[T]{x: make([]T, largest)}
	if !t.device {
		r.scratch.y, r.scratch.a, r.scratch.b = make([]T, largest), make([]T, side*side), make([]T, side*side)
	}
	r.chunk, r.p64, r.q64, r.s = make([]float64, gramRows*small), make([]float64, small*small), make([]float64, small*small), make([]float64, small*small)
	return r
}

// gramRows is how many rows Gram widens to float64 at a time.
const gramRows = 256

// directions computes the directions of all pieces in mine. elements returns the memory of a Vec.
func (r *muonRun[T]) directions(u *muon, pieces []piece, absent []bool, elements func(Vec) []T) error {
	if r.pieces = pieces; r.whole == nil && u.device != nil {
		r.onDevice(u)
	} else if r.whole == nil {
		r.onHost(u, elements)
	}
	for i := range r.jobs {
		j := &r.jobs[i]
		to := r.mine[j.at : j.at+j.here.End-j.here.Start]
		if absent[j.piece] {
			clear(to)
		} else if len(to) > 0 {
			if err := r.direction(j, to); err != nil {
				return err
			}
		}
	}
	r.works = r.works[:0]
	if err := r.exchange(absent, u.s.Eps); err != nil {
		return fmt.Errorf("exchange of matrices: %w", err)
	}
	return nil
}

// momentum updates b by gradient g, and sets u to the direction that follows from it.
func momentum[T float32 | float64](u, g, b []T, mu T, nesterov bool) {
	g, b = g[:len(u)], b[:len(u)]
	for i, x := range g {
		m := b[i] + (1-mu)*(x-b[i])
		b[i] = m
		u[i] = m
		if nesterov {
			u[i] = x + mu*(m-x)
		}
	}
}

// exchange orthogonalises the matrices in mine.
func (r *muonRun[T]) exchange(absent []bool, eps float64) error {
	for owner, counts := range r.there {
		var to []T
		if owner == r.rank {
			set := r.rank / r.places * r.places
			to = r.theirs[r.theirsAt[set]:r.theirsAt[set+r.places]]
		}
		r.gather(to, r.mine[r.mineAt[owner]:r.mineAt[owner]+counts[r.rank]], counts, owner)
	}
	r.sumGrams(absent)
	r.gatherAll()
	if err := r.wait(); err != nil {
		return err
	}
	if err := r.runOwned(absent); err != nil {
		r.peers.Group.Abort(err) // the other ranks wait for the matrices
		return err
	}
	r.polynomial(eps)
	for root, counts := range r.back {
		var to []T
		if root == r.rank {
			to = r.mine[:r.mineAt[r.size]]
		}
		r.gather(to, r.theirs[r.theirsAt[root]:r.theirsAt[root+1]], counts, root)
	}
	if err := r.wait(); err != nil {
		return err
	}
	r.applyGrams(absent)
	return r.everywhere(absent)
}

// gather brings the counts elements of all ranks to root. It sends no message if root has them all.
func (r *muonRun[T]) gather(to, from []T, counts []int, root int) {
	for rank, n := range counts {
		if rank != root && n > 0 {
			r.works = append(r.works, r.peers.Group.Gather(comm.Of(to).Named("muon"), comm.Of(from).Named("muon"), counts, root))
			return
		}
	}
	copy(to, from)
}

// wait waits for all that is in flight.
func (r *muonRun[T]) wait() (first error) {
	for _, w := range r.works {
		if err := w.Wait(context.Background()); first == nil {
			first = err
		}
	}
	r.works = r.works[:0]
	return first
}

// runOwned orthogonalises the matrices that this rank owns, in theirs. Only a device fails.
func (r *muonRun[T]) runOwned(absent []bool) (err error) {
	copy(r.cursor, r.theirsAt)
	set := r.rank / r.places
	for i := range r.jobs {
		j := &r.jobs[i]
		if j.method != Owner || j.owner != r.rank {
			continue
		}
		x := r.scratch.x[:j.rows*j.cols]
		for rank := set * r.places; rank < (set+1)*r.places; rank++ {
			s := j.part(rank % r.places)
			copy(x[s.Start:s.End], r.theirs[r.cursor[rank]:])
		}
		if !absent[j.piece] {
			if x, err = r.whole(x, j.rows, j.cols); err != nil {
				return err
			}
		}
		for rank := range r.size {
			s := j.part(rank % r.places)
			r.cursor[rank] += copy(r.theirs[r.cursor[rank]:], x[s.Start:s.End])
		}
	}
	return nil
}

// gatherAll brings the matrices of method Gather to all ranks, by rank.
func (r *muonRun[T]) gatherAll() {
	if len(r.gathered) == 0 {
		return
	}
	at := 0
	for rank, n := range r.gatherCounts {
		if rank == r.rank {
			for i := range r.jobs {
				if j := &r.jobs[i]; j.method == Gather && n > 0 {
					at += copy(r.gathered[at:], r.mine[j.at:j.at+j.here.End-j.here.Start])
				}
			}
			break
		}
		at += n
	}
	if r.size > 1 {
		r.works = append(r.works, comm.AllGatherV(r.peers.Group, comm.Of(r.gathered).Named("muon"), r.gatherCounts))
	}
}

// everywhere orthogonalises the gathered matrices of which this rank has elements.
func (r *muonRun[T]) everywhere(absent []bool) error {
	r.cursor[0] = 0
	for rank := 1; rank < r.places; rank++ {
		r.cursor[rank] = r.cursor[rank-1] + r.gatherCounts[rank-1]
	}
	for i := range r.jobs {
		j := &r.jobs[i]
		if j.method != Gather {
			continue
		}
		x := r.scratch.x[:j.rows*j.cols]
		for rank := range r.places {
			s := j.part(rank)
			r.cursor[rank] += copy(x[s.Start:s.End], r.gathered[r.cursor[rank]:])
		}
		if j.here.Start < j.here.End && !absent[j.piece] {
			y, err := r.whole(x, j.rows, j.cols)
			if err != nil {
				return err
			}
			copy(r.mine[j.at:], y[j.here.Start:j.here.End])
		}
	}
	return nil
}

// eachGram calls f with each matrix of method Gram and the position of its small matrix.
func (r *muonRun[T]) eachGram(f func(j *muonJob, at int)) {
	if r.gramLen == 0 {
		return
	}
	for rank := range r.size {
		r.cursor[rank] = rank * r.gramLen
	}
	for i := range r.jobs {
		if j := &r.jobs[i]; j.method == Gram {
			f(j, r.cursor[j.owner])
			r.cursor[j.owner] += j.cols * j.cols
		}
	}
}

// sumGrams multiplies this rank's rows with each other, and sums the products on the owners.
func (r *muonRun[T]) sumGrams(absent []bool) {
	r.eachGram(func(j *muonJob, at int) {
		n, rows := j.cols, (j.here.End-j.here.Start)/j.cols
		g := r.grams[at : at+n*n]
		clear(g)
		for from := 0; from < rows && !absent[j.piece]; from += gramRows {
			k := min(gramRows, rows-from)
			for i, x := range r.mine[j.at+from*n : j.at+(from+k)*n] {
				r.chunk[i] = float64(x)
			}
			gemm.Gemm(&r.scratch.w, true, false, n, n, k, 1, r.chunk, n, r.chunk, n, 1, g, n)
		}
	})
	if r.gramLen > 0 && r.size > 1 {
		sum := r.grams[r.rank*r.gramLen : (r.rank+1)*r.gramLen]
		r.works = append(r.works, r.peers.Group.ReduceScatter(comm.Of(sum).Named("muon"), comm.Of(r.grams).Named("muon"), comm.Sum))
	}
}

// polynomial computes from this rank's sums the matrices to multiply rows with, and sends them to
// all ranks.
func (r *muonRun[T]) polynomial(eps float64) {
	r.eachGram(func(j *muonJob, at int) {
		if j.owner != r.rank {
			return
		}
		n := j.cols * j.cols
		p, norm := r.iterate(r.grams[at:at+n], j.cols, eps)
		for i, x := range p {
			r.polynomials[at+i] = T(x / norm)
		}
	})
	if r.gramLen > 0 && r.size > 1 {
		own := r.polynomials[r.rank*r.gramLen : (r.rank+1)*r.gramLen]
		r.works = append(r.works, r.peers.Group.AllGather(comm.Of(r.polynomials).Named("muon"), comm.Of(own).Named("muon")))
	}
}

// iterate returns the product of the polynomials in the small matrix g = XᵀX, by which the
// iteration multiplies X from the right, and the norm of X. It overwrites g.
func (r *muonRun[T]) iterate(g []float64, n int, eps float64) ([]float64, float64) {
	trace := 0.0
	for i := range n {
		trace += g[i*n+i]
	}
	norm := max(math.Sqrt(trace), eps)
	for i := range g {
		g[i] /= norm * norm
	}
	p, q, s := r.p64[:n*n], r.q64[:n*n], r.s[:n*n]
	mul := func(c, a, b []float64) { gemm.Gemm(&r.scratch.w, false, false, n, n, n, 1, a, n, b, n, 0, c, n) }
	for step := range r.steps {
		mul(q, g, g)
		for i := range q {
			q[i] = nsB*g[i] + nsC*q[i]
		}
		for i := range n {
			q[i*n+i] += nsA
		}
		if step == 0 {
			copy(p, q)
		} else {
			mul(s, p, q)
			copy(p, s)
		}
		if step < r.steps-1 { // q and g have the same eigenvectors, so they commute
			mul(s, g, q)
			mul(g, s, q)
		}
	}
	return p, norm
}

// applyGrams multiplies this rank's rows with the polynomials.
func (r *muonRun[T]) applyGrams(absent []bool) {
	r.eachGram(func(j *muonJob, at int) {
		n, rows := j.cols, (j.here.End-j.here.Start)/j.cols
		if rows == 0 || absent[j.piece] {
			return
		}
		x, y := r.mine[j.at:j.at+rows*n], r.scratch.y[:rows*n]
		gemm.Gemm(&r.scratch.w, false, false, rows, n, n, 1, x, n, r.polynomials[at:at+n*n], n, 0, y, n)
		copy(x, y)
	})
}

// The coefficients of the iteration (https://kellerjordan.github.io/posts/muon): the polynomial
// nsA·x + nsB·x³ + nsC·x⁵, applied five times, brings singular values in (0, 1] near 1.
const nsA, nsB, nsC = 3.4445, -4.7750, 2.0315

// newtonSchulz is the iteration on whole matrices, with memory for the largest.
type newtonSchulz[T float32 | float64] struct {
	w          gemm.Workspace
	x, y, a, b []T
}

// run returns the result for x, rows by cols, in x or in memory that lasts until the next call.
func (s *newtonSchulz[T]) run(x []T, rows, cols, steps int, eps float64) []T {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	scale := T(1 / max(math.Sqrt(sum), eps))
	for i := range x {
		x[i] *= scale
	}
	y, tall, n := s.y[:len(x)], rows >= cols, min(rows, cols)
	a, b := s.a[:n*n], s.b[:n*n]
	for range steps {
		gemm.Gemm(&s.w, tall, !tall, n, n, max(rows, cols), 1, x, cols, x, cols, 0, a, n)
		copy(b, a)
		gemm.Gemm(&s.w, false, false, n, n, n, nsC, a, n, a, n, nsB, b, n)
		copy(y, x)
		if tall {
			gemm.Gemm(&s.w, false, false, rows, cols, cols, 1, x, cols, b, n, nsA, y, cols)
		} else {
			gemm.Gemm(&s.w, false, false, rows, cols, rows, 1, b, n, x, cols, nsA, y, cols)
		}
		x, y = y, x
	}
	return x
}
