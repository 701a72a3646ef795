package exec_test

import (
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	fsdpexec "github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/rng"
)

// moved returns the elements of x at other places: that at an index comes from another.
func moved(x array, shape []int, from func(at []int) []int) array {
	return generate(shape, func(at []int) float64 { return x.at(from(at)...) })
}

func movements() map[string]entry {
	var transpose, reshape, ravel, slice, concat, unconcat, keepDims, size, upsample, at, diag entry
	for _, shape := range shapes {
		for _, p := range permutations(len(shape)) {
			to, from := make([]int, len(p)), make([]int, len(p))
			for i, axis := range p {
				to[i] = shape[axis]
			}
			if len(p) == 5 && p[0] < 3 {
				continue // there are enough
			}
			transpose.samples = append(transpose.samples, one(fmt.Sprint(p), shape, along(G.Transpose, p...), func(x array) array {
				return moved(x, to, func(at []int) []int {
					for i, axis := range p {
						from[axis] = at[i]
					}
					return from
				})
			}))
		}
		n := fsdpexec.Numel(shape)
		for _, to := range [][]int{{n}, {1, n}, {n, 1, 1}, slices.Concat([]int{1}, shape, []int{1})} {
			reshape.samples = append(reshape.samples, one(fmt.Sprint(to), shape, func(x *G.Node) (*G.Node, error) {
				return G.Reshape(x, slices.Clone(to))
			}, func(x array) array { return x.reshaped(to...) }))
		}
		ravel.samples = append(ravel.samples, one("", shape, G.Ravel, func(x array) array { return x.reshaped(n) }))
		for axis, n := range shape {
			slice.samples = append(slice.samples, slices1(shape, axis, 0, n), slices1(shape, axis, n/2, n), slices1(shape, axis, 0, 1))
			concat.samples = append(concat.samples, concatenated(shape, axis))
			unconcat.samples = append(unconcat.samples, divided(shape, axis))
			for _, left := range []bool{true, false} {
				less := without(shape, []int{axis})
				kept := append(slices.Clone(less), 1)
				if left {
					kept = append([]int{1}, less...)
				}
				if tensor.Shape(less).Eq(shape) { // (3) and (1, 3) are the same to Gorgonia
					kept = less
				}
				if len(shape) > 1 {
					keepDims.samples = append(keepDims.samples, one(fmt.Sprint(axis, left), shape, func(x *G.Node) (*G.Node, error) {
						return G.KeepDims(x, left, along(G.Sum, axis))
					}, func(x array) array { return x.sum(axis).reshaped(kept...) }))
				}
			}
			size.samples = append(size.samples, one(fmt.Sprint(axis), shape, func(x *G.Node) (*G.Node, error) {
				return G.HadamardProd(x, G.Must(G.SizeOf(axis, x)))
			}, func(x array) array { return x.each(func(v float64) float64 { return v * float64(n) }) }))
		}
		slice.samples = append(slice.samples, corner(shape, 2, 1), corner(shape, 1, 1))
		slice.limits = append(slice.limits, corner(shape, 3, 2), corner(shape, 4, 2)) // a step to a single element panics
		last := make([]int, len(shape))
		for axis, n := range shape {
			last[axis] = n - 1
		}
		at.samples = append(at.samples, one("last", shape, func(x *G.Node) (*G.Node, error) { return G.At(x, last...) },
			func(x array) array { return array{[]int{}, x.v[len(x.v)-1:]} }))
		if n > 1 {
			diag.samples = append(diag.samples, one("", shape, G.DiagFlat, func(x array) array {
				return generate([]int{n, n}, func(at []int) float64 {
					if at[0] == at[1] {
						return x.v[at[0]]
					}
					return 0
				})
			}))
		}
		if len(shape) == 4 {
			for scale := 1; scale <= 3; scale++ {
				to := []int{shape[0], shape[1], shape[2] * scale, shape[3] * scale}
				upsample.samples = append(upsample.samples, one(fmt.Sprint(scale), shape, func(x *G.Node) (*G.Node, error) { return G.Upsample2D(x, scale) },
					func(x array) array {
						return moved(x, to, func(at []int) []int { return []int{at[0], at[1], at[2] / scale, at[3] / scale} })
					}))
			}
		}
	}
	return map[string]entry{"Transpose": transpose, "Reshape": reshape, "Ravel": ravel, "Slice": slice, "Concat": concat,
		"Unconcat": unconcat, "KeepDims": keepDims, "SizeOf": size, "Upsample2D": upsample, "At": at, "DiagFlat": diag}
}

