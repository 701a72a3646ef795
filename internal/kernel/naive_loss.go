package kernel

import "math"

// NaiveLinearLoss is the twin of [LinearLoss]. Its exponentials overflow beyond 700.
func NaiveLinearLoss(_ *Context, dx, losses, lse, x, w []float64, targets []int, n, d, classes int, l Loss, train bool, _ []float64) error {
	logits, dlogits := make([]float64, n*classes), make([]float64, n*classes)
	NaiveLinear(nil, logits, x, w, nil, n, d, classes)
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
func NaiveLinearLossGradW(_ *Context, dw, x, w []float64, targets []int, lse, dlosses []float64, n, d, classes int, l Loss, acc bool, _ []float64) {
	logits, dlogits := make([]float64, n*classes), make([]float64, n*classes)
	NaiveLinear(nil, logits, x, w, nil, n, d, classes)
	NaiveRowLossesGrad(dlogits, logits, targets, lse, dlosses, n, classes, l, nil)
	NaiveLinearGradW(nil, dw, dlogits, x, n, d, classes, acc)
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
			losses[i] += naiveTarget(j, t, classes, l) * (lse[i] - v)
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

// NaiveMeanSquares is the twin of [MeanSquares].
func NaiveMeanSquares(y, t, _ []float64) (mean float64) {
	for i, v := range y {
		mean += (v - t[i]) * (v - t[i]) / float64(len(y))
	}
	return mean
}

// NaiveMeanSquaresGrad is the twin of [MeanSquaresGrad].
func NaiveMeanSquaresGrad(dy, y, t []float64, dloss float64) {
	for i, v := range y {
		dy[i] = 2 * (v - t[i]) / float64(len(y)) * dloss
	}
}

// NaiveMeanBinary is the twin of [MeanBinary].
func NaiveMeanBinary(x, t, _ []float64) (mean float64) {
	for i, v := range x {
		p := naiveSigmoid(v)
		mean -= (t[i]*math.Log(p) + (1-t[i])*math.Log(1-p)) / float64(len(x))
	}
	return mean
}

// NaiveMeanBinaryGrad is the twin of [MeanBinaryGrad].
func NaiveMeanBinaryGrad(dx, x, t []float64, dloss float64) {
	for i, v := range x {
		dx[i] = (naiveSigmoid(v) - t[i]) / float64(len(x)) * dloss
	}
}
