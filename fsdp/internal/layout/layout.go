package layout

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/shard"
)

// A Layout is the distribution of a model over the ranks, as seen by one rank.
type Layout struct {
	Model   *Model
	Units   []Unit
	Groups  []Group
	Home    []Place                   // by parameter
	Entries map[string]*program.Model // the scheduler's description of each path; Forward is ""
	Votes   Votes
}

// A Place is the place of a parameter: its group, and its index among the group's parameters.
type Place struct{ Group, Index int }

// A Unit is a set of parameters that is scheduled together. It has a group for each kind of them.
type Unit struct {
	Name    string
	Members []int  // parameters of the model
	Kinds   []Kind // of the members
	Cut     Cut
	At      shard.Cut // where the parameters may be cut
	Keep    bool      // once gathered, they stay whole until their last use in a pass
	Second  bool      // once gathered, they stay cut over Options.ShardRanks until their last use
	Own     *Own      // the unit's separate process group, or nil
}

// Cut says how many ranks the parameters of a unit are cut over.
type Cut uint8

// The cuts.
const (
	Whole Cut = iota // none: every rank has all of them
	Some             // Options.ShardRanks
	All              // all ranks, or the ranks of the unit's separate group
)

// A Group is the set of parameters that is gathered, freed and reduced together.
type Group struct {
	Name   string
	Unit   int // that it belongs to
	Kind   Kind
	Hold   program.Hold
	Copied bool // the rank has all of it, and keeps a copy of its shard in Read, bfloat16, which calls read in place
	Flat   *shard.Layout
	Params []int // of the model, in the order of Flat
	Ranks  Ranks

	Compute comm.DType // of sums and of whole gradients, unless they are written as Reduce
	Store   comm.DType // of the shards of parameters and gradients: Compute or BFloat16
	Read    comm.DType // of whole parameters, as calls read them
	Gather  comm.DType // of parameters that travel; Uint8 stands for blocks of 8 bits, see package vec
	Reduce  comm.DType // of gradients that travel
	Round   comm.DType // to which they are rounded before their sum, and the sum: Reduce, or a narrower type
}

// Options are the inputs of a layout besides the model and its units.
type Options struct {
	World, Rank int
	ShardRanks  int // places of a unit whose Cut is Some, or of its second copy

	Compute, Read, Gather, Reduce comm.DType // of a Group that is not Full and whose Kind has no types
	Store                         comm.DType // of a Group that is not Full
	Copies                        bool       // the device keeps a copy of parameters that units keep and the rank has all of
	Late                          bool       // gradients travel in Compute, and only their sum over virtual ranks is rounded to Reduce
}

// New lays units of m out in flat groups. Every parameter is a member of one unit.
func New(m *Model, units []Unit, o Options) (*Layout, error) {
	l := &Layout{Model: m, Units: units, Home: make([]Place, len(m.Params))}
	like := &program.Model{}
	for u := range units {
		kinds := units[u].ordered()
		for _, k := range kinds {
			g, err := l.group(u, k, len(kinds) > 1, &o)
			if err != nil {
				return nil, err
			}
			l.Groups = append(l.Groups, *g)
			like.Groups = append(like.Groups, g.schedule(units[u].Name))
		}
	}
	for p := range m.Params {
		like.Params = append(like.Params, program.Param{Name: m.Params[p].Name, Group: l.Home[p].Group})
	}
	l.Entries = make(map[string]*program.Model, len(m.Paths))
	for name, path := range m.Paths {
		l.Entries[name] = path.schedule(like)
	}
	l.Votes = l.votes()
	return l, nil
}

