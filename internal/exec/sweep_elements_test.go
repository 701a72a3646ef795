package exec_test

import (
	"fmt"
	"maps"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"

	fsdpexec "github.com/gofsdp/gofsdp/internal/exec"
)

var sweep = table(
	unaries(), comparisons(), arithmetic(), reductions(), broadcasts(), movements(), products(), composed(), softmaxes(), lookups(), images(), randoms(), refusals(), others())

func table(parts ...map[string]entry) map[string]entry {
	all := make(map[string]entry)
	for _, p := range parts {
		for name, e := range p {
			if _, twice := all[name]; twice {
				panic(name + " is in the table twice")
			}
			all[name] = e
		}
	}
	return all
}

// shapes has those of ranks 1 to 5 with prime lengths, and with some lengths of 1.
var shapes = [][]int{
	{5}, {1}, {2, 3}, {1, 3}, {3, 1}, {1, 1}, {2, 3, 5}, {1, 3, 1}, {2, 1, 3}, {3, 5, 2, 2}, {2, 1, 3, 1}, {1, 2, 1, 3}, {2, 3, 1, 5},
	{2, 1, 3, 2, 2}, {1, 2, 3, 1, 2}, {2, 3, 2, 1, 1}, {2, 2, 2, 3, 1},
}

func scalars() []int { return []int{} }

// subsets returns the sets of numbers below n that are not empty.
func subsets(n int) (all [][]int) {
	for mask := 1; mask < 1<<n; mask++ {
		var set []int
		for i := range n {
			if mask>>i&1 == 1 {
				set = append(set, i)
			}
		}
		all = append(all, set)
	}
	return all
}

type node = func(*G.Node) (*G.Node, error)

func one(name string, in []int, f node, define func(array) array) sample {
	return sample{name: name, in: [][]int{in}, f: func(_ *fsdpexec.Builder, x []*G.Node) (*G.Node, error) { return f(x[0]) },
		define: func(x []array) array { return define(x[0]) }}
}

func two(name string, a, b []int, f func(x, y *G.Node) (*G.Node, error), define func(x, y array) array) sample {
	return sample{name: name, in: [][]int{a, b}, f: func(_ *fsdpexec.Builder, x []*G.Node) (*G.Node, error) { return f(x[0], x[1]) },
		define: func(x []array) array { return define(x[0], x[1]) }}
}

func above(least float64) func(float64) float64 {
	return func(x float64) float64 { return math.Abs(x) + least }
}

// aside keeps x away from the integers, where steps are.
func aside(x float64) float64 { return math.Floor(x) + 0.2 + 0.6*(x-math.Floor(x)) }

func unaries() map[string]entry {
	table := make(map[string]entry)
	add := func(name string, f node, define, domain func(float64) float64) {
		var e entry
		for _, shape := range append(shapes, scalars()) {
			s := one(name, shape, f, func(x array) array { return x.each(define) })
			s.domain = domain
			e.samples = append(e.samples, s)
		}
		table[name] = e
	}
	softplus := func(x float64) float64 { return math.Log1p(math.Exp(x)) }
	add("Abs", G.Abs, math.Abs, nil)
	add("Sign", G.Sign, func(x float64) float64 { return math.Copysign(1, x) }, nil)
	add("Ceil", G.Ceil, math.Ceil, aside)
	add("Floor", G.Floor, math.Floor, aside)
	add("Sin", G.Sin, math.Sin, nil)
	add("Cos", G.Cos, math.Cos, nil)
	add("Exp", G.Exp, math.Exp, nil)
	add("Expm1", G.Expm1, math.Expm1, nil)
	add("Log", G.Log, math.Log, above(0.3))
	add("Log1p", G.Log1p, math.Log1p, above(0.3))
	add("Log2", G.Log2, math.Log2, above(0.3))
	add("InverseSqrt", G.InverseSqrt, func(x float64) float64 { return 1 / math.Sqrt(x) }, above(0.3))
	add("Neg", G.Neg, func(x float64) float64 { return -x }, nil)
	add("Square", G.Square, func(x float64) float64 { return x * x }, nil)
	add("Cube", G.Cube, func(x float64) float64 { return x * x * x }, nil)
	add("Sqrt", G.Sqrt, math.Sqrt, above(0.3))
	add("Inverse", G.Inverse, func(x float64) float64 { return 1 / x }, above(0.3))
	add("Tanh", G.Tanh, math.Tanh, nil)
	add("Sigmoid", G.Sigmoid, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, nil)
	add("Softplus", G.Softplus, softplus, nil)
	add("Mish", G.Mish, func(x float64) float64 { return x * math.Tanh(softplus(x)) }, nil)
	add("Rectify", G.Rectify, func(x float64) float64 { return max(x, 0) }, nil)
	add("LeakyRelu", func(x *G.Node) (*G.Node, error) { return G.LeakyRelu(x, 0.25) }, func(x float64) float64 { return max(x, x/4) }, nil)
	return table
}

