//go:build linux && cgo

package gpu_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/blaslt"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/gpu"
	"github.com/gofsdp/gofsdp/internal/gpu/gputest"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// misplace draws where operands lie: as parameters do, or where no access of several elements is.
func misplace(rt *rapid.T, u *use) { u.Offset = rapid.SampledFrom([]int{32, 8}).Draw(rt, "offset") }

// TestLinear has more rows than a sum of columns has parts, and operands and biases that lie badly.
func TestLinear(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		misplace(rt, u)
		n, in, out := extent(rt, "n"), extent(rt, "in"), extent(rt, "out")
		if rapid.IntRange(0, 9).Draw(rt, "many rows") == 0 {
			n, in, out = extent(rt, "many", 512, 1026, 1<<15+600), 1, rapid.SampledFrom([]int{3, 8}).Draw(rt, "few")
		}
		x, w, bias, y := u.node(n, in), u.node(out, in), u.node(out), u.node(n, out)
		xs, ws, dys := u.value(u.low(), n, in), u.value(u.low(), out, in), u.value(u.low(), n, out)
		node, err := ops.Linear(x, w, bias)
		u.check(node, err, u.low(), xs, ws, u.value(u.low(), out))
		u.check(gradient(u, node, 0, x, w, bias), nil, u.low(), dys, ws)
		u.check(gradient(u, node, 1, x, w, bias), nil, wide, dys, xs)
		node, err = ops.Linear(x, w, nil)
		u.check(node, err, u.low(), xs, ws)
		node, err = ops.AddLinear(y, x, w)
		u.check(node, err, u.low(), dys, xs, ws)
		node, err = lookUp(ops.KindAddLinear).Apply(nil, y, x, w, bias)
		u.check(node, err, u.low(), dys, xs, ws, u.value(u.low(), out))
		u.Offset = 32
		node, err = ops.Linear(x, w, bias)
		require.NoError(u, err)
		u.check(gradient(u, node, 2, x, w, bias), nil, wide, dys)
	})
}

// TestGradientsOfWeightAndBias are one product, in either order. Nothing else is launched unless
// the gradient of the bias is added.
func TestGradientsOfWeightAndBias(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		n, in, out := extent(rt, "n"), extent(rt, "in"), extent(rt, "out")
		list, fs := u.gradients(n, in, out)
		for i := range list {
			list[i].Acc = rapid.Bool().Draw(rt, "add")
			fs[i].Acc = list[i].Acc
		}
		if rapid.Bool().Draw(rt, "bias first") {
			slices.Reverse(list)
			slices.Reverse(fs)
		}
		want := [][]float64{u.Reference(u, list[0], fs[0]), u.Reference(u, list[1], fs[1])}
		products, launches := u.calls()
		for i, v := range u.Gradients(u, list, fs) {
			require.InDeltaSlice(u, want[i], u.Floats(v), u.tol*10)
		}
		if u.dtype == tensor.Float64 || u.CUDA == nil {
			return
		}
		if bias := slices.IndexFunc(list, func(in exec.Instr) bool { return in.Op.Kind == ops.KindLinearGradB }); list[bias].Acc {
			launches++
		}
		products++
		nowProducts, nowLaunches := u.calls()
		require.Equal(u, [2]int{products, launches}, [2]int{nowProducts, nowLaunches})
	})
}

// calls returns how many products and kernels have been launched, on doubles.
func (u *use) calls() (products, launches int) {
	if u.CUDA == nil {
		return 0, 0
	}
	return u.CUBLASLT.Calls("cublasLtMatmul"), u.CUDA.Calls("cuLaunchKernel")
}

// gradients returns the instructions for the gradients of the weight and the bias of a linear
// layer.
func (u *use) gradients(n, in, out int) ([]exec.Instr, []*exec.Frame) {
	u.Helper()
	x, w, bias := u.node(n, in), u.node(out, in), u.node(out)
	node, err := ops.Linear(x, w, bias)
	require.NoError(u, err)
	dy, args := u.value(u.low(), n, out), G.Nodes{x, w, bias}
	dw, dwFrame := u.instr(gradient(u, node, 1, args...), nil, wide, []exec.Value{dy, u.value(u.low(), n, in)})
	db, dbFrame := u.instr(gradient(u, node, 2, args...), nil, wide, []exec.Value{dy})
	return []exec.Instr{dw, db}, []*exec.Frame{dwFrame, dbFrame}
}

