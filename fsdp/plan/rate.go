package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// A Rate is what an operation takes as it was measured on one device, while so many ranks of a host
// compute:
//
//	Fixed + FLOP·FLOPs + Byte·Bytes + Score·Scores     seconds
//
// for the FLOPs, Bytes and Scores of a [Work]. Where a Cluster has one it counts, in place of what
// Device and Software say. Between numbers of ranks that were measured the times are interpolated,
// and beyond them they are those of the nearest.
//
// Besides the operations of a Work there are those of a Pass, by [Kind.String], which are what a
// rank itself does for them, and which nothing else runs beside: "gather", "wait", "reduce", "sync"
// and "drain", of the work that [Group.Work] says, and "forward" and "backward" of a call beside
// its Work. "wait at once" and "drain at once" are those where no call has run since the gather or
// reduce, so that each rank waits until the slowest is there. "pass" is of a pass beside its
// operations, and "update" of the update, with as many bytes as Pass.Owned times Pass.PerOwned. On a
// GPU a drain runs at the same time as the kernels of calls, but they share its memory, and so its
// time adds to theirs.
//
// An operation may have two rates: one while all that a rank touches in a step stays in
// Device.Cache, and one while next to nothing does. In between times are interpolated by
// [Cluster.Kept].
//
// Ranks of several threads take the times of one thread, times what threads change for a rank that
// is alone. Between measured numbers of threads a part of the time is the same for all, and the
// rest is divided by the number.
type Rate struct {
	Op      string
	Wide    bool // in float32 or float64, as Work.Wide; of a group, whether its parameters travel so
	Ranks   int  // of a host, that did it at the same time
	Threads int  `json:",omitempty"` // of a rank that is alone; 0 is 1
	Cached  bool `json:",omitempty"` // while all stays in Device.Cache

	Fixed, FLOP, Byte, Score float64
}

// AtOnce ends the name of a rate of waits that no call has run before.
const AtOnce = " at once"

// seconds returns how long work takes.
func (r *Rate) seconds(w Work) float64 {
	return r.Fixed + r.FLOP*float64(w.FLOPs) + r.Byte*float64(w.Bytes) + r.Score*float64(w.Scores)
}

// check returns what is wrong with a rate.
func (r *Rate) check() error {
	if r.Op == "" || r.Ranks < 1 || r.Threads < 0 {
		return fmt.Errorf("a rate of %q on %d ranks of %d threads", r.Op, r.Ranks, r.Threads)
	}
	if r.Threads > 1 && r.Ranks > 1 {
		return fmt.Errorf("the rate of %q is of %d threads on %d ranks; threads are measured on one", r.Op, r.Threads, r.Ranks)
	}
	for _, v := range []float64{r.Fixed, r.FLOP, r.Byte, r.Score} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("the rate of %q on %d ranks has %v", r.Op, r.Ranks, v)
		}
	}
	return nil
}

// rateKey says what a rate is of.
type rateKey struct {
	op   string
	wide bool
}

// A Cache keeps what was touched last.
type Cache struct {
	Bytes int
	Cores int // that share it, of those of a host
}

// Kept returns which share of the bytes that a rank touches in a step stays in Device.Cache. Ranks
// are spread over all cores, and those that share a cache have equal parts of it.
func (c *Cluster) Kept(ranks, touched int) float64 {
	cache := c.Device.Cache
	if cache == nil {
		return 0
	}
	sharing := max(1, math.Ceil(float64(ranks*cache.Cores)/float64(max(c.Cores, 1))))
	return min(1, float64(cache.Bytes)/sharing/float64(max(touched, 1)))
}

// bare returns what a rate is of.
func (r Rate) bare() Rate {
	r.Fixed, r.FLOP, r.Byte, r.Score = 0, 0, 0, 0
	return r
}

// plus returns a rate with a part of another.
func (r Rate) plus(part float64, o Rate) Rate {
	r.Fixed, r.FLOP, r.Byte, r.Score = r.Fixed+part*o.Fixed, r.FLOP+part*o.FLOP, r.Byte+part*o.Byte, r.Score+part*o.Score
	return r
}

