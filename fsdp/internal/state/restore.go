package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// A Restoring gives a training the latest whole step that its ranks have in memory. The ranks that
// made the step may be others, and some of them may be lost.
//
//	every rank        its sets, with the descriptions of their shares        to rank 0
//	rank 0            which ranks give which elements of which tensors       to every rank
//	for each tensor   all ranks gather it, and keep their part
type Restoring struct {
	Copying     // from is nil
	World   int // ranks that made the step

	set    *set // of this rank, or nil
	choice choice
}

// A claim is a set of a rank, as other ranks see it.
type claim struct {
	Number      int64
	World, Rank int
	Distance    int // between neighbours
	Compute     comm.DType
	Own, Held   json.RawMessage `json:",omitempty"` // of type share

	giver int // rank in the new group
}

// A choice says how a step is restored.
type choice struct {
	Fault   string `json:",omitempty"` // why no step is
	Number  int64
	World   int
	Compute comm.DType
	description
	Tensors []givers // by index in Have
}

// givers are the ranks of the new group that give a tensor.
type givers struct {
	Parts   []given // ascending, without overlap. Each part of a buffer is one rank's buffer
	Buffers []int   `json:",omitempty"` // of a buffer: by rank of the new group, which part it takes
}

// given is elements that a rank gives.
type given struct {
	Rank        int
	Held        bool `json:",omitempty"` // of its neighbour's share
	Offset, Len int
}

// Step returns how many steps the optimizer has made.
func (c *Copying) Step() int { return c.sheet.Steps }

