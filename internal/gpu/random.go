package gpu

import (
	"math"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
)

// randomKinds are dropout and random numbers.
var randomKinds = map[exec.Kind]lowering{exec.KindDropout: dropout, exec.KindRandom: random}

func dropout(b *builder, in *exec.Instr) error {
	n, a := exec.Numel(in.Out.Shape), in.Op.Attrs.(exec.Mask)
	threshold := uint32(min(a.Rate*(1<<32), math.MaxUint32))
	return b.each("random_dropout", b.lots(n), in.Out, in.In[0], uint64(n), seed{}, uint64(a.Stream)<<32, threshold, 1/(1-a.Rate), train{})
}

func random(b *builder, in *exec.Instr) error {
	n, a := exec.Numel(in.Out.Shape), in.Op.Attrs.(exec.Random)
	stream := uint64(a.Stream)
	switch a.Of {
	case "gaussian":
		return b.each("random_gaussian", parts(n, 2), in.Out, uint64(n), seed{}, stream, double(a.A), double(a.B))
	case "binomial":
		return b.each("random_binomial", n, in.Out, uint64(n), seed{}, stream, uint64(a.A), double(a.B))
	}
	most := math.Nextafter(a.B, math.Inf(-1)) // numbers near the end may be rounded to B
	if in.Out.DType == tensor.Float32 {
		most = float64(math.Nextafter32(float32(a.B), float32(math.Inf(-1))))
	}
	return b.each("random_uniform", parts(n, 2), in.Out, uint64(n), seed{}, stream, double(a.A), double(a.B-a.A), max(a.A, most))
}
