package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Rate is the measured time of an operation on one device, while Ranks ranks of a host compute:
//
//	Fixed + FLOP·FLOPs + Byte·Bytes + Score·Scores     seconds
//
// for the FLOPs, Bytes and Scores of a [Work]. If a Cluster has a rate for an operation, the rate
// replaces the prediction from Device and Software. Times are interpolated between the measured
// numbers of ranks. Beyond them the nearest measurement counts.
//
// Besides the operations of a Work, the operations of a Pass have rates, named by [Kind.String]:
// the rank's own work for them, during which nothing else runs. "gather", "wait", "reduce", "sync"
// and "drain" are rates of the work that [Group.Work] returns; "forward" and "backward" are the
// time of a call in addition to its Work. "wait at once" and "drain at once" are waits with no call
// since the gather or reduce, so that each rank waits for the slowest. "pass" is the time of a pass
// in addition to its operations. "update" is the update, with Pass.Owned times Pass.PerOwned bytes.
// On a GPU, a drain runs at the same time as the kernels of calls. They share its memory, so the
// time of the drain adds to theirs.
//
// An operation may have two rates: one if all that a rank touches in a step stays in Device.Cache,
// and one if almost nothing does. Times in between are interpolated by [Cluster.Kept].
//
// Ranks of several threads take the times of one thread, times the factor by which threads change
// the time of a rank that is alone. Between measured numbers of threads, one part of the time is
// constant, and the rest is divided by the number.
type Rate struct {
	Op      string
	Wide    bool // computes in float32 or float64, as Work.Wide; for a group, its parameters travel so
	Ranks   int  // ranks of a host that ran the operation at the same time
	Threads int  `json:",omitempty"` // of a rank that is alone; 0 means 1
	Cached  bool `json:",omitempty"` // all data stayed in Device.Cache

	Fixed, FLOP, Byte, Score float64
}

// AtOnce ends the name of a rate for a wait or drain with no call since its collective began.
const AtOnce = " at once"

// seconds returns how long work takes.
func (r *Rate) seconds(w Work) float64 {
	return r.Fixed + r.FLOP*float64(w.FLOPs) + r.Byte*float64(w.Bytes) + r.Score*float64(w.Scores)
}

// check returns an error if a rate makes no sense.
func (r *Rate) check() error {
	if r.Op == "" || r.Ranks < 1 || r.Threads < 0 {
		return fmt.Errorf("the rate of %q is for %d ranks of %d threads: want an operation, at least 1 rank, and 0 or more threads", r.Op, r.Ranks, r.Threads)
	}
	if r.Threads > 1 && r.Ranks > 1 {
		return fmt.Errorf("the rate of %q is for %d threads on %d ranks: threads are measured on one rank", r.Op, r.Threads, r.Ranks)
	}
	for _, v := range []float64{r.Fixed, r.FLOP, r.Byte, r.Score} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("the rate of %q on %d ranks has the number %v: want finite numbers that are not negative", r.Op, r.Ranks, v)
		}
	}
	return nil
}

// rateKey identifies the operation of a rate.
type rateKey struct {
	op   string
	wide bool
}

// A Cache is a cache of a device.
type Cache struct {
	Bytes int
	Cores int // cores of a host that share it
}

// Kept returns the share of the bytes touched by a rank in a step that stays in Device.Cache. Ranks
// are spread over all cores, and ranks that share a cache have equal parts of it.
func (c *Cluster) Kept(ranks, touched int) float64 {
	cache := c.Device.Cache
	if cache == nil {
		return 0
	}
	sharing := max(1, math.Ceil(float64(ranks*cache.Cores)/float64(max(c.Cores, 1))))
	return min(1, float64(cache.Bytes)/sharing/float64(max(touched, 1)))
}

// bare returns the rate without its times.
func (r Rate) bare() Rate {
	r.Fixed, r.FLOP, r.Byte, r.Score = 0, 0, 0, 0
	return r
}

// plus returns a rate with a part of another.
func (r Rate) plus(part float64, o Rate) Rate {
	r.Fixed, r.FLOP, r.Byte, r.Score = r.Fixed+part*o.Fixed, r.FLOP+part*o.FLOP, r.Byte+part*o.Byte, r.Score+part*o.Score
	return r
}

// A clock has the times of operations on a rank of a host, if they have rates.
type clock struct {
	usual          map[rateKey]Rate // with one thread, while all ranks compute
	alone, threads map[rateKey]Rate // of a rank that is alone, with one thread and with all its threads
}

// clock returns the clock of ranks of a host that each touch the given number of bytes in a step.
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
		many = append(many, r)
		if r.Threads <= 1 {
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

// along groups rates that differ only in their position and returns one rate for each group: at
// place, interpolated between the two nearest, or the nearest if place is beyond them. lift returns
// the position of a rate and clears it in the rate.
func along(list []Rate, place float64, lift func(*Rate) float64) (made []Rate) {
	type point struct {
		Rate
		at float64
	}
	sets := make(map[Rate][]point)
	var order []Rate // in the order of their first rates
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
	if !ok {
		of.op = like(of.op)
		rate, ok = k.usual[of]
	}
	seconds = rate.seconds(w)
	one, many := k.alone[of], k.threads[of]
	if was := one.seconds(w); was > 0 {
		seconds *= many.seconds(w) / was
	}
	return seconds, ok
}

// like returns the operation whose rate an operation without a rate has: "linear" for "add linear",
// which adds its result to another value, "linear dx" for "gelu linear dx", which multiplies its
// result, and "linear loss" for "early linear loss", which computes gradients, too.
func like(op string) string {
	if product, slopes := strings.CutPrefix(op, "gelu linear"); slopes {
		return "linear" + product
	}
	op = strings.TrimPrefix(strings.TrimPrefix(op, "add "), "early ")
	return strings.TrimSuffix(op, " with bias")
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
