package optim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/optim/vec"
	"github.com/gofsdp/gofsdp/shard"
)

// Method is the way in which the ranks that share a matrix orthogonalise it.
type Method uint8

// The methods.
const (
	// Cheapest chooses the method that takes the least time on Muon.Machine.
	Cheapest Method = iota
	// Owner sends the matrix to one rank, which computes it whole and sends each rank its elements.
	// Ranks own matrices of about equal work.
	Owner
	// Gram leaves the rows on their ranks. Each rank multiplies its rows with each other. One rank
	// sums the small matrices of columns by columns and iterates them in float64. Every rank
	// multiplies its rows with the result. Gram needs at least as many rows as columns, each row
	// whole on one rank, as shard.Rows(1) in fsdp.Config.Unit leaves them, and no replicas. It
	// pays if there are many more rows than columns.
	Gram
	// Gather sends the matrix to all ranks that have part of it. Each of them computes it whole. It
	// pays if a message takes longer than the whole computation.
	Gather
)

// String returns the method's name.
func (m Method) String() string {
	if names := [...]string{"cheapest", "owner", "gram", "gather"}; int(m) < len(names) {
		return names[m]
	}
	return fmt.Sprintf("Method(%d)", uint8(m))
}

// Machine describes the hardware for which Cheapest chooses a [Method]. Zeros mean the defaults.
type Machine struct {
	FLOPS     float64 // of float32 products on a rank, twice the FLOPS of float64; default 1e11
	Bandwidth float64 // bytes per second that a rank sends; default 1e10
	Latency   float64 // seconds per collective; default 20e-6
}

func (m Machine) orDefault() Machine {
	return Machine{orDefault(m.FLOPS, 1e11), orDefault(m.Bandwidth, 1e10), orDefault(m.Latency, 20e-6)}
}

// A muonTeam is the ranks that share matrices.
//
//	place   the part of every matrix that a rank has
//	set     ranks that have all of it together: places of them, next to each other
//
// Matrices go from the places of the owner's set to the owner, and from there to all ranks.
type muonTeam struct {
	peers    *Peers // or nil: one rank has everything
	rank     int
	size     int
	places   int
	steps    int // of the iteration
	float64s bool
	device   bool // has the values: there is no Gram
	jobs     []muonJob
	f32      *muonRun[float32] // nil before the first Step
	f64      *muonRun[float64]

	x vec.MuonVec // memory of a device for a matrix, or nil
}

// A muonJob is one matrix.
type muonJob struct {
	name       string // of the parameter
	piece      int    // this rank's, in the part
	rows, cols int
	start      int // first element in the parameter
	span       func(place int) shard.Span
	method     Method
	owner      int        // -1 for Gather
	here       shard.Span // elements of the matrix on this rank
	at         int        // where they begin in the buffer of this rank's elements
}

func newMuonTeam(peers *Peers, steps int, float64s bool) *muonTeam {
	t := &muonTeam{peers: peers, steps: steps, float64s: float64s, size: 1, places: 1}
	if peers != nil {
		t.rank, t.size, t.places = peers.Group.Rank(), peers.Group.Size(), peers.Places
	}
	return t
}

// has reports whether a parameter with these peers belongs to the team.
func (t *muonTeam) has(p *Peers) bool {
	if p == nil || t.peers == nil {
		return p == nil && t.peers == nil
	}
	return p.Group == t.peers.Group && p.Places == t.places
}

// part returns the elements of the matrix that a place has.
func (j *muonJob) part(place int) shard.Span {
	s := j.span(place)
	from, to := max(s.Start-j.start, 0), min(s.End-j.start, j.rows*j.cols)
	if from >= to {
		return shard.Span{}
	}
	return shard.Span{Start: from, End: to}
}

// cutsRows reports whether some row is on two ranks.
func (j *muonJob) cutsRows(places int) bool {
	for p := range places {
		if s := j.part(p); s.Start%j.cols != 0 || s.End%j.cols != 0 {
			return true
		}
	}
	return false
}

// whole returns the FLOPs of an iteration of the whole matrix.
func (j *muonJob) whole(steps int) float64 {
	s, l := float64(min(j.rows, j.cols)), float64(max(j.rows, j.cols))
	return float64(steps) * (4*l*s*s + 2*s*s*s)
}

// gram returns the FLOPs of Gram on all ranks' rows, and on one rank. Products of float64 count
// twice.
func (j *muonJob) gram(steps int) (rows, small float64) {
	m, n := float64(j.rows), float64(j.cols)
	return (4 + 2) * m * n * n, 4 * n * n * n * float64(max(4*steps-3, 0))
}

// flops returns the FLOPs of all ranks.
func (j *muonJob) flops(t *muonTeam) (n float64) {
	for r := range t.size {
		n += j.flopsOf(t, r)
	}
	return n
}

// flopsOf returns the FLOPs of one rank.
func (j *muonJob) flopsOf(t *muonTeam, rank int) float64 {
	here := j.part(rank % t.places)
	switch {
	case j.method == Gather && here.Start < here.End, j.method == Owner && rank == j.owner:
		return j.whole(t.steps)
	case j.method == Gram:
		rows, small := j.gram(t.steps)
		rows *= float64(here.End-here.Start) / float64(j.rows*j.cols)
		if rank == j.owner {
			rows += small
		}
		return rows
	}
	return 0
}

