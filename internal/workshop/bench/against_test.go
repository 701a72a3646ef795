package main

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCompare checks the order of the rounds, the rows and what is beyond the limit.
func TestCompare(t *testing.T) {
	var asked []string
	asks := func(who string, answers map[string]string) asker {
		return func(line string) (string, error) {
			if line != "list" {
				asked = append(asked, who)
			}
			if answers[line] == "" {
				return "", errors.New("broken")
			}
			return answers[line], nil
		}
	}
	base := asks("b", map[string]string{"fast": "0.5", "slow": "0.5", "same": "0.5"})
	work := asks("w", map[string]string{"list": "fast\tslow\tsame\tbad", "fast": "0.25", "slow": "1", "same": "0.49"})
	var out strings.Builder
	require.NoError(t, compare(&out, base, work, 2, regexp.MustCompile("fast|slow|same")))
	require.Equal(t, strings.Repeat("bw"+"wb"+"bw", 3), strings.Join(asked, ""), "a round that does not count, then two")
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, rows, 4)
	require.Regexp(t, `^fast +500.000 +250.000 +2.000x  beyond 3 %$`, rows[0])
	require.Regexp(t, `^  slow +500.000 +1000.000 +0.500x  beyond 3 %$`, rows[1])
	require.Regexp(t, `^  same +500.000 +490.000 +1.020x$`, rows[2])
	require.Equal(t, "2 beyond 3 %", rows[3])
	require.ErrorContains(t, compare(&out, base, work, 1, regexp.MustCompile("bad")), "broken")
}

func TestRunRefuses(t *testing.T) {
	require.ErrorContains(t, run(new(strings.Builder), nil), "want one of")
	require.ErrorContains(t, run(new(strings.Builder), []string{"x"}), `unknown subcommand "x"`)
	require.ErrorContains(t, run(new(strings.Builder), []string{"against"}), "want -base")
	require.ErrorContains(t, run(new(strings.Builder), []string{"against", "-base", "HEAD", "-rounds", "0"}), "at least one round")
}
