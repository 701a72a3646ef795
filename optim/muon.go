package optim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/shard"

	"github.com/gofsdp/gofsdp/optim/vec"
)

// Muon is the configuration of Muon (Keller Jordan, https://kellerjordan.github.io/posts/muon), for
// the matrices within a network. Embeddings, heads, gains and biases belong to another optimizer:
// [Compose] joins both. With gradient g of a matrix, in the form of torch.optim.Muon:
//
//	b = b + (1 - Momentum)·(g - b)
//	u = g + Momentum·(b - g), or b if NoNesterov
//	o = u·(uᵀu)^-½, roughly: Steps steps of the Newton-Schulz iteration, from u/max(‖u‖, Eps)
//	p = p - lr·WeightDecay·p - lr·Scale·o
//
// b is the state entry "momentum_buffer". It begins at zero and is in the same memory as p. A
// parameter of more dimensions is the matrix of its first dimension by all others.
//
// # Over shards
//
// The iteration needs the whole matrix, but a rank has only some rows of it ([Param].Peers). So
// Step is a collective of the ranks that have the matrices: each must call it between the same
// passes. For every matrix Step takes the [Method] that should be fastest on Machine. If bits may
// not depend on the number of ranks (fsdp.Config.VirtualRanks), it takes only Owner and Gather.
// Owner and Gather give the bits of one rank, however a matrix is cut and on any number of ranks;
// Gram is within rounding of them.
//
// On GPUs ranks compute in float32 by products of cuBLASLt, and there is no Gram. A matrix that a
// rank has by itself stays on its GPU. Ranks exchange others through memory of the host, which
// takes longer.
//
// Processors compute on one core each. The buffers around the iteration take about twice the memory
// of the rank's matrices, from the first Step on; for Gather they also hold the whole matrices. A
// Step whose group fails has changed b.
//
// A zero Momentum, Steps or Eps means its default; [Zero] means zero.
type Muon struct {
	Momentum    float64 // in [0, 1); default 0.95
	NoNesterov  bool
	WeightDecay float64 // default 0, none
	Steps       int     // of the iteration; default 5
	Eps         float64 // least norm that a matrix is divided by; default 1e-7
	Scale       Scale
	Rules       []Rule // exceptions for some parameters

	// Blocks returns the number of matrices, of equal numbers of rows, in a parameter. Each is
	// orthogonalised by itself: 3·heads for the weight of queries, keys and values by head. 0 and 1
	// mean one matrix. A nil Blocks means one for every parameter.
	Blocks func(p Param) int

	Method  Method  // for all matrices; default Cheapest
	Machine Machine // by which Cheapest chooses; the same on all ranks
}

// Scale is the factor of the update of a matrix. Without it the root mean square of the update's
// elements is 1/√(longer side of the matrix).
type Scale uint8

// The scales, torch.optim.Muon's adjust_lr_fn.
const (
	// MatchAdamW is 0.2·√max(rows, columns). It makes updates as large as AdamW's usually are, so
	// that both may have one learning rate and decay (https://arxiv.org/abs/2502.16982).
	MatchAdamW Scale = iota
	// ByShape is √max(1, rows/columns), Keller Jordan's.
	ByShape
)

// String returns PyTorch's name.
func (s Scale) String() string {
	switch s {
	case MatchAdamW:
		return "match_rms_adamw"
	case ByShape:
		return "original"
	}
	return fmt.Sprintf("Scale(%d)", uint8(s))
}

// scaleOf returns the factor for a matrix.
func scaleOf(name string, rows, cols int) float64 {
	if name == ByShape.String() {
		return math.Sqrt(max(1, float64(rows)/float64(cols)))
	}
	return 0.2 * math.Sqrt(float64(max(rows, cols)))
}

// Peers are the ranks that share a parameter.
type Peers struct {
	Group  comm.Group // all of these ranks, this one included
	Places int        // number of parts of the parameter: rank r of Group has the part of place r mod Places
	Span   func(place int) shard.Span
	Exact  bool // bits may not depend on the number of ranks: Cheapest does not choose Gram
}

const kindMuon = "Muon"

