package data

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/rng"
)

// A Part is a source in a mixture.
type Part[T any] struct {
	Source Source[T]
	Weight float64 // positive, relative to the other weights
}

// blockLen is the number of samples within which a mixture keeps its weights.
const blockLen = 1 << 16

// Mix returns an endless mixture. Of every 65,536 samples each part has its share, to within one
// sample, at random places. A part without any sample in them is an error. Each part is shuffled by
// itself, as by [Shuffle], and begins again, in another order, when it is used up. An endless part
// is not reshuffled as a whole: its samples are shuffled within windows of 65,536. Everything is a
// function of the seed and the number of the sample.
func Mix[T any](seed uint64, parts ...Part[T]) Source[T] {
	keys, own := rng.New(seed, "data.Mix"), make([]Source[T], len(parts))
	weights, names := make([]float64, len(parts)), make([]string, len(parts))
	var errs []error
	if len(parts) == 0 {
		errs = append(errs, errors.New("no parts"))
	}
	for k, p := range parts {
		if bad, ok := refusal[T](p.Source); ok {
			return bad
		}
		names[k], weights[k], own[k] = fmt.Sprintf("%v of %s", p.Weight, describe(p.Source)), p.Weight, p.Source
		switch {
		case p.Source == nil:
			errs = append(errs, fmt.Errorf("part %d is nil", k))
		case p.Source.Len() == 0:
			errs = append(errs, fmt.Errorf("part %d has no samples", k))
		case !(p.Weight > 0) || math.IsInf(p.Weight, 1):
			errs = append(errs, fmt.Errorf("part %d: weight %v must be positive and finite", k, p.Weight))
		case p.Source.Len() != Endless:
			own[k] = Shuffle(p.Source, keys.Uint64(uint64(k)), Endless)
		}
	}
	var starts []int
	err := errors.Join(errs...)
	if err == nil {
		starts, err = quotas(weights)
	}
	name := fmt.Sprintf("Mix(seed %d, %s)", seed, strings.Join(names, ", "))
	return reorder(name, Endless, err, own, func(i int) (s, k int, err error) {
		block := i / blockLen
		place := permute(i%blockLen, blockLen, keys.Uint64(1<<63+uint64(block)))
		s = segment(starts, place)
		return s, block*(starts[s+1]-starts[s]) + place - starts[s], nil
	})
}

// quotas divides a block by weights. It returns the first place of each part, and then the end of
// the block.
func quotas(weights []float64) (starts []int, err error) {
	largest, total, sum := slices.Max(weights), 0.0, 0.0
	for _, w := range weights {
		total += w / largest // no sum overflows
	}
	starts = make([]int, len(weights)+1)
	for k, w := range weights {
		sum += w / largest
		starts[k+1] = int(math.Round(sum / total * blockLen))
		if starts[k+1] == starts[k] {
			return nil, fmt.Errorf("part %d: weight %v is too small: it gets none of %d samples", k, w, blockLen)
		}
	}
	return starts, nil
}
