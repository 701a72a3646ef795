package commtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// Incident is a fault as data: the fault, the rank, the call, and the time. It can
// be printed, sent to another process and repeated. The zero Incident is none.
type Incident struct {
	What What
	When When
	Rank int // of the group that it is injected in
	// At is the call at which it happens; fields that are zero match every call.
	// An incident happens once.
	At Call
	// After is a duration: how long Delay holds the rank up and, while waiting, how
	// long the rank waits before.
	After time.Duration
}

// A What names a kind of incident.
type What string

// The incidents. Incidents that change a call itself happen before it, whatever When
// is.
const (
	Delay   What = "delay"   // the rank comes late
	Drop    What = "drop"    // the rank does not respond: it issues nothing any more
	Corrupt What = "corrupt" // a bit of the rank's contribution is flipped, for good
	Invalid What = "invalid" // the rank makes a call that is wrong by itself

	Kill What = "kill" // the process is killed
	Stop What = "stop" // the process is stopped, as by a debugger, until it is continued
	Cut  What = "cut"  // all connections of the process are shut down
	// Garble writes noise to all connections of the process. Only a checksum detects
	// noise in the payload of an operation in progress.
	Garble What = "garble"

	Abort  What = "abort"  // the rank aborts the group with ErrInjected
	Close  What = "close"  // the rank closes its handle
	Cancel What = "cancel" // the rank gives up waiting

	// The rank makes another call than the others: another collective, another
	// element type, length, operator, label or root, or two calls in reverse order.
	// If a collective has no such argument, another collective replaces it.
	WrongKind   What = "wrong kind"
	WrongType   What = "wrong type"
	WrongLength What = "wrong length"
	WrongOp     What = "wrong op"
	WrongLabel  What = "wrong label"
	WrongRoot   What = "wrong root"
	WrongOrder  What = "wrong order"
)

// When is a moment in the life of a call.
type When string

// The moments.
const (
	Before  When = "before"  // the rank issues the call
	Issued  When = "issued"  // the rank has issued the call and does not wait for it yet
	Waiting When = "waiting" // the rank waits for the call
)

// Everything lists all incidents.
func Everything() []What {
	return []What{
		Delay, Drop, Corrupt, Invalid, Kill, Stop, Cut, Garble, Abort, Close, Cancel,
		WrongKind, WrongType, WrongLength, WrongOp, WrongLabel, WrongRoot, WrongOrder,
	}
}

// Mismatch reports whether other ranks see a different call.
func (w What) Mismatch() bool { return strings.HasPrefix(string(w), "wrong ") }

// Moments returns when w can happen.
func (w What) Moments() []When {
	switch {
	case w == Cancel:
		return []When{Waiting}
	case w.Mismatch(), slices.Contains([]What{Delay, Drop, Corrupt, Invalid, Garble}, w):
		return []When{Before}
	default:
		return []When{Before, Issued, Waiting}
	}
}

