//go:build !purego

package scores

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/gofsdp/gofsdp/internal/half"
)

var fast = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BF16

func softmax(p []half.BFloat16, ldp int, s []float32, lds, cols int, spans []Span, stats *[MostRows][2]float32) {
	if !fast || len(spans) == 0 || cols == 0 {
		softmaxPortable(p, ldp, s, lds, cols, spans, stats)
		return
	}
	softmaxAVX512(unsafe.SliceData(p), unsafe.SliceData(s), ldp, lds, cols, len(spans), unsafe.SliceData(spans), stats)
}

func slopes(p, ds []half.BFloat16, ld int, s, dp []float32, lds, cols int, spans []Span, lse, delta []float32) {
	if !fast || len(spans) == 0 || cols == 0 {
		slopesPortable(p, ds, ld, s, dp, lds, cols, spans, lse, delta)
		return
	}
	slopesAVX512(unsafe.SliceData(p), unsafe.SliceData(ds), unsafe.SliceData(s), unsafe.SliceData(dp), ld, lds, cols, len(spans),
		unsafe.SliceData(spans), unsafe.SliceData(lse), unsafe.SliceData(delta))
}

//go:noescape
func softmaxAVX512(p *half.BFloat16, s *float32, ldp, lds, cols, rows int, spans *Span, stats *[MostRows][2]float32)

//go:noescape
func slopesAVX512(p, ds *half.BFloat16, s, dp *float32, ld, lds, cols, rows int, spans *Span, lse, delta *float32)
