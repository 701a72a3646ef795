package exec

import (
	"fmt"
	"math"
	"reflect"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/rng"
)

// KindRandom is an operation without arguments.
const KindRandom Kind = "random"

// Random is the attribute of KindRandom: a distribution, by Gorgonia's name.
type Random struct {
	Of     string
	A, B   float64 // uniform in [A, B); mean and standard deviation; number and probability of trials
	Stream uint32  // distinguishes the operations of a module
}

// distributions are Gorgonia's distributions, by number.
var distributions = [...]string{"uniform", "gaussian", "binomial"}

// randomRow draws numbers that depend on the call's seed, the stream and the element's index, in
// evaluation too.
var randomRow = &Row{
	Kind: KindRandom, Attr: Random{}, Doc: "random numbers, by seed and stream", Shapes: "-> y [...]",
	Kernels: Kernels{runRandom[float32], runRandom[float64], runRandom[float64]},
	FLOPs:   func(o *Op) int { return 32 * o.Attrs.(Random).draws() * Numel(o.Shape) }, Cheap: true, Split: ByElement,
}

// draws returns how many random numbers an element uses.
func (r Random) draws() int {
	if r.Of == "binomial" {
		return int(r.A)
	}
	return 1
}

func runRandom[T kernel.Float](f *Frame) error {
	a, y := f.Op.Attrs.(Random), Data[T](f.Out.Bytes)
	s, first := rng.Numbered(f.Seed, uint64(a.Stream)), uint64(f.First)
	switch a.Of {
	case "gaussian":
		rng.FillNormal(y, s, first, a.A, a.B)
	case "binomial":
		trials := uint64(a.A)
		for i := range y {
			hits := 0
			for j := (first + uint64(i)) * trials; j < (first+uint64(i)+1)*trials; j++ {
				if s.Float64(j) < a.B {
					hits++
				}
			}
			y[i] = T(hits)
		}
	default:
		most := max(T(a.A), below(T(a.B))) // numbers near the end may be rounded to B
		for i := range y {
			y[i] = min(T(a.A+(a.B-a.A)*s.Float64(first+uint64(i))), most)
		}
	}
	return nil
}

// below returns the largest number less than x.
func below[T kernel.Float](x T) T {
	if x, ok := any(x).(float32); ok {
		return T(math.Nextafter32(x, float32(math.Inf(-1))))
	}
	return T(math.Nextafter(float64(x), math.Inf(-1)))
}

// mostTrials keeps the counter of a binomial number within its 64 bits.
const mostTrials = 1 << 20

// stockRandom returns the distribution of a stock operation.
func stockRandom(n *G.Node) Random {
	op := reflect.ValueOf(n.Op())
	return Random{
		Of: distributions[op.FieldByName("which").Uint()], A: op.FieldByName("a").Float(), B: op.FieldByName("b").Float(),
		Stream: unused(n, 0),
	}
}

// refused returns why the parameters are invalid, or "" if they are valid.
func (r Random) refused() string {
	if r.Of == "binomial" && !(r.A >= 1 && r.A <= mostTrials && r.B >= 0 && r.B <= 1) {
		return fmt.Sprintf("%v trials of probability %v: use 1 to %d trials, and a probability in [0, 1]", r.A, r.B, mostTrials)
	}
	return ""
}

// replaceRandom returns numbers that do not depend on a global generator, as ranks and
// recomputation require.
func replaceRandom(n *G.Node, _ []*G.Node) (*G.Node, error) {
	var typ G.NodeConsOpt = G.WithType(n.Dtype())
	if n.Dims() > 0 {
		typ = G.WithType(G.TensorType{Dims: n.Dims(), Of: n.Dtype()})
	}
	o := &Op{Row: randomRow, Attrs: stockRandom(n), Shape: append(tensor.Shape{}, n.Shape()...)}
	return G.NewUniqueNode(typ, G.WithOp(o), G.WithShape(o.Shape...), G.In(n.Graph())), nil
}
