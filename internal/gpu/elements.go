package gpu

import "github.com/gofsdp/gofsdp/internal/exec"

// elementKinds are the element-wise operations that the compiler itself emits.
var elementKinds = map[exec.Kind]lowering{
	exec.KindAdd:        add,
	exec.KindAccumulate: accumulate,
	exec.KindCopy:       copyValue,
	exec.KindOutput:     copyValue,
	exec.KindZero:       zero,
	exec.KindConvert:    convert,
}

func add(b *builder, in *exec.Instr) error {
	n := exec.Numel(in.Out.Shape)
	return b.each("elements_add", b.lots(n), in.Out, in.In[0], in.In[1], uint64(n))
}

func accumulate(b *builder, in *exec.Instr) error {
	n := exec.Numel(in.Out.Shape)
	return b.each("elements_accumulate", b.lots(n), in.Out, in.In[0], uint64(n))
}

func copyValue(b *builder, in *exec.Instr) error {
	b.move(operandAddress(in.Out), operandAddress(in.In[0]), in.Out.Bytes)
	return nil
}

func zero(b *builder, in *exec.Instr) error {
	b.zero(operandAddress(in.Out), in.Out.Bytes)
	return nil
}

// convert changes the form of a value. It launches one kernel for each part that has one type
// before and one after.
func convert(b *builder, in *exec.Instr) error {
	x, y := in.In[0], in.Out
	xn, xTail := x.Head()
	yn, yTail := y.Head()
	n := exec.Numel(y.Shape)
	both := min(xn, yn)
	b.move(operandAddress(y), operandAddress(x), 2*both)
	b.move(operandAddress(y).plus(yTail+4*max(0, xn-yn)), operandAddress(x).plus(xTail+4*max(0, yn-xn)), 4*(n-max(xn, yn)))
	switch {
	case xn > both:
		return b.threads("elements_widen_"+b.engine.half(), xn-both, operandAddress(y).plus(yTail), operandAddress(x).plus(2*both), uint64(xn-both))
	case yn > both:
		return b.threads("elements_narrow_"+b.engine.half(), yn-both, operandAddress(y).plus(2*both), operandAddress(x).plus(xTail), uint64(yn-both))
	}
	return nil
}
