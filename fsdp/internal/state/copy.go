package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/optim"
)

// A Copying gives the state of one training to another one of the same model, whose group has other
// ranks. One rank, the bridge, is in both groups: it gathers each tensor in the old group and
// broadcasts it in the new one. No rank has more than a few tensors whole at a time.
//
//	ranks of both       list their state, find the bridge
//	bridge              tells the new ranks the list of the old ones
//	for each tensor     old ranks gather it on the bridge, and new ranks keep their part
type Copying struct {
	About Meta // Run and Forwards of the old training

	from, to *Store // nil if this rank is not in that group
	next     optim.Optimizer
	list     []Tensor // of the old ranks
	old      parts    // this rank's, in the old group
	bridge   struct{ from, to int }

	sheet   sheet
	want    []*Tensor // by index in sheet.Have: the new ranks' tensor, or nil
	own     parts     // this rank's, in the new group
	adopted []Piece
	rings   struct{ from, to *ring }
	regrouping
}

// PlanCopy compares the state of both trainings, and takes memory. opt is the optimizer of the old
// training and next the optimizer of the new one, or both are nil. about describes the old training
// on a rank of it. All ranks of a group must have agreed that they have an optimizer.
func PlanCopy(ctx context.Context, from, to *Store, opt, next optim.Optimizer, about *Meta) (*Copying, error) {
	c := &Copying{from: from, to: to, next: next}
	var had, has []Piece
	err := c.agree(ctx, func() (err error) {
		for _, s := range []*Store{from, to} {
			if s != nil && s.Refusal != nil {
				return s.Refusal
			}
		}
		if from != nil && to != nil && (opt == nil) != (next == nil) {
			return errors.New("one of the two optimizers is nil: give both, or neither")
		}
		if from != nil {
			had, err = from.pieces(opt)
		}
		if to != nil && err == nil {
			has, err = to.pieces(next)
		}
		return err
	}())
	if err != nil {
		return nil, err
	}
	if err := c.meet(ctx); err != nil {
		return nil, err
	}
	if from != nil { // rank 0 alone names its training
		if c.About, err = c.described(ctx, about); err != nil {
			return nil, c.fail(err)
		}
	}
	steps, listed, err := c.lists(ctx, opt, had, has)
	if err := c.agree(ctx, err); err != nil {
		return nil, err
	}
	if from != nil {
		c.old = from.parts(had)
	}
	if err := c.tell(ctx, opt, steps); err != nil {
		return nil, err
	}
	if to != nil {
		c.own = to.parts(has)
		err = c.match(listed)
	}
	if err == nil {
		err = c.room()
	}
	if err := c.agree(ctx, err); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// agree returns nil on every rank of both groups, or an error on every rank. err is why this rank
// cannot continue. If the old ranks can, they agree a second time, on the result of the new ones.
func (c *Copying) agree(ctx context.Context, err error) error {
	if c.from != nil {
		err = c.from.Team.Agree(ctx, 0, err)
	}
	known := err != nil
	if c.to != nil {
		if failed := c.to.Team.Agree(ctx, 0, err); err == nil {
			err = failed
		}
	}
	if c.from != nil && !known {
		err = c.from.Team.Agree(ctx, 0, err)
	}
	return err
}

// fail ends both groups.
func (c *Copying) fail(err error) error {
	for _, s := range []*Store{c.from, c.to} {
		if s != nil {
			err = s.Team.Fail(err)
		}
	}
	return err
}

// meet finds the bridge: the new rank of the lowest number that is an old one.
func (c *Copying) meet(ctx context.Context) error {
	none := int64(-1)
	numbers := [2]int64{none, none} // of this rank in the two groups
	for i, s := range []*Store{c.from, c.to} {
		if s != nil {
			numbers[i] = int64(s.rank())
		}
	}
	var known [2][]int64 // by rank of a group: the rank's number in the other one
	for i, s := range []*Store{c.from, c.to} {
		if s == nil {
			continue
		}
		known[i] = make([]int64, s.world())
		mine := []int64{numbers[1-i]}
		if err := s.Team.Group().AllGather(comm.Of(known[i]).Named("ranks"), comm.Of(mine).Named("ranks")).Wait(ctx); err != nil {
			return c.fail(fmt.Errorf("finding the ranks of both groups: %w", err))
		}
	}
	isOld := func(number int64) bool { return number != none }
	var err error
	switch {
	case c.to != nil:
		c.bridge.to = slices.IndexFunc(known[1], isOld)
		if c.bridge.to < 0 {
			err = errors.New("no rank of the new group has the old model: the values would be lost")
			break
		}
		c.bridge.from = int(known[1][c.bridge.to])
		seen := make(map[int64]int)
		for r, number := range known[1] {
			if other, twice := seen[number]; twice && isOld(number) {
				err = fmt.Errorf("ranks %d and %d of the new group are both rank %d of an old one: give all ranks the model of the same training", other, r, number)
			}
			seen[number] = r
		}
	default: // a rank that leaves
		if !slices.ContainsFunc(known[0], isOld) {
			err = errors.New("no rank of the old group has the new model: a rank that stays gives both")
			break
		}
		c.bridge.from = -1
		for r, number := range known[0] {
			if isOld(number) && (c.bridge.from < 0 || number < known[0][c.bridge.from]) {
				c.bridge.from = r
			}
		}
	}
	return c.agree(ctx, err)
}

// described returns rank 0's description of the old training.
func (c *Copying) described(ctx context.Context, about *Meta) (m Meta, err error) {
	var text []byte
	if c.from.rank() == 0 {
		if text, err = json.Marshal(about); err != nil {
			return m, err
		}
	}
	if text, err = c.from.Team.Tell(ctx, 0, text); err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		err = fmt.Errorf("receiving the description of the training from rank 0: %w", err)
	}
	return m, err
}