// slices1 takes a range of an axis. One of length 1 drops the axis, unless it is the only one there.
func slices1(shape []int, axis, from, to int) sample {
	by := make([]tensor.Slice, axis+1)
	by[axis] = G.S(from, to)
	kept := slices.Clone(shape)
	kept[axis] = to - from
	return one(fmt.Sprint(axis, from, to), shape, sliced(by...), func(x array) array {
		y := moved(x, kept, func(at []int) []int {
			at = slices.Clone(at)
			at[axis] += from
			return at
		})
		if to-from == 1 {
			y.shape = without(kept, []int{axis})
		}
		return y
	})
}

// corner takes up to n of each axis with a step, from the second element on if there are so many,
// and leaves every third axis as it is.
func corner(shape []int, n, step int) sample {
	by, first, kept, dropped := make([]tensor.Slice, len(shape)), make([]int, len(shape)), slices.Clone(shape), []int{}
	steps := slices.Repeat([]int{1}, len(shape))
	for axis, size := range shape {
		if axis%3 == 2 {
			continue
		}
		first[axis], steps[axis] = min(1, size-1), step
		end := min(size, first[axis]+n)
		by[axis] = G.S(first[axis], end, step)
		if kept[axis] = (end - first[axis] + step - 1) / step; kept[axis] == 1 {
			dropped = append(dropped, axis)
		}
	}
	return one(fmt.Sprint(n, step), shape, sliced(by...), func(x array) array {
		return moved(x, kept, func(at []int) []int {
			at = slices.Clone(at)
			for axis := range at {
				at[axis] = first[axis] + at[axis]*steps[axis]
			}
			return at
		}).reshaped(without(kept, dropped)...)
	})
}

// concatenated puts x, another and x together along an axis.
func concatenated(shape []int, axis int) sample {
	other, whole := slices.Clone(shape), slices.Clone(shape)
	other[axis]++
	n := shape[axis]
	whole[axis] = 3*n + 1
	return two(fmt.Sprint(axis), shape, other, func(x, y *G.Node) (*G.Node, error) { return G.Concat(axis, x, y, x) }, func(x, y array) array {
		return generate(whole, func(at []int) float64 {
			at = slices.Clone(at)
			switch k := at[axis]; {
			case k < n:
				return x.at(at...)
			case k < 2*n+1:
				at[axis] -= n
				return y.at(at...)
			default:
				at[axis] -= 2*n + 1
				return x.at(at...)
			}
		})
	})
}

// divided cuts twice x along an axis in two and takes the first half plus the square of the second.
// Axes of length 1 are dropped.
func divided(shape []int, axis int) sample {
	twice, kept := slices.Clone(shape), []int{}
	twice[axis] *= 2
	for _, n := range shape {
		if n > 1 {
			kept = append(kept, n)
		}
	}
	return one(fmt.Sprint(axis), twice, func(x *G.Node) (*G.Node, error) {
		parts, err := G.Unconcat(x, axis, 2)
		if err != nil {
			return nil, err
		}
		return G.Add(parts[0], G.Must(G.Square(parts[1])))
	}, func(x array) array {
		return generate(shape, func(at []int) float64 {
			at = slices.Clone(at)
			a := x.at(at...)
			at[axis] += shape[axis]
			return a + x.at(at...)*x.at(at...)
		}).reshaped(kept...)
	})
}

