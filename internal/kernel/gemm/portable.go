package gemm

import "github.com/gofsdp/gofsdp/internal/half"

// portable is the instruction set of any machine Go runs on.
func portable() isa {
	bf16 := engine[half.BFloat16, float32]{
		mr: 4, nr: 4, kc: 768, nc: 128, lanes: 4, pair: 2, steps: 2, mul: mulWideGo, gather: gatherWide,
	}
	return isa{"go", portableEngine[float32](384), portableEngine[float64](256), bf16}
}

func portableEngine[T Float](kc int) engine[T, T] {
	return engine[T, T]{
		mr: 4, nr: 4, kc: kc, nc: 256, lanes: 4, pair: 1, steps: 1, mul: mulGo[T], gather: gather[T],
	}
}

// mulGo is the register kernel in Go. A and B are packed in panels of four, so it always computes
// whole 4×4 tiles, and writes the elements inside C.
func mulGo[T Float](t *tile[T]) {
	for j := 0; j < t.cols; j += 4 {
		var acc [16]T
		mul4x4(&acc, t.a[:4*t.k], t.b[j/4*t.bpanel:][:4*t.k])
		cols := min(4, t.cols-j)
		for i := range t.rows {
			sums, out := acc[4*i:4*i+cols], t.out[i*t.ldout+j:][:cols]
			for q, sum := range sums {
				sums[q] = t.alpha * sum
			}
			if t.read {
				for q, s := range t.in[i*t.ldin+j:][:cols] {
					sums[q] += t.beta * s
				}
			}
			copy(out, sums)
		}
	}
}

// mul4x4 sets acc[4*i+j] = sum_p a[4*p+i]*b[4*p+j], in two halves: eight sums and their six factors
// fit the 16 registers of amd64, and sixteen sums would not.
func mul4x4[T Float](acc *[16]T, a, b []T) {
	for h := 0; h < 4; h += 2 {
		var c00, c01, c02, c03, c10, c11, c12, c13 T
		for p := 0; p+4 <= len(a) && p+4 <= len(b); p += 4 {
			x, y := a[p:p+4:p+4], b[p:p+4:p+4]
			x0, x1 := x[h&2], x[h&2+1]
			y0, y1, y2, y3 := y[0], y[1], y[2], y[3]
			c00 += x0 * y0
			c01 += x0 * y1
			c02 += x0 * y2
			c03 += x0 * y3
			c10 += x1 * y0
			c11 += x1 * y1
			c12 += x1 * y2
			c13 += x1 * y3
		}
		acc[4*h], acc[4*h+1], acc[4*h+2], acc[4*h+3] = c00, c01, c02, c03
		acc[4*h+4], acc[4*h+5], acc[4*h+6], acc[4*h+7] = c10, c11, c12, c13
	}
}

func gather[T Float](dst, src []T, line, step, rows, k, width int) {
	for p := range k {
		for r := range rows {
			dst[p*width+r] = src[r*line+p*step]
		}
	}
}
