//go:build linux && cgo

package gpu_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/ops"
)

func TestRelativeBias(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		a := ops.Relative{Queries: extent(rt, "queries"), MaxDistance: rapid.IntRange(9, 50).Draw(rt, "distance")}
		a.Keys, a.Causal = a.Queries+extent(rt, "more keys")-1, rapid.Bool().Draw(rt, "causal")
		buckets, heads := 2*rapid.IntRange(2, 8).Draw(rt, "buckets"), extent(rt, "heads")
		table := u.node(buckets, heads)
		y, err := ops.RelativeBias(table, a)
		u.half = false // there is no kernel for it
		u.check(y, err, wide, u.value(wide, buckets, heads))
		u.check(gradient(u, y, 0, table), nil, wide, u.value(wide, heads, a.Queries, a.Keys))
	})
}
