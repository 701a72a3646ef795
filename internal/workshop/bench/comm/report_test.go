package comm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	var text strings.Builder
	var sessions []*session
	for _, c := range wanted([]string{"local", "gloo", "memcpy"}) {
		sessions = append(sessions, &session{candidate: c})
	}
	table := newTable(&text, sessions, true)
	table.title(2, "all-gather")
	table.row(cell{2, "all-gather", 4 << 10}, map[string][]float64{"local": {1.5e-6}, "gloo": {1e-4}})
	table.row(cell{2, "all-gather", 1 << 20}, map[string][]float64{"local": {1e-4}, "gloo": {1e-3}, "memcpy": {5e-5}})
	table.title(2, "flag")
	table.row(cell{2, "flag", 4}, map[string][]float64{"local": {1e-6}})
	table.verdicts(2, []verdict{
		{2, "flag", "local", "Gloo", 4, 6, 5, 1}, {2, "all-gather", "gloo", "Gloo", 1, 1, 1, 2}, {2, "barrier", "local", "Gloo", 3, 2, 0, 1},
	})
	require.Equal(t, `
all-gather, world 2  [GB/s of the full tensor; us below 64K]
            local      gloo*     memcpy
4K           1.50     100.00          -
1M          10.49       1.05      20.97

flag, world 2  [us]
            local      gloo*
4B           1.00          -

times as fast as, world 2  [geometric mean over sizes of their time / our time: of medians, of best rounds]
local       Gloo                     flag               4.00    6.00   target 5.00  miss
gloo*       Gloo                     all-gather         1.00    1.00   target 1.00  PASS
local       Gloo                     barrier            3.00    2.00                
1 of 2 targets met
`, text.String())
}

func TestRecord(t *testing.T) {
	r := newRecord(options{rounds: 2})
	r.add(cell{2, "flag", 4}, map[string][]float64{"local": {1, 2}})
	r.Verdicts = append(r.Verdicts, verdict{2, "flag", "local", "Gloo", 4, 6, 5, 1})
	path := filepath.Join(t.TempDir(), "out.json")
	require.NoError(t, r.write(path))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var again record
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, *r, again)
	require.Contains(t, string(text), `"op": "flag"`)
}
