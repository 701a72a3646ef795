//go:build linux && cgo

package gpudouble_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/half"

	"github.com/gofsdp/gofsdp/internal/device"
)

// A matrix is one side of products: rows of k numbers in shared memory, in the layout of a
// descriptor with the swizzle of 128 bytes.
type matrix struct {
	rows, k, start  int
	leading, stride int  // bytes
	transposed      bool // the memory has k rows
}

// at returns the place of a number in shared memory. A row of memory has 128 bytes.
func (m matrix) at(row, k int) int {
	at := m.start + row/8*m.stride + row%8*128 + k*2
	if m.transposed {
		at = m.start + row/64*m.leading + k/8*m.stride + k%8*128 + row%64*2
	}
	return at ^ at>>7&7<<4
}

// descriptor returns the descriptor of 16 columns of the matrix.
func (m matrix) descriptor(step int) uint64 {
	at := m.start + step*32
	if m.transposed {
		at = m.start + step*2*m.stride
	}
	return uint64(at>>4) | uint64(m.leading>>4)<<16 | uint64(m.stride>>4)<<32 | 1<<62
}

// A product is a kernel of one warpgroup for y = y·adds + a bᵀ: a has 64 rows, b has n, and both
// have 32 columns. A test can replace each instruction.
type product struct {
	n, adds     int
	a, b        matrix
	inRegisters bool // a
	float16     bool // both
	replace     map[string]string
	threads     int
}

func newProduct(n int) *product {
	return &product{n: n, threads: 128, replace: map[string]string{},
		a: matrix{rows: 64, k: 32, stride: 1024}, b: matrix{rows: n, k: 32, start: 8192, stride: 1024}}
}

// text returns the kernel. It copies an image of shared memory, and a thread stores its registers.
func (p *product) text() string {
	var s, list strings.Builder
	line := func(name, code string) {
		if other, ok := p.replace[name]; ok {
			code = other
		}
		s.WriteString(code + "\n")
	}
	for i := range p.n / 2 {
		fmt.Fprintf(&list, ",%%f%d", i)
	}
	s.WriteString(`.visible .entry product(.param .u64 py, .param .u64 pimage, .param .u64 pa, .param .u32 bytes, .param .u64 d0, .param .u64 d1, .param .u64 d2, .param .u64 d3)
{
.reg .b32 %r<16>; .reg .b64 %x<16>; .reg .pred %p<4>; .reg .f32 %f<128>; .reg .b32 %a<8>; .reg .b64 %d<4>;
.shared .b8 s[49152];
mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, s; add.u32 %r2, %r2, %r1; ld.param.u32 %r3, [bytes];
ld.param.u64 %x0, [pimage]; mad.wide.u32 %x0, %r0, 4, %x0; ld.param.u64 %x1, [py]; mad.wide.u32 %x1, %r0, 4, %x1;
ld.param.u64 %x2, [pa]; mad.wide.u32 %x2, %r0, 4, %x2;
ld.param.u64 %d0, [d0]; ld.param.u64 %d1, [d1]; ld.param.u64 %d2, [d2]; ld.param.u64 %d3, [d3];
copy:
ld.global.u32 %r4, [%x0]; st.shared.u32 [%r2], %r4; add.u64 %x0, %x0, 512; add.u32 %r2, %r2, 512; add.u32 %r1, %r1, 512;
setp.lt.u32 %p0, %r1, %r3; @%p0 bra copy;
`)
	for i := range p.n / 2 {
		fmt.Fprintf(&s, "ld.global.f32 %%f%d, [%%x1+%d];\n", i, i*512)
	}
	for i := range 8 {
		fmt.Fprintf(&s, "ld.global.u32 %%a%d, [%%x2+%d];\n", i, i*512)
	}
	fmt.Fprintf(&s, "setp.ne.u32 %%p1, %d, 0; setp.ne.u32 %%p2, 1, 0;\n", p.adds)
	line("proxy", "fence.proxy.async;")
	line("barrier", "bar.sync 0;")
	line("fence", "wgmma.fence.sync.aligned;")
	kind := "bf16"
	if p.float16 {
		kind = "f16"
	}
	for step := range 2 {
		left, trans := fmt.Sprintf("%%d%d", step), fmt.Sprintf("%d, ", truth(p.a.transposed))
		if p.inRegisters {
			left, trans = fmt.Sprintf("{%%a%d, %%a%d, %%a%d, %%a%d}", step*4, step*4+1, step*4+2, step*4+3), ""
		}
		line(fmt.Sprint("product", step), fmt.Sprintf("wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%[2]s {%s}, %s, %%d%d, %%p%d, 1, 1, %s%d;",
			p.n, kind, list.String()[1:], left, step+2, step+1, trans, truth(p.b.transposed)))
	}
	line("commit", "wgmma.commit_group.sync.aligned;")
	line("before", "")
	line("wait", "wgmma.wait_group.sync.aligned 0;")
	for i := range p.n / 2 {
		fmt.Fprintf(&s, "st.global.f32 [%%x1+%d], %%f%d;\n", i*512, i)
	}
	return s.String() + "ret;\n}\n"
}

