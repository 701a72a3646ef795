package optim

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
)

// An Update records the optimizer and the numbers of one update of a piece. Ranks that train one
// model make the same updates, whichever parts of it they own. The zero Update is none.
type Update struct {
	*settings
	hyper
	lr    float64 // given to Step
	steps int     // of the optimizer, this one included
}

// settings are the Settings of all pieces of an optimizer, with their hash.
type settings struct {
	common Settings
	hash   uint64
}

// newSettings returns s with its hash.
func newSettings(s Settings) *settings {
	h := fnv.New64a()
	fmt.Fprint(h, s.Facts())
	return &settings{s, h.Sum64()}
}

// Facts describes the update: first its kind, then numbers, such as "learning rate 0.001". It
// returns nil for the zero Update.
func (u Update) Facts() []string {
	if u.settings == nil {
		return nil
	}
	if u.settings == following {
		return []string{following.common.Kind, fmt.Sprintf("decay %v", u.lr)}
	}
	s := u.common
	s.WeightDecay, s.LRScale, s.Bits = u.weightDecay, u.lrScale, u.bits
	return slices.Insert(s.Facts(), 1, fmt.Sprintf("%d steps", u.steps), fmt.Sprintf("learning rate %v", u.lr))
}

// Rate returns the learning rate given to Step. It returns false if the update is not a step but a
// Swap or an UpdateEMA.
func (u Update) Rate() (lr float64, is bool) {
	return u.lr, u.settings != nil && u.settings != swapping && u.settings != following
}

// SameOptimizer reports whether the same optimizer, or part of a composed one, made both updates.
func (u Update) SameOptimizer(v Update) bool { return u.settings == v.settings }

// Hash returns a hash of the update that begins with seed. It differs if Facts differ. Exceptions
// are the digits of rates and decays after the fifth: processors may round a schedule, or a user's
// computation of a Rule, differently. The hash of the zero Update is seed.
func (u Update) Hash(seed uint64) uint64 {
	h := seed
	if u.settings == nil {
		return h
	}
	for _, w := range [...]uint64{u.settings.hash, uint64(u.steps), rounded(u.lr), rounded(u.weightDecay), rounded(u.lrScale), uint64(u.bits)} {
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