// product returns the sums over k of a and b at indices made of those of the result and k.
func product(shape []int, k int, term func(at []int, k int) float64) array {
	return generate(shape, func(at []int) (sum float64) {
		for k := range k {
			sum += term(at, k)
		}
		return sum
	})
}

func products() map[string]entry {
	var mul, batched, dot, outer entry
	for _, size := range [][3]int{{2, 3, 5}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {1, 1, 3}, {1, 3, 1}, {3, 1, 1}, {1, 1, 1}} {
		m, k, n := size[0], size[1], size[2]
		mul.samples = append(mul.samples,
			two("matrices", []int{m, k}, []int{k, n}, G.Mul, func(x, y array) array {
				return product([]int{m, n}, k, func(at []int, k int) float64 { return x.at(at[0], k) * y.at(k, at[1]) })
			}),
			two("vector and matrix", []int{k}, []int{k, n}, G.Mul, func(x, y array) array {
				return product([]int{n}, k, func(at []int, k int) float64 { return x.at(k) * y.at(k, at[0]) })
			}),
			two("matrix and vector", []int{m, k}, []int{k}, G.Mul, func(x, y array) array {
				return product([]int{m}, k, func(at []int, k int) float64 { return x.at(at[0], k) * y.at(k) })
			}),
			two("vectors", []int{k}, []int{k}, G.Mul, func(x, y array) array {
				return product([]int{}, k, func(_ []int, k int) float64 { return x.at(k) * y.at(k) })
			}),
			two("matrix and its transpose", []int{m, k}, []int{n, k}, func(x, y *G.Node) (*G.Node, error) {
				return G.Mul(x, G.Must(G.Transpose(y)))
			}, func(x, y array) array {
				return product([]int{m, n}, k, func(at []int, k int) float64 { return x.at(at[0], k) * y.at(at[1], k) })
			}))
		for _, lead := range [][]int{{2}, {1}, {2, 3}, {3, 1}, {2, 1, 2}} {
			for trans := range 4 {
				batched.samples = append(batched.samples, batchedProduct(lead, m, k, n, trans&1 == 1, trans&2 == 2))
			}
		}
	}
	for _, p := range pairs() {
		if len(p[0]) == 0 || len(p[1]) == 0 {
			mul.samples = append(mul.samples, two("number", p[0], p[1], G.Mul, func(x, y array) array {
				return spread(x, y, func(x, y float64) float64 { return x * y })
			}))
		}
	}
	for _, a := range [][]int{{3}, {2, 3}, {3, 1}, {2, 3, 2}, {1, 2, 3}, {2, 3, 2, 1}} {
		for _, b := range [][]int{{2}, {2, 2}, {1, 3, 2}} {
			for i := range a {
				for j := range b {
					dot.samples = append(dot.samples, contraction(a, b, []int{i}, []int{j}))
					if k, l := (i+1)%len(a), (j+1)%len(b); k != i && l != j {
						dot.samples = append(dot.samples, contraction(a, b, []int{i, k}, []int{j, l}))
					}
				}
			}
		}
	}
	for _, size := range [][2]int{{2, 3}, {1, 3}, {3, 1}, {1, 1}} {
		outer.samples = append(outer.samples, two("", []int{size[0]}, []int{size[1]}, G.OuterProd, func(x, y array) array {
			return generate(size[:], func(at []int) float64 { return x.at(at[0]) * y.at(at[1]) })
		}))
	}
	return map[string]entry{"Mul": mul, "OuterProd": outer, "BatchedMatMul": batched, "Tensordot": dot, "Conv2d": convolutions(), "Conv1d": convolutions1(), "Im2Col": patches()}
}