// PlanRestore chooses a step, and takes memory. next may be nil.
func (k *Kept) PlanRestore(ctx context.Context, to *Store, next optim.Optimizer) (*Restoring, error) {
	r := &Restoring{Copying: Copying{to: to, next: next}}
	var has []Piece
	var mine []byte
	err := to.prepare(ctx, 0, func() (err error) {
		if has, err = to.pieces(next); err == nil {
			mine, err = json.Marshal(k.claims())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	failed := func(err error) error { return r.fail(fmt.Errorf("exchanging the steps in memory: %w", err)) }
	texts, err := gather(ctx, to.Team.Group(), mine, "steps in memory")
	if err != nil {
		return nil, failed(err)
	}
	var told []byte
	if to.rank() == 0 {
		told, err = json.Marshal(choose(texts))
		if err != nil {
			return nil, failed(err)
		}
	}
	if told, err = to.Team.Tell(ctx, 0, told); err != nil {
		return nil, failed(err)
	}
	if err := json.Unmarshal(told, &r.choice); err != nil {
		return nil, failed(fmt.Errorf("rank 0's choice is invalid: %w", err))
	}
	if r.choice.Fault != "" {
		return nil, fmt.Errorf("%s: %w", r.choice.Fault, errNoneKept)
	}
	if i := slices.IndexFunc(k.sets, func(s *set) bool { return s.number == r.choice.Number }); i >= 0 {
		r.set = k.sets[i]
	}
	r.sheet, r.About, r.World = r.choice.sheet, r.choice.About, r.choice.World
	listed, _, err := to.listed(ctx, next, has, false)
	if err != nil {
		return nil, err
	}
	r.own = to.parts(has)
	if err = r.match(listed); err == nil {
		err = r.room()
	}
	if err := r.agree(ctx, err); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// errNoneKept is for trainings without a step in memory that could be restored.
var errNoneKept = fmt.Errorf("load a checkpoint of a directory: %w", checkpoint.ErrNone)

// claims lists the sets of this rank.
func (k *Kept) claims() []claim {
	list := make([]claim, len(k.sets))
	for i, s := range k.sets {
		list[i] = claim{Number: s.number, World: s.world, Rank: s.rank, Distance: s.distance, Compute: s.compute, Own: s.own.text, Held: s.held.text}
	}
	return list
}

// choose chooses the latest step of which nothing is lost. texts are the claims of each rank of the
// new group.
func choose(texts [][]byte) *choice {
	sets := make(map[int64][]claim)
	for giver, text := range texts {
		var list []claim
		if err := json.Unmarshal(text, &list); err != nil {
			return &choice{Fault: fmt.Sprintf("rank %d's list of steps is invalid: %v", giver, err)}
		}
		for _, c := range list {
			c.giver = giver
			sets[c.Number] = append(sets[c.Number], c)
		}
	}
	numbers := slices.Sorted(maps.Keys(sets))
	slices.Reverse(numbers)
	err := errors.New("no rank has a step in memory")
	for i, number := range numbers {
		c := &choice{Number: number}
		failed := c.choose(sets[number], len(texts))
		if failed == nil {
			return c
		}
		if i == 0 {
			err = failed
		}
	}
	return &choice{Fault: err.Error()}
}

// A shareSource is a rank's share, and the rank of the new group that has it.
type shareSource struct {
	share
	giver int
	held  bool
}

// choose fills c from the claims to a set, or returns an error if some of it is lost. n is the
// number of new ranks.
func (c *choice) choose(claims []claim, n int) error {
	distance := claims[0].Distance
	c.World, c.Compute = claims[0].World, claims[0].Compute
	shares := make([]*shareSource, c.World) // by rank that made the step
	add := func(rank int, text []byte, s shareSource) error {
		if rank < 0 || rank >= c.World || shares[rank] != nil || len(text) == 0 {
			return nil
		}
		shares[rank] = &s
		if err := json.Unmarshal(text, &shares[rank].share); err != nil {
			return fmt.Errorf("the description of rank %d's share is invalid: %w", rank, err)
		}
		return nil
	}
	was := make([]int, n) // by new rank: its rank when the step was made, or -1
	for r := range was {
		was[r] = -1
	}
	for _, q := range claims {
		if q.World != c.World || q.Distance != distance || q.Compute != c.Compute {
			return fmt.Errorf("ranks have different trainings in memory: ranks %d and %d of the new group", claims[0].giver, q.giver)
		}
		was[q.giver] = q.Rank
		if err := add(q.Rank, q.Own, shareSource{giver: q.giver}); err != nil {
			return err
		}
	}
	for _, q := range claims {
		if err := add(neighbour(q.Rank, distance, c.World), q.Held, shareSource{giver: q.giver, held: true}); err != nil {
			return err
		}
	}
	if err := missing(shares, distance); err != nil {
		return err
	}
	first := slices.IndexFunc(shares, func(s *shareSource) bool { return s != nil })
	c.sheet, c.About = sheet{Steps: shares[first].Steps, Groups: shares[first].Groups}, shares[first].About
	if err := c.list(shares); err != nil {
		return err
	}
	return c.assign(shares, was)
}

// missing returns an error if a rank's share is neither there nor a twin of a share that is.
func missing(shares []*shareSource, distance int) error {
	for r, s := range shares {
		twin := func(o *shareSource) bool { return o != nil && slices.Contains(o.Twins, r) }
		if s == nil && !slices.ContainsFunc(shares, twin) {
			holder := neighbour(r, -distance, len(shares))
			return fmt.Errorf("of the %d ranks that made the last step in memory, rank %d is lost, and so is rank %d, which had the copy of its share",
				len(shares), r, holder)
		}
	}
	return nil
}

// list lists the tensors of all shares, with the ranks that give them.
func (c *choice) list(shares []*shareSource) error {
	at := make(map[string]int) // in Have, by name
	for rank, s := range shares {
		if s == nil {
			continue
		}
		if s.Steps != c.sheet.Steps {
			return fmt.Errorf("the optimizers of ranks have made %d and %d steps", c.sheet.Steps, s.Steps)
		}
		for _, p := range slices.Concat(s.Spans[:]...) {
			i, known := at[p.Name]
			if !known {
				i = len(c.sheet.Have)
				at[p.Name] = i
				key := checkpoint.Key{Param: p.Name, Owner: checkpoint.Shared}
				c.sheet.Have = append(c.sheet.Have, found{Key: key, Shape: p.Shape, DType: fileType(c.Compute), Steps: p.Steps})
				c.Tensors = append(c.Tensors, givers{})
			}
			switch h, g := &c.sheet.Have[i], &c.Tensors[i]; {
			case h.Steps != p.Steps || !slices.Equal(h.Shape, p.Shape):
				return fmt.Errorf("rank %d has %s %v after %d updates, another rank has %v after %d updates", rank, p.Name, p.Shape, p.Steps, h.Shape, h.Steps)
			case s.held && !p.Sent: // the holder has it in its own share
			default:
				part := given{Rank: s.giver, Held: s.held, Offset: p.Offset, Len: p.Len}
				if p.Buffer {
					part.Offset = rank * p.Len
					g.Buffers = []int{}
				}
				g.Parts = append(g.Parts, part)
			}
		}
	}
	return nil
}

// assign orders the parts of each tensor, and gives each new rank a buffer: its own, or else a lost
// rank's, if there is one. was has the ranks of the new ranks when the step was made, or -1.
func (c *choice) assign(shares []*shareSource, was []int) error {
	takes := slices.Clone(was)
	lost := 0
	for r, old := range was {
		if old >= 0 {
			continue
		}
		for lost < len(shares) && (shares[lost] == nil || !shares[lost].held) {
			lost++
		}
		takes[r] = lost
		lost++
	}
	for i := range c.Tensors {
		g, h := &c.Tensors[i], &c.sheet.Have[i]
		slices.SortStableFunc(g.Parts, func(a, b given) int { return cmp.Compare(a.Offset, b.Offset) })
		n := shard.Param{Shape: h.Shape}.Len()
		if g.Buffers != nil {
			for _, old := range takes {
				g.Buffers = append(g.Buffers, max(0, slices.IndexFunc(g.Parts, func(p given) bool { return p.Offset == old*n })))
			}
			continue
		}
		next := 0
		g.Parts = slices.DeleteFunc(g.Parts, func(p given) bool { // replicas
			if p.Offset != next || p.Len == 0 {
				return true
			}
			next += p.Len
			return false
		})
		if next != n {
			return fmt.Errorf("elements of %s from %d on are lost", h.Name(), next)
		}
	}
	return nil
}

// room takes memory for a tensor, and once more for its parts.
func (r *Restoring) room() (err error) {
	wide := *r.to
	wide.Compute = comm.Float64 // either training may have it
	var list []Tensor
	for i, t := range r.want {
		if t != nil {
			list = append(list, Tensor{Shape: []int{r.choice.Tensors[i].elements()}})
		}
	}
	r.rings.to, err = wide.newRing(list)
	return err
}

// elements returns how many elements all ranks give together.
func (g *givers) elements() (n int) {
	for _, p := range g.Parts {
		n += p.Len
	}
	return n
}

// Run gathers the state. After an error some of the new state may have changed.
func (r *Restoring) Run(ctx context.Context) error {
	here := newWarehouse(r.set)
	for i := range r.sheet.Have {
		if err := r.collect(ctx, i, here); err != nil {
			return r.fail(fmt.Errorf("%s: %w", r.sheet.Have[i].Name(), err))
		}
	}
	return r.settle(ctx)
}

// collect gathers a tensor, and keeps this rank's part.
func (r *Restoring) collect(ctx context.Context, i int, here *warehouse) error {
	want, g := r.want[i], &r.choice.Tensors[i]
	if want == nil {
		return nil
	}
	t := r.choice.Compute
	es, total := t.Size(), g.elements()
	arrived, whole := r.rings.to.room(total*es), r.rings.to.room(total*es)
	counts := make([]int, r.to.world())
	for _, p := range g.Parts {
		counts[p.Rank] += p.Len
	}
	mine := arrived[sum(counts[:r.to.rank()])*es:]
	for _, p := range g.Parts {
		if p.Rank == r.to.rank() {
			mine = mine[copy(mine, here.part(r.sheet.Have[i].Param, p)):]
		}
	}
	if err := comm.AllGatherV(r.to.Team.Group(), buffer(t, arrived, want.Name()), counts).Wait(ctx); err != nil {
		return err
	}
	next := make([]int, len(counts)) // of each rank, in arrived
	for rank := range counts {
		next[rank] = sum(counts[:rank]) * es
	}
	at := 0
	for _, p := range g.Parts {
		n := p.Len * es
		copy(whole[at:at+n], arrived[next[p.Rank]:])
		next[p.Rank] += n
		at += n
	}
	if g.Buffers != nil {
		n := want.Len() * es
		whole = whole[g.Buffers[r.to.rank()]*n:][:n]
	}
	return r.keep(i, convert(r.rings.to.room(want.Len()*r.to.Compute.Size()), r.to.Compute, host(t, whole)))
}

// A warehouse finds the elements of a set by the name of their tensor.
type warehouse struct {
	es     int
	halves [2]map[string][]byte // own and held
}

// newWarehouse makes one for a set, which may be nil.
func newWarehouse(s *set) *warehouse {
	if s == nil {
		return nil
	}
	w := &warehouse{es: s.compute.Size()}
	for i, h := range []*half{&s.own, &s.held} {
		w.halves[i] = make(map[string][]byte)
		var d share
		if json.Unmarshal(h.text, &d) != nil { // a rank alone holds none
			continue
		}
		for part, spans := range d.Spans {
			b := BytesOf(h.parts[part])
			for _, p := range spans {
				if i == 0 || p.Sent {
					n := p.Len * w.es
					w.halves[i][p.Name], b = b[:n:n], b[n:]
				}
			}
		}
	}
	return w
}

// part returns elements that this rank gives.
func (w *warehouse) part(name string, p given) []byte {
	half := w.halves[0]
	if p.Held {
		half = w.halves[1]
	}
	return half[name][:p.Len*w.es]
}
