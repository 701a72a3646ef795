package kernel

import "math"

// NaiveLinearLoss is the twin of [LinearLoss]. Its exponentials overflow beyond 700.
func NaiveLinearLoss(_ *Context, dx, losses, lse, x, w, bias []float64, targets []int, n, d, classes int, l Loss, train bool, _ []float64) error {
	logits, dlogits := make([]float64, n*classes), make([]float64, n*classes)
	NaiveLinear(nil, logits, x, w, bias, n, d, classes)
	if err := NaiveRowLosses(losses, lse, logits, targets, n, classes, l, nil); err != nil {
		return err
	}
	NaiveRowLossesGrad(dlogits, logits, targets, lse, naiveOnes(n), n, classes, l, nil)
	clear(dx)
	if train {
		NaiveLinearGradX(nil, dx, dlogits, w, n, d, classes)
	}
	return nil
}

// NaiveLinearLossGradW is the twin of [LinearLossGradW].
func NaiveLinearLossGradW(_ *Context, dw, dbias, x, w, bias []float64, targets []int, lse, dlosses []float64, n, d, classes int, l Loss, acc bool,
	_ []float64) {
	logits, dlogits := make([]float64, n*classes), make([]float64, n*classes)
	NaiveLinear(nil, logits, x, w, bias, n, d, classes)
	NaiveRowLossesGrad(dlogits, logits, targets, lse, dlosses, n, classes, l, nil)
	NaiveLinearGradW(nil, dw, dlogits, x, n, d, classes, acc)
	for j := range dbias {
		dbias[j] = 0
		for i := range n {
			dbias[j] += dlogits[i*classes+j]
		}
	}
}

// NaiveRowLosses is the twin of [RowLosses].
func NaiveRowLosses(losses, lse, logits []float64, targets []int, n, classes int, l Loss, _ []float64) error {
	if err := CheckTargets(targets, classes, l.Ignore); err != nil {
		return err
	}
	for i, t := range targets[:n] {
		losses[i], lse[i] = 0, 0
		if t == l.Ignore {
			continue
		}
		row, sum := logits[i*classes:][:classes], 0.0
		for _, v := range row {
			sum += math.Exp(v)
		}
		lse[i] = math.Log(sum)
		for j, v := range row { // the cross-entropy of softmax and the smoothed targets
			if q := naiveTarget(j, t, classes, l); q > 0 { // otherwise v may be -Inf
				losses[i] += q * (lse[i] - v)
			}
		}
		losses[i] += l.Z * lse[i] * lse[i]
	}
	return nil
}

// NaiveRowLossesGrad is the twin of [RowLossesGrad].
func NaiveRowLossesGrad(dlogits, logits []float64, targets []int, lse, dlosses []float64, n, classes int, l Loss, _ []float64) {
	for i, t := range targets[:n] {
		for j := range classes {
			at := i*classes + j
			p := math.Exp(logits[at] - lse[i])
			dlogits[at] = dlosses[i] * (p - naiveTarget(j, t, classes, l) + 2*l.Z*lse[i]*p)
			if t == l.Ignore {
				dlogits[at] = 0
			}
		}
	}
}

// naiveTarget is the probability that a smoothed target t gives to class j.
func naiveTarget(j, t, classes int, l Loss) float64 {
	q := l.Smoothing / float64(classes)
	if j == t {
		q += 1 - l.Smoothing
	}
	return q
}

func naiveOnes(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// naiveShares returns the weight of each of n pairs in the mean.
func naiveShares(w []float64, n int) []float64 {
	shares, sum := naiveOnes(n), 0.0
	if w != nil {
		copy(shares, w)
	}
	for _, v := range shares {
		sum += v
	}
	for i := range shares {
		shares[i] /= sum
		if sum == 0 {
			shares[i] = 0
		}
	}
	return shares
}

// NaiveMeanSquares is the twin of [MeanSquares].
func NaiveMeanSquares(y, t, w, _ []float64) (mean float64) {
	for i, share := range naiveShares(w, len(y)) {
		mean += (y[i] - t[i]) * (y[i] - t[i]) * share
	}
	return mean
}

// NaiveMeanSquaresGrad is the twin of [MeanSquaresGrad].
func NaiveMeanSquaresGrad(dy, y, t, w []float64, dloss float64) {
	for i, share := range naiveShares(w, len(y)) {
		dy[i] = 2 * (y[i] - t[i]) * share * dloss
	}
}

// NaiveMeanBinary is the twin of [MeanBinary].
func NaiveMeanBinary(x, t, w, _ []float64) (mean float64) {
	for i, share := range naiveShares(w, len(x)) {
		p := naiveSigmoid(x[i])
		mean -= (t[i]*math.Log(p) + (1-t[i])*math.Log(1-p)) * share
	}
	return mean
}

// NaiveMeanBinaryGrad is the twin of [MeanBinaryGrad].
func NaiveMeanBinaryGrad(dx, x, t, w []float64, dloss float64) {
	for i, share := range naiveShares(w, len(x)) {
		dx[i] = (naiveSigmoid(x[i]) - t[i]) * share * dloss
	}
}
