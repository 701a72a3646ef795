//go:build linux && cgo

package blaslt

import (
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// drawProduct draws a small product, with gaps between rows and between the matrices of a batch.
func drawProduct(t *rapid.T) Product {
	size := rapid.IntRange(1, 9)
	types := rapid.SampledFrom([][2]Type{{F32, F32}, {F64, F64}, {BF16, BF16}, {BF16, F32}, {F16, F16}, {F16, F32}}).Draw(t, "types")
	x := Product{
		In: types[0], Out: types[1],
		Rows: size.Draw(t, "rows"), Cols: size.Draw(t, "cols"), Depth: size.Draw(t, "depth"),
		TransA: rapid.Bool().Draw(t, "TransA"), TransB: rapid.Bool().Draw(t, "TransB"),
		Align:     1 << rapid.IntRange(3, 8).Draw(t, "align"),
		Workspace: rapid.SampledFrom([]int{0, 8000, 1 << 20}).Draw(t, "workspace"),
	}
	if x.In != F64 {
		epilogue := rapid.SampledFrom([]string{"none", "bias", "sums", "gelu"}).Draw(t, "epilogue")
		x.Bias, x.Sums, x.GELUGrad = epilogue == "bias", epilogue == "sums", epilogue == "gelu"
		if x.GELUGrad {
			x.LDD = 16
		}
	}
	x.TF32 = x.In == F32 && rapid.Bool().Draw(t, "TF32")
	if rapid.Bool().Draw(t, "tight") {
		return x
	}
	gap := rapid.IntRange(0, 3)
	x, _ = x.normal()
	x.LDA, x.LDB = x.LDA+gap.Draw(t, "gapA"), x.LDB+gap.Draw(t, "gapB")
	if !x.GELUGrad {
		x.LDD += gap.Draw(t, "gapD")
	}
	if !x.Bias && !x.Sums && !x.GELUGrad {
		x.Batch = rapid.IntRange(1, 3).Draw(t, "batch")
		a, b := x.stored()
		x.StrideA = rapid.SampledFrom([]int{0, a * x.LDA, a*x.LDA + 5}).Draw(t, "strideA")
		x.StrideB, x.StrideD = b*x.LDB+gap.Draw(t, "strideB"), x.Rows*x.LDD+gap.Draw(t, "strideD")
	}
	return x
}

// stored returns the rows of A and B as they lie.
func (x *Product) stored() (a, b int) {
	a, b = x.Rows, x.Depth
	if x.TransA {
		a = x.Depth
	}
	if x.TransB {
		b = x.Cols
	}
	return a, b
}

// spans returns how many elements A, B and D take, with the gaps.
func (x *Product) spans() (a, b, d int) {
	ra, rb := x.stored()
	last := x.Batch - 1
	return ra*x.LDA + last*x.StrideA, rb*x.LDB + last*x.StrideB, x.Rows*x.LDD + last*x.StrideD
}

// reference computes a product, to d. c may be d, or nil. vector is the bias, or becomes the sums.
// gelu has the argument of GELU, in the layout of d.
func (x *Product) reference(d, a, b, c, vector, gelu []float64) {
	at := func(m []float64, trans bool, ld, i, j int) float64 {
		if trans {
			i, j = j, i
		}
		return m[i*ld+j]
	}
	for slice := range x.Batch {
		a, b, d := a[slice*x.StrideA:], b[slice*x.StrideB:], d[slice*x.StrideD:]
		for i := range x.Rows {
			if x.Sums {
				vector[i] = 0
				for k := range x.Depth {
					vector[i] += at(a, x.TransA, x.LDA, i, k)
				}
			}
			for j := range x.Cols {
				sum := 0.0
				for k := range x.Depth {
					sum += at(a, x.TransA, x.LDA, i, k) * at(b, x.TransB, x.LDB, k, j)
				}
				if c != nil {
					sum += c[slice*x.StrideD+i*x.LDD+j]
				}
				if x.Bias {
					sum += vector[j]
				}
				if x.GELUGrad {
					slope := []float64{1}
					kernel.NaiveGELUTanhGrad(slope, gelu[i*x.LDD+j:][:1], slope)
					sum *= slope[0]
				}
				d[i*x.LDD+j] = sum
			}
		}
	}
}

// TestProducts compares products of all forms with sums in float64.
func TestProducts(t *testing.T) {
	b := newBench(t)
	rapid.Check(t, func(t *rapid.T) {
		x := drawProduct(t)
		added := rapid.SampledFrom([]string{"nothing", "D", "C"}).Draw(t, "added")
		plan := must(b.handle.Plan(x))(b.t)
		require.LessOrEqual(t, plan.Workspace(), x.Workspace)
		x = plan.product
		// Small integers: every sum is exact, so that only the last rounding is left.
		values := func(n int, name string) []float64 {
			list := make([]float64, n)
			for i := range list {
				list[i] = float64(rapid.IntRange(-3, 3).Draw(t, name))
			}
			return list
		}
		na, nb, nd := x.spans()
		av, bv, dv, vector := values(na, "a"), values(nb, "b"), values(nd, "d"), values(max(x.Cols, x.Rows), "vector")
		nan := make([]float64, nd) // what is only written may hold anything
		for i := range nan {
			nan[i] = math.NaN()
		}
		start := nan
		if added == "D" {
			start = dv
		}
		offset := x.Align % 256
		am, bm, dm := b.store(x.In, offset, av...), b.store(x.In, offset, bv...), b.store(x.Out, offset, start...)
		vm, scratch := b.store(x.Out, BiasAlign, vector...), must(b.dev.Alloc(max(1, plan.Workspace())))(b.t)
		cm := b.store(x.Out, offset, dv...)
		at := Operands{A: am.at(), B: bm.at(), D: dm.at(), Workspace: scratch.Addr()}
		gv := values(nd, "x")
		gm := b.store(x.Out, BiasAlign, gv...)
		at.X = gm.at()
		if x.Sums {
			at.Sums = vm.at()
		} else {
			at.Bias = vm.at()
		}
		want, c := append([]float64{}, start...), []float64(nil)
		switch added {
		case "D":
			at.C, c = at.D, want
		case "C":
			at.C, c = cm.at(), dv
		}
		require.NoError(t, plan.Run(b.stream, at))

		x.reference(want, av, bv, c, vector, gv)
		got := b.load(dm)
		for i, w := range want {
			if math.IsNaN(w) {
				require.True(t, math.IsNaN(got[i]), "element %d in a gap was written", i)
				continue
			}
			require.InDelta(t, w, got[i], math.Abs(w)*map[Type]float64{BF16: 1.0 / 256, F16: 1.0 / 2048, F32: 1e-6}[x.Out], "element %d", i)
		}
		require.Equal(t, vector, b.load(vm))
		require.Equal(t, dv, b.load(cm))
		require.Equal(t, gv, b.load(gm))
		require.NoError(t, plan.Close())
		for _, m := range []*device.Memory{am.Memory, bm.Memory, cm.Memory, dm.Memory, vm.Memory, gm.Memory, scratch} {
			require.NoError(t, m.Free())
		}
	})
}

// TestTF32 rounds factors, not results: 1 + 2⁻¹² is 1, and 1 + 2⁻¹⁰ stays.
func TestTF32(t *testing.T) {
	b := newBench(t)
	a, one, d := b.store(F32, 0, 1+1.0/4096, 1+1.0/1024), b.store(F32, 0, 1), b.store(F32, 0, 0, 0)
	for _, tf32 := range []bool{false, true} {
		plan := must(b.handle.Plan(Product{Rows: 2, Cols: 1, Depth: 1, TF32: tf32}))(t)
		require.NoError(t, plan.Run(b.stream, Operands{A: a.at(), B: one.at(), D: d.at()}))
		want := []float64{1 + 1.0/4096, 1 + 1.0/1024}
		if tf32 {
			want[0] = 1
		}
		require.Equal(t, want, b.load(d))
		require.NoError(t, plan.Close())
	}
	for _, m := range []*matrix{a, one, d} {
		require.NoError(t, m.Free())
	}
}

// TestRunAllocatesNothing counts what runs allocate.
func TestRunAllocatesNothing(t *testing.T) {
	b := newBench(t)
	for _, bias := range []bool{false, true} {
		plan := must(b.handle.Plan(Product{Rows: 2, Cols: 2, Depth: 2, Bias: bias}))(t)
		m := b.store(F32, 0, make([]float64, 512)...)
		at := Operands{A: m.at(), B: m.at() + 256, D: m.at() + 512, Bias: m.at() + 768}
		require.Zero(t, testing.AllocsPerRun(20, func() {
			if err := plan.Run(b.stream, at); err != nil {
				panic(err)
			}
		}))
		require.NoError(t, b.stream.Sync())
		require.NoError(t, plan.Close())
		require.NoError(t, m.Free())
	}
}

// TestPlanIsShared lets goroutines run one plan with vectors of their own.
func TestPlanIsShared(t *testing.T) {
	b := newBench(t)
	plan := must(b.handle.Plan(Product{Rows: 1, Cols: 4, Depth: 1, Bias: true}))(t)
	one := b.store(F32, 0, 1)
	t.Cleanup(func() { require.NoError(t, one.Free()) }) // last
	var wait sync.WaitGroup
	for i := range 4 {
		bias, zero, d := b.store(F32, 0, 1, 2, 3, float64(i)), b.store(F32, 0, 0, 0, 0, 0), b.store(F32, 0, make([]float64, 4)...)
		wait.Go(func() {
			for range 20 {
				require.NoError(t, plan.Run(b.stream, Operands{A: one.at(), B: zero.at(), D: d.at(), Bias: bias.at()}))
			}
		})
		t.Cleanup(func() {
			require.Equal(t, []float64{1, 2, 3, float64(i)}, b.load(d))
			for _, m := range []*matrix{bias, zero, d} {
				require.NoError(t, m.Free())
			}
		})
	}
	wait.Wait()
	require.NoError(t, plan.Close())
}

// TestRefusals lists what is no product, and no run of one.
func TestRefusals(t *testing.T) {
	b := newBench(t)
	good := Product{In: BF16, Out: F32, Rows: 3, Cols: 4, Depth: 5}
	for want, change := range map[string]func(x *Product){
		"bfloat16: no product has these types":                           func(x *Product) { x.Out = F64 },
		"float32: no product has these types":                            func(x *Product) { x.In, x.Out = F32, BF16 },
		"bfloat16: an empty product":                                     func(x *Product) { x.Depth = 0 },
		"float32: an empty product":                                      func(x *Product) { x.In, x.Batch = F32, -1 },
		"rows of 3, 4 and 4 elements that are 2, 4 and 4 apart":          func(x *Product) { x.TransA, x.LDA = true, 2 },
		"rows of 5, 5 and 4 elements that are 5, 5 and -1 apart":         func(x *Product) { x.TransB, x.LDD = true, -1 },
		"no bias is added to a batch or to float64":                      func(x *Product) { x.Bias, x.Batch = true, 2 },
		"no sums are computed with a batch, with float64 or with a bias": func(x *Product) { x.Sums, x.Bias = true, true },
		"only factors in float32 are rounded to TF32":                    func(x *Product) { x.TF32 = true },
		"matrices at multiples of 24 bytes":                              func(x *Product) { x.Align = 24 },
		"matrices at multiples of 1 bytes":                               func(x *Product) { x.Align = 1 },
		"a workspace of -1 bytes":                                        func(x *Product) { x.Workspace = -1 },
		"1 × [3 4] float32 = Aᵀ [3 5] · B [5 4] bfloat16: a work":        func(x *Product) { x.TransA, x.Workspace = true, -1 },
	} {
		x := good
		change(&x)
		_, err := b.handle.Plan(x)
		require.ErrorContains(t, err, want)
	}

	good.Bias, good.Workspace = true, 1<<20
	plan := must(b.handle.Plan(good))(t)
	run := func(at Operands) error { return plan.Run(b.stream, at) }
	product := "blaslt: 1 × [3 4] float32 = A [3 5] · B [5 4] bfloat16: "
	require.EqualError(t, run(Operands{A: 256, B: 512}), product+"the matrices are at 0x100, 0x200, 0x0 and 0x0: want multiples of 256")
	require.EqualError(t, run(Operands{A: 256, B: 520, D: 768}), product+"the matrices are at 0x100, 0x208, 0x0 and 0x300: want multiples of 256")
	require.EqualError(t, run(Operands{A: 256, B: 512, C: 4, D: 768}), product+"the matrices are at 0x100, 0x200, 0x4 and 0x300: want multiples of 256")
	require.EqualError(t, run(Operands{A: 256, B: 512, D: 768, Bias: 1028, Workspace: 2048}), product+"the bias is at 0x404: want a multiple of 16")
	require.EqualError(t, run(Operands{A: 256, B: 512, D: 768, Bias: 1024}), product+"the workspace is at 0x0: want a multiple of 256")

	require.EqualError(t, b.handle.Close(), "blaslt: the handle cannot be closed, still open: 1 × plan")
	require.NoError(t, plan.Close())
	require.EqualError(t, plan.Close(), "blaslt: the plan is closed already")
	require.ErrorIs(t, run(Operands{A: 256, B: 512, D: 768, Bias: 1024, Workspace: 2048}), device.ErrClosed)
	other := must(New(b.dev))(t)
	require.NoError(t, other.Close())
	require.ErrorIs(t, other.Close(), device.ErrClosed)
	_, err := other.Plan(good)
	require.ErrorIs(t, err, device.ErrClosed)
}

// TestEveryFailureIsAnError lets every call of the library fail once. The error says which it was,
// nothing is lost, and the same works the next time.
func TestEveryFailureIsAnError(t *testing.T) {
	b := newBench(t)
	require.NotNil(t, b.lt, "this is of the double")
	m := b.store(F32, 0, make([]float64, 512)...)
	train := func() (err error) {
		h, err := New(b.dev)
		if err != nil {
			return err
		}
		defer func() { err = closed(err, h.Close) }()
		for _, x := range []Product{
			{Rows: 2, Cols: 2, Depth: 2, Batch: 2, StrideA: 4, StrideB: 4, StrideD: 4},
			{Rows: 2, Cols: 2, Depth: 2, Bias: true},
			{Rows: 2, Cols: 2, Depth: 2, Sums: true},
			{Rows: 2, Cols: 8, Depth: 2, GELUGrad: true},
		} {
			p, err := h.Plan(x)
			if err != nil {
				return err
			}
			err = p.Run(b.stream, Operands{A: m.at(), B: m.at() + 256, C: m.at() + 512, D: m.at() + 512, Bias: m.at() + 768, Sums: m.at() + 768, X: m.at() + 768})
			if err := closed(err, p.Close); err != nil {
				return err
			}
		}
		return nil
	}
	for _, function := range []string{
		"cublasLtCreate", "cublasLtDestroy", "cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic",
		"cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", "cublasLtMatmulDescSetAttribute",
		"cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", "cublasLtMatrixLayoutSetAttribute",
		"cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy", "cublasLtMatmulPreferenceSetAttribute",
	} {
		before := b.lt.Calls(function)
		require.NoError(t, train())
		calls := b.lt.Calls(function) - before
		require.Positive(t, calls, function)
		for nth := 1; nth <= calls; nth++ {
			b.lt.Fail(function, nth, 14)
			err := train()
			var failed *Error
			require.ErrorAs(t, err, &failed, "%s %d", function, nth)
			require.Equal(t, Error{Op: function, Code: 14, Text: "unknown"}, *failed)
			require.Equal(t, 1, b.lt.Live("cublasLt"), "%s %d", function, nth) // the handle of the bench
		}
	}
	require.NoError(t, b.stream.Sync())
	require.NoError(t, m.Free())
}

// closed closes something until that works, and returns the first error.
func closed(err error, end func() error) error {
	for range 2 {
		again := end()
		if again == nil {
			break
		}
		if err == nil {
			err = again
		}
	}
	return err
}

// TestMisuse shows that the double sees what the library does not.
func TestMisuse(t *testing.T) {
	b := newBench(t)
	require.NotNil(t, b.lt, "this is of the double")
	plan := must(b.handle.Plan(Product{Rows: 2, Cols: 64, Depth: 2}))(t)
	m := b.store(F32, 0, make([]float64, 512)...)
	require.ErrorContains(t, plan.Run(b.stream, Operands{A: m.at(), B: m.at() + 256, D: m.at() + 512}), "status 7")
	// The library's A is the product's B, since it is column-major.
	require.Equal(t, []string{"cublasLtMatmul: D overlaps A"}, b.lt.Reports())
	require.Error(t, plan.Run(b.stream, Operands{A: m.at(), B: m.at() + 256, C: m.at() + 768, D: m.at() + 1024}))
	require.Equal(t, []string{"cublasLtMatmul: D overlaps C"}, b.lt.Reports())
	second := must(device.Open(1))(t)
	stream := must(second.NewStream())(t)
	require.Error(t, plan.Run(stream, Operands{A: m.at(), B: m.at() + 256, D: m.at() + 1024}))
	require.Equal(t, []string{"cublasLtMatmul: the stream is of another context"}, b.lt.Reports())
	require.NoError(t, stream.Close())
	require.NoError(t, second.Close())
	require.NoError(t, plan.Close())
	require.NoError(t, m.Free())
}