// contraction sums over axes of a and of b, in pairs, whose lengths in b become those in a.
func contraction(a, b, aAxes, bAxes []int) sample {
	b = slices.Clone(b)
	n := 1
	for i, axis := range aAxes {
		b[bAxes[i]] = a[axis]
		n *= a[axis]
	}
	free := len(a) - len(aAxes)
	index := func(rank int, axes, at []int, k int) []int {
		full := make([]int, rank)
		for i := len(axes) - 1; i >= 0; i-- {
			full[axes[i]], k = k%a[aAxes[i]], k/a[aAxes[i]]
		}
		for axis := range full {
			if !slices.Contains(axes, axis) {
				full[axis], at = at[0], at[1:]
			}
		}
		return full
	}
	return two(fmt.Sprint(aAxes, bAxes), a, b, func(x, y *G.Node) (*G.Node, error) { return G.Tensordot(aAxes, bAxes, x, y) }, func(x, y array) array {
		return product(append(without(a, aAxes), without(b, bAxes)...), n, func(at []int, k int) float64 {
			return x.at(index(len(a), aAxes, at[:free], k)...) * y.at(index(len(b), bAxes, at[free:], k)...)
		})
	})
}

func batchedProduct(lead []int, m, k, n int, transA, transB bool) sample {
	a, b := append(slices.Clone(lead), m, k), append(slices.Clone(lead), k, n)
	if transA {
		a = append(slices.Clone(lead), k, m)
	}
	if transB {
		b = append(slices.Clone(lead), n, k)
	}
	r := len(lead)
	pair := func(at []int, i, j int, swap bool) []int {
		if swap {
			i, j = j, i
		}
		return append(slices.Clone(at[:r]), i, j)
	}
	return two(fmt.Sprint(transA, transB), a, b, batchedMatMul(transA, transB), func(x, y array) array {
		return product(append(slices.Clone(lead), m, n), k, func(at []int, k int) float64 {
			return x.at(pair(at, at[r], k, transA)...) * y.at(pair(at, k, at[r+1], transB)...)
		})
	})
}

// convolved is a convolution of an image [B, C, H, W] by w [L, C, kh, kw].
func convolved(x, w array, pad, stride, dilation [2]int) array {
	size := func(i int) int { return (x.shape[2+i]+2*pad[i]-dilation[i]*(w.shape[2+i]-1)-1)/stride[i] + 1 }
	c, kh, kw := w.shape[1], w.shape[2], w.shape[3]
	return product([]int{x.shape[0], w.shape[0], size(0), size(1)}, c*kh*kw, func(at []int, k int) float64 {
		c, i, j := k/kw/kh, k/kw%kh, k%kw
		row, column := at[2]*stride[0]+i*dilation[0]-pad[0], at[3]*stride[1]+j*dilation[1]-pad[1]
		if row < 0 || column < 0 || row >= x.shape[2] || column >= x.shape[3] {
			return 0
		}
		return x.v[((at[0]*x.shape[1]+c)*x.shape[2]+row)*x.shape[3]+column] * w.v[((at[1]*w.shape[1]+c)*kh+i)*kw+j]
	})
}