// group lays out the members of a unit that are of kind k. If there are several kinds, the group's
// name includes the kind.
func (l *Layout) group(unit int, k Kind, several bool, o *Options) (*Group, error) {
	u := &l.Units[unit]
	g := &Group{
		Name: u.Name, Unit: unit, Kind: k, Ranks: u.ranks(k, o), Compute: o.Compute, Store: o.Store, Read: o.Read, Gather: o.Gather, Round: o.Reduce,
	}
	if k.Gather != 0 {
		g.Gather, g.Round = k.Gather, k.Reduce
	}
	g.Reduce = g.Round
	if o.Late {
		g.Reduce = g.Compute
	}
	if several && k != (Kind{}) {
		g.Name += " (" + k.String() + ")"
	}
	if k.Full {
		g.Store, g.Read, g.Gather, g.Reduce, g.Round = g.Compute, g.Compute, g.Compute, g.Compute, g.Compute
	}
	align := shard.DefaultAlign
	if g.Gather == comm.Uint8 || g.Reduce == comm.Uint8 { // no block has elements of two parameters, or of two ranks
		align = vec.Block8
	}
	var list []shard.Param
	for i, p := range u.Members {
		if u.Kinds[i] == k {
			l.Home[p] = Place{len(l.Groups), len(list)}
			g.Params, list = append(g.Params, p), append(list, l.Model.Params[p].Param)
		}
	}
	at := u.At
	if g.Ranks.Shards == 1 {
		at = shard.Cut{}
	}
	var err error
	if g.Flat, err = at.New(list, g.Ranks.Shards, align); err != nil {
		return nil, fmt.Errorf("group %s: %w", g.Name, err)
	}
	if g.Flat.Len() > math.MaxInt/8 {
		return nil, fmt.Errorf("group %s: %d elements are more bytes than an int can count", g.Name, g.Flat.Len())
	}
	g.Copied = o.Copies && u.Keep && g.Ranks.Shards == 1 && g.Store == comm.Float32 && g.Read == comm.BFloat16 && g.Gather == g.Read
	g.Hold = u.hold(g.Ranks.Shards, g.Copied || g.Gather == g.Store && g.Read == g.Store)
	return g, nil
}

// ordered returns the distinct kinds of the unit, the usual one first.
func (u *Unit) ordered() []Kind {
	list := make([]Kind, 0, 1)
	for _, k := range u.Kinds {
		if !slices.Contains(list, k) {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b Kind) int { return strings.Compare(a.label(), b.label()) })
	return list
}

// hold returns how long a pass keeps the whole parameters that are cut over this number of places.
// If a rank has all of them as calls read them, calls use them in place.
func (u *Unit) hold(places int, there bool) program.Hold {
	switch {
	case places == 1 && there:
		return program.Always
	case u.Keep:
		return program.Keep
	default:
		return program.Use
	}
}

// ranks returns which ranks share the members of kind k.
func (u *Unit) ranks(k Kind, o *Options) Ranks {
	world, rank, places := o.World, o.Rank, o.World
	if u.Own != nil {
		world, rank, places = u.Own.Ranks, u.Own.Rank, u.Own.Ranks
	}
	switch {
	case k.Buffer, k.Ignored, u.Cut == Whole:
		places = 1
	case u.Cut == Some:
		places = o.ShardRanks
	}
	r := Ranks{World: o.World, Shards: places, Place: rank % places, Replicas: world / places, Replica: rank / places, Own: u.Own}
	if u.Second && places > o.ShardRanks {
		r.Second = o.ShardRanks
	}
	if k.Buffer { // every rank has a separate buffer
		r.Replicas, r.Replica = 1, 0
	}
	return r
}

// schedule describes the group to the scheduler.
func (g *Group) schedule(unit string) program.Group {
	wire := g.Wire(g.Gather)
	if !g.Kind.Frozen {
		wire = max(wire, g.Wire(g.Reduce), g.Wire(g.Sum())/g.Ranks.Shards)
	}
	return program.Group{
		Name: g.Name, Unit: unit, Hold: g.Hold, Frozen: g.Kind.Frozen, Bytes: wire, Shards: g.Ranks.Shards, Replicas: g.Ranks.Replicas,
		Second: g.Ranks.Second,
	}
}

