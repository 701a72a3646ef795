package kernel

import (
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// These are the naive twins: each computes the formula of a kernel literally, in float64, with the
// arguments of the kernel. They are the reference for the kernels of every engine. They may
// allocate.

// NaiveLinear is the twin of [Linear].
func NaiveLinear(_ *Context, y, x, w, b []float64, n, in, out int) {
	naiveSums(y, n, out, in, false, func(i, o, j int) float64 { return x[i*in+j] * w[o*in+j] })
	for i := range n {
		for o, v := range b {
			y[i*out+o] += v
		}
	}
}

// NaiveLinearAdd is the twin of [LinearAdd].
func NaiveLinearAdd(_ *Context, y, x, w []float64, n, in, out int) {
	naiveSums(y, n, out, in, true, func(i, o, j int) float64 { return x[i*in+j] * w[o*in+j] })
}

// NaiveLinearGradX is the twin of [LinearGradX].
func NaiveLinearGradX(_ *Context, dx, dy, w []float64, n, in, out int) {
	naiveSums(dx, n, in, out, false, func(i, j, o int) float64 { return dy[i*out+o] * w[o*in+j] })
}

// NaiveLinearGradXAdd is the twin of [LinearGradXAdd].
func NaiveLinearGradXAdd(_ *Context, dx, dy, w []float64, n, in, out int) {
	naiveSums(dx, n, in, out, true, func(i, j, o int) float64 { return dy[i*out+o] * w[o*in+j] })
}

// NaiveLinearGradW is the twin of [LinearGradW].
func NaiveLinearGradW(_ *Context, dw, dy, x []float64, n, in, out int, acc bool) {
	naiveSums(dw, out, in, n, acc, func(o, j, i int) float64 { return dy[i*out+o] * x[i*in+j] })
}

// NaiveLinearGradB is the twin of [LinearGradB], and of any sum over the rows of dy [n, out].
func NaiveLinearGradB(db, dy []float64, n, out int, acc bool) {
	naiveSums(db, 1, out, n, acc, func(_, o, i int) float64 { return dy[i*out+o] })
}

// naiveSums writes the sums of k terms to y [rows, columns], or adds them.
func naiveSums(y []float64, rows, columns, k int, acc bool, term func(i, j, l int) float64) {
	for i := range rows {
		for j := range columns {
			at := i*columns + j
			if !acc {
				y[at] = 0
			}
			for l := range k {
				y[at] += term(i, j, l)
			}
		}
	}
}

// NaiveLayerNorm is the twin of [LayerNorm].
func NaiveLayerNorm(y, stats, x, gain, bias []float64, n, d int, eps float64) {
	for i := range n {
		row, mean := x[i*d:][:d], 0.0
		for _, v := range row {
			mean += v / float64(d)
		}
		rstd := naiveRstd(row, mean, eps)
		stats[2*i], stats[2*i+1] = mean, rstd
		for j, v := range row {
			y[i*d+j] = (v - mean) * rstd * gain[j]
			if bias != nil {
				y[i*d+j] += bias[j]
			}
		}
	}
}

// NaiveRMSNorm is the twin of [RMSNorm].
func NaiveRMSNorm(y, rstd, x, gain []float64, n, d int, eps float64) {
	for i := range n {
		row := x[i*d:][:d]
		rstd[i] = naiveRstd(row, 0, eps)
		for j, v := range row {
			y[i*d+j] = v * rstd[i] * gain[j]
		}
	}
}

func naiveRstd(row []float64, mean, eps float64) float64 {
	var square float64
	for _, v := range row {
		square += (v - mean) * (v - mean) / float64(len(row))
	}
	return 1 / math.Sqrt(square+eps)
}

// NaiveLayerNormGrad is the twin of [LayerNormGrad].
func NaiveLayerNormGrad(dx, dgain, dbias, x, gain, stats, dy []float64, n, d int) {
	clear(dgain)
	clear(dbias)
	for i := range n {
		at := i * d
		naiveNormGradRow(dx[at:], dgain, dbias, x[at:], gain, dy[at:], stats[2*i], stats[2*i+1])
	}
}

// NaiveRMSNormGrad is the twin of [RMSNormGrad].
func NaiveRMSNormGrad(dx, dgain, x, gain, rstd, dy []float64, n, d int) {
	clear(dgain)
	for i := range n {
		at := i * d
		naiveNormGradRow(dx[at:], dgain, nil, x[at:], gain, dy[at:], 0, rstd[i])
	}
}

// naiveNormGradRow computes dx = rstd·(g - mean(g) - x̂·mean(g·x̂)) of a row, with g = dy·gain, and
// adds to dgain and dbias. If dbias is nil, the norm has no mean and the middle term is absent.
func naiveNormGradRow(dx, dgain, dbias, x, gain, dy []float64, mean, rstd float64) {
	d := len(gain)
	var meanG, meanGX float64
	for j := range d {
		xhat := (x[j] - mean) * rstd
		dgain[j] += dy[j] * xhat
		meanGX += dy[j] * gain[j] * xhat / float64(d)
		if dbias != nil {
			dbias[j] += dy[j]
			meanG += dy[j] * gain[j] / float64(d)
		}
	}
	for j := range d {
		dx[j] = rstd * (dy[j]*gain[j] - meanG - (x[j]-mean)*rstd*meanGX)
	}
}

// NaiveBatchStats is the twin of [BatchStats].
func NaiveBatchStats(mean, variance, x []float64, n, d int) {
	for j := range d {
		mean[j], variance[j] = 0, 0
		for i := range n {
			mean[j] += x[i*d+j] / float64(n)
		}
		for i := range n {
			variance[j] += (x[i*d+j] - mean[j]) * (x[i*d+j] - mean[j]) / float64(n)
		}
	}
}

// NaiveBatchNorm is the twin of [BatchNorm].
func NaiveBatchNorm(y, x, gain, bias, mean, variance []float64, n, d int, eps float64) {
	for i := range n {
		for j := range d {
			y[i*d+j] = (x[i*d+j]-mean[j])/math.Sqrt(variance[j]+eps)*gain[j] + bias[j]
		}
	}
}

// NaiveBatchNormGrad is the twin of [BatchNormGrad].
func NaiveBatchNormGrad(dx, dgain, dbias, x, gain, mean, variance, dy []float64, n, d int, eps float64) {
	for j := range d {
		rstd := 1 / math.Sqrt(variance[j]+eps)
		dgain[j], dbias[j] = 0, 0
		for i := range n {
			dgain[j] += dy[i*d+j] * (x[i*d+j] - mean[j]) * rstd
			dbias[j] += dy[i*d+j]
		}
		for i := range n {
			xhat := (x[i*d+j] - mean[j]) * rstd
			dx[i*d+j] = gain[j] * rstd * (dy[i*d+j] - (dbias[j]+xhat*dgain[j])/float64(n))
		}
	}
}

// naiveProbabilities returns row (b, h, i) of the attention matrix [KLen], and the log-sum-exp of
// its scores.
func naiveProbabilities(a Attention, q, k []float64, keyMask []int, bias []float64, b, h, i int) (p []float64, lse float64) {
	p = make([]float64, a.KLen)
	kv, at := h/a.group()*a.HeadDim, i+a.KLen-a.QLen
	var sum float64
	for j := range p {
		if a.Causal && j > at || a.Window > 0 && (j <= at-a.Window || j >= at+a.Window) || keyMask != nil && keyMask[b*a.KLen+j] == 0 ||
			a.Positions != nil && naiveDocument(a, b, i) != naiveDocument(a, b, j) {
			continue
		}
		var s float64
		for c := range a.HeadDim {
			s += q[(b*a.QLen+i)*a.QStride+h*a.HeadDim+c] * k[(b*a.KLen+j)*a.KStride+kv+c]
		}
		s *= naiveScale(a)
		if bias != nil {
			s += bias[(h*a.QLen+i)*a.KLen+j]
		}
		p[j] = math.Exp(s)
		sum += p[j]
	}
	for j := range p {
		if sum > 0 {
			p[j] /= sum
		}
	}
	return p, math.Log(sum)
}

// naiveDocument returns the number of the document of token i of batch b.
func naiveDocument(a Attention, b, i int) (n int) {
	for _, p := range a.Positions[b*a.KLen+1:][:i] {
		if p == 0 {
			n++
		}
	}
	return n
}

func naiveScale(a Attention) float64 {
	if a.Scale != 0 {
		return a.Scale
	}
	return 1 / math.Sqrt(float64(a.HeadDim))
}

// NaiveAttentionForward is the twin of [AttentionForward].
func NaiveAttentionForward(_ *Context, a Attention, out, lse, q, k, v []float64, keyMask []int, bias, _ []float64) {
	for r := range a.Batch * a.Heads * a.QLen {
		b, h, i := r/a.QLen/a.Heads, r/a.QLen%a.Heads, r%a.QLen
		p, l := naiveProbabilities(a, q, k, keyMask, bias, b, h, i)
		lse[r] = l
		for c := range a.HeadDim {
			var s float64
			for j := range p {
				s += p[j] * v[(b*a.KLen+j)*a.VStride+h/a.group()*a.HeadDim+c]
			}
			out[(b*a.QLen+i)*a.OutStride+h*a.HeadDim+c] = s
		}
	}
}

// NaiveAttentionBackward is the twin of [AttentionBackward]. It does not use lse.
func NaiveAttentionBackward(_ *Context, a Attention, dq, dk, dv, dbias, q, k, v, out, _, dout []float64, keyMask []int,
	bias, _ []float64) {
	for r := range a.Batch * a.QLen {
		clear(dq[r*a.QStride:][:a.Heads*a.HeadDim])
	}
	for r := range a.Batch * a.KLen {
		clear(dk[r*a.KStride:][:a.kvHeads()*a.HeadDim])
		clear(dv[r*a.VStride:][:a.kvHeads()*a.HeadDim])
	}
	clear(dbias)
	for r := range a.Batch * a.Heads * a.QLen {
		b, h, i := r/a.QLen/a.Heads, r/a.QLen%a.Heads, r%a.QLen
		p, _ := naiveProbabilities(a, q, k, keyMask, bias, b, h, i)
		for j, ds := range naiveScoreGrad(a, dv, v, out, dout, p, b, h, i) {
			if dbias != nil {
				dbias[(h*a.QLen+i)*a.KLen+j] += ds
			}
			at, to := (b*a.QLen+i)*a.QStride+h*a.HeadDim, (b*a.KLen+j)*a.KStride+h/a.group()*a.HeadDim
			for c := range a.HeadDim {
				dq[at+c] += naiveScale(a) * ds * k[to+c]
				dk[to+c] += naiveScale(a) * ds * q[at+c]
			}
		}
	}
}

// naiveScoreGrad returns the gradient of row (b, h, i) of the scores, whose probabilities are p,
// and adds the row's share to dv.
func naiveScoreGrad(a Attention, dv, v, out, dout, p []float64, b, h, i int) []float64 {
	ds := make([]float64, a.KLen)
	var delta float64
	for c := range a.HeadDim {
		at := (b*a.QLen+i)*a.OutStride + h*a.HeadDim + c
		delta += out[at] * dout[at]
	}
	for j := range p {
		at, to := (b*a.QLen+i)*a.OutStride+h*a.HeadDim, (b*a.KLen+j)*a.VStride+h/a.group()*a.HeadDim
		for c := range a.HeadDim {
			ds[j] += dout[at+c] * v[to+c]
			dv[to+c] += dout[at+c] * p[j]
		}
	}
	for j := range p {
		ds[j] = p[j] * (ds[j] - delta)
	}
	return ds
}

// NaiveCrossEntropy is the twin of [CrossEntropy]. Its exponentials overflow beyond 700.
func NaiveCrossEntropy(lse, logits []float64, targets []int, n, classes, ignore int, _ []float64) (loss float64, counted int, err error) {
	for i, t := range targets[:n] {
		lse[i] = 0
		if t == ignore {
			continue
		}
		var sum float64
		for _, v := range logits[i*classes:][:classes] {
			sum += math.Exp(v)
		}
		lse[i] = math.Log(sum)
		loss += lse[i] - logits[i*classes+t]
		counted++
	}
	return loss / float64(max(1, counted)), counted, nil
}

// NaiveCrossEntropyGrad is the twin of [CrossEntropyGrad].
func NaiveCrossEntropyGrad(dlogits, logits, lse []float64, targets []int, n, classes, ignore, counted int, dloss float64) {
	for i, t := range targets[:n] {
		for j := range classes {
			at := i*classes + j
			p := math.Exp(logits[at] - lse[i])
			if t == j {
				p--
			}
			dlogits[at] = 0
			if t != ignore {
				dlogits[at] = p * dloss / float64(counted)
			}
		}
	}
}

// NaiveEmbedding is the twin of [Embedding].
func NaiveEmbedding(y, table []float64, idx []int, _, d int) error {
	for i, r := range idx {
		for j := range d {
			y[i*d+j] = table[r*d+j]
		}
	}
	return nil
}

// NaiveEmbeddingGrad is the twin of [EmbeddingGrad].
func NaiveEmbeddingGrad(dtable, dy []float64, idx []int, _, d int, acc bool) {
	if !acc {
		clear(dtable)
	}
	for i, r := range idx {
		for j := range d {
			dtable[r*d+j] += dy[i*d+j]
		}
	}
}

// NaiveRope is the twin of [Rope]: it multiplies pairs with rotation matrices.
func NaiveRope(y, x, table []float64, positions []int, n, d, first, t int, r Rotary, inverse bool) {
	copy(y, x[:n*d])
	for i := range n {
		p := (first + i) % t
		if positions != nil {
			p = positions[i]
		}
		for j := range r.Heads * r.Dims / 2 {
			head, k := j/(r.Dims/2), j%(r.Dims/2)
			a, b := i*d+head*r.HeadDim+k, i*d+head*r.HeadDim+k+r.Dims/2
			if r.Interleaved {
				a += k
				b = a + 1
			}
			angle := math.Atan2(table[p*r.Dims+r.Dims/2+k], table[p*r.Dims+k])
			if inverse {
				angle = -angle
			}
			u, v := x[a], x[b]
			y[a], y[b] = u*math.Cos(angle)-v*math.Sin(angle), u*math.Sin(angle)+v*math.Cos(angle)
		}
	}
}

// These are the twins of the activations and of their gradients.
var (
	NaiveSiLU     = naiveEach(func(x float64) float64 { return x * naiveSigmoid(x) })
	NaiveSiLUGrad = naiveSlope(func(x float64) float64 {
		s := naiveSigmoid(x)
		return s + x*s*(1-s)
	})
	NaiveTanh        = naiveEach(math.Tanh)
	NaiveTanhGrad    = naiveSlope(func(x float64) float64 { return 1 / (math.Cosh(x) * math.Cosh(x)) })
	NaiveSigmoid     = naiveEach(naiveSigmoid)
	NaiveSigmoidGrad = naiveSlope(func(x float64) float64 { return naiveSigmoid(x) * naiveSigmoid(-x) })

	NaiveReLU     = naiveEach(func(x float64) float64 { return max(x, 0) })
	NaiveReLUGrad = naiveSlope(func(x float64) float64 { return max(math.Copysign(1, x), 0) })
	NaiveGELU     = naiveEach(func(x float64) float64 { return x / 2 * (1 + math.Erf(x/math.Sqrt2)) })
	NaiveGELUGrad = naiveSlope(func(x float64) float64 {
		return (1+math.Erf(x/math.Sqrt2))/2 + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	})
	NaiveGELUTanh     = naiveEach(func(x float64) float64 { return x / 2 * (1 + math.Tanh(tanhArgument(x))) })
	NaiveGELUTanhGrad = naiveSlope(func(x float64) float64 {
		tanh := math.Tanh(tanhArgument(x))
		return (1+tanh)/2 + x/2*(1-tanh*tanh)*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
	})
)

func naiveSigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// naiveGates are the activations of gated linear units, with their gradients.
var naiveGates = map[vec.Gate]struct {
	f    func(y, x []float64)
	grad func(dx, x, dy []float64)
}{
	vec.GateSiLU: {NaiveSiLU, NaiveSiLUGrad}, vec.GateGELUErf: {NaiveGELU, NaiveGELUGrad},
	vec.GateGELUTanh: {NaiveGELUTanh, NaiveGELUTanhGrad}, vec.GateReLU: {NaiveReLU, NaiveReLUGrad}, vec.GateSigmoid: {NaiveSigmoid, NaiveSigmoidGrad},
}

// NaiveGLU is the twin of [vec.GLU].
func NaiveGLU(gate vec.Gate, y, x, up []float64) {
	naiveGates[gate].f(y, x)
	for i := range y {
		y[i] *= up[i]
	}
}

// NaiveGLUGrad is the twin of [vec.GLUGrad].
func NaiveGLUGrad(gate vec.Gate, dx, dup, x, up, dy []float64) {
	g := naiveGates[gate]
	g.f(dup, x)
	g.grad(dx, x, dy)
	for i := range dx {
		dup[i] *= dy[i]
		dx[i] *= up[i]
	}
}

func tanhArgument(x float64) float64 { return math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x) }

