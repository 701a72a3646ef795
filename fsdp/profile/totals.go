package profile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// Totals are the measured operations of a rank. "fsdprun -stragglers" reads their JSON.
type Totals struct {
	Rank, Size int
	Host       string
	Threads    int           // cores that the rank computes on
	Cores      int           // cores that the ranks of its host may use
	Model      int           // number of the model
	Passes     int           // training passes
	Took       time.Duration // from the beginning of the first operation to the end of the last
	Ops        []Op          // in the order in which they first ran
}

// An Op is an operation of a pass, with its totals.
type Op struct {
	Kind     string // kind of a plan.Op, or "agree": the exchange before a method
	Name     string // of the group, call or method
	Nth      int    // index among those with this name in a pass
	Shards   int    `json:",omitempty"` // ranks that the group is cut over
	Backward bool   `json:",omitempty"`

	Count  int
	Absent int           `json:",omitempty"` // number of runs without a batch
	Begin  time.Duration // after the ranks agreed
	Took   time.Duration
	Live   int // peak bytes
}

// agree is the kind of the exchange before a method.
const agree = "agree"

// computes reports whether it is a call.
func (o *Op) computes() bool { return o.Kind == "forward" || o.Kind == "backward" }

// waits reports whether it waits for other ranks.
func (o *Op) waits() bool {
	return o.Kind == agree || o.Kind == "wait" || o.Kind == "sync" || o.Kind == "drain"
}

// each returns the seconds of each run with a batch.
func (o *Op) each() float64 {
	return o.Took.Seconds() / float64(max(1, o.Count-o.Absent))
}

// text returns the operation in words.
func (o *Op) text() string { return strings.TrimSpace(o.Kind + " " + o.Name) }

func (t *Totals) clone() *Totals {
	c := *t
	c.Ops = slices.Clone(t.Ops)
	return &c
}

// hash returns a hash of the names of the operations.
func (t *Totals) hash() int64 {
	h := fnv.New64a()
	for _, o := range t.Ops {
		fmt.Fprintf(h, "%s\x00%s\x00%d\n", o.Kind, o.Name, o.Nth)
	}
	return int64(h.Sum64())
}

// The words of a rank: passes, time, threads, cores and the name of its host, and then four for
// each operation.
const (
	hostWords = 8
	headWords = 4 + hostWords
	opWords   = 4
)

// words returns the data of t that the other ranks do not have.
func (t *Totals) words() []int64 {
	w := make([]int64, headWords, headWords+opWords*len(t.Ops))
	w[0], w[1], w[2], w[3] = int64(t.Passes), int64(t.Took), int64(t.Threads), int64(t.Cores)
	for i, c := range []byte(t.Host[:min(len(t.Host), 8*hostWords)]) {
		w[4+i/8] |= int64(c) << (8 * (i % 8))
	}
	for _, o := range t.Ops {
		w = append(w, int64(o.Count), int64(o.Absent), int64(o.Begin), int64(o.Took))
	}
	return w
}

// decode returns the totals of another rank from its words.
func (t *Totals) decode(rank int, w []int64) *Totals {
	c := t.clone()
	c.Rank, c.Passes, c.Took, c.Threads, c.Cores = rank, int(w[0]), time.Duration(w[1]), int(w[2]), int(w[3])
	var host []byte
	for i := range 8 * hostWords {
		host = append(host, byte(w[4+i/8]>>(8*(i%8))))
	}
	c.Host = strings.TrimRight(string(host), "\x00")
	for i := range c.Ops {
		o, v := &c.Ops[i], w[headWords+opWords*i:]
		o.Count, o.Absent, o.Begin, o.Took = int(v[0]), int(v[1]), time.Duration(v[2]), time.Duration(v[3])
	}
	return c
}

// Stragglers returns which rank holds up which since the last Reset, the same on every rank. It is
// a collective of Config.Group, like methods of the model: never call both at the same time.
func (p *Profile) Stragglers(ctx context.Context) (*Report, error) {
	p.mu.Lock()
	g := p.to.Group
	p.mu.Unlock()
	if g == nil {
		return nil, errors.New("profile: Stragglers: no model was wrapped with the profile")
	}
	all, err := p.Totals().gather(ctx, g)
	if err != nil {
		return nil, fmt.Errorf("profile: Stragglers: rank %d: %w", g.Rank(), err)
	}
	return Find(all)
}

// gather returns the totals of all ranks. If all have run the same operations, as nearly always, it
// exchanges only their numbers.
func (t *Totals) gather(ctx context.Context, g comm.Group) ([]*Totals, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	heads, err := exchange(ctx, g, []int64{t.hash(), int64(len(text))})
	if err != nil {
		return nil, err
	}
	same, longest := true, 0
	for r := 0; r < len(heads); r += 2 {
		same, longest = same && heads[r] == heads[0], max(longest, int(heads[r+1]))
	}
	list := make([]*Totals, g.Size())
	if same {
		mine := t.words()
		words, err := exchange(ctx, g, mine)
		for r := 0; r < len(list) && err == nil; r++ {
			list[r] = t.decode(r, words[r*len(mine):])
		}
		return list, err
	}
	texts, err := exchange(ctx, g, append(text, make([]byte, longest-len(text))...))
	for r := 0; r < len(list) && err == nil; r++ {
		list[r] = new(Totals)
		err = json.Unmarshal(texts[r*longest:][:heads[2*r+1]], list[r])
	}
	return list, err
}

// exchange returns the data of all ranks.
func exchange[T byte | int64](ctx context.Context, g comm.Group, mine []T) ([]T, error) {
	all := make([]T, len(mine)*g.Size())
	return all, g.AllGather(comm.Of(all).Named("profile"), comm.Of(mine).Named("profile")).Wait(ctx)
}

// alike gives all ranks the operations that any of them has, in the same order. If a rank has not
// run an operation, it counts nothing there.
func alike(all []*Totals) []*Totals {
	at := make(map[key]int)
	var union []Op
	for _, t := range all {
		for _, o := range t.Ops {
			if k := (key{o.Kind, o.Name, o.Nth}); at[k] == 0 {
				union = append(union, Op{Kind: o.Kind, Name: o.Name, Nth: o.Nth, Shards: o.Shards, Backward: o.Backward})
				at[k] = len(union)
			}
		}
	}
	list := make([]*Totals, len(all))
	for r, t := range all {
		c := *t
		c.Ops = slices.Clone(union)
		for _, o := range t.Ops {
			c.Ops[at[key{o.Kind, o.Name, o.Nth}]-1] = o
		}
		list[r] = &c
	}
	return list
}
