package text

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestCut checks that a cut takes no more bytes than it must.
func TestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, n := rapid.String().Draw(t, "text"), rapid.IntRange(0, 20).Draw(t, "bytes")
		cut := Cut(s, n)
		require.True(t, strings.HasPrefix(s, cut))
		require.True(t, utf8.ValidString(cut))
		require.LessOrEqual(t, len(cut), n)
		if len(s) <= n {
			require.Equal(t, s, cut)
		} else {
			_, next := utf8.DecodeRuneInString(s[len(cut):])
			require.Greater(t, len(cut)+next, n)
		}
	})
}

// TestCutKeepsOtherBytes: bytes that are no text lose no more than a rune would.
func TestCutKeepsOtherBytes(t *testing.T) {
	require.Equal(t, strings.Repeat("\x80", 6), Cut(strings.Repeat("\x80", 20), 10))
	require.Empty(t, Cut("\x80\x80", 1))
}
