package kernel

import "math"

// The twins: each kernel and its gradient written as its formula reads, in float64.

func naiveLinear(x, w, b []float64, n, in, out int) []float64 {
	y := make([]float64, n*out)
	for i := range n {
		for o := range out {
			if b != nil {
				y[i*out+o] = b[o]
			}
			for j := range in {
				y[i*out+o] += x[i*in+j] * w[o*in+j]
			}
		}
	}
	return y
}

func naiveLinearGrad(dw, db, x, w, dy []float64, n, in, out int) (dx []float64) {
	dx = make([]float64, n*in)
	for i := range n {
		for o := range out {
			g := dy[i*out+o]
			db[o] += g
			for j := range in {
				dx[i*in+j] += g * w[o*in+j]
				dw[o*in+j] += g * x[i*in+j]
			}
		}
	}
	return dx
}

// naiveNorm covers LayerNorm, and RMSNorm with center false.
func naiveNorm(x, gain, bias []float64, n, d int, eps float64, center bool) (y, mean, rstd []float64) {
	y, mean, rstd = make([]float64, n*d), make([]float64, n), make([]float64, n)
	for i := range n {
		row := x[i*d : (i+1)*d]
		if center {
			for _, v := range row {
				mean[i] += v / float64(d)
			}
		}
		var square float64
		for _, v := range row {
			square += (v - mean[i]) * (v - mean[i]) / float64(d)
		}
		rstd[i] = 1 / math.Sqrt(square+eps)
		for j, v := range row {
			y[i*d+j] = (v - mean[i]) * rstd[i] * gain[j]
			if bias != nil {
				y[i*d+j] += bias[j]
			}
		}
	}
	return y, mean, rstd
}

// naiveNormGrad uses dx = rstd·(g - mean(g) - x̂·mean(g·x̂)), g = dy·gain; without centering the middle term is absent.
func naiveNormGrad(dgain, dbias, x, gain, mean, rstd, dy []float64, n, d int, center bool) (dx []float64) {
	dx = make([]float64, n*d)
	for i := range n {
		var meanG, meanGX float64
		for j := range d {
			g, xhat := dy[i*d+j]*gain[j], (x[i*d+j]-mean[i])*rstd[i]
			dgain[j] += dy[i*d+j] * xhat
			dbias[j] += dy[i*d+j]
			meanGX += g * xhat / float64(d)
			if center {
				meanG += g / float64(d)
			}
		}
		for j := range d {
			xhat := (x[i*d+j] - mean[i]) * rstd[i]
			dx[i*d+j] = rstd[i] * (dy[i*d+j]*gain[j] - meanG - xhat*meanGX)
		}
	}
	return dx
}

// naiveProbabilities returns row (b, h, i) of the attention matrix [KLen], and the log-sum-exp of its scores.
func naiveProbabilities(a Attention, q, k []float64, keyMask []int, bias []float64, b, h, i int) (p []float64, lse float64) {
	p = make([]float64, a.KLen)
	var sum float64
	for j := range p {
		if a.Causal && j > i+a.KLen-a.QLen || keyMask != nil && keyMask[b*a.KLen+j] == 0 {
			continue
		}
		var s float64
		for c := range a.HeadDim {
			s += q[(b*a.QLen+i)*a.QStride+h*a.HeadDim+c] * k[(b*a.KLen+j)*a.KStride+h*a.HeadDim+c]
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

func naiveScale(a Attention) float64 {
	if a.Scale != 0 {
		return a.Scale
	}
	return 1 / math.Sqrt(float64(a.HeadDim))
}

func naiveAttention(a Attention, out, lse, q, k, v []float64, keyMask []int, bias []float64) {
	for b := range a.Batch {
		for h := range a.Heads {
			for i := range a.QLen {
				p, l := naiveProbabilities(a, q, k, keyMask, bias, b, h, i)
				lse[(b*a.Heads+h)*a.QLen+i] = l
				for c := range a.HeadDim {
					var s float64
					for j := range p {
						s += p[j] * v[(b*a.KLen+j)*a.VStride+h*a.HeadDim+c]
					}
					out[(b*a.QLen+i)*a.OutStride+h*a.HeadDim+c] = s
				}
			}
		}
	}
}

// naiveAttentionGrad adds to dq, dk, dv and dbias.
func naiveAttentionGrad(a Attention, dq, dk, dv, dbias, q, k, v, dout []float64, keyMask []int, bias []float64) {
	for b := range a.Batch {
		for h := range a.Heads {
			for i := range a.QLen {
				p, _ := naiveProbabilities(a, q, k, keyMask, bias, b, h, i)
				dp := make([]float64, a.KLen)
				var delta float64
				for j := range p {
					for c := h * a.HeadDim; c < (h+1)*a.HeadDim; c++ {
						g := dout[(b*a.QLen+i)*a.OutStride+c]
						dp[j] += g * v[(b*a.KLen+j)*a.VStride+c]
						dv[(b*a.KLen+j)*a.VStride+c] += g * p[j]
					}
					delta += p[j] * dp[j]
				}
				for j := range p {
					ds := p[j] * (dp[j] - delta)
					dbias[(h*a.QLen+i)*a.KLen+j] += ds
					for c := h * a.HeadDim; c < (h+1)*a.HeadDim; c++ {
						dq[(b*a.QLen+i)*a.QStride+c] += naiveScale(a) * ds * k[(b*a.KLen+j)*a.KStride+c]
						dk[(b*a.KLen+j)*a.KStride+c] += naiveScale(a) * ds * q[(b*a.QLen+i)*a.QStride+c]
					}
				}
			}
		}
	}
}

// naiveCrossEntropy returns the loss, the log-sum-exp per row and the gradient of dloss·loss.
func naiveCrossEntropy(logits []float64, targets []int, n, classes, ignore int, dloss float64) (loss float64, lse, grad []float64) {
	lse, grad = make([]float64, n), make([]float64, n*classes)
	var counted float64
	for i, t := range targets {
		if t == ignore {
			continue
		}
		var sum float64
		for _, v := range logits[i*classes : (i+1)*classes] {
			sum += math.Exp(v)
		}
		lse[i] = math.Log(sum)
		for j, v := range logits[i*classes : (i+1)*classes] {
			grad[i*classes+j] = dloss * math.Exp(v) / sum
		}
		grad[i*classes+t] -= dloss
		loss += lse[i] - logits[i*classes+t]
		counted++
	}
	if counted == 0 {
		return 0, lse, grad
	}
	for j := range grad {
		grad[j] /= counted
	}
	return loss / counted, lse, grad
}
