package gpu

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
)

// wgmma reports whether attention with heads of up to 64 or 128 columns uses the kernels for
// compute capability 9.0. The device executes them once beside the kernels by mma.sync, on the same
// numbers: if a result differs by more than rounding, attention uses the kernels by mma.sync.
// Without a device nothing is compared.
func (e *Engine) wgmma(columns int) (bool, error) {
	name := e.flashName("hopper", "forward", columns)
	agree, known := e.agrees[name]
	if !e.Hopper || known || e.dev == nil {
		return e.Hopper && (agree || !known), nil
	}
	agree, err := e.compare(columns)
	if err == nil {
		e.agrees[name] = agree
	}
	return agree, err
}

// A comparison is one head of attention, causal, forward and backward. The rows are more than a
// block, and more than one tile.
const (
	comparedRows = 136
	comparedBand = 1024 // bytes for a number of each row
)

// mostApart is the largest difference, as a part of the norm of a result. Both families round to
// 16 bits, at most 1/256.
var mostApart = 1. / 64

// compare runs both families.
func (e *Engine) compare(columns int) (agree bool, err error) {
	n := comparedRows * columns
	each := 2*4*n + 2*comparedBand // q, k, v and dout, or a family's results
	mem, err := e.dev.Alloc(3 * each)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, mem.Free()) }()
	host, err := e.dev.AllocHost(mem.Len())
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, host.Free()) }()
	clear(host.Bytes())
	numbers := host.Bytes()[:2*4*n]
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 4 * n {
		x := float32(random.NormFloat64())
		if e.Float16 {
			exec.Data[half.Float16](numbers)[i] = half.ToFloat16(x)
		} else {
			exec.Data[half.BFloat16](numbers)[i] = half.ToBFloat16(x)
		}
	}
	if err := e.upload.CopyToDevice(mem.Addr(), host, 0, mem.Len()); err != nil {
		return false, err
	}
	for i, hopper := range []bool{false, true} {
		if err := e.runCompared(columns, hopper, mem.Addr(), mem.Addr()+uintptr((i+1)*each)); err != nil {
			return false, errors.Join(err, e.upload.Sync()) // the memory is freed
		}
	}
	if err := errors.Join(e.upload.CopyToHost(host, 0, mem.Addr(), mem.Len()), e.upload.Sync()); err != nil {
		return false, err
	}
	for result := range 4 {
		var apart, norm float64
		want := e.widened(host.Bytes()[each+2*result*n:][:2*n])
		got := e.widened(host.Bytes()[2*each+2*result*n:][:2*n])
		for i, x := range want {
			d := float64(got[i]) - float64(x)
			apart, norm = apart+d*d, norm+float64(x)*float64(x)
		}
		if !(math.Sqrt(apart) <= mostApart*math.Sqrt(norm)) { // or NaN
			return false, nil
		}
	}
	return true, nil
}

// widened returns numbers of 16 bits.
func (e *Engine) widened(b []byte) []float32 {
	x := make([]float32, len(b)/2)
	if e.Float16 {
		half.Widen(x, exec.Data[half.Float16](b))
	} else {
		half.Widen(x, exec.Data[half.BFloat16](b))
	}
	return x
}

// runCompared runs the kernels of a family, which read the arguments at in, and write their results
// to out.
func (e *Engine) runCompared(columns int, hopper bool, in, out uintptr) error {
	size := uintptr(2 * comparedRows * columns)
	q, k, v, dout := in, in+size, in+2*size, in+3*size
	y, dq, dk, dv, lse := out, out+size, out+2*size, out+3*size, out+4*size
	delta, rows, d := lse+comparedBand, int32(comparedRows), int32(columns)
	scale := 1 / float32(math.Sqrt(float64(columns)))
	shape := []any{1 / scale, int32(1), int32(1), d, rows, rows, d, d, int32(1), 2 * rows, scale, null}
	read := append([]any{q, k, v, dout, lse, delta, null, null}, shape...)
	blocks := [3]int{parts(comparedRows, 128), 1, 1}
	return errors.Join(
		e.launchCompared("forward", columns, hopper, blocks, append([]any{y, lse, q, k, v, null, null}, shape...)...),
		e.launchCompared("delta", columns, false, [3]int{parts(comparedRows, 8), 1, 1}, delta, y, dout, int32(1), d, rows, uint64(comparedRows)),
		e.launchCompared("dq", columns, hopper, blocks, append([]any{dq}, read...)...),
		e.launchCompared("dkv", columns, hopper, blocks, append([]any{dk, dv}, read...)...),
	)
}

func (e *Engine) launchCompared(operation string, columns int, hopper bool, grid [3]int, args ...any) error {
	family, shared := block(operation, columns, hopper)
	f, err := e.attentionFunction(e.flashName(family, operation, columns), shared)
	if err != nil {
		return err
	}
	return f.Launch(e.upload, grid, [3]int{256, 1, 1}, shared, args...)
}

// attentionFunction returns a kernel with tensor cores that may use shared bytes, or nil without a
// device.
func (e *Engine) attentionFunction(name string, shared int) (f *device.Function, err error) {
	if f, err = e.Function(name); err == nil && f != nil {
		err = f.SetShared(shared)
	}
	return f, err
}
