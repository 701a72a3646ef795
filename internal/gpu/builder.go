package gpu

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// A lowering adds the steps of an instruction.
type lowering func(b *builder, in *exec.Instr) error

// families are the tables of lowerings, one for each kernel file.
var families = []map[exec.Kind]lowering{
	activationKinds,
	attentionKinds,
	elementKinds,
	embeddingKinds,
	imageKinds,
	linearKinds,
	lossKinds,
	movementKinds,
	normKinds,
	planeKinds,
	pointwiseKinds,
	randomKinds,
	reduceKinds,
	relativeKinds,
	ropeKinds,
}

// lower returns the lowering of a kind, or nil.
func lower(k exec.Kind) lowering {
	for _, f := range families {
		if l := f[k]; l != nil {
			return l
		}
	}
	return nil
}

// Supports reports whether there are kernels for a kind of operation.
func Supports(k exec.Kind) bool { return lower(k) != nil }

// Slow returns why the kernels of an instruction are slow, or "". Only attention has slow kernels:
// with a warp for each row, for values that its kernels with tensor cores do not support, or by
// mma.sync on a device whose wgmma has failed the comparison of a program compiled before.
func (e *Engine) Slow(in *exec.Instr) string {
	if attentionKinds[in.Op.Kind] == nil {
		return ""
	}
	b := &builder{Program: &Program{engine: &Engine{Hopper: e.Hopper, Float16: e.Float16, agrees: e.agrees}}}
	if err := b.add(in); err != nil { // Compile returns it
		return ""
	}
	return b.slow
}

// missing is the error of a program with operations that have no kernels. It is
// [errors.ErrUnsupported].
type missing []string

func (m missing) Error() string {
	if len(m) == 1 {
		return m[0] + " on the GPU: there are no kernels for it"
	}
	return strings.Join(m, ", ") + " on the GPU: there are no kernels for them"
}

func (missing) Is(target error) bool { return target == errors.ErrUnsupported }

// A builder assembles a program.
type builder struct {
	*Program
	op      *exec.Op    // of the instruction that is lowered
	update  bool        // of its steps
	bias    *exec.Instr // for the gradient of the bias, if the instruction is for the gradient of its weight and computes both
	scratch int         // scratch bytes that the instruction has taken
	slow    string      // why its kernels are slow, or ""
	kind    string      // storage type of its values: f32, f64, bf16, f16
}

// Compile compiles a program whose instructions do not run in blocks (exec.Signature.Apart).
// Operations without kernels are an error that names all of them. The caller frees the program.
func (e *Engine) Compile(p *exec.Program) (*Program, error) { return e.Assemble(p.All(), p.Consts()) }

// Scratch returns the Scratch of a compiled program, which is the same on any device. It needs no
// device.
func Scratch(p *exec.Program) (int, error) {
	made, err := (&Engine{LossScratch: lossScratch}).Compile(p)
	if err != nil {
		return 0, err
	}
	return made.Scratch, nil
}

// Assemble is Compile for a list of instructions, with the values of exec.SpaceConst.
func (e *Engine) Assemble(list iter.Seq[exec.Instr], consts []exec.Value) (_ *Program, err error) {
	b := &builder{Program: &Program{engine: e}}
	defer func() {
		if err != nil {
			_ = b.Free() // frees the incomplete program; err is more important
		}
	}()
	for _, v := range consts {
		m, err := e.constant(v.Bytes)
		if err != nil {
			return nil, err
		}
		b.consts = append(b.consts, m)
	}
	var absent missing
	all := slices.Collect(list)
	biases, merged := pairs(all)
	for i := range all {
		in := &all[i]
		if lower(in.Op.Kind) == nil {
			if name := in.Op.String(); !slices.Contains(absent, name) {
				absent = append(absent, name)
			}
			continue
		}
		if merged[in] {
			continue
		}
		b.bias = biases[in]
		if err := b.add(in); err != nil {
			return nil, fmt.Errorf("%v on the GPU: %w", in.Op, err)
		}
	}
	if absent != nil {
		return nil, absent
	}
	return b.Program, nil
}

// add adds the steps of an instruction that has a lowering.
func (b *builder) add(in *exec.Instr) error {
	b.op, b.update, b.scratch, b.slow, b.kind = in.Op, in.Update, 0, "", "f32"
	switch {
	case in.Half:
		b.kind = b.engine.half()
	case in.Out.DType == tensor.Float64:
		b.kind = "f64"
	}
	return lower(in.Op.Kind)(b, in)
}

// half returns the storage type of values of 16 bits.
func (e *Engine) half() string {
	if e.Float16 {
		return "f16"
	}
	return "bf16"
}

// constant returns memory with the given bytes, or nil without a device.
func (e *Engine) constant(data []byte) (*device.Memory, error) {
	if e.dev == nil {
		return nil, nil
	}
	m, err := e.dev.Alloc(len(data))
	if err != nil {
		return nil, err
	}
	if err := e.fill(m, data); err != nil {
		return nil, errors.Join(err, m.Free())
	}
	return m, nil
}

