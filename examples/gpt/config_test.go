package main

import (
	"bytes"
	"flag"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	lines "github.com/gofsdp/gofsdp/internal/text"
)

func TestParseDefaults(t *testing.T) {
	c, err := parse(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, 2, c.ranks)
	c, err = parse([]string{"-gpu"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, 1, c.ranks)
	require.Zero(t, c.steps)
	require.Equal(t, 2*time.Minute, c.budget)
}

func TestParse(t *testing.T) {
	c, err := parse([]string{"-size", "medium", "-layers", "3", "-steps", "10", "-data", "a", "-data", "b", "c"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, c.data)
	require.Equal(t, []int{3, 192, 6, 128}, []int{c.layers, c.dim, c.heads, c.context})
	require.Equal(t, 10, c.steps)
	require.Zero(t, c.budget, "-steps alone sets no limit of time")
}

func TestEverySizeIsValid(t *testing.T) {
	for name := range sizes {
		_, err := parse([]string{"-size", name}, io.Discard)
		require.NoError(t, err)
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-size", "huge"}, `-size "huge": want one of tiny, small, medium, large`},
		{[]string{"-dim", "30", "-heads", "4"}, "-dim 30 does not divide into -heads 4"},
		{[]string{"-layers", "-1"}, "-layers -1: want at least 1"},
		{[]string{"-heads", "-1"}, "-heads -1: want at least 1"},
		{[]string{"-context", "1"}, "-context 1: want at least 2"},
		{[]string{"-ranks", "-1"}, "-ranks -1: want at least 1"},
		{[]string{"-ranks", "4", "-batch", "3"}, "-batch 3: want at least a sequence for each of 4 ranks"},
		{[]string{"-ranks", "4", "-virtual", "3"}, "-virtual 3: want at least the 4 ranks"},
		{[]string{"-virtual", "32"}, "-batch 16: want at least a sequence for each of 32 ranks"},
		{[]string{"-dropout", "1"}, "-dropout 1: want a rate in [0, 1)"},
		{[]string{"-bits", "4"}, "-bits 4: want 8 or 16"},
		{[]string{"-masters16"}, "-masters16: want -bf16, too"},
		{[]string{"-lr", "NaN"}, "-lr NaN: want a rate in (0, 1)"},
		{[]string{"-warmup", "1"}, "-warmup 1: want a share in [0, 1)"},
		{[]string{"-time", "-1s"}, "-time -1s: want a positive duration"},
		{[]string{"-steps", "-1"}, "-steps -1: want at least 0"},
		{[]string{"-save-every", "-1"}, "-save-every -1: want at least 0"},
		{[]string{"-keep", "0"}, "-keep 0: want at least 1"},
		{[]string{"-resume"}, "-resume: want -save too"},
		{[]string{"-holdout", "1"}, "-holdout 1: want at least 2"},
		{[]string{"-interrupted", "256"}, "-interrupted 256: want an exit status in [0, 255]"},
		{[]string{"-prompt", ""}, `-prompt "": want at least a letter`},
		{[]string{"-tokenizer", "no/such"}, "-tokenizer no/such: tokenizer: no/such: open no/such/tokenizer.json: "},
		{[]string{"-tokenizer", "../../fsdp/nn/hf/tokenizer/testdata/bert"}, "no token ends a text: want eos_token in tokenizer_config.json of ../../fsdp/nn/hf/tokenizer/testdata/bert"},
		{[]string{"-temperature", "-1"}, "-temperature -1: want a number in [0, 100]"},
		{[]string{"-export", "no/such/directory/file"}, "-export no/such/directory/file: "},
		{[]string{"-steps", "x"}, "invalid value"},
		{[]string{"-nonsense"}, "not defined"},
	} {
		_, err := parse(c.args, io.Discard)
		require.ErrorIs(t, err, errUsage, "%v", c.args)
		require.ErrorContains(t, err, c.want)
	}
	_, err := parse([]string{"-ranks", "-1", "-lr", "2"}, io.Discard)
	require.ErrorContains(t, err, "-ranks")
	require.ErrorContains(t, err, "-lr", "all mistakes are named at once")
}

func TestHelp(t *testing.T) {
	var b bytes.Buffer
	_, err := parse([]string{"-h"}, &b)
	require.ErrorIs(t, err, flag.ErrHelp)
	require.Contains(t, b.String(), "-sample-bytes")
	require.Empty(t, lines.Wider(b.String(), 80))
}

func TestSchedule(t *testing.T) {
	for _, c := range []config{{steps: 1000, lr: 1, warmup: 0.1}, {budget: time.Minute, lr: 1, warmup: 0.1}} {
		lr := c.rate
		require.Positive(t, lr(0))
		require.InDelta(t, 0.5, lr(0.05), 0.01)
		require.InDelta(t, 1, lr(0.1), 1e-9)
		require.InDelta(t, 0.55, lr(0.55), 0.01)
		require.InDelta(t, 0.1, lr(1), 1e-9)
	}
}
