package ops_test

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// ExampleTable prints the documentation of all operations.
func ExampleTable() {
	for _, r := range ops.Table() {
		if r.Kind == exec.KindStock {
			continue // whatever Gorgonia has
		}
		fmt.Printf("%s: %s\n    %s\n", r.Kind, r.Shapes, r.Doc)
		if r.Attr != nil {
			fmt.Printf("    attributes %+v\n", r.Attr)
		}
	}
	// Output:
	// add: a [...], b [...] -> y [...]
	//     a + b
	// accumulate: x [...] -> y [...]
	//     y + x, where y lies
	// copy: x [...] -> y [...]
	//     x
	// zero: -> y [...]
	//     0
	// output: x [...] -> y [...]
	//     x, as an output of a module
	//     attributes {Index:0}
	// view: x [...] -> y [*]
	//     the elements of x from an offset on, under another shape
	//     attributes {Offset:0}
	// linear: x [... in], weight [out in], bias? [out] -> y [... out]
	//     x·weightᵀ + bias
	// add linear: y [... out], x [... in], weight [out in] -> sum [... out]
	//     y + x·weightᵀ
	// linear dx: dy, weight -> dx [... in]
	//     dy·weight
	// linear dw: dy, x -> dweight [out in]
	//     dyᵀ·x
	// linear db: dy -> dbias [out]
	//     the sum of the rows of dy
	// attention: qkv [B T 3*D], mask? int [B T] -> y [B T D] | lse [B heads T]
	//     softmax(q·kᵀ/√(D/heads))·v of each head, and the logarithm of the sum in each softmax
	//     attributes {Heads:0 Causal:false}
	// attention grad: qkv, packed, dy, mask? int -> dqkv [B T 3*D]
	//     the gradient of attention, from the scores computed again
	//     attributes {Heads:0 Causal:false}
	// layer norm: x [... d], gain [d], bias [d] -> y [... d] | statistics [... 2]
	//     (x - mean)·rstd·gain + bias, and mean and rstd = 1/√(variance + eps) of each row
	//     attributes {Eps:0}
	// layer norm grad: x, gain, packed, dy -> dx [... d] | dgain [d] | dbias [d]
	//     the gradients of layer norm
	//     attributes {Eps:0}
	// rms norm: x [... d], gain [d] -> y [... d] | rstd [...]
	//     x·rstd·gain, and rstd = 1/√(mean(x²) + eps) of each row
	//     attributes {Eps:0}
	// rms norm grad: x, gain, packed, dy -> dx [... d] | dgain [d]
	//     the gradients of rms norm
	//     attributes {Eps:0}
	// batch norm statistics: x [... d], running mean [d], running variance [d] -> mean [d] | variance [d] | next mean [d] | next variance [d]
	//     mean and biased variance of each column, and what the running ones become
	//     attributes {Momentum:0}
	// batch norm: x [... d], gain [d], bias [d], statistics -> y [... d]
	//     (x - mean)/√(variance + eps)·gain + bias
	//     attributes {Eps:0}
	// batch norm grad: x, gain, statistics, dy -> dx [... d] | dgain [d] | dbias [d]
	//     the gradients of batch norm, those through the statistics included
	//     attributes {Eps:0}
	// gelu: x [...] -> y [...]
	//     x·Φ(x)
	// gelu grad: x, dy -> dx [...]
	//     dy times the slope of gelu at x
	// gelu tanh: x [...] -> y [...]
	//     x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
	// gelu tanh grad: x, dy -> dx [...]
	//     dy times the slope of gelu tanh at x
	// relu: x [...] -> y [...]
	//     max(x, 0)
	// relu grad: x, dy -> dx [...]
	//     dy times the slope of relu at x
	// scale: x [...] -> y [...]
	//     c·x
	//     attributes {C:0}
	// dropout: x [...] -> y [...]
	//     x/(1 - rate) or 0, by seed and stream; x in evaluation
	//     attributes {Rate:0 Stream:0}
	// embedding: table [rows d], index int [...] -> y [... d]
	//     the rows of table that index names
	// embedding grad: dy, index int -> dtable [rows d]
	//     the sum of the rows of dy at the row of the table that they come from
	// positions: x [B T d], table [rows d] -> y [B T d]
	//     x plus the first T rows of table
	// positions grad: dy -> dtable [rows d]
	//     the sum of dy over B, and 0 in the rows from T on
	// cross-entropy: logits [... n classes], targets int [... n] -> loss [1] | lse [... n]
	//     the mean of lse - logits[target] over the targets that count, and lse = log Σ exp(logits) of each row
	//     attributes {Target:0}
	// cross-entropy grad: logits, targets int, packed, dloss -> dlogits [... n classes]
	//     (exp(logits - lse) - onehot(targets))·dloss/count, and 0 where a target does not count
	//     attributes {Target:0}
}
