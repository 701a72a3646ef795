package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	lines "github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun checks the timelines against the data of each rank.
func TestRun(t *testing.T) {
	for _, n := range []int{1, ranks} {
		var out bytes.Buffer
		require.NoError(t, comm.Run(t.Context(), n, func(ctx context.Context, g comm.Group) error {
			return run(ctx, g, true, 2, &out)
		}))
		text := out.String()
		require.Regexp(t, `epoch 1: \d+\.\d+ nats per letter in training, \d+\.\d+ in validation\n`, text)
		require.Empty(t, lines.Wider(text, 76), "80 with what fsdprun puts before a line")
		training, generation, _ := strings.Cut(text, "generation\n")
		for rank, with := range withBatch(t, training, n) {
			require.Equal(t, batches(limit-held, rank, n)+batches(held, n-1-rank, n), with, text)
		}
		for rank, with := range withBatch(t, generation, n) {
			require.Equal(t, strings.Contains(text, fmt.Sprintf("rank %d spells", rank)), with > 0, text)
			require.Equal(t, rank != 2, with > 0, text)
		}
	}
}

// withBatch returns in how many passes each of n ranks had a batch, and checks that all ran as
// many.
func withBatch(t *testing.T, text string, n int) []int {
	rows := regexp.MustCompile(`(?m)^  rank (\d) +(\d+)/(\d+) +[█░]+$`).FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, rows, text)
	require.Zero(t, len(rows)%n, text)
	with := make([]int, n)
	for i, row := range rows {
		require.Equal(t, i%n, number(t, row[1]), text)
		require.Equal(t, rows[0][3], row[3], "ranks run different numbers of passes:\n%s", text)
		with[i%n] = number(t, row[2])
	}
	return with
}

// batches is how many the share of a rank is.
func batches(n, rank, size int) int {
	return (len(share(make([]int, n), rank, size)) + rows - 1) / rows
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

// Without Join the ranks part where the first of them has run out of batches, and all are told.
func TestRunWithoutJoin(t *testing.T) {
	errs := make([]error, ranks)
	require.Error(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
		errs[g.Rank()] = run(ctx, g, false, 1, io.Discard)
		return errs[g.Rank()]
	}))
	for rank, err := range errs {
		require.ErrorContains(t, err, "ranks disagree", "rank %d", rank)
		require.ErrorContains(t, err, "rank 3 runs Eval")
	}
}

func TestShares(t *testing.T) {
	for n := 1; n < 9; n++ {
		var all []int
		for i := range n {
			all = append(all, share([]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, i, n)...)
		}
		require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, all)
	}
}

func TestSpell(t *testing.T) {
	for n, words := range map[int]string{0: "zero", 13: "thirteen", 40: "forty", 42: "forty two", 100: "one hundred", 373: "three hundred seventy three"} {
		require.Equal(t, words, spell(n))
	}
	for n := range limit {
		require.Less(t, len(spell(n)), length)
	}
}
