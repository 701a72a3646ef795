package half

import "testing"

// BenchmarkSlices converts blocks that fit the innermost cache; bytes are those of the float32
// side.
func BenchmarkSlices(b *testing.B) {
	b.Run("bfloat16", benchmark[BFloat16])
	b.Run("float16", benchmark[Float16])
}

func benchmark[T Float](b *testing.B) {
	wide, x := make([]float32, 1024), make([]T, 1024)
	for i := range wide {
		wide[i] = float32(i-512) / 64
	}
	Narrow(x, wide)
	b.Run("widen", func(b *testing.B) {
		b.SetBytes(int64(4 * len(wide)))
		for b.Loop() {
			Widen(wide, x)
		}
	})
	b.Run("narrow", func(b *testing.B) {
		b.SetBytes(int64(4 * len(wide)))
		for b.Loop() {
			Narrow(x, wide)
		}
	})
	b.Run("narrow scaled", func(b *testing.B) {
		b.SetBytes(int64(4 * len(wide)))
		for b.Loop() {
			NarrowScaled(x, wide, 0.5)
		}
	})
}