// lists lists the state of both trainings. Both are collectives.
func (c *Copying) lists(ctx context.Context, opt optim.Optimizer, had, has []Piece) (steps int, listed []Tensor, err error) {
	if c.from != nil {
		c.list, steps, err = c.from.listed(ctx, opt, had, true)
	}
	if c.to != nil {
		var failed error
		listed, _, failed = c.to.listed(ctx, c.next, has, false)
		if err == nil {
			err = failed
		}
	}
	c.list = slices.DeleteFunc(c.list, func(t Tensor) bool { return t.Len() == 0 })
	return steps, listed, err
}

// A description of the old state goes from the bridge to the new ranks.
type description struct {
	sheet
	About Meta
}

// tell sends the description of the old state from the bridge to all new ranks.
func (c *Copying) tell(ctx context.Context, opt optim.Optimizer, steps int) (err error) {
	if c.to == nil {
		return nil
	}
	var text []byte
	if c.to.rank() == c.bridge.to {
		d := description{sheet: sheet{Steps: steps}, About: c.About}
		n, err := new(Options).naming(c.from.Layout)
		if err != nil {
			return c.fail(err)
		}
		for i := range c.list {
			t := &c.list[i]
			d.Have = append(d.Have, found{Key: n.fileKey(t), Shape: t.Shape, DType: fileType(c.from.Compute), Steps: t.Steps})
		}
		if opt != nil {
			d.Groups = groupsOf(opt, c.list, n.param)
		}
		if text, err = json.Marshal(d); err != nil {
			return c.fail(err)
		}
	}
	if text, err = c.to.Team.Tell(ctx, c.bridge.to, text); err != nil {
		return c.fail(err)
	}
	var d description
	if err := json.Unmarshal(text, &d); err != nil {
		return c.fail(fmt.Errorf("rank %d's description of the state is invalid: %w", c.bridge.to, err))
	}
	c.sheet, c.About = d.sheet, d.About
	return nil
}