// fill copies data to m, and waits.
func (e *Engine) fill(m *device.Memory, data []byte) error {
	h, err := e.dev.AllocHost(len(data))
	if err != nil {
		return err
	}
	copy(h.Bytes(), data)
	err = e.upload.CopyToDevice(m.Addr(), h, 0, len(data))
	return errors.Join(err, e.upload.Sync(), h.Free())
}

// temp returns n bytes of scratch memory for the steps of the instruction.
func (b *builder) temp(n int) address {
	a := address{space: spaceScratch, offset: b.scratch}
	b.scratch += (n + arena.Align - 1) / arena.Align * arena.Align
	b.Scratch = max(b.Scratch, b.scratch)
	return a
}

// operandAddress returns the address of an operand.
func operandAddress(o exec.Operand) address { return address{o.Space, o.Index, o.Offset} }

// tail returns the address of the last n elements of an operand, which Row.Shapes marks f32.
func tail(o exec.Operand, n int) address {
	return operandAddress(o).plus(o.Bytes - n*int(o.DType.Size()))
}

// These are arguments of a kernel other than values and addresses.
type (
	seed  struct{} // u64
	train struct{} // int: 1 in training, 0 in evaluation
)

// each launches a kernel with one thread for each of n elements. The builder adds the type to a
// name of the form family_operation.
func (b *builder) each(kernel string, n int, args ...any) error {
	return b.threads(kernel+"_"+b.kind, n, args...)
}

// threads is each for a kernel with exactly this name.
func (b *builder) threads(kernel string, n int, args ...any) error {
	return b.launch(kernel, [3]int{(n + 255) / 256, 1, 1}, [3]int{256, 1, 1}, 0, args...)
}

// launch adds a kernel. Arguments are an address, an exec.Operand (its address), int32, uint32,
// int64, uint64, float32, float64, bool (an int), seed or train. A float64 is passed as double to
// f64 kernels and as float to others, like W<E>. Write float32(x) or double(x) to choose one of
// them.
func (b *builder) launch(kernel string, grid, block [3]int, shared int, args ...any) error {
	if grid[0] > math.MaxInt32 || max(grid[1], grid[2]) > mostBlocks {
		return fmt.Errorf("kernel %s: a grid of %v blocks is too large for any device", kernel, grid)
	}
	f, err := b.engine.Function(kernel)
	if err != nil || f == nil {
		return err
	}
	l := &launch{function: f, grid: grid, block: block, shared: shared}
	for _, a := range args {
		v, size := b.argument(a)
		if size == 0 {
			return fmt.Errorf("kernel %s: argument %d is a %T", kernel, len(l.args), a)
		}
		if sizes := f.Params(); sizes != nil && (len(l.args) >= len(sizes) || sizes[len(l.args)] != size) {
			return fmt.Errorf("kernel %s: argument %d is a %T of %d bytes, but the parameters have %v bytes", kernel, len(l.args), a, size, sizes)
		}
		l.args = append(l.args, v)
	}
	if sizes := f.Params(); sizes != nil && len(sizes) != len(l.args) {
		return fmt.Errorf("kernel %s: %d arguments for %d parameters", kernel, len(l.args), len(sizes))
	}
	b.step(l)
	return nil
}

// mostBlocks is the largest number of blocks of a grid in y and in z.
const mostBlocks = math.MaxUint16

// double is a float64 that is passed as a double.
type double float64

// argument returns an argument and its size in bytes. The size is 0 if a kernel cannot take it.
func (b *builder) argument(a any) (v argument, size int) {
	value := func(bits uint64, size int) (argument, int) { return argument{value: bits}, size }
	switch a := a.(type) {
	case address:
		return argument{kind: isAddress, at: a}, 8
	case exec.Operand:
		return argument{kind: isAddress, at: operandAddress(a)}, 8
	case seed:
		return argument{kind: isSeed}, 8
	case train:
		return argument{kind: isTrain}, 4
	case int32:
		return value(uint64(uint32(a)), 4)
	case uint32:
		return value(uint64(a), 4)
	case int64:
		return value(uint64(a), 8)
	case uint64:
		return value(a, 8)
	case bool:
		if a {
			return value(1, 4)
		}
		return value(0, 4)
	case float32:
		return value(uint64(math.Float32bits(a)), 4)
	case double:
		return value(math.Float64bits(float64(a)), 8)
	case float64:
		if b.kind == "f64" {
			return value(math.Float64bits(a), 8)
		}
		return value(uint64(math.Float32bits(float32(a))), 4)
	}
	return v, 0
}

// null is the address of an omitted argument.
const null = uint64(0)

// collect returns the steps that f adds, instead of adding them.
func (b *builder) collect(f func() error) ([]step, error) {
	before := len(b.steps)
	err := f()
	steps := slices.Clone(b.steps[before:])
	b.steps = b.steps[:before]
	return steps, err
}

// step adds an action.
func (b *builder) step(a action) { b.steps = append(b.steps, step{a, b.op, b.update}) }

// move adds a copy of bytes.
func (b *builder) move(to, from address, bytes int) {
	if bytes > 0 {
		b.step(&move{to, from, bytes})
	}
}

// zero sets bytes to 0.
func (b *builder) zero(to address, bytes int) { b.step(&zeroing{to: to, bytes: bytes}) }
