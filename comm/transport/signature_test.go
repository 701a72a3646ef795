package transport

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/text"
)

// TestSignatureRoundTrip checks that what was put is what is parsed, and that equal
// encodings mean equal calls.
func TestSignatureRoundTrip(t *testing.T) {
	draw := rapid.Custom(func(t *rapid.T) Signature {
		s := Signature{
			Kind: Kind(rapid.IntRange(0, len(kindNames)-1).Draw(t, "kind")), Op: Op(rapid.IntRange(0, 3).Draw(t, "op")),
			DType: Float32, Root: rapid.IntRange(0, 9).Draw(t, "root"), Len: rapid.IntRange(0, math.MaxInt>>16).Draw(t, "len"),
			Label: rapid.StringMatching(`[a-zäµ.0-9]{0,60}`).Draw(t, "label"),
		}
		if s.Kind == KindGather {
			s.Counts = rapid.Uint64().Draw(t, "counts")
		}
		return s
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		if rapid.Bool().Draw(t, "alike") {
			b = a
			b.Label += rapid.StringMatching(`[ab]?`).Draw(t, "more")
			if b.Kind == KindGather {
				b.Counts += rapid.Uint64Range(0, 1).Draw(t, "other counts")
			}
		}
		var x, y [SignatureSize]byte
		a.Put(x[:])
		b.Put(y[:])
		require.Equal(t, a == b, x == y)
		back, err := ParseSignature(x[:])
		require.NoError(t, err)
		if len(a.Label) > maxLabel {
			cut, ok := strings.CutSuffix(back.Label, "…")
			require.True(t, ok)
			require.True(t, strings.HasPrefix(a.Label, cut))
			back.Label = a.Label
			if a.Kind == KindGather { // told apart, but together with the label
				back.Counts -= text.Hash(a.Label)
			}
		}
		require.Equal(t, a, back)
	})
}

func TestSignatureDoesNotAllocate(t *testing.T) {
	c := Call{Kind: KindBroadcast, Dst: Of(make([]float32, 3)).Named(strings.Repeat("x", 100))}
	var b [SignatureSize]byte
	require.Zero(t, testing.AllocsPerRun(100, func() { c.Signature().Put(b[:]) }))
}

func FuzzParseSignature(f *testing.F) {
	var b [SignatureSize]byte
	Signature{Kind: KindReduceScatter, Op: Avg, DType: Float64, Len: 12, Label: "h.3"}.Put(b[:])
	f.Add(b[:])
	f.Add(make([]byte, SignatureSize))
	Signature{Kind: KindGather, DType: Float32, Root: 3, Len: 12, Counts: 1 << 60}.Put(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSignature(b)
		if err != nil {
			return
		}
		require.NotEmpty(t, s.String())
		if b[3] != cutLabel { // nothing is lost: it encodes to the same bytes
			var back [SignatureSize]byte
			s.Put(back[:])
			again, err := ParseSignature(back[:])
			require.NoError(t, err)
			require.Equal(t, s, again)
		}
	})
}