// New returns Muon over params, with its state at zero. It returns an error that names the
// parameter if one has no rows and columns, if pieces overlap, are malformed or have no Peers
// although the rest is missing, if a value implements neither [vec.Addressable] nor [vec.MuonVec],
// if Blocks do not divide the rows, if Method is Gram but rows are cut or a device has them, or if
// a hyper-parameter is out of range. New is not a collective.
func (c Muon) New(params []Param) (Optimizer, error) {
	s := Settings{
		Kind: kindMuon, LRScale: 1, WeightDecay: c.WeightDecay, Momentum: orDefault(c.Momentum, 0.95), Nesterov: !c.NoNesterov,
		Eps: orDefault(c.Eps, 1e-7), Scale: c.Scale.String(), NSSteps: cmp.Or(c.Steps, 5),
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("optim: muon: %w", err)
	}
	u := &muon{device: muonVecs(params)}
	var err error
	if u.device == nil {
		if u.values, err = valuesAs[vec.Addressable]("muon", params); err != nil {
			return nil, err
		}
	} else if c.Method == Gram {
		return nil, errors.New("optim: muon: Method is gram, which a device does not have: want another one")
	}
	if u.teams, err = c.teams(params); err == nil && u.device != nil {
		err = u.allocRooms(params)
	}
	if err != nil {
		return nil, fmt.Errorf("optim: muon: %w", err)
	}
	return newOptimizer(s, []string{"momentum_buffer"}, u, params, c.Rules)
}

// A MuonPlan describes a Step of [Muon].
type MuonPlan struct {
	Matrices []MuonMatrix
	FLOPs    float64 // of all ranks together; float64 operations count twice
	Mine     float64 // FLOPs of this rank
	Sent     int     // bytes that this rank sends
}

// A MuonMatrix is one matrix of a plan: a parameter, or one of its Blocks.
type MuonMatrix struct {
	Param      string
	First      int // first row in the parameter
	Rows, Cols int
	Method     Method
	Owner      int // the rank of Peers.Group that computes it, or its small part for Gram; -1 for Gather
	FLOPs      float64
}

// Plan returns the work of a Step of the optimizer that New would make from params. It allocates
// and sends nothing, so the groups may be of type [comm.World], and values may be anything: in the
// function that fsdp.Planner calls for an optimizer it plans for ranks that do not exist.
func (c Muon) Plan(params []Param) (*MuonPlan, error) {
	teams, err := c.teams(params)
	if err != nil {
		return nil, fmt.Errorf("optim: muon: %w", err)
	}
	p := &MuonPlan{}
	for _, t := range teams {
		for i := range t.jobs {
			j := &t.jobs[i]
			p.Matrices = append(p.Matrices, MuonMatrix{j.name, j.start / j.cols, j.rows, j.cols, j.method, j.owner, j.flops(t)})
			p.FLOPs += j.flops(t)
			p.Mine += j.flopsOf(t, t.rank)
		}
		p.Sent += t.sent()
	}
	return p, nil
}