// run runs the kernel on random numbers and returns the largest error of an element.
func (p *product) run(m *machine) (worst float64, err error) {
	r := rand.New(rand.NewPCG(uint64(p.n), 1))
	number := func() uint16 {
		if p.float16 {
			return uint16(half.ToFloat16(float32(r.NormFloat64())))
		}
		return uint16(half.ToBFloat16(float32(r.NormFloat64())))
	}
	wide := func(b uint16) float64 {
		if p.float16 {
			return float64(half.Float16(b).Float32())
		}
		return float64(half.BFloat16(b).Float32())
	}
	image, numbers := make([]uint16, 24576), [2][][]uint16{}
	for side, of := range []matrix{p.a, p.b} {
		for row := range of.rows {
			numbers[side] = append(numbers[side], make([]uint16, of.k))
			for k := range of.k {
				numbers[side][row][k] = number()
				image[of.at(row, k)/2] = numbers[side][row][k]
			}
		}
	}
	// place is that of a register of a thread in the 64 rows of a result.
	place := func(i, thread int) (row, column int) {
		return thread/32*16 + thread%32/4 + i/2%2*8, i/4*8 + thread%4*2 + i%2
	}
	before, a := make([]float32, p.n/2*128), make([]uint32, 8*128)
	for i := range before {
		before[i] = float32(r.NormFloat64())
	}
	for i := range a { // register i%4 of step i/4: pairs of a 64 × 16 part, as mma has them
		row, column := place(i/128%4*2, i%128)
		column = column%8 + i/128%4/2*8 + i/512*16
		a[i] = uint32(numbers[0][row][column]) | uint32(numbers[0][row][column+1])<<16
	}
	y := values(before)
	err = m.run(function(m.t, m.load(p.text()), "product"), 1, p.threads, 0, y, values(image), values(a), uint32(len(image)*2),
		p.a.descriptor(0), p.a.descriptor(1), p.b.descriptor(0), p.b.descriptor(1))
	for i, got := range decode[float32](y) {
		row, column := place(i/128, i%128)
		want := float64(before[i]) * float64(p.adds)
		for k := range p.a.k {
			want += wide(numbers[0][row][k]) * wide(numbers[1][column][k])
		}
		worst = math.Max(worst, math.Abs(want-float64(got))) // NaN stays
	}
	return worst, err
}

// TestProducts compares products of warpgroups with naive ones: widths, both types, both sides in
// both layouts, and the left one in registers.
func TestProducts(t *testing.T) {
	m := newMachine(t)
	for i, n := range []int{8, 24, 64, 96, 128, 256} {
		for form := range 6 {
			p := newProduct(n)
			p.adds, p.float16 = i%2, (i+form)%2 == 1
			p.inRegisters = form%3 == 2
			if p.a.transposed = form%3 == 1; p.a.transposed {
				p.a.leading = 16
			}
			if i%3 == 1 && !p.a.transposed {
				p.a.stride, p.b.start = 2048, 16384
			}
			if p.b.transposed = form >= 3; p.b.transposed {
				p.b.leading, p.b.stride = 4096, 1024
			}
			if p.b.transposed && i%2 == 1 {
				p.b.leading, p.b.stride = 1024, 4096
			}
			worst, err := p.run(m)
			require.NoError(t, err, "%+v", p)
			require.Less(t, worst, 2e-5, "%+v", p)
		}
	}
}

