package kernel

import (
	"math"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Loss is the loss of a row of logits l with target t. With lse = log Σ exp(l) it is
//
//	lse - (1-Smoothing)·l[t] - Smoothing·mean(l) + Z·lse²
//
// and 0 if t is Ignore: cross-entropy with label smoothing (Szegedy et al. 2015,
// https://arxiv.org/abs/1512.00567) and the z-loss of PaLM (Chowdhery et al. 2022,
// https://arxiv.org/abs/2204.02311).
type Loss struct {
	Ignore       int
	Smoothing, Z float64
}

// rest is the weight of the target.
func (l Loss) rest() float64 { return 1 - l.Smoothing }

// slope is the derivative of lse + Z·lse² with respect to lse.
func (l Loss) slope(lse float64) float64 { return 1 + 2*l.Z*lse }

// The logits of a linear layer are computed one block at a time, and none are kept:
//
//	          classes ──►            forward, for each block of rows
//	        ┌────┬────┬────┐         for each block of classes
//	rows    │ 1  │ 2  │ 3  │           L = x·wᵀ                            gemm
//	  │     ├────┼────┼────┤           E = exp(L - m), m the largest yet   one pass over L
//	  ▼     │ 4  │ 5  │ 6  │           s += Σ E,  a += E·w                gemm
//	        └────┴────┴────┘         lse = m + log s,  dx = a/s - w[target]
//
// This is attention without a mask, whose keys and values are the rows of w (see [Attention]), but
// with blocks over keys: m grows from block to block, and then s and a are scaled down. So forward
// computes the gradient of x up to a factor for each row. Only the gradient of w computes the
// logits again.
const lossRows, lossClasses = 1024, 1024

// linearLoss is the state that the kernels share.
type linearLoss[E Element, T Float] struct {
	Loss
	c          *Context
	x, w       []E // [n, d], [classes, d]
	bias       []T // [classes], or nil
	targets    []int
	d, classes int

	logits []T // [rows, stride], the block
	stride int
	sum    []T // [rows, d], if E is not T
	target []T // [rows], logits of targets
	row    []T // [d]
	mean   []T // [d], mean of the rows of w; or the sum of the rows of x, times their gradients
}

// LinearLossScratch returns the number of scratch elements for [LinearLoss] and [LinearLossGradW].
func LinearLossScratch(n, d, classes int) int {
	return min(n, lossRows)*(min(classes, lossClasses)+1) + 2*d
}

// LinearLossBFloat16Scratch is [LinearLossScratch] for bfloat16.
func LinearLossBFloat16Scratch(n, d, classes int) int {
	return LinearLossScratch(n, d, classes) + min(n, lossRows)*d
}

func newLinearLoss[E Element, T Float](c *Context, x, w []E, bias []T, targets []int, n, d, classes int, l Loss, scratch []T) linearLoss[E, T] {
	check("LinearLoss", "x", len(x), n*d)
	check("LinearLoss", "w", len(w), classes*d)
	check("LinearLoss", "targets", len(targets), n)
	if bias != nil {
		check("LinearLoss", "bias", len(bias), classes)
	}
	o := linearLoss[E, T]{Loss: l, c: c, x: x, w: w, bias: bias, targets: targets, d: d, classes: classes, stride: min(classes, lossClasses)}
	rows, need := min(n, lossRows), LinearLossScratch(n, d, classes)
	if _, same := any(x).([]T); !same {
		need = LinearLossBFloat16Scratch(n, d, classes)
	}
	check("LinearLoss", "scratch", len(scratch), need)
	cut := func(n int) []T {
		part := scratch[:n:n]
		scratch = scratch[n:]
		return part
	}
	o.logits, o.target, o.row, o.mean, o.sum = cut(rows*o.stride), cut(rows), cut(d), cut(d), scratch
	return o
}

// floats returns row i of x [n, d]. If the row has another type, it is widened to to.
func floats[E Element, T Float](to []T, x []E, i int) []T {
	d := len(to)
	if x, same := any(x).([]T); same {
		return x[i*d:][:d]
	}
	half.Widen(any(to).([]float32), any(x).([]half.BFloat16)[i*d:])
	return to
}

// block computes the logits of rows from i on and columns from j on.
func (o *linearLoss[E, T]) block(i, rows, j, columns int) {
	beta := 0.0
	if o.bias != nil {
		beta = 1
		for r := range rows {
			copy(o.logits[r*o.stride:], o.bias[j:j+columns])
		}
	}
	gemm.Gemm(&o.c.gemm, false, true, rows, columns, o.d, 1, o.x[i*o.d:], o.d, o.w[j*o.d:], o.d, beta, o.logits, o.stride)
}

// elements returns the block as the operand of a product, and its stride: unchanged, or with its
// rows rounded to the first half of their memory.
func (o *linearLoss[E, T]) elements(rows, columns int) (block []E, stride int) {
	if block, same := any(o.logits).([]E); same {
		return block, o.stride
	}
	wide := any(o.logits).([]float32)
	low := unsafe.Slice((*half.BFloat16)(unsafe.Pointer(unsafe.SliceData(wide))), 2*len(wide))
	for i := range rows {
		half.Narrow(low[2*i*o.stride:][:columns], wide[i*o.stride:][:columns])
	}
	return any(low).([]E), 2 * o.stride
}

// LinearLoss computes the thread's share of the losses [n] of the logits x·wᵀ + bias, and their lse
// [n], for x [n, d], w [classes, d] and bias [classes], which may be nil: see [Loss]. If train is
// true, it sets dx [n, d] to the gradients of the losses with respect to x, otherwise to zeros. A
// target out of range is an error as in [CrossEntropy].
func LinearLoss[E Element, T Float](c *Context, dx []E, losses, lse []T, x, w []E, bias []T, targets []int, n, d, classes int, l Loss,
	train bool, scratch []T) error {
	check("LinearLoss", "dx", len(dx), n*d)
	check("LinearLoss", "losses", len(losses), n)
	check("LinearLoss", "lse", len(lse), n)
	if err := CheckTargets(targets, classes, l.Ignore); err != nil {
		return err
	}
	o := newLinearLoss(c, x, w, bias, targets, n, d, classes, l, scratch)
	if l.Smoothing > 0 {
		clear(o.mean)
		for j := range classes {
			vec.AddScaled(o.mean, floats(o.row, w, j), T(1/float64(classes)))
		}
	}
	lo, hi := c.Share(n, 1)
	for i := lo; i < hi; i += lossRows {
		k := min(i+lossRows, hi)
		o.rows(i, dx[i*d:k*d], losses[i:k], lse[i:k], train)
	}
	return nil
}

// rows computes the losses of rows from i on.
func (o *linearLoss[E, T]) rows(i int, dx []E, losses, lse []T, train bool) {
	clear(dx)
	sum, same := any(dx).([]T)
	if !same {
		sum = o.sum[:len(dx)]
		clear(sum)
	}
	vec.Fill(lse, T(math.Inf(-1)))
	clear(losses)
	for j := 0; j < o.classes; j += lossClasses {
		columns := min(lossClasses, o.classes-j)
		o.block(i, len(lse), j, columns)
		for r := range lse {
			row := o.logits[r*o.stride:][:columns]
			if t := o.targets[i+r] - j; t >= 0 && t < columns {
				o.target[r] = row[t]
			}
			top := max(lse[r], vec.Max(row))
			if top != lse[r] {
				down := T(math.Exp(float64(lse[r] - top)))
				losses[r] *= down
				if train {
					vec.Scale(sum[r*o.d:][:o.d], down)
				}
				lse[r] = top
			}
			losses[r] += vec.ExpSubSum(row, row, 1, top)
		}
		if train {
			block, stride := o.elements(len(lse), columns)
			gemm.Gemm(&o.c.gemm, false, false, len(lse), o.d, columns, 1, block, stride, o.w[j*o.d:], o.d, 1, sum, o.d)
		}
	}
	for r := range lse {
		o.finish(i+r, r, sum[r*o.d:][:o.d], &losses[r], &lse[r], train)
	}
	if !same {
		half.Narrow(any(dx).([]half.BFloat16), any(sum).([]float32))
	}
}

// finish computes loss and lse of row i from the largest logit and the sum of exponentials. It
// computes the gradient from the sum of the rows of w, weighted by the exponentials. r is the row's
// index in its block.
func (o *linearLoss[E, T]) finish(i, r int, dx []T, loss, lse *T, train bool) {
	t := o.targets[i]
	if t == o.Ignore {
		*loss, *lse = 0, 0
		clear(dx)
		return
	}
	l := float64(*lse) + math.Log(float64(*loss))
	if train {
		vec.Scale(dx, T(o.slope(l)/float64(*loss)))
		vec.AddScaled(dx, floats(o.row, o.w, t), T(-o.rest()))
	}
	sum := l + o.Z*l*l - o.rest()*float64(o.target[r])
	if o.Smoothing > 0 {
		mean := float64(vec.Dot(floats(o.row, o.x, i), o.mean))
		if o.bias != nil {
			mean += vec.Sum(o.bias) / float64(o.classes)
		}
		sum -= o.Smoothing * mean
		if train {
			vec.AddScaled(dx, o.mean, T(-o.Smoothing))
		}
	}
	*loss, *lse = T(sum), T(l)
}

// LinearLossGradW computes the thread's share of the gradients of w [classes, d] and of bias
// [classes], unless that is nil, from the lse of [LinearLoss] and the gradients of the losses. With
// acc it adds to the gradient of w.
func LinearLossGradW[E Element, T Float](c *Context, dw, dbias []T, x, w []E, bias []T, targets []int, lse, dlosses []T, n, d, classes int,
	l Loss, acc bool, scratch []T) {
	check("LinearLossGradW", "dw", len(dw), classes*d)
	check("LinearLossGradW", "dbias", len(dbias), len(bias))
	check("LinearLossGradW", "lse", len(lse), n)
	check("LinearLossGradW", "dlosses", len(dlosses), n)
	o := newLinearLoss(c, x, w, bias, targets, n, d, classes, l, scratch)
	smoothed := T(0) // the part of dbias that is the same for all classes
	if l.Smoothing > 0 {
		clear(o.mean)
		for i, t := range targets {
			if t != l.Ignore {
				share := dlosses[i] * T(l.Smoothing/float64(classes))
				vec.AddScaled(o.mean, floats(o.row, x, i), share)
				smoothed += share
			}
		}
	}
	lo, hi := c.Share(classes, 1)
	if !acc {
		clear(dw[lo*d : hi*d])
	}
	if bias != nil {
		vec.Fill(dbias[lo:hi], -smoothed)
	}
	for j := lo; j < hi; j += lossClasses {
		columns := min(lossClasses, hi-j)
		for i := 0; i < n; i += lossRows {
			rows := min(lossRows, n-i)
			o.block(i, rows, j, columns)
			for r := range rows {
				row := o.logits[r*o.stride:][:columns]
				o.slopes(row, targets[i+r], j, lse[i+r], dlosses[i+r])
				if bias != nil {
					vec.Accumulate(dbias[j:j+columns], row)
				}
			}
			block, stride := o.elements(rows, columns)
			gemm.Gemm(&c.gemm, true, false, columns, d, rows, 1, block, stride, x[i*d:], d, 1, dw[j*d:], d)
		}
		if l.Smoothing > 0 {
			for k := j; k < j+columns; k++ {
				vec.AddScaled(dw[k*d:][:d], o.mean, -1)
			}
		}
	}
}

// slopes converts the logits of classes from j on to their gradients, without the part of the
// smoothing.
func (o *linearLoss[E, T]) slopes(row []T, target, j int, lse, dloss T) {
	if target == o.Ignore {
		clear(row)
		return
	}
	vec.ExpSubSum(row, row, 1, lse)
	vec.Scale(row, dloss*T(o.slope(float64(lse))))
	if t := target - j; t >= 0 && t < len(row) {
		row[t] -= dloss * T(o.rest())
	}
}

// RowLosses computes the losses [n] of logits [n, classes] and their lse [n]: see [Loss]. scratch
// holds [CrossEntropyScratch] elements. A target out of range is an error as in [CrossEntropy].
func RowLosses[T Float](losses, lse, logits []T, targets []int, n, classes int, l Loss, scratch []T) error {
	check("RowLosses", "losses", len(losses), n)
	check("RowLosses", "lse", len(lse), n)
	check("RowLosses", "logits", len(logits), n*classes)
	check("RowLosses", "scratch", len(scratch), CrossEntropyScratch(classes))
	if err := CheckTargets(targets, classes, l.Ignore); err != nil {
		return err
	}
	for i, t := range targets {
		losses[i], lse[i] = 0, 0
		if t == l.Ignore {
			continue
		}
		row := logits[i*classes : (i+1)*classes]
		log := logSumExp(row, scratch)
		loss := log + l.Z*log*log - l.rest()*float64(row[t])
		if l.Smoothing > 0 {
			loss -= l.Smoothing * vec.Sum(row) / float64(classes)
		}
		losses[i], lse[i] = T(loss), T(log)
	}
	return nil
}

// RowLossesGrad computes the gradient of [RowLosses] with respect to the logits, from lse and the
// gradients of the losses. dlogits may be logits.
func RowLossesGrad[T Float](dlogits, logits []T, targets []int, lse, dlosses []T, n, classes int, l Loss, scratch []T) {
	check("RowLossesGrad", "dlogits", len(dlogits), n*classes)
	check("RowLossesGrad", "dlosses", len(dlosses), n)
	check("RowLossesGrad", "scratch", len(scratch), CrossEntropyScratch(classes))
	for i, t := range targets {
		row, d := logits[i*classes:(i+1)*classes], dlogits[i*classes:(i+1)*classes]
		if t == l.Ignore {
			clear(d)
			continue
		}
		vec.Fill(scratch, dlosses[i]*T(l.Smoothing/float64(classes)))
		for j := 0; j < classes; j += classBlock {
			k := min(j+classBlock, classes)
			vec.ExpSubSum(d[j:k], row[j:k], 1, lse[i])
			vec.Scale(d[j:k], dlosses[i]*T(l.slope(float64(lse[i]))))
			if l.Smoothing > 0 {
				vec.Sub(d[j:k], d[j:k], scratch[:k-j])
			}
		}
		d[t] -= dlosses[i] * T(l.rest())
	}
}

// MeanLoss returns the mean of losses whose target is not ignore, or 0 if there are none.
func MeanLoss[T Float](losses []T, targets []int, ignore int) T {
	var sum float64
	for i, t := range targets {
		if t != ignore {
			sum += float64(losses[i])
		}
	}
	return T(sum / float64(max(1, counted(targets, ignore))))
}

// MeanLossGrad is the gradient of [MeanLoss].
func MeanLossGrad[T Float](dlosses []T, targets []int, ignore int, dloss T) {
	share := dloss / T(max(1, counted(targets, ignore)))
	for i, t := range targets {
		dlosses[i] = 0
		if t != ignore {
			dlosses[i] = share
		}
	}
}

// counted returns the number of targets that are not ignore.
func counted(targets []int, ignore int) (n int) {
	for _, t := range targets {
		if t != ignore {
			n++
		}
	}
	return n
}