func convolutions() (e entry) {
	for _, c := range []struct{ image, kernel, window []int }{ // window: pad, stride, dilation
		{[]int{2, 2, 4, 5}, []int{3, 2, 3, 3}, []int{1, 1, 1, 1, 1, 1}},
		{[]int{1, 3, 5, 4}, []int{2, 3, 2, 3}, []int{0, 1, 1, 1, 1, 1}},
		{[]int{2, 1, 5, 7}, []int{1, 1, 3, 3}, []int{1, 1, 2, 2, 1, 1}},
		{[]int{1, 2, 5, 6}, []int{2, 2, 2, 2}, []int{0, 0, 1, 1, 2, 2}},
		{[]int{1, 3, 5, 5}, []int{2, 3, 1, 1}, []int{0, 0, 2, 2, 1, 1}},
		{[]int{2, 1, 3, 3}, []int{1, 1, 3, 3}, []int{0, 0, 1, 1, 1, 1}},
		{[]int{1, 1, 7, 5}, []int{2, 1, 3, 1}, []int{2, 0, 1, 1, 2, 1}},
	} {
		w := c.window
		e.samples = append(e.samples, two(fmt.Sprint(w), c.image, c.kernel, func(x, k *G.Node) (*G.Node, error) {
			return G.Conv2d(x, k, k.Shape()[2:], w[:2], w[2:4], w[4:])
		}, func(x, k array) array { return convolved(x, k, [2]int(w[:2]), [2]int(w[2:4]), [2]int(w[4:])) }))
	}
	ones, twos := [2]int{1, 1}, [2]int{2, 2}
	e.samples = append(e.samples, two("with and without dilation", []int{1, 1, 5, 5}, []int{2, 1, 2, 2}, func(x, w *G.Node) (*G.Node, error) {
		y := G.Must(G.Sum(G.Must(convolution(0, 1, 1)(x, w))))
		return G.Add(y, G.Must(G.Sum(G.Must(convolution(0, 1, 2)(x, w)))))
	}, func(x, w array) array {
		plain, dilated := convolved(x, w, [2]int{}, ones, ones), convolved(x, w, [2]int{}, ones, twos)
		return zip(plain.sum(0, 1, 2, 3), dilated.sum(0, 1, 2, 3), func(a, b float64) float64 { return a + b })
	}))
	e.refused = []sample{ // dilated by 2, either would have the same shape
		two("even kernel and stride", []int{1, 2, 5, 5}, []int{3, 2, 2, 2}, convolution(0, 2, 1), nil),
		two("one row of the image", []int{1, 1, 2, 4}, []int{1, 1, 2, 3}, convolution(0, 3, 1), nil),
	}
	e.advice = "use a larger kernel or a smaller stride"
	return e
}

func convolutions1() (e entry) {
	for _, c := range []struct{ length, kernel, pad, stride, dilation int }{{7, 3, 0, 1, 1}, {7, 3, 1, 2, 1}, {7, 2, 1, 1, 2}, {5, 5, 0, 1, 1}} {
		e.samples = append(e.samples, two(fmt.Sprint(c), []int{2, 3, 1, c.length}, []int{2, 3, 1, c.kernel}, func(x, w *G.Node) (*G.Node, error) {
			return G.Conv1d(x, w, c.kernel, c.pad, c.stride, c.dilation)
		}, func(x, w array) array {
			return convolved(x, w, [2]int{0, c.pad}, [2]int{1, c.stride}, [2]int{1, c.dilation})
		}))
	}
	return e
}

// patches are the windows of an image [B, C, H, W] as [B, rows, columns, C·kernel].
func patches() (e entry) {
	for _, pad := range []int{0, 1} {
		b, c, h, w, k := 2, 3, 4, 5, 2
		rows, columns := h+2*pad-k+1, w+2*pad-k+1
		e.samples = append(e.samples, one(fmt.Sprint(pad), []int{b, c, h, w}, func(x *G.Node) (*G.Node, error) {
			return G.Im2Col(x, tensor.Shape{k, k}, tensor.Shape{pad, pad}, tensor.Shape{1, 1}, tensor.Shape{1, 1})
		}, func(x array) array {
			return generate([]int{b, rows, columns, c * k * k}, func(at []int) float64 {
				row, column := at[1]+at[3]/k%k-pad, at[2]+at[3]%k-pad
				if row < 0 || column < 0 || row >= h || column >= w {
					return 0
				}
				return x.at(at[0], at[3]/k/k, row, column)
			})
		}))
	}
	return e
}

