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
// Device and Software say. Between numbers of ranks that were measured the times are interpolated, and
// beyond them they are those of the nearest.
//
// Besides the operations of a Work there are those of a Pass, by [Kind.String], which are what a rank
// itself does for them, and which nothing else runs beside: "gather", "wait", "reduce", "sync" and
// "drain", of the work that [Group.Work] says, and "forward" and "backward" of a call beside its Work. "wait at once" and "drain at once" are those where no call has run since
// the gather or reduce, so that each rank waits until the slowest is there. "pass" is of a pass beside its operations, and "update" of the update,
// with as many bytes as Pass.Owned times Pass.PerOwned.
type Rate struct {
	Op    string
	Wide  bool // in float32 or float64, as Work.Wide; of a group, whether its parameters travel so
	Ranks int  // of a host, that did it at the same time

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
	if r.Op == "" || r.Ranks < 1 {
		return fmt.Errorf("a rate of %q on %d ranks", r.Op, r.Ranks)
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

// rates are those of a cluster while so many ranks compute on a host.
func (c *Cluster) rates(ranks int) map[rateKey]Rate {
	list := slices.Clone(c.Rates)
	slices.SortStableFunc(list, func(a, b Rate) int { return cmp.Compare(a.Ranks, b.Ranks) })
	table := make(map[rateKey]Rate)
	for _, r := range list { // of each key the one with most ranks up to these, or the one with least
		key := rateKey{r.Op, r.Wide}
		below, known := table[key]
		switch {
		case !known || r.Ranks <= ranks:
			table[key] = r
		case below.Ranks < ranks:
			table[key] = between(below, r, ranks)
		}
	}
	return table
}

// between interpolates.
func between(a, b Rate, ranks int) Rate {
	part := float64(ranks-a.Ranks) / float64(b.Ranks-a.Ranks)
	at := func(x, y float64) float64 { return x + part*(y-x) }
	return Rate{a.Op, a.Wide, ranks, at(a.Fixed, b.Fixed), at(a.FLOP, b.FLOP), at(a.Byte, b.Byte), at(a.Score, b.Score)}
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
		fmt.Fprintf(b, "\n    {\"Op\": %q, \"Wide\": %v, \"Ranks\": %d, \"Fixed\": %.4g, \"FLOP\": %.4g, \"Byte\": %.4g, \"Score\": %.4g}",
			r.Op, r.Wide, r.Ranks, r.Fixed, r.FLOP, r.Byte, r.Score)
	}
	b.WriteString("\n  ]\n}\n")
	return b.Bytes()
}