// TestProductOfGELU: the product multiplies by the slope and rounds once, or another kernel
// multiplies and rounds again.
func TestProductOfGELU(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		u.Engine.SlopesInProducts = rapid.Bool().Draw(rt, "in products")
		n, in, out := extent(rt, "n"), extent(rt, "in"), extent(rt, "out")
		u.Offset = rapid.SampledFrom([]int{32, 8}).Draw(rt, "offset")
		w, dy := u.node(out, in), u.node(n, out)
		node, err := ops.Linear(u.node(n, in), w, nil)
		require.NoError(u, err)
		list, err := node.Op().(*exec.Op).Gradient(lookUp(ops.KindGELULinearGradX), u.node(n, in), dy, w)
		require.NoError(u, err)
		u.check(list[0], nil, u.low(), u.value(u.low(), n, in), u.value(u.low(), n, out), u.value(u.low(), out, in))
	})
}

// TestSlopesWithoutAlgorithm: a product in bfloat16 multiplies by the slope of GELU, and a kernel
// does where cuBLASLt has no algorithm for it.
func TestSlopesWithoutAlgorithm(t *testing.T) {
	for _, able := range []bool{true, false} {
		m := gputest.New(t)
		u := &use{T: t, Machine: m, dtype: tensor.Float32, half: true, graph: G.NewGraph(), rand: rand.New(rand.NewPCG(1, 2))}
		w := u.node(5, 8)
		node, err := ops.Linear(u.node(3, 8), w, nil)
		require.NoError(t, err)
		list, err := node.Op().(*exec.Op).Gradient(lookUp(ops.KindGELULinearGradX), u.node(3, 8), u.node(3, 5), w)
		require.NoError(t, err)
		in, f := u.instruction(list[0].Op().(*exec.Op), u.low(), []exec.Value{u.value(u.low(), 3, 8), u.value(u.low(), 3, 5), u.value(u.low(), 5, 8)})
		if !able {
			const notSupported = 15
			m.CUBLASLT.Fail("cublasLtMatmulAlgoGetHeuristic", 2, notSupported) // after the product alone
		}
		products, launches := u.calls()
		m.Run(t, in, f, false)
		nowProducts, nowLaunches := u.calls()
		require.Equal(t, products+1, nowProducts)
		require.Equal(t, able, nowLaunches == launches)
	}
}

// TestSumsWithoutAlgorithm: where cuBLASLt has no algorithm for sums beside a product, a kernel
// computes them.
func TestSumsWithoutAlgorithm(t *testing.T) {
	m := gputest.New(t)
	u := &use{T: t, Machine: m, dtype: tensor.Float32, graph: G.NewGraph(), rand: rand.New(rand.NewPCG(1, 2))}
	list, fs := u.gradients(3, 4, 5)
	want := []exec.Value{m.Run(t, list[0], fs[0], false), m.Run(t, list[1], fs[1], false)}
	const notSupported = 15
	m.CUBLASLT.Fail("cublasLtMatmulAlgoGetHeuristic", 1, notSupported)
	for range 2 { // the second time without asking
		launches := m.CUDA.Calls("cuLaunchKernel")
		require.Equal(t, want, m.Gradients(t, list, fs))
		require.Equal(t, launches+1, m.CUDA.Calls("cuLaunchKernel"))
	}
}

// TestAddLinearCopiesNothing: the product adds its first argument, in place and elsewhere.
func TestAddLinearCopiesNothing(t *testing.T) {
	m := gputest.New(t)
	u := &use{T: t, Machine: m, dtype: tensor.Float32, graph: G.NewGraph(), rand: rand.New(rand.NewPCG(1, 2))}
	node, err := ops.AddLinear(u.node(3, 4), u.node(3, 5), u.node(4, 5))
	require.NoError(t, err)
	in, f := u.instruction(node.Op().(*exec.Op), wide, []exec.Value{u.value(wide, 3, 4), u.value(wide, 3, 5), u.value(wide, 4, 5)})
	for _, inPlace := range []bool{false, true} {
		copies, products := m.CUDA.Calls("cuMemcpyDtoDAsync"), m.CUBLASLT.Calls("cublasLtMatmul")
		m.Run(t, in, f, inPlace)
		require.Equal(t, copies, m.CUDA.Calls("cuMemcpyDtoDAsync"))
		require.Equal(t, products+1, m.CUBLASLT.Calls("cublasLtMatmul"))
	}
}

