package engine

import (
	"sync"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/optim"
)

// hostGrads are a gradient shard on the host. Clipping and clearing change every element by one
// factor. Such a change of the whole shard is deferred, because the next operation can usually make
// it in passing, without another pass over the memory:
//
//	after    the next operation    what happens
//	times    an update             it multiplies the gradients that it reads, not the memory
//	times    Zero                  the factor is dropped
//	Zero     a drain               it stores, and does not add
//	either   any other             the memory is changed first
//
// Bits are the same as if the change were made at once: an update rounds the product before it uses
// it. Only a drain after Zero keeps the sign of a sum that is -0. A drain also finds the largest
// magnitude, which ClipGradNorm and Step need, while its results are in the cache.
type hostGrads struct {
	mu      sync.Mutex // several goroutines may use slices
	memory  optim.Host
	cleared bool    // all elements are 0, whatever the memory contains
	factor  float64 // the elements are the memory times it
	most    float64 // the largest magnitude in memory, if known
	known   bool
}

// newHostGrads returns the gradients in memory, all zero.
func newHostGrads(memory optim.Host) *hostGrads {
	return &hostGrads{memory: memory, cleared: true, factor: 1}
}

// apply makes the deferred change. The caller has the lock.
func (g *hostGrads) apply() {
	switch {
	case g.cleared:
		clear(g.memory.F32)
		clear(g.memory.F64)
	case g.factor != 1:
		vec.Scale(g.memory.F32, float32(g.factor))
		vec.Scale(g.memory.F64, g.factor)
	default:
		return
	}
	g.cleared, g.factor, g.known = false, 1, false
}

// replace takes other memory, if swap can exchange it: the sums of a drain after Zero.
func (g *hostGrads) replace(swap func() (memory optim.Host, ok bool)) (ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.cleared {
		return false
	}
	memory, ok := swap()
	if ok {
		g.memory, g.cleared, g.factor, g.known = memory, false, 1, false
	}
	return ok
}

// A drain adds sums to gradients, some at a time, from the first to the last.
type drain struct {
	*hostGrads
	cleared bool
}

// drain begins a drain, which has the lock until its end.
func (g *hostGrads) drain() drain {
	g.mu.Lock()
	d := drain{g, g.cleared}
	if !d.cleared {
		g.apply()
	}
	g.cleared, g.factor, g.most, g.known = false, 1, 0, true
	return d
}

// add adds c times the sums to the elements from at on.
func (d drain) add(at int, sums optim.Host, c float64) {
	if sums.F64 != nil {
		d.most = max(d.most, addSums(d.memory.F64[at:], sums.F64, c, d.cleared))
	} else {
		d.most = max(d.most, float64(addSums(d.memory.F32[at:], sums.F32, float32(c), d.cleared)))
	}
}

// end ends the drain.
func (d drain) end() { d.mu.Unlock() }

// addSums adds c times the sums to as many elements, which count as 0 if cleared, and returns the
// largest magnitude.
func addSums[T float32 | float64](to, sums []T, c T, cleared bool) T {
	if to = to[:len(sums)]; cleared {
		vec.ScaleTo(to, c, sums)
	} else {
		vec.AddScaled(to, sums, c)
	}
	return vec.MaxAbs(to)
}

// A hostGrad is a vector of elements of hostGrads.
type hostGrad struct {
	*hostGrads
	from, to int
}

// whole reports whether g has all elements.
func (g hostGrad) whole() bool { return g.to-g.from == g.memory.Len() }

// part returns the memory of g.
func (g hostGrad) part() optim.Host { return g.memory.Slice(g.from, g.to).(optim.Host) }

// Len implements optim.Vec.
func (g hostGrad) Len() int { return g.to - g.from }

// Float64 implements optim.Vec.
func (g hostGrad) Float64() bool { return g.memory.Float64() }

// Slice implements optim.Vec.
func (g hostGrad) Slice(from, to int) optim.Vec {
	_ = g.part().Slice(from, to) // panics as it must
	return hostGrad{g.hostGrads, g.from + from, g.from + to}
}

// Elements implements vec.Addressable of package optim. The caller may change them.
func (g hostGrad) Elements() optim.Host {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.apply()
	g.known = false
	return g.part()
}

// Read implements optim.Vec.
func (g hostGrad) Read(to optim.Host) error {
	g.mu.Lock()
	g.apply()
	g.mu.Unlock()
	return g.part().Read(to)
}

// Write implements optim.Vec.
func (g hostGrad) Write(from optim.Host) error { return g.Elements().Write(from) }

// Zero implements optim.Vec.
func (g hostGrad) Zero() error {
	if !g.whole() {
		return g.Elements().Zero()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cleared, g.factor = true, 1
	return nil
}

// Scaled returns the memory of g and a factor with which its elements must still be multiplied. See
// optim.Vec.
func (g hostGrad) Scaled() (elements optim.Host, factor float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cleared {
		g.apply()
	}
	return g.part(), g.factor
}

// times multiplies the elements by c.
func (g hostGrad) times(c float64) {
	if !g.whole() {
		scale(g.Elements(), c)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cleared && c > 0 && c-c == 0 {
		return
	}
	if g.cleared || g.factor != 1 {
		g.apply()
	}
	g.factor = c
}

// scale multiplies the elements by c.
func scale(h optim.Host, c float64) {
	vec.Scale(h.F64, c)
	vec.Scale(h.F32, float32(c))
}

// Largest returns the largest magnitude, which is not finite if one of the elements is not.
func (g hostGrad) Largest() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.apply()
	if g.known && g.whole() {
		return g.most
	}
	return largest(g.part())
}

// largest returns the largest magnitude of the elements.
func largest(h optim.Host) float64 {
	if h.F64 != nil {
		return vec.MaxAbs(h.F64)
	}
	return float64(vec.MaxAbs(h.F32))
}
