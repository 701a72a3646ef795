package optim

import (
	"fmt"
	"hash/fnv"
	"math"
)

// An Update says by which optimizer and with which numbers a piece was updated. Ranks that train
// one model make the same updates, whatever they own of it. The zero Update is none.
type Update struct {
	*settings
	hyper
	lr    float64 // given to Step
	steps int     // of the optimizer, this one included
}

// settings are what an optimizer does to all of its pieces.
type settings struct {
	kind    string   // "AdamW"
	numbers []string // "Beta1 0.9", …
	hash    uint64
}

// newSettings returns those of a kind, with the names and values of its numbers.
func newSettings(kind string, numbers ...any) *settings {
	s := &settings{kind: kind}
	h := fnv.New64a()
	for fmt.Fprint(h, kind); len(numbers) > 0; numbers = numbers[2:] {
		s.numbers = append(s.numbers, fmt.Sprintf("%s %v", numbers[0], numbers[1]))
		fmt.Fprintf(h, ", %s", s.numbers[len(s.numbers)-1])
	}
	s.hash = h.Sum64()
	return s
}

// Facts describes the update: first its kind, then numbers, such as "learning rate 0.001". Of
// the zero Update it says nothing.
func (u Update) Facts() []string {
	if u.settings == nil {
		return nil
	}
	return append([]string{
		u.kind, fmt.Sprintf("%d steps", u.steps), fmt.Sprintf("learning rate %v", u.lr),
		fmt.Sprintf("weight decay %v", u.weightDecay), fmt.Sprintf("LRScale %v", u.lrScale),
	}, u.numbers...)
}

// Hash returns a hash of the update that begins from seed. It differs where Facts do, but for what
// rates and decays have beyond five digits: processors may round a schedule differently, and what
// users compute a Rule from. That of the zero Update is seed.
func (u Update) Hash(seed uint64) uint64 {
	h := seed
	if u.settings == nil {
		return h
	}
	for _, w := range [...]uint64{u.settings.hash, uint64(u.steps), rounded(u.lr), rounded(u.weightDecay), rounded(u.lrScale)} {
		h = (h ^ w) * 0x9E3779B97F4A7C15
		h ^= h >> 32
	}
	return h
}

// rounded returns the bits of v with a mantissa of 19 bits.
func rounded(v float64) uint64 {
	const dropped = 52 - 19
	return (math.Float64bits(v) + 1<<(dropped-1)) >> dropped
}
