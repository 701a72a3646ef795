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

// TestFill checks that lines are no longer than they may be, as long as they could be, and have all
// words.
func TestFill(t *testing.T) {
	require.Equal(t, "a bb\n  c d\n  é é", Fill("a bb  c d é é", 5, "  "))
	require.Equal(t, "longer than 5", Fill("longer than 5", 5, "  "))
	require.Equal(t, "\xff\xff\xff\n\xff\xff", Fill("\xff\xff\xff \xff\xff", 4, ""), "a path may have any bytes")
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOf(rapid.StringMatching(`[aé]{1,10}`)).Draw(t, "words")
		columns, indent := rapid.IntRange(12, 30).Draw(t, "columns"), strings.Repeat(" ", rapid.IntRange(0, 2).Draw(t, "indent"))
		filled := Fill(strings.Join(words, " "), columns, indent)
		require.Empty(t, Wider(filled, columns))
		require.Equal(t, words, append([]string{}, strings.Fields(filled)...))
		lines := strings.Split(filled, "\n")
		for i, line := range lines[1:] {
			first, _, _ := strings.Cut(strings.TrimPrefix(line, indent), " ")
			require.NotEmpty(t, Wider(lines[i]+" "+first, columns))
		}
	})
}

func TestWider(t *testing.T) {
	require.Empty(t, Wider("", 0))
	require.Equal(t, []string{"\té\n", "1234567890"}, Wider("éééééééé\n\té\n\t\n1234567890", 8))
	require.Equal(t, []string{"12345678\t\n"}, Wider("12345678\t\n1\t\n", 8))
}

func TestNumbered(t *testing.T) {
	require.Equal(t, "ranks 0-2,5,7-8", Numbered("rank", []int{0, 1, 2, 5, 7, 8}))
	require.Equal(t, "rank 3", Numbered("rank", []int{3}))
}