// String describes i in a line: rank 2: kill waiting for all-reduce #3 "h.3" for 20ms.
func (i Incident) String() string {
	if i.What == "" {
		return "no incident"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d: %s %s", i.Rank, i.What, i.When)
	if i.When == Waiting {
		b.WriteString(" for")
	}
	kind := i.At.Kind
	if kind == "" {
		kind = "call"
	}
	fmt.Fprintf(&b, " %s", kind)
	if i.At.Seq > 0 {
		fmt.Fprintf(&b, " #%d", i.At.Seq)
	}
	if i.At.Label != "" {
		fmt.Fprintf(&b, " %q", i.At.Label)
	}
	if i.After > 0 {
		fmt.Fprintf(&b, " for %v", i.After)
	}
	return b.String()
}

// matches reports whether i happens at c.
func (i Incident) matches(c Call) bool {
	at := i.At
	return (at.Seq == 0 || at.Seq == c.Seq) && (at.Kind == "" || at.Kind == c.Kind) && (at.Label == "" || at.Label == c.Label)
}

// Plan draws an incident of one of the given kinds for a program of calls calls on n
// ranks. The same seed gives the same incident.
func Plan(seed uint64, n int, calls uint64, sorts ...What) Incident {
	rng := rand.New(rand.NewPCG(seed, 0x696e636964656e74))
	i := Incident{What: sorts[rng.IntN(len(sorts))], Rank: rng.IntN(n), At: Call{Seq: 1 + rng.Uint64N(calls)}}
	moments := i.What.Moments()
	i.When = moments[rng.IntN(len(moments))]
	if i.When == Waiting || i.What == Delay {
		i.After = time.Duration(rng.IntN(50)) * time.Millisecond
	}
	return i
}

// ErrInjected is the error that Abort aborts with.
var ErrInjected = errors.New("injected fault")

// instead returns the call that the rank of a group of n makes in place of c.
func (w What) instead(c transport.Call, rank, n int) transport.Call {
	averages := c.Op == comm.Avg
	switch reduces := c.Reduces(); {
	case w == Invalid:
		return transport.Call{Kind: transport.KindBroadcast, Root: n, Dst: comm.Of([]byte{0})}
	case w == WrongRoot && c.Kind == transport.KindBroadcast && n > 1:
		c.Root = (c.Root + 1) % n
		return c
	case w == WrongRoot && c.Kind == transport.KindGather && n > 1:
		c.Root = (c.Root + 1) % n
		c.Dst = blank(c.DType(), c.Len()) // only looked at if that is this rank
		return c
	case w == WrongOp && reduces && c.Op == comm.Max:
		c.Op = comm.Min
		return c
	case w == WrongOp && reduces:
		c.Op = comm.Max
		return c
	case w == WrongLabel && c.Kind == transport.KindGather && c.Len() > 0:
		c.Src = c.Src.Named(c.Label() + ", or not")
		return c
	case w == WrongLabel && c.Len() > 0:
		c.Dst = c.Dst.Named(c.Label() + ", or not")
		return c
	case w == WrongType && c.Len() > 0 && (!averages || c.DType() != comm.Float64):
		return resized(c, rank, n, comm.Float64, 0)
	case w == WrongLength && c.Len() > 0:
		return resized(c, rank, n, c.DType(), 1)
	case c.Kind == transport.KindBroadcast:
		return transport.Call{Kind: transport.KindAllReduce, Dst: comm.Of([]float32{float32(rank)}), Src: comm.Of([]float32{0})}
	default:
		return transport.Call{Kind: transport.KindBroadcast, Dst: comm.Of([]float32{float32(rank)})}
	}
}

// resized returns the call c of a rank with fresh buffers of type d, more elements
// longer per shard. In a gather that is only the shard of this rank, and another
// rank gets the excess if it can: a list of the same sum.
func resized(c transport.Call, rank, n int, d comm.DType, more int) transport.Call {
	if d == c.DType() && more == 0 {
		d = comm.Float32
	}
	fresh := func(b comm.Buffer, shards int) comm.Buffer {
		return blank(d, b.Len()+shards*more).Named(c.Label())
	}
	switch c.Kind {
	case transport.KindAllGather:
		c.Dst, c.Src = fresh(c.Dst, n), fresh(c.Src, 1)
	case transport.KindReduceScatter:
		c.Dst, c.Src = fresh(c.Dst, 1), fresh(c.Src, n)
	case transport.KindAllToAll:
		c.Dst, c.Src = fresh(c.Dst, n), fresh(c.Src, n)
	case transport.KindGather:
		c.Counts = slices.Clone(c.Counts)
		c.Counts[rank] += more
		if next := &c.Counts[(rank+1)%n]; n > 1 && *next >= more {
			*next -= more
		}
		c.Src = blank(d, c.Counts[rank]).Named(c.Label())
		c.Dst = blank(d, c.Len()) // only looked at on the root
	default:
		c.Dst = fresh(c.Dst, 1)
	}
	return c
}

// blank returns n zeros of type d.
func blank(d comm.DType, n int) comm.Buffer {
	switch d {
	case comm.Float32:
		return comm.Of(make([]float32, n))
	case comm.Float64:
		return comm.Of(make([]float64, n))
	case comm.Int32:
		return comm.Of(make([]int32, n))
	case comm.Int64:
		return comm.Of(make([]int64, n))
	case comm.BFloat16:
		return comm.Of(make([]comm.BF16, n))
	case comm.Float16:
		return comm.Of(make([]comm.F16, n))
	default:
		return comm.Of(make([]uint8, n))
	}
}
