package fsdp

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/caught"
	"github.com/gofsdp/gofsdp/internal/rng"
	"github.com/gofsdp/gofsdp/optim"
)

// An Init gives the initial values of a parameter: it writes elements first, first+1, … of the
// parameter, in row-major order, to dst. Each rank asks only for the elements it owns, in pieces,
// so an element must be a function of its index. Then the model is the same at every world size,
// and no rank ever holds a whole parameter.
type Init func(r Stream, first int, dst []float64)

// A Stream gives random numbers by index, keyed by the seed of the configuration and the
// parameter's name. Element i is the same whoever asks for it and in whatever order.
type Stream struct{ s rng.Stream }

// Uint64 returns number i, uniform over all 64-bit values.
func (r Stream) Uint64(i int) uint64 { return r.s.Uint64(uint64(i)) }

// Float64 returns number i, uniform in [0, 1).
func (r Stream) Float64(i int) float64 { return r.s.Float64(uint64(i)) }

// Normal returns number i of a standard normal distribution.
func (r Stream) Normal(i int) float64 { return r.s.Normal(uint64(i)) }

// Constant sets every element to v.
func Constant(v float64) Init {
	return func(_ Stream, _ int, dst []float64) {
		for i := range dst {
			dst[i] = v
		}
	}
}

// Normal draws from a normal distribution with mean 0 and the given standard deviation.
func Normal(std float64) Init {
	return func(r Stream, first int, dst []float64) {
		onAllCores(len(dst), func(from, to int) { rng.FillNormal(dst[from:to], r.s, uint64(first+from), 0, std) })
	}
}

// Uniform draws from [lo, hi).
func Uniform(lo, hi float64) Init {
	return func(r Stream, first int, dst []float64) {
		for i := range dst {
			dst[i] = lo + (hi-lo)*r.Float64(first+i)
		}
	}
}

// onAllCores calls f for parts of [0, n) at once. Parts that would take less than a tenth of a
// millisecond stay whole.
func onAllCores(n int, f func(from, to int)) {
	part := max((n-1)/runtime.GOMAXPROCS(0)+1, 2048)
	var rest sync.WaitGroup
	for from := part; from < n; from += part {
		rest.Go(func() { f(from, min(from+part, n)) })
	}
	f(0, min(part, n))
	rest.Wait()
}

// draw sets this rank's part of every parameter to its initial value.
func draw(l *layout.Layout, shards engine.Shards, params []tapeParam, seed uint64) (err error) {
	name := ""
	defer func() {
		if err != nil {
			err = fmt.Errorf("parameter %s: %w", name, err)
		}
	}()
	defer caught.Panic(&err, "Init")
	wide := make([]float64, 1<<16)
	narrow := make([]float32, len(wide))
	for i := range l.Groups {
		g, value := &l.Groups[i], shards.Value(i)
		for _, s := range g.Segments() {
			p := params[g.Params[s.Param]]
			if name = p.Name; p.Init == nil {
				continue
			}
			stream := Stream{rng.New(seed, g.Stream(name))}
			for done := 0; done < s.Len; done += len(wide) {
				part := optim.Host{F64: wide[:min(len(wide), s.Len-done)]}
				p.Init(stream, s.Offset+done, part.F64)
				if !value.Float64() {
					for i, v := range part.F64 {
						narrow[i] = float32(v)
					}
					part = optim.Host{F32: narrow[:len(part.F64)]}
				}
				if err := value.Slice(s.At+done, s.At+done+part.Len()).Write(part); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