// TestProductFaults checks that each mistake around a product is found.
func TestProductFaults(t *testing.T) {
	elsewhere := func(registers string) string {
		return "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {" + registers + "}, %d0, %d2, %p2, 1, 1, 0, 0;"
	}
	for name, fault := range map[string]struct {
		at, code, said string
	}{
		"no fence":           {"fence", "", "no wgmma.fence is before the first product"},
		"written since":      {"fence", "wgmma.fence.sync.aligned; mov.f32 %f3, 0f00000000;", "register 3 of a product was written since the last wgmma.fence"},
		"left written since": {"fence", "wgmma.fence.sync.aligned; mov.u32 %a1, 0;", "register 17 of a product was written since"},
		"no wait":            {"wait", "", "the block ends and nobody has waited for a product"},
		"no commit":          {"commit", "", "the block ends and nobody has waited for a product"},
		"group left":         {"wait", "wgmma.wait_group.sync.aligned 1;", "the block ends and nobody has waited for a product"},
		"no proxy fence":     {"proxy", "", "which warp 0 wrote without a fence.proxy.async since"},
		"proxy fence late":   {"proxy", "fence.proxy.async; mov.u32 %r5, s; setp.eq.u32 %p3, %r0, 0; @%p3 st.shared.u32 [%r5], %a0;", "a product reads shared+0, which warp 0 wrote without a fence.proxy.async since"},
		"no barrier":         {"barrier", "", "shared+"},
		"right overwritten":  {"before", "mov.u32 %r5, s; setp.lt.u32 %p3, %r0, 32; @%p3 st.shared.u32 [%r5+8192], %r0;", "shared+8192"},
		"left overwritten":   {"before", "xor.b32 %a0, %a0, 1;", "the left side of a product changed before the product was waited for"},
		"result written":     {"before", "mov.f32 %f5, 0f00000000;", "accumulator 5 was written before its product was waited for"},
		"no swizzle":         {"barrier", "bar.sync 0; xor.b64 %d2, %d2, 0x4000000000000000;", "only the swizzle of 128 bytes is known here"},
		"base offset":        {"barrier", "bar.sync 0; xor.b64 %d2, %d2, 0x2000000000000;", "bits that have no meaning here"},
		"start in a swizzle": {"barrier", "bar.sync 0; add.u64 %d2, %d2, 8;", "shared+8320 is in no first row of a swizzle"},
		"start beyond":       {"barrier", "bar.sync 0; add.u64 %d2, %d2, 0xa00;", "16 bytes at shared+49152, the block has 49152"},
		"of a lane":          {"barrier", "bar.sync 0; cvt.u64.u32 %x3, %r0; add.u64 %d2, %d2, %x3;", "thread (1,0,0): lanes give different descriptors"},
		"some lanes add":     {"barrier", "bar.sync 0; setp.gt.u32 %p2, %r0, 5;", "some lanes add to their accumulators and others do not"},
		"of a warp":          {"barrier", "bar.sync 0; shr.u32 %r5, %r0, 6; mul.wide.u32 %x3, %r5, 64; add.u64 %d2, %d2, %x3;", "the warps of a warpgroup execute different products"},
		"overlap":            {"product1", elsewhere("%f2, %f3, %f4, %f5"), "an accumulator belongs to another product, which nobody has waited for"},
		"half a warp":        {"product1", "setp.lt.u32 %p3, %r0, 16; @%p3 " + elsewhere("%f40, %f41, %f42, %f43"), "of warp 0 wait for lanes"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			p := newProduct(32)
			p.inRegisters = strings.HasPrefix(name, "left")
			p.replace[fault.at] = fault.code
			_, err := p.run(m)
			var failed *device.Error
			require.ErrorAs(t, err, &failed)
			require.Contains(t, strings.Join(m.cuda.Reports(), "\n"), fault.said)
		})
	}
}

// TestProductsUnchecked runs without checks of races: an accumulator has no value before the wait,
// and a wrong stride gives wrong numbers.
func TestProductsUnchecked(t *testing.T) {
	m := newMachine(t)
	m.cuda.Checks(t, 0)
	p := newProduct(32)
	p.replace["before"] = "mov.f32 %f100, %f0;"
	p.replace["wait"] = "wgmma.wait_group.sync.aligned 0; mov.f32 %f0, %f100;"
	worst, err := p.run(m)
	require.NoError(t, err)
	require.True(t, math.IsNaN(worst), worst)
	p = newProduct(32)
	p.replace["barrier"] = "bar.sync 0; add.u64 %d2, %d2, 0x100000000;"
	worst, err = p.run(m)
	require.NoError(t, err)
	require.Greater(t, worst, 0.1)
}

// TestHalfAWarpgroup checks that a product needs all warps of its warpgroup.
func TestHalfAWarpgroup(t *testing.T) {
	m := newMachine(t)
	p := newProduct(8)
	p.threads = 96
	_, err := p.run(m)
	require.Error(t, err)
	require.Contains(t, strings.Join(m.cuda.Reports(), "\n"), "a warpgroup without some of its warps")
}
