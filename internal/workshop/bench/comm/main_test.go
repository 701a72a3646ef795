package comm

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain lets the tests start this program as ranks.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == RankCommand {
		if err := Serve(os.Args[2:]); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func TestParseOptions(t *testing.T) {
	o, err := parseOptions(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, options{worlds: []int{2, 4}, ops: operations, max: 64 << 20, rounds: 7}, o)

	o, err = parseOptions([]string{"-worlds", "3", "-ops", "flag,broadcast", "-max", "256K", "-rounds", "2", "-candidates", "local,gloo", "-json", "x"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, options{[]int{3}, []string{"flag", "broadcast"}, 256 << 10, 2, []string{"local", "gloo"}, "x"}, o)

	for _, args := range [][]string{
		{"-worlds", "1"}, {"-worlds", "2,"}, {"-worlds", "65"}, {"-ops", "scatter"}, {"-ops", ""}, {"-max", "1K"}, {"-max", "2048M"},
		{"-max", "M"}, {"-rounds", "0"}, {"-candidates", "nccl"}, {"extra"}, {"-unknown"},
	} {
		_, err := parseOptions(args, io.Discard)
		require.Error(t, err, args)
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int{"4K": 4 << 10, "4096": 4096, "64M": 64 << 20, "1024M": 1 << 30} {
		n, err := parseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, n)
	}
}