// TestProduct has matrices in every order of axes that a product may have.
func TestProduct(t *testing.T) {
	row := lookUp(exec.KindProduct)
	property(t, func(rt *rapid.T, u *use) {
		misplace(rt, u)
		rank := rapid.IntRange(2, 5).Draw(rt, "rank")
		lead := rapid.SliceOfN(rapid.IntRange(1, 3), rank-2, rank-2).Draw(rt, "lead")
		size := rapid.IntRange(1, 20)
		m, k, n := size.Draw(rt, "m"), size.Draw(rt, "k"), size.Draw(rt, "n")
		// place draws an order whose last axis in memory is one of a matrix, and returns the shape there.
		place := func(name string, rows, columns int) (exec.Order, []int) {
			read := append(append([]int{}, lead...), rows, columns)
			order := rapid.Permutation(axes(rank)).Draw(rt, name)
			for i, at := range order {
				if last := rank - 1 - rapid.IntRange(0, 1).Draw(rt, name+" last"); at == rank-1 && i < rank-2 {
					order[i], order[last] = order[last], order[i]
				}
			}
			shape, text := make([]int, rank), make([]byte, rank)
			for i, at := range order {
				shape[at], text[i] = read[i], byte(at)
			}
			return exec.Order{Order: kernel.Order(text)}, shape
		}
		var p exec.Product
		var a, b, y []int
		p.A, a = place("a", m, k)
		p.B, b = place("b", k, n)
		p.Y, y = place("y", m, n)
		op := &exec.Op{Row: row, Attrs: p, Shape: y, In: []tensor.Shape{a, b}}
		out := u.low()
		if rapid.Bool().Draw(rt, "wide") {
			out = wide
		}
		u.checkInstruction(u.instruction(op, out, []exec.Value{u.value(u.low(), a...), u.value(u.low(), b...)}))
	})
}

func axes(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// TestLinearLoss has logits for some of the rows at a time, and targets that do not count.
func TestLinearLoss(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		misplace(rt, u)
		n, d, classes := extent(rt, "n"), extent(rt, "d"), extent(rt, "classes", 257, 600, 1030)
		if classes > 100 {
			n = min(n, 5)
		}
		l := kernel.Loss{Ignore: rapid.IntRange(-1, 0).Draw(rt, "ignore")}
		if rapid.Bool().Draw(rt, "more") {
			l.Smoothing, l.Z = 0.1, 0.01
		}
		u.Engine.LossScratch = rapid.SampledFrom([]int{1, 8 * 5 * classes, 256 << 20}).Draw(rt, "scratch")
		args := G.Nodes{u.node(n, d), u.node(classes, d), u.ints(n)}
		x, w, targets := u.value(u.low(), n, d), u.value(u.low(), classes, d), u.index(n, classes)
		for _, v := range []exec.Value{x, w} { // small, so that what bfloat16 rounds is small beside 1
			u.set(v, func(_ int, v float64) float64 { return v / 4 })
		}
		values := []exec.Value{x, w, targets}
		var bias *G.Node
		if rapid.Bool().Draw(rt, "bias") {
			bias = u.node(classes)
			args, values = append(args, bias), append(values, u.value(wide, classes))
			if l.Smoothing == 0 && classes > 1 { // a class that is never right
				u.set(values[3], func(i int, v float64) float64 { return v + math.Log(float64(min(i, 1))) })
			}
		}
		loss, behind := lookUp(ops.KindEarlyLoss), classes*d
		if bias != nil {
			loss, behind = lookUp(ops.KindEarlyLossB), behind+classes
		}
		run := func(row *exec.Row, tail int) (*G.Node, exec.Value) {
			node, err := row.Apply(l, args...)
			require.NoError(u, err)
			in, f := u.instruction(node.Op().(*exec.Op), u.tail(tail), values)
			u.checkInstruction(in, f) // in evaluation
			f.Train = true
			return node, u.checkInstruction(in, f)
		}
		node, packed := run(lookUp(ops.KindLinearLoss), 2*n)
		u.check(gradient(u, node, 0, args...), nil, u.low(), packed, u.value(wide, n))
		node, packed = run(loss, 2*n+behind)
		dlosses, share := u.value(wide, n), u.number().Float32()
		u.set(dlosses, func(i int, _ float64) float64 {
			if exec.Data[int](targets.Bytes)[i] == l.Ignore {
				return 0
			}
			return float64(share)
		})
		u.check(gradient(u, node, 1, args...), nil, wide, packed, dlosses)
	})
}