// pairs are the shapes that operations on two arguments take: equal ones, and a number and any
// other.
func pairs() (list [][2][]int) {
	for _, s := range append(shapes, scalars()) {
		list = append(list, [2][]int{s, s}, [2][]int{s, scalars()}, [2][]int{scalars(), s})
	}
	return list
}

// spread is zip for arrays of which one may be a number.
func spread(x, y array, f func(x, y float64) float64) array {
	if len(x.shape) == 0 {
		x = x.reshaped(slices.Repeat([]int{1}, len(y.shape))...)
	}
	if len(y.shape) == 0 {
		y = y.reshaped(slices.Repeat([]int{1}, len(x.shape))...)
	}
	return zip(x, y, f)
}

func truth(f func(x, y float64) bool) func(x, y float64) float64 {
	return func(x, y float64) float64 {
		if f(x, y) {
			return 1
		}
		return 0
	}
}

var comparing = map[string]struct {
	f         func(a, b *G.Node, same bool) (*G.Node, error)
	broadcast func(a, b *G.Node, same bool, left, right []byte) (*G.Node, error)
	define    func(x, y float64) float64
}{
	"Lt":  {G.Lt, G.BroadcastLt, truth(func(x, y float64) bool { return x < y })},
	"Gt":  {G.Gt, G.BroadcastGt, truth(func(x, y float64) bool { return x > y })},
	"Lte": {G.Lte, G.BroadcastLte, truth(func(x, y float64) bool { return x <= y })},
	"Gte": {G.Gte, G.BroadcastGte, truth(func(x, y float64) bool { return x >= y })},
	"Eq":  {G.Eq, G.BroadcastEq, truth(func(x, y float64) bool { return x == y })},
	"Ne":  {G.Ne, G.BroadcastNe, truth(func(x, y float64) bool { return x != y })},
}

// comparisons are of numbers of which some are equal. Their gradient is zero.
func comparisons() map[string]entry {
	table := make(map[string]entry)
	for name, c := range comparing {
		var e entry
		for _, p := range pairs() {
			s := two(name, p[0], p[1], func(x, y *G.Node) (*G.Node, error) { return c.f(x, y, true) },
				func(x, y array) array { return spread(x, y, c.define) })
			s.domain, s.opaque = math.Round, true
			e.samples = append(e.samples, s)
		}
		table[name] = e
	}
	return table
}

var computing = map[string]struct {
	f         func(a, b *G.Node) (*G.Node, error)
	broadcast func(a, b *G.Node, left, right []byte) (*G.Node, error)
	define    func(x, y float64) float64
	domain    func(float64) float64
}{
	"Add":          {G.Add, G.BroadcastAdd, func(x, y float64) float64 { return x + y }, nil},
	"Sub":          {G.Sub, G.BroadcastSub, func(x, y float64) float64 { return x - y }, nil},
	"HadamardProd": {G.HadamardProd, G.BroadcastHadamardProd, func(x, y float64) float64 { return x * y }, nil},
	"HadamardDiv":  {G.HadamardDiv, G.BroadcastHadamardDiv, func(x, y float64) float64 { return x / y }, above(0.3)},
	"Pow":          {G.Pow, G.BroadcastPow, math.Pow, above(0.3)},
}

func arithmetic() map[string]entry {
	table := make(map[string]entry)
	for name, c := range computing {
		var e entry
		for _, p := range pairs() {
			s := two(name, p[0], p[1], c.f, func(x, y array) array { return spread(x, y, c.define) })
			s.domain = c.domain
			e.samples = append(e.samples, s)
		}
		table[name] = e
	}
	div := maps.Clone(table)["HadamardDiv"]
	for i := range div.samples {
		div.samples[i].f = func(_ *fsdpexec.Builder, x []*G.Node) (*G.Node, error) { return G.Div(x[0], x[1]) }
	}
	table["Div"] = div
	return table
}