func composed() map[string]entry {
	var add, mul, larger, smaller, average, auto, both, convert, xent, lse entry
	for _, shape := range append(shapes, scalars()) {
		add.samples = append(add.samples, two("", shape, shape, func(x, y *G.Node) (*G.Node, error) { return G.ReduceAdd(G.Nodes{x, y, x}) },
			func(x, y array) array { return zip(x, y, func(x, y float64) float64 { return 2*x + y }) }))
		mul.samples = append(mul.samples, two("", shape, scalars(), func(x, y *G.Node) (*G.Node, error) { return G.ReduceMul(G.Nodes{x, y, y}) },
			func(x, y array) array { return spread(x, y, func(x, y float64) float64 { return x * y * y }) }))
		larger.samples = append(larger.samples, two("", shape, shape, G.MaxBetween, func(x, y array) array { return zip(x, y, math.Max) }))
		smaller.samples = append(smaller.samples, two("", shape, shape, G.MinBetween, func(x, y array) array { return zip(x, y, math.Min) }))
		s := two("", shape, shape, G.BinaryXent, func(x, y array) array {
			return zip(x, y, func(p, y float64) float64 { return -y*math.Log(p) - (1-y)*math.Log(1-p) })
		})
		s.domain = func(x float64) float64 { return 0.1 + 0.8/(1+math.Exp(-x)) }
		xent.samples = append(xent.samples, s)
		c := one("", shape, nil, nil)
		c.in, c.ints = nil, c.in
		c.f = func(b *fsdpexec.Builder, x []*G.Node) (*G.Node, error) {
			return G.ConvType(x[0], tensor.Int, b.DType())
		}
		c.define = func(x []array) array { return x[0] }
		convert.samples = append(convert.samples, c)
		convert.refused = append(convert.refused, one("", shape, func(x *G.Node) (*G.Node, error) {
			return G.ConvType(G.Must(G.ConvType(x, tensor.Float64, tensor.Float32)), tensor.Float32, tensor.Float64)
		}, nil))
		if len(shape) == 4 {
			average.samples = append(average.samples, one("", shape, G.GlobalAveragePool2D, func(x array) array {
				n := float64(shape[2] * shape[3])
				return x.sum(2, 3).each(func(s float64) float64 { return s / n }).reshaped(shape[0], shape[1], 1, 1)
			}))
		}
		for axis := range shape {
			s := one(fmt.Sprint(axis), shape, func(x *G.Node) (*G.Node, error) { return G.LogSumExp(x, axis) }, func(x array) array {
				return x.each(math.Exp).sum(axis).each(math.Log)
			})
			if len(shape) == 1 {
				lse.refused = append(lse.refused, s)
			} else {
				lse.limits = append(lse.limits, s) // it forgets to broadcast the maximum
			}
		}
		if len(shape) > 0 && len(shape) < 5 {
			for _, axes := range subsets(len(shape)) {
				ones := slices.Clone(shape)
				for _, axis := range axes {
					ones[axis] = 1
				}
				auto.samples = append(auto.samples, two("", shape, ones, func(x, y *G.Node) (*G.Node, error) { return G.Auto(G.BroadcastSub, x, y) },
					func(x, y array) array { return zip(x, y, func(x, y float64) float64 { return x - y }) }))
			}
		}
	}
	both.samples = []sample{two("", []int{2, 1}, []int{1, 3}, func(x, y *G.Node) (*G.Node, error) {
		a, b, err := G.Broadcast(x, y, G.NewBroadcastPattern([]byte{1}, []byte{0}))
		if err != nil {
			return nil, err
		}
		return G.Sub(a, b)
	}, func(x, y array) array { return zip(x, y, func(x, y float64) float64 { return x - y }) })}
	convert.advice, lse.advice = "use one float type", "use the sum of m = Max(x, axis)"
	return map[string]entry{"ReduceAdd": add, "ReduceMul": mul, "MaxBetween": larger, "MinBetween": smaller, "GlobalAveragePool2D": average,
		"Auto": auto, "Broadcast": both, "ConvType": convert, "BinaryXent": xent, "LogSumExp": lse}
}