// TestEarlyLossHasThreeProducts: of the logits, of dx and of the gradient of the weight. In
// training nothing is set to zero, and in evaluation only the logits are computed.
func TestEarlyLossHasThreeProducts(t *testing.T) {
	m := gputest.New(t)
	u := &use{T: t, Machine: m, dtype: tensor.Float32, graph: G.NewGraph(), rand: rand.New(rand.NewPCG(1, 2))}
	const n, d, classes = 3, 4, 5
	node, err := lookUp(ops.KindEarlyLoss).Apply(kernel.Loss{Ignore: -1}, u.node(n, d), u.node(classes, d), u.ints(n))
	require.NoError(t, err)
	in, f := u.instruction(node.Op().(*exec.Op), wide, []exec.Value{u.value(wide, n, d), u.value(wide, classes, d), u.index(n, classes)})
	for _, c := range []struct {
		train          bool
		products, sets int
	}{{true, 3, 0}, {false, 1, 2}} {
		f.Train = c.train
		products, sets := m.CUBLASLT.Calls("cublasLtMatmul"), m.CUDA.Calls("cuMemsetD8Async")
		m.Run(t, in, f, false)
		require.Equal(t, c.products, m.CUBLASLT.Calls("cublasLtMatmul")-products)
		require.Equal(t, c.sets, m.CUDA.Calls("cuMemsetD8Async")-sets)
	}
}

// TestLinearLossOfNoClass: a target that is no class, which nothing should let pass, has loss NaN.
func TestLinearLossOfNoClass(t *testing.T) {
	property(t, func(_ *rapid.T, u *use) {
		const n, d, classes = 3, 2, 4
		targets := exec.Value{Shape: tensor.Shape{n}, DType: tensor.Int, Bytes: exec.Bytes([]int{classes, 1, -2})}
		node, err := lookUp(ops.KindLinearLoss).Apply(kernel.Loss{Ignore: -1}, u.node(n, d), u.node(classes, d), u.ints(n))
		require.NoError(u, err)
		in, f := u.instruction(node.Op().(*exec.Op), u.tail(2*n), []exec.Value{u.value(u.low(), n, d), u.value(u.low(), classes, d), targets})
		losses := u.Floats(u.Run(u, in, f, false))[n*d:][:n]
		require.True(u, math.IsNaN(losses[0]) && !math.IsNaN(losses[1]) && math.IsNaN(losses[2]), losses)
	})
}

// lookUp returns a row of the table.
func lookUp(kind exec.Kind) *exec.Row {
	for _, r := range ops.Table() {
		if r.Kind == kind {
			return r
		}
	}
	return nil
}

// trained returns a loss of a linear layer on values, in training, and a batch of products.
func trained(u *use) (ins []exec.Instr, frames []*exec.Frame) {
	add := func(op *exec.Op, out exec.Form, args ...exec.Value) {
		in, f := u.instruction(op, out, args)
		f.Train = true
		ins, frames = append(ins, in), append(frames, f)
	}
	const n, d, classes = 3, 4, 5
	node, err := lookUp(ops.KindLinearLoss).Apply(kernel.Loss{Ignore: -1}, u.node(n, d), u.node(classes, d), u.ints(n), u.node(classes))
	require.NoError(u, err)
	add(node.Op().(*exec.Op), wide, u.value(wide, n, d), u.value(wide, classes, d), u.index(n, classes), u.value(wide, classes))
	shape := tensor.Shape{2, 3, 3}
	add(&exec.Op{Row: lookUp(exec.KindProduct), Attrs: exec.Product{}, Shape: shape, In: []tensor.Shape{shape, shape}}, wide,
		u.value(wide, shape...), u.value(wide, shape...))
	return ins, frames
}

