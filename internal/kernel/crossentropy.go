package kernel

import (
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// classBlock is the number of logits that are processed at once, so that the passes over a long row
// (50,257 classes for GPT-2) share the level-one cache.
const classBlock = 1024

// CrossEntropyScratch returns the elements of scratch that [CrossEntropy] needs: the exponentials
// of one block of logits.
func CrossEntropyScratch(classes int) int { return min(classes, classBlock) }

// CrossEntropy returns the mean of -log softmax(logits[i])[targets[i]] over the counted rows i of
// logits [n, classes], and the number of counted rows: those whose target is not ignore. It saves
// the log-sum-exp of each counted row in lse [n] (0 in other rows) for [CrossEntropyGrad]. With no
// counted row the loss is 0. A target that is neither a class nor ignore is an error that names its
// row and value; lse is then untouched. scratch holds [CrossEntropyScratch] elements.
func CrossEntropy[T Float](lse, logits []T, targets []int, n, classes, ignore int, scratch []T) (loss float64, counted int, err error) {
	check("CrossEntropy", "lse", len(lse), n)
	check("CrossEntropy", "targets", len(targets), n)
	check("CrossEntropy", "logits", len(logits), n*classes)
	check("CrossEntropy", "scratch", len(scratch), CrossEntropyScratch(classes))
	if err := CheckTargets(targets, classes, ignore); err != nil {
		return 0, 0, err
	}
	for i, t := range targets {
		lse[i] = 0
		if t == ignore {
			continue
		}
		row := logits[i*classes : (i+1)*classes]
		l := logSumExp(row, scratch)
		lse[i] = T(l)
		loss += l - float64(row[t])
		counted++
	}
	if counted > 0 {
		loss /= float64(counted)
	}
	return loss, counted, nil
}

// CheckTargets returns the error that [CrossEntropy] returns for invalid targets.
func CheckTargets(targets []int, classes, ignore int) error {
	for i, t := range targets {
		if t != ignore && (t < 0 || t >= classes) {
			return fmt.Errorf("target %d of row %d is outside the %d classes, which are 0 to %d", t, i, classes, classes-1)
		}
	}
	return nil
}

// CrossEntropyGrad is the gradient of [CrossEntropy] with respect to the logits: dlogits[i] =
// (softmax(logits[i]) - onehot(targets[i]))·dloss/counted, and 0 in ignored rows. lse and counted
// are results of CrossEntropy, and dloss is the gradient of the loss (1 at the end of a model).
// dlogits may be logits.
func CrossEntropyGrad[T Float](dlogits, logits, lse []T, targets []int, n, classes, ignore, counted int, dloss T) {
	check("CrossEntropyGrad", "lse", len(lse), n)
	check("CrossEntropyGrad", "targets", len(targets), n)
	check("CrossEntropyGrad", "logits", len(logits), n*classes)
	check("CrossEntropyGrad", "dlogits", len(dlogits), n*classes)
	scale := dloss / T(counted) // never used when counted is 0
	for i, t := range targets {
		d := dlogits[i*classes : (i+1)*classes]
		if t == ignore {
			clear(d)
			continue
		}
		row := logits[i*classes : (i+1)*classes]
		for j := 0; j < classes; j += classBlock {
			k := min(j+classBlock, classes)
			vec.ExpSubSum(d[j:k], row[j:k], 1, lse[i])
			vec.Scale(d[j:k], scale)
		}
		d[t] -= scale
	}
}

// logSumExp returns log Σ exp(x) without overflow. It writes the exponentials to block and does not
// change the row.
func logSumExp[T Float](x, block []T) float64 {
	m := vec.Max(x)
	var sum float64
	for j := 0; j < len(x); j += len(block) {
		k := min(j+len(block), len(x))
		sum += float64(vec.ExpSubSum(block[:k-j], x[j:k], 1, m))
	}
	return float64(m) + math.Log(sum)
}