// match finds the new ranks' tensors in the old ranks' list.
func (c *Copying) match(list []Tensor) error {
	o := new(Options)
	n, err := o.naming(c.to.Layout)
	if err != nil {
		return err
	}
	if err := distinct(list, n.of); err != nil {
		return err
	}
	m := &matching{options: o, naming: n, compute: c.to.Compute, counted: true, have: c.sheet.Have, key: n.fileKey}
	if c.next != nil {
		if c.regrouping, err = c.to.regroup(c.next, c.sheet.Groups, n, len(c.sheet.Groups) > 0); err != nil {
			return err
		}
	}
	at, err := m.match("the state of the old ranks", list, c.next != nil, c.others)
	c.want = make([]*Tensor, len(c.sheet.Have))
	for i := range list {
		if at[i] >= 0 {
			c.want[at[i]] = &list[i]
		}
	}
	return err
}

// room takes memory for the tensors on their way.
func (c *Copying) room() (err error) {
	if c.from != nil && c.from.rank() == c.bridge.from {
		c.rings.from, err = c.from.newRing(c.list)
	}
	if c.to != nil && err == nil {
		wanted := make([]Tensor, 0, len(c.want))
		for _, t := range c.want {
			if t != nil {
				wanted = append(wanted, *t)
			}
		}
		c.rings.to, err = c.to.newRing(wanted)
	}
	return err
}

// Optimizer reports whether Run changes an optimizer, too.
func (c *Copying) Optimizer() bool { return c.next != nil }

// Run moves the state. After an error some of the new state may have changed; the old one never
// does.
func (c *Copying) Run(ctx context.Context) error {
	if err := c.move(ctx); err != nil {
		return err
	}
	return c.settle(ctx)
}

// settle gives the optimizer its state, which has arrived.
func (c *Copying) settle(ctx context.Context) (err error) {
	if c.to != nil && c.next != nil {
		err = c.to.adopt(c.next, c.sheet.Steps, c.adopted, c.apply)
	}
	return c.agree(ctx, err)
}

func (c *Copying) move(ctx context.Context) error {
	if c.from == nil {
		for i := range c.sheet.Have {
			if err := c.land(ctx, i, nil, nil); err != nil {
				return c.fail(err)
			}
		}
		return nil
	}
	i := 0
	all := collector{
		s: c.from, parts: c.old, root: c.bridge.from, ahead: underWay,
		room: func(t *Tensor) []byte { return c.rings.from.room(t.Len() * c.from.Compute.Size()) },
		take: func(ctx context.Context, t *Tensor, whole []byte) (err error) {
			if c.to != nil {
				err = c.land(ctx, i, t, whole)
			}
			i++
			return err
		},
	}
	err := all.run(ctx, c.list)
	if err != nil && c.to != nil {
		err = c.to.Team.Fail(err)
	}
	return err
}

// land broadcasts tensor i from the bridge, which has it whole, to the new ranks, and keeps this
// rank's part. t is the tensor in the old group, on a rank of it. Such a rank keeps its own
// buffers.
func (c *Copying) land(ctx context.Context, i int, t *Tensor, whole []byte) error {
	want, es := c.want[i], c.to.Compute.Size()
	if want == nil {
		return nil
	}
	b := c.rings.to.room(want.Len() * es)
	if whole != nil {
		b = convert(b, c.to.Compute, host(c.from.Compute, whole))
	}
	if err := c.to.Team.Group().Broadcast(buffer(c.to.Compute, b, want.Name()), c.bridge.to).Wait(ctx); err != nil {
		return fmt.Errorf("%s: %w", want.Name(), err)
	}
	if t != nil && group(c.from.Layout, t.Index).Kind.Buffer {
		kept, err := contents(c.old.of(t.Index, "").Vec)
		if err != nil {
			return err
		}
		b = convert(b, c.to.Compute, host(c.from.Compute, kept))
	}
	return c.keep(i, b)
}

// keep keeps this rank's part of tensor i, whose whole is b.
func (c *Copying) keep(i int, b []byte) error {
	want := c.want[i]
	p := c.own.of(want.Index, want.Entry)
	if p == nil || !mine(c.to.Layout, want) {
		return nil
	}
	if want.Entry != "" {
		adopted := *p
		adopted.Steps = c.sheet.Have[i].Steps
		c.adopted = append(c.adopted, adopted)
	}
	return p.put(c.to.Compute, b)
}

// Close gives the memory back.
func (c *Copying) Close() {
	c.rings.from.close()
	c.rings.to.close()
}
