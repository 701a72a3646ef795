package simulate

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/quorum"
	"github.com/gofsdp/gofsdp/internal/simnet"
	"github.com/gofsdp/gofsdp/internal/store"
)

// witness is the witness of a survival. Its methods are called from the goroutine of strike.
type witness struct {
	*survival
	host *simnet.Host
	now  *quorum.Witness // nil while there is none
	sure int             // groups that had formed when the latest one was started again, or -1
}

const witnessIP = "172.16.0.1"

func newWitness(s *survival) *witness {
	w := &witness{survival: s, host: s.net.Host(witnessIP), sure: -1}
	w.start()
	return w
}

// address returns the address of the witness, "" if there is none.
func (w *witness) address() string {
	if w == nil {
		return ""
	}
	return witnessIP + ":29600"
}

// start starts a witness without promises.
func (w *witness) start() {
	var err error
	if w.now, err = quorum.Serve(store.WithNetwork(context.Background(), w.host), w.address(), store.Config{Secret: secret}); err != nil {
		panic(err) // nothing else listens there
	}
}

// end kills the witness. Its connections are reset, and its port refuses others.
func (w *witness) end() {
	if w.now != nil {
		_ = w.now.Close() // its host may be cut off
		w.now = nil
	}
}

// strike kills the witness, starts one again, or loses a half of the ranks.
func (w *witness) strike(rng *rand.Rand) {
	count := func(e event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.counts[e]++
	}
	switch at := rng.IntN(8); {
	case at == 0 && w.now != nil:
		count(witnessKilled)
		w.end()
	case at == 1 || at < 4 && w.now == nil:
		count(witnessAgain)
		w.end()
		w.start()
		w.mu.Lock()
		w.sure = len(w.groups)
		w.mu.Unlock()
	default:
		w.halve(rng)
	}
}

// halve kills one half of the ranks of the latest group, or cuts the halves apart. The group has
// ranks that an earlier event has struck, if they are back.
func (w *witness) halve(rng *rand.Rand) {
	w.mu.Lock()
	list := slices.DeleteFunc(slices.Clone(w.ranks), func(r *survivor) bool { return r.ended || r.groups == 0 || r.group != w.latest })
	votes := w.now != nil && len(w.groups) > w.sure+1
	whole := w.latest != nil && len(list) == w.latest.size && !slices.ContainsFunc(w.ranks, func(r *survivor) bool { return !r.ended && r.groups == 0 || r.rank < 0 && !r.ended })
	w.mu.Unlock()
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	if len(list) < 4 || len(list)%2 == 1 || w.calm && (!votes || !whole) {
		return
	}
	half := list[:len(list)/2]
	if rng.IntN(2) == 0 {
		w.note(half, killed)
		for _, r := range half {
			r.host.Kill()
			r.cancel()
		}
		return
	}
	var hosts, both []*simnet.Host
	for _, r := range half {
		hosts = append(hosts, r.host)
	}
	lasting := time.Duration(rng.Int64N(int64(3 * time.Minute)))
	switch at := rng.IntN(4); {
	case at == 0:
		hosts, half = append(hosts, w.host), list[len(half):]
	case at < 3 && !w.calm: // either half may go on
		both = []*simnet.Host{w.host}
	}
	w.note(half, halved)
	w.net.Part(hosts, lasting, both...)
	w.later(lasting, returned, -1)
}

// TestHalve strikes half of a group of eight ranks, four of which are back after an earlier event.
// It strikes no rank if ranks of the group have ended: the others are no halves then.
func TestHalve(t *testing.T) {
	for seed := range uint64(10) {
		for _, ended := range []int{0, 2} {
			synctest.Test(t, func(t *testing.T) {
				s := &survival{calm: true, net: simnet.New(simnet.Config{Seed: seed}), latest: &formed{size: 8}}
				s.groups = map[int64]*formed{0: {}, 1: s.latest}
				for no := range 8 {
					s.ranks = append(s.ranks, &survivor{survival: s, host: s.net.Host(ip(no)), cancel: func() {}, struck: no < 4, groups: 2, group: s.latest, ended: no < ended})
				}
				w := newWitness(s)
				defer w.end()
				w.halve(rand.New(rand.NewPCG(seed, 0)))
				want := 4
				if ended > 0 {
					want = 0
				}
				require.Equal(t, want, s.counts[killed]+s.counts[halved])
			})
		}
	}
}
