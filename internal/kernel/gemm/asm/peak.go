package main

import (
	"bytes"
	"fmt"
)

const peakFile = "peak_amd64.s"

// peakSource returns loops of n iterations for the instruction sets of amd64. An iteration is one
// multiply-add for each sum; there are more sums than a core has in flight. It touches only
// registers. The loop of AMX multiplies zeros.
func peakSource() []byte {
	out := new(bytes.Buffer)
	fmt.Fprint(out, targets[0].header())
	printConfigs(out)
	tiles{routine{amx, f32, true, out}}.peak()
	for _, t := range targets {
		if t.neon {
			continue
		}
		r := routine{t, f32, t.dots, out}
		r.text("peak", "n int, x float32", 0, 12)
		r.p("MOVQ n+0(FP), CX")
		r.p("VBROADCASTSS x+8(FP), %s", r.v(r.a))
		for i := range r.b {
			r.p("VXORPS %[1]s, %[1]s, %[1]s", strip{routine: r}.zero(i))
		}
		r.p("PCALIGN $32")
		r.label("loop")
		for i := range r.b {
			r.p("%s", strip{routine: r}.multiplyAdd(r.a, r.a, i))
		}
		r.p("DECQ CX; JNZ loop")
		r.p("VZEROUPPER")
		r.p("RET")
	}
	return out.Bytes()
}