// A clock says how long operations take on a rank of a host, if they have rates.
type clock struct {
	usual          map[rateKey]Rate // of one thread, while all ranks compute
	alone, threads map[rateKey]Rate // of a rank that is alone, with one thread and with as many as it has
}

// clock returns that of ranks of a host which touch so many bytes each in a step.
func (c *Cluster) clock(ranks, threads, touched int) clock {
	list := along(c.Rates, c.Kept(ranks, touched), func(r *Rate) (at float64) {
		if r.Cached {
			at = 1
		}
		r.Cached = false
		return at
	})
	var usual, alone, many []Rate
	for _, r := range list {
		if r.Threads <= 1 {
			usual = append(usual, r)
		}
		if r.Ranks > 1 {
			continue
		}
		if many = append(many, r); r.Threads <= 1 {
			alone = append(alone, r)
		}
	}
	usual = along(usual, float64(min(ranks, max(c.Cores, 1))), func(r *Rate) float64 {
		at := float64(r.Ranks)
		r.Ranks = 1
		return at
	})
	many = along(many, -1/float64(threads), func(r *Rate) float64 {
		at := -1 / float64(max(r.Threads, 1))
		r.Threads = 0
		return at
	})
	return clock{byKey(usual), byKey(alone), byKey(many)}
}

// along returns a rate for each set of those that differ in where they are alone: what is
// interpolated at a place between the nearest, or the nearest. lift says where a rate is and takes
// that from it.
func along(list []Rate, place float64, lift func(*Rate) float64) (made []Rate) {
	type point struct {
		Rate
		at float64
	}
	sets := make(map[Rate][]point)
	var order []Rate // of the sets, by their first rates
	for _, r := range list {
		at := lift(&r)
		set := r.bare()
		if sets[set] == nil {
			order = append(order, set)
		}
		sets[set] = append(sets[set], point{r, at})
	}
	for _, set := range order {
		points := sets[set]
		slices.SortStableFunc(points, func(a, b point) int { return cmp.Compare(a.at, b.at) })
		i := slices.IndexFunc(points, func(p point) bool { return p.at > place })
		switch {
		case i < 0:
			made = append(made, points[len(points)-1].Rate)
		case i == 0:
			made = append(made, points[0].Rate)
		default:
			a, b := points[i-1], points[i]
			part := (place - a.at) / (b.at - a.at)
			made = append(made, set.plus(1-part, a.Rate).plus(part, b.Rate))
		}
	}
	return made
}

func byKey(list []Rate) map[rateKey]Rate {
	table := make(map[rateKey]Rate, len(list))
	for _, r := range list {
		table[rateKey{r.Op, r.Wide}] = r
	}
	return table
}

// seconds returns how long an operation takes, and whether it has a rate.
func (k *clock) seconds(of rateKey, w Work) (seconds float64, ok bool) {
	rate, ok := k.usual[of]
	seconds = rate.seconds(w)
	one, many := k.alone[of], k.threads[of]
	if was := one.seconds(w); was > 0 {
		seconds *= many.seconds(w) / was
	}
	return seconds, ok
}

// JSON returns the file of a cluster, which [Parse] reads, with a line for each rate.
func (c *Cluster) JSON() []byte {
	bare := *c
	bare.Rates = nil
	text, err := json.MarshalIndent(&bare, "", "  ")
	if err != nil {
		panic(err) // numbers and strings; check refuses those that JSON has not
	}
	if len(c.Rates) == 0 {
		return append(text, '\n')
	}
	b := bytes.NewBuffer(bytes.TrimSuffix(text, []byte("\n}")))
	b.WriteString(",\n  \"Rates\": [")
	for i, r := range c.Rates {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(b, "\n    {\"Op\": %q, \"Wide\": %v, \"Ranks\": %d, ", r.Op, r.Wide, r.Ranks)
		if r.Threads != 0 {
			fmt.Fprintf(b, "\"Threads\": %d, ", r.Threads)
		}
		if r.Cached {
			b.WriteString("\"Cached\": true, ")
		}
		fmt.Fprintf(b, "\"Fixed\": %.4g, \"FLOP\": %.4g, \"Byte\": %.4g, \"Score\": %.4g}", r.Fixed, r.FLOP, r.Byte, r.Score)
	}
	b.WriteString("\n  ]\n}\n")
	return b.Bytes()
}
