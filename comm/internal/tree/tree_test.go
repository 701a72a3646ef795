package tree

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSubtrees(t *testing.T) {
	for _, c := range []struct{ hosts, want []Span }{
		{[]Span{{0, 4}, {4, 8}}, []Span{{0, 4}, {4, 8}}},
		{[]Span{{0, 3}, {3, 6}}, []Span{{0, 2}, {2, 3}, {3, 4}, {4, 6}}},
		{[]Span{{0, 5}, {5, 8}}, []Span{{0, 4}, {4, 5}, {5, 6}, {6, 8}}},
		{[]Span{{0, 4}, {4, 7}}, []Span{{0, 4}, {4, 7}}},
		{[]Span{{0, 1}, {1, 4}}, []Span{{0, 1}, {1, 2}, {2, 4}}},
	} {
		require.Equal(t, c.want, Subtrees(nil, Span{0, c.hosts[len(c.hosts)-1].Hi}, c.hosts))
	}
}