// teams returns the matrices of params by the ranks that have them, in the same order on all of
// these ranks.
func (c Muon) teams(params []Param) (list []*muonTeam, err error) {
	if c.Method > Gather {
		return nil, fmt.Errorf("unknown %v", c.Method)
	}
	order := make([]int, len(params)) // Shards lists empty pieces last, so its order differs between ranks
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(params[a].Name, params[b].Name) })
	last := ""
	for _, i := range order {
		p := &params[i]
		jobs, err := c.jobs(p, i)
		if err == nil && p.Name == last {
			err = errors.New("this rank has more than one piece of it, want one")
		}
		if err != nil {
			return nil, fmt.Errorf("parameter %q: %w", p.Name, err)
		}
		last = p.Name
		at := slices.IndexFunc(list, func(t *muonTeam) bool { return t.has(p.Peers) })
		if at < 0 {
			at, list = len(list), append(list, newMuonTeam(p.Peers, cmp.Or(c.Steps, 5), p.withVecs().Value.Float64()))
		}
		if list[at].float64s != p.withVecs().Value.Float64() && lenOf(p.Value) > 0 {
			return nil, fmt.Errorf("parameter %q: its element type differs from the other parameters", p.Name)
		}
		list[at].jobs = append(list[at].jobs, jobs...)
	}
	device := muonVecs(params) != nil
	for _, t := range list {
		t.device = device
		if err := t.plan(c.Method, c.Machine.orDefault()); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// jobs returns the matrices of parameter i of a list, or an error if it has none.
func (c Muon) jobs(p *Param, i int) (list []muonJob, err error) {
	n, err := p.checkInterval()
	if err != nil {
		return nil, err
	}
	if len(p.Shape) < 2 {
		return nil, fmt.Errorf("shape %v is not a matrix: use another optimizer for it", p.Shape)
	}
	blocks := 1
	if c.Blocks != nil {
		blocks = max(c.Blocks(*p), 1)
	}
	switch {
	case p.Shape[0]%blocks != 0:
		return nil, fmt.Errorf("%d rows are not a multiple of %d blocks", p.Shape[0], blocks)
	case p.Peers == nil && lenOf(p.Value) != n:
		return nil, fmt.Errorf("only elements [%d:%d] of %d are on this rank, and Peers is nil: set Peers to the ranks that have the rest", p.Offset, p.end(), n)
	case n == 0:
		return nil, nil
	}
	span := func(int) shard.Span { return shard.Span{End: n} }
	if p.Peers != nil {
		span = p.Peers.Span
	}
	rows, cols := p.Shape[0]/blocks, n/p.Shape[0]
	for b := range blocks {
		list = append(list, muonJob{name: p.Name, piece: i, rows: rows, cols: cols, start: b * rows * cols, span: span})
	}
	return list, nil
}

// muon does the updates of Muon.
type muon struct {
	values []vec.Addressable // of the pieces
	device []vec.MuonVec     // in their place, if a device has them
	teams  []*muonTeam
	s      Settings
}

func (u *muon) set(s *Settings) {
	u.s = *s
	for _, t := range u.teams {
		t.steps = s.NSSteps
	}
}

// prepare computes the directions of all pieces that have a gradient. update uses them.
func (u *muon) prepare(pieces []piece, absent []bool) error {
	for _, t := range u.teams {
		if !t.shared(u) {
			continue // update computes them
		}
		if t.float64s {
			if t.f64 == nil {
				t.f64 = newMuonRun[float64](t)
			}
			if err := t.f64.directions(u, pieces, absent, func(v Vec) []float64 { return v.(vec.Addressable).Elements().F64 }); err != nil {
				return err
			}
			continue
		}
		if t.f32 == nil {
			t.f32 = newMuonRun[float32](t)
		}
		if err := t.f32.directions(u, pieces, absent, func(v Vec) []float32 { return v.(vec.Addressable).Elements().F32 }); err != nil {
			return err
		}
	}
	return nil
}

func (u *muon) update(i int, p *piece, lr float64) error {
	decay := 1 - lr*p.weightDecay
	for _, t := range u.teams {
		for k := range t.jobs {
			if j := &t.jobs[k]; j.piece == i && j.here.Start < j.here.End {
				from := j.start + j.here.Start - p.Offset
				to := from + j.here.End - j.here.Start
				if u.device != nil {
					if err := u.descendOnDevice(t, j, i, p, from, to-from, decay, lr*scaleOf(u.s.Scale, j.rows, j.cols)); err != nil {
						return err
					}
					continue
				}
				if value := u.values[i].Elements(); t.float64s {
					descend(value.F64[from:to], t.f64.mine[j.at:], decay, lr*scaleOf(u.s.Scale, j.rows, j.cols))
				} else {
					descend(value.F32[from:to], t.f32.mine[j.at:], float32(decay), float32(lr*scaleOf(u.s.Scale, j.rows, j.cols)))
				}
			}
		}
	}
	return nil
}

// descend makes one update of p in direction o.
func descend[T float32 | float64](p, o []T, decay, rate T) {
	o = o[:len(p)]
	for i, x := range p {
		p[i] = x*decay - o[i]*rate
	}
}