// TestProductFailures lets every call of cuBLASLt fail once, each time it is made, and what else
// products need of the device. Programs are not compiled then, or not run, or the engine is not
// closed, and nothing is left behind.
func TestProductFailures(t *testing.T) {
	m := gputest.New(t)
	u := &use{T: t, Machine: m, dtype: tensor.Float32, graph: G.NewGraph(), rand: rand.New(rand.NewPCG(1, 2))}
	ins, frames := trained(u)
	work := func() (err error) {
		e, err := gpu.New(m.Device)
		if err != nil {
			return err
		}
		defer func(before *gpu.Engine) { m.Engine = before }(m.Engine)
		m.Engine = e
		for i, in := range ins {
			if _, err = m.Try(t, in, frames[i], false); err != nil {
				break
			}
		}
		if again := e.Close(); again != nil {
			err = errors.Join(err, again)
			require.NoError(t, e.Close())
		}
		return err
	}
	for _, function := range []string{
		"cublasLtCreate", "cublasLtDestroy", "cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic",
		"cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", "cublasLtMatmulDescSetAttribute",
		"cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", "cublasLtMatrixLayoutSetAttribute",
		"cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy", "cublasLtMatmulPreferenceSetAttribute",
	} {
		before := m.CUBLASLT.Calls(function)
		require.NoError(t, work())
		calls := m.CUBLASLT.Calls(function) - before
		require.Positive(t, calls, function)
		for nth := 1; nth <= calls; nth++ {
			m.CUBLASLT.Fail(function, nth, 14)
			var failed *blaslt.Error
			require.ErrorAs(t, work(), &failed, "%s %d", function, nth)
			require.Equal(t, function, failed.Op)
			require.Zero(t, m.CUBLASLT.Live("cublasLt"), "%s %d", function, nth)
		}
	}
}

// TestProductAllocatesNothing counts what runs of a product allocate, once its plans are made,
// where its operands and its bias lie well and where they do not.
func TestProductAllocatesNothing(t *testing.T) {
	m := gputest.New(t)
	u := &use{T: t, Machine: m, dtype: tensor.Float32, graph: G.NewGraph(), rand: rand.New(rand.NewPCG(1, 2))}
	ins, _ := trained(u)
	in := ins[0]
	for i := range in.In {
		in.In[i].Space, in.In[i].Index = exec.SpaceIn, i
	}
	in.Out.Space = exec.SpaceOut
	p, err := m.Engine.Assemble(func(yield func(exec.Instr) bool) { yield(in) }, nil)
	require.NoError(t, err)
	memory, err := m.Device.Alloc(6<<8 + p.Scratch)
	require.NoError(t, err)
	require.NoError(t, m.Stream.Set(memory.Addr(), 0, memory.Len()))
	for _, offset := range []uintptr{0, 4} {
		at := func(i int) uintptr { return memory.Addr() + uintptr(i<<8) + offset }
		c := &gpu.Call{Scratch: memory.Addr() + 5<<8, Train: true}
		c.In, c.Out = []uintptr{at(0), at(1), memory.Addr() + 2<<8, at(3)}, []uintptr{at(4)}
		require.NoError(t, p.Run(m.Stream, c))
		require.Zero(t, testing.AllocsPerRun(10, func() { err = errors.Join(err, p.Run(m.Stream, c)) }))
		require.NoError(t, err)
	}
	require.NoError(t, m.Stream.Sync())
	require.NoError(t, memory.Free())
	require.NoError(t, p.Free())
}

// TestLinearLossScratch: the memory of logits does not grow with rows and classes.
func TestLinearLossScratch(t *testing.T) {
	m := gputest.New(t)
	u := &use{T: t, Machine: m, dtype: tensor.Float32, graph: G.NewGraph()}
	const n, d, classes = 5000, 1, 1000
	node, err := lookUp(ops.KindLinearLoss).Apply(kernel.Loss{}, u.node(n, d), u.node(classes, d), u.ints(n))
	require.NoError(t, err)
	in := exec.Instr{Op: node.Op().(*exec.Op), In: make([]exec.Operand, 3), Out: exec.Operand{DType: tensor.Float32}}
	for _, bytes := range []int{1 << 20, 4 << 20} {
		m.Engine.LossScratch = bytes
		p, err := m.Engine.Assemble(func(yield func(exec.Instr) bool) { yield(in) }, nil)
		require.NoError(t, err)
		require.LessOrEqual(t, p.Scratch, bytes)
		require.Greater(t, p.Scratch, bytes/2)
		require.NoError(t, p.Free())
	}
}
