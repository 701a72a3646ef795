//go:build linux && cgo

package gpu_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/ops"
)

func TestEmbedding(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		n, rows, d := extent(rt, "n", 513, 700), extent(rt, "rows", 256, 257, 1<<16), extent(rt, "d", 16, 257)
		if n > 100 || rows > 1000 {
			d = min(d, 3)
		}
		table, index := u.node(rows, d), u.ints(n)
		y, err := ops.Embedding(table, index)
		i := u.index(n, rows)
		u.check(y, err, u.low(), u.value(u.low(), rows, d), i)
		u.check(gradient(u, y, 0, table, index), nil, wide, u.value(u.low(), n, d), i)
	})
}

func TestPositions(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		batch, n, rows, d := extent(rt, "batch"), extent(rt, "n"), rapid.IntRange(0, 3).Draw(rt, "unused rows"), extent(rt, "d", 257)
		x, table := u.node(batch, n, d), u.node(n+rows, d)
		y, err := ops.AddPositions(x, table)
		u.check(y, err, u.low(), u.value(u.low(), batch, n, d), u.value(u.low(), n+rows, d))
		u.check(gradient(u, y, 1, x, table), nil, wide, u.value(u.low(), batch, n, d))
	})
}