// softmaxes are along every axis, and along the one that Gorgonia takes where none is named.
func softmaxes() map[string]entry {
	var softmax, logarithm entry
	for _, shape := range shapes {
		axes := []int{-1}
		for axis := range shape {
			axes = append(axes, axis)
		}
		for _, axis := range axes {
			name, named, along1 := fmt.Sprint(axis), []int{axis}, axis
			if axis < 0 {
				named, along1 = nil, len(shape)-1
				if len(shape) == 2 && shape[1] == 1 && shape[0] > 1 {
					along1 = 0 // of a single column
				}
			}
			ones := slices.Clone(shape)
			ones[along1] = 1
			define := func(x array) array {
				e := x.each(math.Exp)
				return zip(e, e.sum(along1).reshaped(ones...), func(e, sum float64) float64 { return e / sum })
			}
			softmax.samples = append(softmax.samples, one(name, shape, along(G.SoftMax, named...), define))
			logarithm.samples = append(logarithm.samples, one(name, shape, along(G.LogSoftMax, named...), func(x array) array { return define(x).each(math.Log) }))
		}
	}
	both := one("both", []int{2, 3}, func(x *G.Node) (*G.Node, error) {
		return G.Add(G.Must(G.SoftMax(x)), G.Must(G.LogSoftMax(x)))
	}, nil)
	softmax.refused, softmax.advice = []sample{both}, "make only one of them"
	return map[string]entry{"SoftMax": softmax, "LogSoftMax": logarithm}
}

// lookups take the first elements along an axis.
func lookups() map[string]entry {
	var e entry
	for _, shape := range shapes {
		for axis, n := range shape {
			to := slices.Clone(shape)
			to[axis] = (n + 1) / 2
			e.samples = append(e.samples, sample{name: fmt.Sprint(axis), in: [][]int{shape}, ints: [][]int{{to[axis]}},
				f: func(_ *fsdpexec.Builder, x []*G.Node) (*G.Node, error) { return G.ByIndices(x[0], x[1], axis) },
				define: func(x []array) array {
					return moved(x[0], to, func(at []int) []int { return at })
				}})
		}
	}
	return map[string]entry{"ByIndices": e}
}

func refusals() map[string]entry {
	image, window := []int{1, 2, 4, 4}, tensor.Shape{2, 2}
	refused := func(advice string, f func(b *fsdpexec.Builder, x []*G.Node) (*G.Node, error), in ...[]int) entry {
		return entry{advice: advice, refused: []sample{{in: in, f: f}}}
	}
	alone := func(f node) func(b *fsdpexec.Builder, x []*G.Node) (*G.Node, error) {
		return func(_ *fsdpexec.Builder, x []*G.Node) (*G.Node, error) { return f(x[0]) }
	}
	return map[string]entry{
		"Sparsemax": refused("use ", alone(along(G.Sparsemax)), []int{2, 3}),
		"YOLOv3": refused("use ", alone(func(x *G.Node) (*G.Node, error) {
			return G.YOLOv3(x, []float32{1, 2, 3, 4}, []int{0, 1}, 4, 1, 0.5)
		}), []int{1, 12, 2, 2}),
		"AveragePool2D": refused("op.AvgPool2D", alone(func(x *G.Node) (*G.Node, error) {
			return G.AveragePool2D(x, window, []int{0, 0}, []int{1, 1})
		}), image),
		"BatchNorm": refused("nn.BatchNorm", func(_ *fsdpexec.Builder, x []*G.Node) (*G.Node, error) {
			y, _, _, _, err := G.BatchNorm(x[0], x[1], x[2], 0.9, 1e-5)
			return y, err
		}, image, image, image),
		"GroupNorm": refused("nn.GroupNorm", func(_ *fsdpexec.Builder, x []*G.Node) (*G.Node, error) {
			return G.GroupNorm(x[0], x[1], x[2], 1, 2, 1e-5)
		}, []int{1, 2, 2, 2}, []int{1, 2, 1, 1}, []int{1, 2, 1, 1}),
		"CTCLoss": {advice: "nn.CrossEntropy", refused: []sample{{in: [][]int{{4, 2, 3}}, ints: [][]int{{2, 2}, {2}, {2}}, f: func(_ *fsdpexec.Builder, x []*G.Node) (*G.Node, error) {
			return G.CTCLoss(x[0], x[1], x[2], x[3], G.ReductionMean)
		}}}},
		"Grad": refused("does not differentiate twice", alone(func(x *G.Node) (*G.Node, error) {
			g, err := G.Grad(G.Must(G.Sum(G.Must(G.Cube(x)))), x)
			if err != nil {
				return nil, err
			}
			return G.HadamardProd(g[0], x)
		}), []int{3}),
		"Backpropagate": refused("does not differentiate twice", alone(func(x *G.Node) (*G.Node, error) {
			y := G.Must(G.Cube(x))
			g, err := G.Backpropagate(G.Nodes{y}, G.Nodes{G.Must(G.Tanh(x))}, G.Nodes{x})
			if err != nil {
				return nil, err
			}
			return G.HadamardProd(g[0], y)
		}), []int{3}),
	}
}

