package text

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	names := []string{"text", "answer", "weight", "tx"}
	for word, want := range map[string]string{"anwser": "answer", "answers": "answer", "wieght": "weight", "txt": "text", "zebra": "", "prompt": "", "te": "", "": ""} {
		require.Equal(t, want, Nearest(word, names), word)
	}
}

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"abc", "", 3}, {"", "abc", 3}, {"abc", "abd", 1}, {"abc", "acb", 1}, {"abcd", "bacd", 1}, {"ca", "abc", 3}, {"kitten", "sitting", 3},
	} {
		require.Equal(t, c.want, edits(c.a, c.b), "%q and %q", c.a, c.b)
	}
}