// plan chooses the method and the owner of each matrix.
func (t *muonTeam) plan(method Method, m Machine) error {
	exact := t.device || t.peers != nil && t.peers.Exact
	for i := range t.jobs {
		j := &t.jobs[i]
		j.here = j.part(t.rank % t.places)
		possible := t.size == t.places && j.rows >= j.cols && !j.cutsRows(t.places)
		switch {
		case method == Gram && !possible:
			return fmt.Errorf("parameter %q: Gram needs at least as many rows as columns, and each row whole on one rank: see shard.Rows and fsdp.Config.Unit", j.name)
		case method == Cheapest && possible && !exact && j.gramTime(t, m) < j.ownerTime(t, m):
			j.method = Gram
		case method == Cheapest:
			j.method = Owner
		default:
			j.method = method
		}
	}
	if method == Cheapest {
		t.gatherSmall(m)
	}
	t.share()
	t.place()
	return nil
}

// ownerTime returns the seconds that the matrix adds to each rank's step if ranks own equal work.
func (j *muonJob) ownerTime(t *muonTeam, m Machine) float64 {
	n := float64(t.size)
	moved := float64(j.rows*j.cols*t.elem()) * (n - 1) / n
	return (j.whole(t.steps)/m.FLOPS + (1+float64(t.size/t.places))*moved/m.Bandwidth) / n
}

// gramTime returns the same for Gram.
func (j *muonJob) gramTime(t *muonTeam, m Machine) float64 {
	n := float64(t.size)
	rows, small := j.gram(t.steps)
	moved := float64(j.cols*j.cols*(8+t.elem())) * (n - 1) / n
	return (rows+small)/m.FLOPS/n + moved/m.Bandwidth
}

// gatherSmall replaces Owner by Gather for all matrices if they take less time so: Gather needs
// fewer messages, but every rank that has part of a matrix computes it whole.
func (t *muonTeam) gatherSmall(m Machine) {
	owned, gathered := 2*float64(t.size-1)*m.Latency, m.Latency*float64(t.places)
	for i := range t.jobs {
		if j := &t.jobs[i]; j.method == Owner {
			owned += j.ownerTime(t, m)
			gathered += j.whole(t.steps)/m.FLOPS + float64(j.rows*j.cols*t.elem())/m.Bandwidth
		}
	}
	for i := range t.jobs {
		if t.jobs[i].method == Owner && gathered < owned {
			t.jobs[i].method = Gather
		}
	}
}

// share gives every matrix an owner. It begins with the most work and chooses the rank that has the
// least. If several have the least, it chooses the one that has most of the matrix.
func (t *muonTeam) share() {
	order := make([]*muonJob, len(t.jobs))
	work := make(map[*muonJob]float64)
	for i := range order {
		j := &t.jobs[i]
		j.owner = -1
		if order[i], work[j] = j, j.whole(t.steps); j.method == Gram {
			_, work[j] = j.gram(t.steps)
		}
	}
	slices.SortStableFunc(order, func(a, b *muonJob) int { return cmp.Compare(work[b], work[a]) })
	load := make([]float64, t.size)
	for _, j := range order {
		if j.method == Gather {
			continue
		}
		j.owner = 0
		for r := range load {
			mine, best := j.part(r%t.places), j.part(j.owner%t.places)
			if load[r] < load[j.owner] || load[r] == load[j.owner] && mine.End-mine.Start > best.End-best.Start {
				j.owner = r
			}
		}
		load[j.owner] += work[j]
	}
}

// place lays out this rank's elements by owner, and for each owner in the order of the matrices. So
// they can be sent to owners, and received from them, without copying.
func (t *muonTeam) place() {
	at := 0
	for r := range t.size {
		for i := range t.jobs {
			if j := &t.jobs[i]; j.method == Owner && j.owner == r {
				j.at, at = at, at+j.here.End-j.here.Start
			}
		}
	}
	for i := range t.jobs {
		if j := &t.jobs[i]; j.method != Owner {
			j.at, at = at, at+j.here.End-j.here.Start
		}
	}
}

// elem returns the bytes of an element.
func (t *muonTeam) elem() int {
	if t.float64s {
		return 8
	}
	return 4
}

// sent returns the bytes that this rank sends in a step.
func (t *muonTeam) sent() (bytes int) {
	for i := range t.jobs {
		j := &t.jobs[i]
		mine := j.here.End - j.here.Start
		switch {
		case j.method == Gather && t.rank < t.places:
			bytes += mine * t.elem() * (t.size - 1)
		case j.method == Gram:
			bytes += j.cols * j.cols * (8 + t.elem()) * (t.size - 1) / t.size
		case j.method == Owner && j.owner == t.rank:
			bytes += (j.rows*j.cols*(t.size/t.places) - mine) * t.elem()
		case j.method == Owner && j.owner/t.places == t.rank/t.places:
			bytes += mine * t.elem()
		}
	}
	return bytes
}