// Sizes returns the bytes of the full buffers of every group.
func (l *Layout) Sizes() []program.GroupSizes {
	sizes := make([]program.GroupSizes, len(l.Groups))
	for i := range l.Groups {
		g := &l.Groups[i]
		sizes[i] = program.GroupSizes{
			Params: g.ParamBytes(), Grads: g.GradBytes(), ParamsWire: g.Wire(g.Gather), GradsWire: g.Wire(g.Reduce), SumsWire: g.Wire(g.Sum()),
		}
	}
	return sizes
}

// ErrorBytes returns the bytes of the rounding errors that one rank keeps of the gradients that it
// has sent.
func (l *Layout) ErrorBytes() (n int) {
	for i := range l.Groups {
		n += l.Groups[i].ErrorBytes()
	}
	return n
}

// ShardBytes returns the bytes of one rank's parameters and gradients, copies included.
func (l *Layout) ShardBytes() (n int) {
	for i := range l.Groups {
		g := &l.Groups[i]
		n += g.ShardBytes() + g.CopyBytes()
		if !g.Kind.Frozen {
			n += g.ShardBytes()
		}
	}
	return n
}

// Near reports whether a device keeps the shard of the parameters in its own memory in any case:
// calls read it in place, or NCCL sums buffers there.
func (g *Group) Near() bool { return g.Hold == program.Always && !g.Copied || g.Kind.Buffer }

// Wire returns the bytes of all elements of the group as type t travels.
func (g *Group) Wire(t comm.DType) int {
	if t == comm.Uint8 {
		return g.Flat.Len() / vec.Block8 * vec.Bytes8
	}
	return g.Flat.Len() * t.Size()
}

// Sum returns the type of sums of gradients: the type in which they travel, or Compute if they
// travel as blocks.
func (g *Group) Sum() comm.DType {
	if g.Reduce == comm.Uint8 {
		return g.Compute
	}
	return g.Reduce
}

// ErrorBytes returns the size of the rounding errors of this rank's gradients that travel as
// blocks. They are stored as blocks, too, and travel with the next gradients.
func (g *Group) ErrorBytes() int {
	if g.Reduce != comm.Uint8 || g.Kind.Frozen {
		return 0
	}
	return g.Wire(g.Reduce)
}

// ParamBytes returns the size of the group's full buffer of parameters.
func (g *Group) ParamBytes() int { return g.Flat.Len() * g.Read.Size() }

// GradBytes returns the size of the group's full buffer of gradients.
func (g *Group) GradBytes() int { return g.Flat.Len() * g.Compute.Size() }

// ShardBytes returns the size of one rank's share of the parameters, without the copy. Its
// gradients take as much.
func (g *Group) ShardBytes() int { return g.Flat.ShardLen() * g.Store.Size() }

// CopyBytes returns the size of the copy of the shard in Read, or 0.
func (g *Group) CopyBytes() int {
	if !g.Copied {
		return 0
	}
	return g.Flat.ShardLen() * g.Read.Size()
}

// Excess returns how many bytes more one rank's parameters and gradients take than if the group
// were cut anywhere, in equal parts.
func (g *Group) Excess() int {
	n := g.Flat.Excess() * g.Store.Size()
	if !g.Kind.Frozen {
		n *= 2
	}
	return n
}

// Segments returns the segments that this rank owns.
func (g *Group) Segments() []shard.Segment { return g.Flat.Segments(g.Ranks.Place) }

// Param returns the memory of parameter i of the group in a full buffer of parameters or gradients.
func (g *Group) Param(full []byte, i int) []byte {
	size := len(full) / g.Flat.Len() // of an element
	lo := g.Flat.Offset(i) * size
	hi := lo + g.Flat.Params()[i].Len()*size
	return full[lo:hi:hi]
}

// Stream names the random numbers of a parameter. Every set of ranks that has a different parameter
// of that name has different numbers.
func (g *Group) Stream(param string) string {
	if own := g.Ranks.Own; own != nil && own.Leader > 0 && !g.Kind.Buffer {
		return fmt.Sprintf("%s of rank %d", param, own.Leader)
	}
	return param
}