// randoms draw numbers that are a function of the seed of the trial, which is 1.
func randoms() map[string]entry {
	random := func(f func(g *G.ExprGraph, dt tensor.Dtype, a, b float64, shape ...int) *G.Node, a, b float64, number func(i uint64) float64) entry {
		e := entry{advice: "a probability in [0, 1]"}
		for _, shape := range append(shapes, []int{}) {
			e.samples = append(e.samples, sample{in: [][]int{shape}, f: func(builder *fsdpexec.Builder, x []*G.Node) (*G.Node, error) {
				return G.Add(x[0], f(builder.Graph(), builder.DType(), a, b, shape...))
			}, define: func(x []array) array {
				y := array{shape, slices.Clone(x[0].v)}
				for i := range y.v {
					y.v[i] += number(uint64(i))
				}
				return y
			}})
		}
		return e
	}
	s := rng.Numbered(1, 0)
	binomial := random(G.BinomialRandomNode, 3, 0.4, func(i uint64) (hits float64) {
		for trial := range uint64(3) {
			if s.Float64(3*i+trial) < 0.4 {
				hits++
			}
		}
		return hits
	})
	for _, wrong := range [][2]float64{{0, 0.5}, {1, 1.5}, {1, -0.5}, {1 << 21, 0.5}, {math.NaN(), 0.5}, {1, math.NaN()}} {
		binomial.refused = append(binomial.refused, sample{in: [][]int{{2, 2}}, f: func(b *fsdpexec.Builder, x []*G.Node) (*G.Node, error) {
			return G.Add(x[0], G.BinomialRandomNode(b.Graph(), b.DType(), wrong[0], wrong[1], 2, 2))
		}})
	}
	return map[string]entry{
		"UniformRandomNode":  random(G.UniformRandomNode, -1, 3, func(i uint64) float64 { return -1 + 4*s.Float64(i) }),
		"GaussianRandomNode": random(G.GaussianRandomNode, 2, 0.5, func(i uint64) float64 { return 2 + 0.5*s.Normal(i) }),
		"BinomialRandomNode": binomial,
	}
}

func others() map[string]entry {
	const leaf, machine, plain = "it makes a leaf", "it is about graphs or machines", "it applies what it is given"
	return map[string]entry{
		"NewScalar": {none: leaf}, "NewVector": {none: leaf}, "NewMatrix": {none: leaf}, "NewTensor": {none: leaf},
		"NewConstant": {none: leaf}, "NewUniqueNode": {none: leaf}, "NodeFromAny": {none: leaf}, "OneHotVector": {none: leaf},
		"NodesFromInputs": {none: machine}, "Sort": {none: machine}, "UnstableSort": {none: machine},
		"Set": {none: machine}, "Read": {none: machine}, "Must": {none: plain}, "ApplyOp": {none: plain}, "ApplyOpWithName": {none: plain},
	}
}