func reductions() map[string]entry {
	var sum, mean, largest, norm entry
	for _, shape := range shapes {
		for _, axes := range subsets(len(shape)) {
			n := 1.0
			for _, axis := range axes {
				n *= float64(shape[axis])
			}
			name := fmt.Sprint(axes)
			average := func(x array) array { return x.sum(axes...).each(func(s float64) float64 { return s / n }) }
			sum.samples = append(sum.samples, one(name, shape, along(G.Sum, axes...), func(x array) array { return x.sum(axes...) }))
			mean.samples = append(mean.samples, one(name, shape, along(G.Mean, axes...), average))
			largest.samples = append(largest.samples, one(name, shape, along(G.Max, axes...), func(x array) array { return x.max(axes...) }))
		}
		for axis := range shape {
			for p := 1; p <= 3; p++ {
				s := one(fmt.Sprintf("axis %d, p %d", axis, p), shape, func(x *G.Node) (*G.Node, error) { return G.Norm(x, axis, p) }, func(x array) array {
					power := x.each(func(v float64) float64 { return math.Pow(math.Abs(v), float64(p)) })
					return power.sum(axis).each(func(v float64) float64 { return math.Pow(v, 1/float64(p)) })
				})
				s.domain = above(0.3)
				norm.samples = append(norm.samples, s)
			}
		}
		all := make([]int, len(shape))
		for axis := range all {
			all[axis] = axis
		}
		sum.samples = append(sum.samples, one("all", shape, along(G.Sum), func(x array) array { return x.sum(all...) }))
		largest.samples = append(largest.samples, one("all", shape, along(G.Max), func(x array) array { return x.max(all...) }))
	}
	for _, axes := range [][]int{{1, 0}, {2, 0}, {3, 1}, {2, 3, 0, 1}} { // not in order
		shape := []int{2, 3, 5, 2}
		sum.samples = append(sum.samples, one(fmt.Sprint(axes), shape, along(G.Sum, axes...), func(x array) array { return x.sum(axes...) }))
		largest.samples = append(largest.samples, one(fmt.Sprint(axes), shape, along(G.Max, axes...), func(x array) array { return x.max(axes...) }))
	}
	return map[string]entry{"Sum": sum, "Mean": mean, "Max": largest, "Norm": norm}
}

// broadcasts repeat either argument along every set of axes, with these axes of length 1 or absent.
func broadcasts() map[string]entry {
	table := make(map[string]entry)
	add := func(name string, f func(x, y *G.Node, left, right []byte) (*G.Node, error), define func(x, y float64) float64, change func(*sample)) {
		var e entry
		use := func(x, y []int, left, right []byte, define func(x, y array) array) {
			s := two(fmt.Sprint(left, right), x, y, func(x, y *G.Node) (*G.Node, error) { return f(x, y, left, right) }, define)
			if change(&s); len(left)+len(right) > 0 && slices.Max(append(left, right...)) > 3 {
				e.limits = append(e.limits, s) // a pattern has four axes
			} else {
				e.samples = append(e.samples, s)
			}
		}
		some := shapes
		if name != "Add" { // the patterns are those of Broadcast, which all share
			some = [][]int{{3}, {2, 3}, {3, 1}, {2, 1, 3}, {2, 3, 1, 2}, {1, 2, 1, 3, 2}}
		}
		for _, shape := range some {
			for _, axes := range subsets(len(shape)) {
				ones, pattern := slices.Clone(shape), make([]byte, len(axes))
				for i, axis := range axes {
					ones[axis], pattern[i] = 1, byte(axis)
				}
				less := without(shape, axes)
				whole := func(x, y array) array { return zip(x.reshaped(ones...), y, define) }
				if slices.Max(axes) < 4 || !slices.Equal(ones, shape) {
					use(shape, ones, nil, pattern, func(x, y array) array { return zip(x, y, define) })
					use(ones, shape, pattern, nil, whole)
				}
				use(shape, less, nil, pattern, func(x, y array) array { return zip(x, y.reshaped(ones...), define) })
				use(less, shape, pattern, nil, whole)
			}
		}
		use([]int{2, 1}, []int{1, 3}, []byte{1}, []byte{0}, func(x, y array) array { return zip(x, y, define) })
		use([]int{1, 3, 1, 2}, []int{2, 1, 3, 1}, []byte{0, 2}, []byte{1, 3}, func(x, y array) array { return zip(x, y, define) })
		table["Broadcast"+name] = e
	}
	for name, c := range computing {
		add(name, c.broadcast, c.define, func(s *sample) { s.domain = c.domain })
	}
	for name, c := range comparing {
		add(name, func(x, y *G.Node, left, right []byte) (*G.Node, error) { return c.broadcast(x, y, true, left, right) }, c.define,
			func(s *sample) { s.domain, s.opaque = math.Round, true })
	}
	return table
}

// permutations returns the orders of the numbers below n.
func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, p := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(p), i, n-1))
		}
	}
	return all
}