func naiveEach(f func(float64) float64) func(y, x []float64) {
	return func(y, x []float64) {
		for i, v := range x {
			y[i] = f(v)
		}
	}
}

func naiveSlope(f func(float64) float64) func(dx, x, dy []float64) {
	return func(dx, x, dy []float64) {
		for i, v := range x {
			dx[i] = f(v) * dy[i]
		}
	}
}

// NaiveDropout is the twin of [Dropout]. Element i is kept if a 32-bit hash of its position,
// base+i, is at least rate·2³². The hash is two rounds of multiply and xorshift of the low half,
// with a key of 64 bits made of seed and the high half.
func NaiveDropout(y, x []float64, seed, base uint64, rate float64) {
	mix := func(x uint64) uint64 {
		x += 0x9E3779B97F4A7C15
		x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
		x = (x ^ x>>27) * 0x94D049BB133111EB
		return x ^ x>>31
	}
	for i, v := range x {
		at := base + uint64(i)
		key := mix(seed ^ mix(at>>32))
		h := uint32(at) + uint32(key)
		h = (h ^ h>>16) * 0x7FEB352D
		h ^= uint32(key >> 32)
		h = (h ^ h>>15) * 0x846CA68B
		h ^= h >> 16
		y[i] = 0
		if h >= uint32(rate*(1<<32)) {
			y[i] = v / (1 - rate)
		}
	}
}

// NaiveSumAxis is the twin of [SumAxis], and NaiveMaxAxis is the twin of [MaxAxis].
var (
	NaiveSumAxis = naiveFold(func(a, b float64) float64 { return a + b })
	NaiveMaxAxis = naiveFold(math.Max)
)

func naiveFold(f func(a, b float64) float64) func(y, x []float64, outer, n, inner int) {
	return func(y, x []float64, outer, n, inner int) {
		x = slices.Clone(x)
		for o := range outer {
			for i := range inner {
				y[o*inner+i] = x[o*n*inner+i]
				for k := 1; k < n; k++ {
					y[o*inner+i] = f(y[o*inner+i], x[(o*n+k)*inner+i])
				}
			}
		}
	}
}
