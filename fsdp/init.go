package fsdp

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/caught"
	"github.com/gofsdp/gofsdp/internal/rng"
	"github.com/gofsdp/gofsdp/optim"
)

// An Init gives the initial values of a parameter: it writes elements first, first+1, … of the
// parameter, in row-major order, to dst. Each rank asks only for the elements it owns, in pieces,
// so an element must be a function of its index. Then the model is the same at every world size,
// and no rank ever holds a whole parameter. The first use of the values, such as a Forward, calls
// it, unless Load, Import or LoadStateDict has replaced the parameter before. With Precision.Master
// BFloat16, Wrap calls it.
type Init func(r Stream, first int, dst []float64)

// A Stream gives random numbers by index, keyed by the seed of the configuration and the
// parameter's name. Element i is the same on every rank and in every order of calls.
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

// Initial values are drawn at their first use, so that a Load or an Import does not wait for values
// that it replaces. Until then elements are blank: a signalling NaN. Values that a program writes
// meanwhile stay. Arithmetic on a blank makes the quiet NaN of the same payload, which draw reports
// as an error.
const (
	blank32 uint32 = 0x7F85_B1A7
	blank64 uint64 = 0x7FF5_B1A7_B1A7_B1A7
	quiet32 uint32 = 1 << 22
	quiet64 uint64 = 1 << 51
)

var errBlank = errors.New("a value was computed from an initial value that was not drawn yet: call Summon first, " +
	"with WriteBack to change values, or write values without reading them")

// initials are this rank's parts of the parameters that have an Init, cut into pieces of a bounded
// size.
type initials struct {
	l      *layout.Layout
	shards engine.Shards
	params []tapeParam
}

// each calls f for each piece, elements first, first+1, … of a parameter, with a buffer of its type
// and length.
func (in initials) each(f func(p *tapeParam, g *layout.Group, first int, piece optim.Vec, buffer optim.Host) error) (err error) {
	name := ""
	defer func() {
		if err != nil {
			err = fmt.Errorf("parameter %s: %w", name, err)
		}
	}()
	defer caught.Panic(&err, "Init")
	const most = 1 << 16
	var wide []float64
	var narrow []float32
	for i := range in.l.Groups {
		g, value := &in.l.Groups[i], in.shards.Value(i)
		for _, s := range g.Segments() {
			p := &in.params[g.Params[s.Param]]
			name = p.Name
			if p.Init == nil {
				continue
			}
			for done := 0; done < s.Len; done += most {
				n := min(most, s.Len-done)
				var buffer optim.Host
				if value.Float64() {
					wide = slices.Grow(wide[:0], most)
					buffer.F64 = wide[:n]
				} else {
					narrow = slices.Grow(narrow[:0], most)
					buffer.F32 = narrow[:n]
				}
				if err := f(p, g, s.Offset+done, value.Slice(s.At+done, s.At+done+n), buffer); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// blank makes all elements blank. In 16 bits there is no blank, so they get their initial values.
func (in initials) blank(seed uint64) error {
	return in.each(func(p *tapeParam, g *layout.Group, first int, piece optim.Vec, buffer optim.Host) error {
		if g.Store == comm.BFloat16 {
			values := make([]float64, piece.Len())
			p.Init(Stream{rng.New(seed, g.Stream(p.Name))}, first, values)
			for i, v := range values {
				buffer.F32[i] = float32(v)
			}
			return piece.Write(buffer)
		}
		for i := range buffer.F64 {
			buffer.F64[i] = math.Float64frombits(blank64)
		}
		for i := range buffer.F32 {
			buffer.F32[i] = math.Float32frombits(blank32)
		}
		return piece.Write(buffer)
	})
}

// draw gives elements that are blank their initial values.
func (in initials) draw(seed uint64) error {
	values := make([]float64, 0)
	return in.each(func(p *tapeParam, g *layout.Group, first int, piece optim.Vec, buffer optim.Host) error {
		if err := piece.Read(buffer); err != nil {
			return err
		}
		isBlank32 := func(v float32) bool { return math.Float32bits(v) == blank32 }
		isBlank64 := func(v float64) bool { return math.Float64bits(v) == blank64 }
		if slices.ContainsFunc(buffer.F32, func(v float32) bool { return math.Float32bits(v) == blank32|quiet32 }) ||
			slices.ContainsFunc(buffer.F64, func(v float64) bool { return math.Float64bits(v) == blank64|quiet64 }) {
			return errBlank
		}
		if !slices.ContainsFunc(buffer.F32, isBlank32) && !slices.ContainsFunc(buffer.F64, isBlank64) {
			return nil
		}
		values = slices.Grow(values[:0], piece.Len())[:piece.Len()]
		clear(values)
		p.Init(Stream{rng.New(seed, g.Stream(p.Name))}, first, values)
		for i, v := range buffer.F32 {
			if isBlank32(v) {
				buffer.F32[i] = float32(values[i])
			}
		}
		for i, v := range buffer.F64 {
			if isBlank64(v) {
				buffer.F64[i] = values[i]
			}
		}
		return piece.Write(buffer)
	})
}
