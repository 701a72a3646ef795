package ops_test

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// ExampleTable prints the documentation of all operations: kind and type of the attributes,
// arguments, results, formula.
func ExampleTable() {
	for _, r := range ops.Table() {
		if r.Kind == exec.KindStock {
			continue // whatever Gorgonia has
		}
		args, results, _ := strings.Cut(r.Shapes, "->")
		fmt.Print(r.Kind)
		if r.Attr != nil {
			fmt.Printf(" (%v)", reflect.TypeOf(r.Attr))
		}
		fmt.Printf(":%s\n    ->%s\n    %s\n", strings.TrimSuffix(" "+args, " "), results, r.Doc)
	}
	// Output:
	// convolution (exec.Conv): x [B C H W], w [O I K L], bias? [O]
	//     -> y [B O P Q]
	//     the sum of w·x over the channels of a group and the places of the kernel, plus bias
	// convolution dx (exec.Conv): dy, w
	//     -> dx [B C H W]
	//     the gradient of a convolution with respect to x
	// convolution dw (exec.Conv): dy, x
	//     -> dw f32 [O I K L]
	//     the gradient of a convolution with respect to w
	// convolution db (exec.Conv): dy
	//     -> dbias f32 [O]
	//     the sum of dy over all but the channels
	// patches (exec.Patches): x [B C H W]
	//     -> y [B P Q n]
	//     the pixels of x that each place of a kernel sees
	// patches grad (exec.Patches): dy
	//     -> dx [B C H W]
	//     the sum of the elements of dy at the pixel that they come from
	// max pool (exec.Pool): x [B C H W]
	//     -> y [B C P Q]
	//     the largest element of each window, NaN where there is one
	// max pool grad (exec.Pool): x, dy
	//     -> dx [B C H W]
	//     dy at the largest element of each window, the first of those that are equal
	// avg pool (exec.Pool): x [B C H W]
	//     -> y [B C P Q]
	//     the mean of each window, padding included
	// avg pool grad (exec.Pool): dy
	//     -> dx [B C H W]
	//     the sum of dy over the windows that an element is in, divided by their size
	// dropout (exec.Mask): x [...]
	//     -> y [...]
	//     x/(1 - rate) or 0, by seed and stream; x in evaluation
	// add: a [...], b [...]
	//     -> y [...]
	//     a + b
	// accumulate: x [...]
	//     -> y [...]
	//     y + x, where y lies
	// copy: x [...]
	//     -> y [...]
	//     x
	// convert: x [...]
	//     -> y [...]
	//     x, rounded to bfloat16 or widened to float32
	// zero:
	//     -> y [...]
	//     0
	// output (exec.Output): x [...]
	//     -> y [...]
	//     x, as an output of a module
	// view (exec.View): x [...]
	//     -> y [*]
	//     the elements of x from an offset on, under another shape
	// sum (exec.Axes): x [...]
	//     -> y [*]
	//     the sum of x over axes, one axis after the other and its terms in order; over all axes, the terms of x in order
	// max (exec.Axes): x [...]
	//     -> y [*]
	//     the largest of x over axes, NaN where any is
	// max grad (exec.Axes): x, y, dy
	//     -> dx [*]
	//     dy where x is the largest over axes, else 0
	// repeat (exec.Axes): x [...]
	//     -> y [*]
	//     x, with each element repeated along an axis
	// unary (exec.Unary): x [...]
	//     -> y [...]
	//     a function of x: abs sign ceil floor neg inv square cube sqrt invSqrt exp expm1 ln log1p log2 sin cos tanh sigmoid softplus
	// binary (exec.Binary): a any, b any
	//     -> y [*]
	//     a and b, element by element; either may be a single number. A comparison is 1 or 0
	// from int: x int [...]
	//     -> y [...]
	//     x as floats
	// product (exec.Product): a, b
	//     -> y [*]
	//     a·b of the matrices in the last two axes, after the axes of a and of b are put in their orders and before those of y are
	// transpose (exec.Order): x
	//     -> y [*]
	//     x with its axes in another order
	// slice (exec.Slice): x
	//     -> y [*]
	//     some elements of x along an axis
	// slice grad (exec.Slice): dy
	//     -> dx [*]
	//     dy at the elements of a slice, and 0 at the others
	// slice add (exec.Slice): x, dy
	//     -> y [*]
	//     x, with dy added to the elements of a slice
	// concat (exec.Axis): x
	//     -> y [*]
	//     the arguments, one after the other along an axis
	// random (exec.Random):
	//     -> y [...]
	//     random numbers, by seed and stream
	// lookup (exec.Axis): x, index int
	//     -> y [*]
	//     the elements of x along an axis that index names
	// lookup grad (exec.Axis): dy, index int
	//     -> dx f32 [*]
	//     the sum of the elements of dy at the place along the axis that they come from
	// softmax (exec.Softmax): x [...]
	//     -> y [...]
	//     exp(x) / Σ exp(x) along an axis, or its logarithm
	// softmax grad (exec.Softmax): dy, y
	//     -> dx [*]
	//     y·(dy - Σ y·dy) along an axis, or dy - exp(y)·Σ dy for the logarithm
	// linear: x [... in], weight [out in], bias? [out]
	//     -> y [... out]
	//     x·weightᵀ + bias
	// add linear: y [... out], x [... in], weight [out in], bias? [out]
	//     -> sum [... out]
	//     y + x·weightᵀ + bias
	// linear dx: dy, weight
	//     -> dx [... in]
	//     dy·weight
	// add linear dx: y, dy, weight
	//     -> sum [... in]
	//     y + dy·weight
	// gelu linear dx: x, dy, weight
	//     -> dx [... in]
	//     dy·weight times the slope of gelu tanh at x
	// linear dw: dy, x
	//     -> dweight f32 [out in]
	//     dyᵀ·x
	// linear db: dy
	//     -> dbias f32 [out]
	//     the sum of the rows of dy
	// attention (ops.Attention): qkv [B T (H+2*KV)*Dh], mask? int [B T], positions? int [B T]
	//     -> y [B T H*Dh] | lse f32 [B heads T]
	//     softmax(scale·q·kᵀ)·v of each head, and the logarithm of the sum in each softmax
	// attention grad (ops.Attention): qkv, packed, dy, mask? int, positions? int
	//     -> dqkv [B T (H+2*KV)*Dh]
	//     the gradients, from the scores computed again
	// attention bias (ops.Attention): qkv [B T (H+2*KV)*Dh], bias f32 [heads T T], mask? int [B T], positions? int [B T]
	//     -> y [B T H*Dh] | lse f32 [B heads T]
	//     softmax(scale·q·kᵀ + bias)·v of each head, and the logarithm of the sum in each softmax
	// attention bias grad (ops.Attention): qkv, bias f32, packed, dy, mask? int, positions? int
	//     -> dqkv [B T (H+2*KV)*Dh] | dbias f32 [heads T T]
	//     the gradients, from the scores computed again
	// sdpa (ops.Attention): q [B Tq H*Dh], k [B Tk KV*Dh], v [B Tk KV*Dh], mask? int [B Tk], positions? int [B Tk]
	//     -> y [B Tq H*Dh] | lse f32 [B heads Tq]
	//     softmax(scale·q·kᵀ)·v of each head, and the logarithm of the sum in each softmax
	// sdpa grad (ops.Attention): q, k, v, packed, dy, mask? int, positions? int
	//     -> dq [B Tq H*Dh] | dk [B Tk KV*Dh] | dv [B Tk KV*Dh]
	//     the gradients, from the scores computed again
	// sdpa bias (ops.Attention): q [B Tq H*Dh], k [B Tk KV*Dh], v [B Tk KV*Dh], bias f32 [heads Tq Tk], mask? int [B Tk], positions? int [B Tk]
	//     -> y [B Tq H*Dh] | lse f32 [B heads Tq]
	//     softmax(scale·q·kᵀ + bias)·v of each head, and the logarithm of the sum in each softmax
	// sdpa bias grad (ops.Attention): q, k, v, bias f32, packed, dy, mask? int, positions? int
	//     -> dq [B Tq H*Dh] | dk [B Tk KV*Dh] | dv [B Tk KV*Dh] | dbias f32 [heads Tq Tk]
	//     the gradients, from the scores computed again
	// relative bias (ops.Relative): table f32 [buckets heads]
	//     -> bias f32 [heads Tq Tk]
	//     the row of table for the distance of each query and key, one column a head
	// relative bias grad (ops.Relative): dbias f32
	//     -> dtable f32 [buckets heads]
	//     the sum of dbias where each element of table stands
	// layer norm (ops.Norm): x [... d], gain f32 [d], bias f32 [d]
	//     -> y [... d] | statistics f32 [... 2]
	//     (x - mean)·rstd·gain + bias, and mean and rstd = 1/√(variance + eps) of each row
	// layer norm grad (ops.Norm): x, gain f32, packed, dy
	//     -> dx [... d] | dgain f32 [d] | dbias f32 [d]
	//     the gradients of layer norm
	// add layer norm grad (ops.Norm): y, x, gain f32, packed, dy
	//     -> dx [... d] | dgain f32 [d] | dbias f32 [d]
	//     the gradients of layer norm, with y added to dx
	// rms norm (ops.Norm): x [... d], gain f32 [d]
	//     -> y [... d] | rstd f32 [...]
	//     x·rstd·gain, and rstd = 1/√(mean(x²) + eps) of each row
	// rms norm grad (ops.Norm): x, gain f32, packed, dy
	//     -> dx [... d] | dgain f32 [d]
	//     the gradients of rms norm
	// add rms norm grad (ops.Norm): y, x, gain f32, packed, dy
	//     -> dx [... d] | dgain f32 [d]
	//     the gradients of rms norm, with y added to dx
	// batch norm statistics (ops.BatchStats): x [B C ...], running mean f32 [C], running variance f32 [C]
	//     -> mean f32 [C] | variance f32 [C] | next mean f32 [C] | next variance f32 [C]
	//     mean and biased variance of each channel, and what the running ones become
	// batch norm (ops.Norm): x [B C ...], gain f32 [C], bias f32 [C], statistics f32
	//     -> y [B C ...]
	//     (x - mean)/√(variance + eps)·gain + bias
	// batch norm grad (ops.Norm): x, gain f32, statistics f32, dy
	//     -> dx [B C ...] | dgain f32 [C] | dbias f32 [C]
	//     the gradients of batch norm, those through the statistics included
	// group norm (ops.Groups): x [B C ...], gain f32 [C], bias f32 [C]
	//     -> y [B C ...] | statistics f32 [B groups 2]
	//     (x - mean)·rstd·gain + bias, and mean and rstd = 1/√(variance + eps) of each group of channels
	// group norm grad (ops.Groups): x, gain f32, packed, dy
	//     -> dx [B C ...] | dgain f32 [C] | dbias f32 [C]
	//     the gradients of group norm
	// gelu: x [...]
	//     -> y [...]
	//     x·Φ(x)
	// gelu grad: x, dy
	//     -> dx [...]
	//     dy times the slope of gelu at x
	// gelu tanh: x [...]
	//     -> y [...]
	//     x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
	// gelu tanh grad: x, dy
	//     -> dx [...]
	//     dy times the slope of gelu tanh at x
	// silu: x [...]
	//     -> y [...]
	//     x/(1 + e⁻ˣ)
	// silu grad: x, dy
	//     -> dx [...]
	//     dy times the slope of silu at x
	// tanh: x [...]
	//     -> y [...]
	//     tanh(x)
	// tanh grad: x, dy
	//     -> dx [...]
	//     dy times the slope of tanh at x
	// sigmoid: x [...]
	//     -> y [...]
	//     1/(1 + e⁻ˣ)
	// sigmoid grad: x, dy
	//     -> dx [...]
	//     dy times the slope of sigmoid at x
	// relu: x [...]
	//     -> y [...]
	//     max(x, 0)
	// relu grad: x, dy
	//     -> dx [...]
	//     dy times the slope of relu at x
	// glu (ops.Gated): gate [...], up [...]
	//     -> y [...]
	//     act(gate)·up
	// glu grad (ops.Gated): gate, up, dy
	//     -> dgate [...] | dup [...]
	//     dy·up times the slope of act at gate, and dy·act(gate)
	// packed glu (ops.Gated): x [... 2*d]
	//     -> y [... d]
	//     act(gate)·up, of gate and up one after the other in each row of x
	// packed glu grad (ops.Gated): x, dy
	//     -> dx [... 2*d]
	//     the gradients of packed glu, one after the other in each row
	// angles (ops.Angles): x [... T d]
	//     -> table f32 [rows dims]
	//     in row p the cosines of the angles of position p, and then the sines
	// rope (kernel.Rotary): x [... T d], table f32 [rows dims], positions? int [... T]
	//     -> y [... T d]
	//     pairs (u, v) of columns become (u·cos - v·sin, u·sin + v·cos), by the row of table for their position
	// rope grad (kernel.Rotary): dy, table f32, positions? int
	//     -> dx [... T d]
	//     the pairs of dy, turned back
	// scale (ops.Factor): x [...]
	//     -> y [...]
	//     c·x
	// embedding: table [rows d], index int [...]
	//     -> y [... d]
	//     the rows of table that index names
	// embedding grad: dy, index int
	//     -> dtable f32 [rows d]
	//     the sum of the rows of dy at the row of the table that they come from
	// positions: x [B T d], table [rows d]
	//     -> y [B T d]
	//     x plus the first T rows of table
	// positions grad: dy
	//     -> dtable f32 [rows d]
	//     the sum of dy over B, and 0 in the rows from T on
	// cross-entropy (ops.Ignore): logits [... n classes], targets int [... n]
	//     -> loss f32 [1] | lse f32 [... n]
	//     the mean of lse - logits[target] where the target counts; lse = log Σ exp(logits)
	// cross-entropy grad (ops.Ignore): logits, targets int, packed f32, dloss f32
	//     -> dlogits [... n classes]
	//     (exp(logits - lse) - onehot(targets))·dloss/count, and 0 where a target does not count
	// linear loss (kernel.Loss): x [... n d], weight [classes d], targets int [... n], bias? f32 [classes]
	//     -> dx [... n d] | losses f32 [... n] | lse f32 [... n]
	//     the losses of x·weightᵀ + bias without that product in memory: lse - (1-smoothing)·l[target] - smoothing·mean(l) + z·lse², with dx their gradients
	// linear loss dx (kernel.Loss): packed, dlosses f32
	//     -> dx [... n d]
	//     the dx that linear loss has found, times the gradients of the losses
	// linear loss dw (kernel.Loss): x, weight, targets int, packed, dlosses f32
	//     -> dweight f32 [classes d]
	//     the gradient of the weight, from logits computed again
	// linear loss dw db (kernel.Loss): x, weight, targets int, packed, dlosses f32, bias f32
	//     -> dweight f32 [classes d] | dbias f32 [classes]
	//     the gradients of weight and bias, from logits computed again
	// early linear loss (kernel.Loss): x [... n d], weight [classes d], targets int [... n]
	//     -> dx [... n d] | losses f32 [... n] | lse f32 [... n] | dweight f32 [classes d]
	//     linear loss, and the gradient of the weight for gradients of 1
	// early linear loss with bias (kernel.Loss): x [... n d], weight [classes d], targets int [... n], bias f32 [classes]
	//     -> dx [... n d] | losses f32 [... n] | lse f32 [... n] | dweight f32 [classes d] | dbias f32 [classes]
	//     linear loss, and the gradients of weight and bias for gradients of 1
	// early linear loss dw (kernel.Loss): packed, dlosses f32
	//     -> dweight f32 [classes d]
	//     the dweight that early linear loss has found, times the gradient of the losses that count
	// early linear loss dw db (kernel.Loss): packed, dlosses f32
	//     -> dweight f32 [classes d] | dbias f32 [classes]
	//     the dweight and dbias of early linear loss, times the gradient of the losses that count
	// row losses (kernel.Loss): logits [... n classes], targets int [... n]
	//     -> losses f32 [... n] | lse f32 [... n]
	//     lse - (1-smoothing)·l[target] - smoothing·mean(l) + z·lse² of each row l, and lse
	// row losses grad (kernel.Loss): logits, targets int, packed f32, dlosses f32
	//     -> dlogits [... n classes]
	//     (exp(l - lse)·(1 + 2·z·lse) - (1-smoothing)·onehot(target) - smoothing/classes)·dloss of each row l
	// mean loss (ops.Ignore): losses f32 [... n], targets int [... n]
	//     -> loss f32 [1]
	//     the mean of the losses whose target counts
	// mean loss grad (ops.Ignore): targets int, dloss f32
	//     -> dlosses f32 [... n]
	//     dloss/count, and 0 where a target does not count
	// mean squared error: x [...], target [...], weight? [...]
	//     -> loss f32 [1]
	//     the mean of (y - target)², weighted
	// mean squared error grad: x, target, dloss f32, weight?
	//     -> dx [...]
	//     the gradient of mean squared error
	// binary cross-entropy: x [...], target [...], weight? [...]
	//     -> loss f32 [1]
	//     the mean of log(1 + eˣ) - target·x, weighted
	// binary cross-entropy grad: x, target, dloss f32, weight?
	//     -> dx [...]
	//     the gradient of binary cross-entropy
}
