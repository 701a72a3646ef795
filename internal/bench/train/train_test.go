package train

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/text"
)

// TestBench runs a short round of everything on the smallest size.
func TestBench(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(&out, []string{"tiny"}, 1, 0, true, 1000))
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, rows, 10+2*5)
	for i, name := range []string{"1 rank(s)", "2 rank(s)", "Gorgonia TapeMachine"} {
		require.Regexp(t, `^  `+strings.NewReplacer("(", `\(`, ")", `\)`).Replace(name)+` +\d+ +[\d.]+ \([\d.]+\.\.[\d.]+, 1\) +\d+ +[\d.]+ +[\d.]+x$`, rows[2+i])
	}
	for _, table := range [][]string{rows[5:10], rows[10:15]} {
		for i, name := range []string{`NoShard \(DDP\)`, "FullShard in one unit", "FullShard by blocks"} {
			require.Regexp(t, `^  `+name+` +[\d.]+ \([\d.]+\.\.[\d.]+, 1\) +[\d.]+ \([\d.]+\.\.[\d.]+\)$`, table[2+i])
		}
	}
	require.Contains(t, rows[10], "over a link of 1000 MB/s")
	for i, prefetch := range []string{"0", "1", "2"} {
		require.Regexp(t, `^  `+prefetch+`( +[\d.]+){6} +-?\d+%$`, rows[17+i])
	}
}

// TestMemory prints the table, which fails where the plan and the counts differ, and compares its
// first rows on a model of which most is parameters.
func TestMemory(t *testing.T) {
	var out strings.Builder
	require.NoError(t, memory(&out, size{name: "test", layers: 4, dim: 32, heads: 2, context: 8, batch: 8, vocab: 32}))
	require.Empty(t, text.Wider(out.String(), 80))
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, rows, 3+4+1+4+4+2+1+4)
	counted := func(row string) (mb float64) {
		fields := strings.Fields(row)
		mb, err := strconv.ParseFloat(fields[len(fields)-2], 64)
		require.NoError(t, err)
		return mb
	}
	for i, name := range []string{`NoShard \(DDP\)`, "FullShard in one unit", "FullShard by blocks", "the same, frozen base"} {
		require.Regexp(t, `^  `+name+` +2( +[\d.]+){6}$`, rows[3+i])
		if i > 0 {
			require.Less(t, counted(rows[3+i]), counted(rows[2+i]))
		}
	}
	for _, row := range rows[8:] {
		require.Regexp(t, `(over|Shard).* \d+( +[\d.]+){6}$`, row)
	}
}

// TestJoin prints the table for a round.
func TestJoin(t *testing.T) {
	var out strings.Builder
	require.NoError(t, joining(&out, []string{"tiny"}, 1, 0))
	rows := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	require.Len(t, rows, 2+4+2)
	for i, mode := range []string{"plain loop", "Join, both have batches", "Join, rank 1 has none", "JoinCalls in Join"} {
		require.Regexp(t, `^  `+mode+` +[\d.]+ \([\d.]+\.\.[\d.]+, 1\) +[\d.]+% +[\d.]+ +[\d.]+%$`, rows[2+i])
	}
	require.Regexp(t, `^  an exchange of flags takes [\d.]+ µs, [\d.]+% of a step; JoinCalls without a call [\d.]+ µs, [\d.]+%$`, rows[7])
	require.Regexp(t, `^  JoinCalls in Join takes [\d.]+% of the time of Join alone$`, rows[6])
	require.ErrorContains(t, joining(&out, []string{"huge"}, 1, 0), `unknown size "huge"`)
}

func TestBenchRefusesBadFlags(t *testing.T) {
	require.ErrorContains(t, run(new(strings.Builder), []string{"tiny"}, 0, 0, false, 0), "0 rounds")
	require.ErrorContains(t, run(new(strings.Builder), []string{"huge"}, 1, 0, false, 0), `unknown size "huge"`)
}
