package transport

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/mesh"
)

// TestMismatchText names each difference once.
func TestMismatchText(t *testing.T) {
	for want, calls := range map[string][2]string{
		`, all-gather float64[16]: rank 0 gave "monitor: loss0", rank 1 gave "monitor: loss1"`:                                                     {`all-gather float64[16] "monitor: loss0"`, `all-gather float64[16] "monitor: loss1"`},
		`: rank 0 calls all-gather float64[16] "a", rank 1 calls all-gather float64[24] "b": all ranks must make the same calls in the same order`: {`all-gather float64[16] "a"`, `all-gather float64[24] "b"`},
		`: rank 0 calls all-gather float64[16] "a", rank 1 calls all-gather float64[16]: all ranks must make the same calls in the same order`:     {`all-gather float64[16] "a"`, `all-gather float64[16]`},
		`: rank 0 calls barrier, rank 1 calls split: all ranks must make the same calls in the same order`:                                         {"barrier", "split"},
	} {
		require.EqualError(t, &MismatchError{"world", 4, [2]int{0, 1}, calls}, `comm: collective #4 of group "world"`+want)
	}
}

// TestErrorsTravel checks what is left of an error on another rank: its type, its text,
// and the sentinels it wraps.
func TestErrorsTravel(t *testing.T) {
	travel := func(err error) error {
		got, derr := UnmarshalError(MarshalError("world/1", 2, err))
		require.NoError(t, derr)
		require.NotNil(t, got)
		return got
	}
	mismatch := &MismatchError{"world", 7, [2]int{0, 3}, [2]string{"barrier", "split"}}
	require.Equal(t, error(mismatch), travel(fmt.Errorf("wrapped: %w", mismatch)))
	for _, s := range sentinels {
		cause := fmt.Errorf("while idle: %w", s.err)
		got := travel(&RankError{"g", 4, cause})
		require.EqualError(t, got, (&RankError{"g", 4, cause}).Error())
		for _, other := range sentinels {
			require.Equal(t, other.err == s.err, errors.Is(got, other.err), "%s is %s", s.name, other.name)
		}
	}
	var blame *RankError
	require.ErrorAs(t, travel(context.Canceled), &blame)
	require.Equal(t, "world/1", blame.Group)
	require.Equal(t, 2, blame.Rank)
	long := travel(errors.New(strings.Repeat("x", 1<<20)))
	require.Less(t, len(long.Error()), 2*maxErrorText)
}

func FuzzUnmarshalError(f *testing.F) {
	f.Add(MarshalError("world", 1, ErrTimeout))
	f.Add(MarshalError("world", 1, &MismatchError{Calls: [2]string{"a", "b"}}))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if failure, err := UnmarshalError(b); err == nil {
			require.NotEmpty(t, failure.Error())
		}
	})
}

// TestErrorsKeepTheirOrigin marshals errors that are wrapped in one another: who
// failed the group counts, not why.
func TestErrorsKeepTheirOrigin(t *testing.T) {
	elsewhere := &MismatchError{"world/1", 7, [2]int{0, 3}, [2]string{"barrier", "split"}}
	for _, err := range []*RankError{
		{"world", 2, elsewhere},
		{"world", 2, fmt.Errorf("step 3: %w", &RankError{"world/1", 0, ErrLost})},
		{"world", 2, nil},
	} {
		got, derr := UnmarshalError(MarshalError("g", 9, fmt.Errorf("wrapped: %w", err)))
		require.NoError(t, derr)
		var blame *RankError
		require.ErrorAs(t, got, &blame)
		require.Equal(t, "world", blame.Group)
		require.Equal(t, 2, blame.Rank)
	}
}

// TestLongErrorsKeepTheirRunes cuts texts in the middle of a rune, which JSON would
// replace by another one.
func TestLongErrorsKeepTheirRunes(t *testing.T) {
	long := "x" + strings.Repeat("é", maxErrorText)
	for _, err := range []error{
		&RankError{long, 1, errors.New(long)}, &MismatchError{long, 1, [2]int{0, 1}, [2]string{long, long}},
	} {
		got, derr := UnmarshalError(MarshalError("g", 9, err))
		require.NoError(t, derr)
		require.False(t, strings.ContainsRune(got.Error(), utf8.RuneError))
		require.True(t, strings.Contains(got.Error(), long[:maxErrorName-1]))
	}
}

// controlHeader is how many bytes come before an error in a control message.
const controlHeader = 9

// FuzzMarshalError checks that any error fits a message, however it is escaped.
func FuzzMarshalError(f *testing.F) {
	f.Add("world", "h.3", 1)
	f.Add("<&\x00\xff", "\x00\u2028\xfe", 64<<10)
	f.Fuzz(func(t *testing.T, group, text string, times int) {
		text = strings.Repeat(text, min(max(times, 0), 1+maxErrorText/(len(text)+1)))
		for _, err := range []error{
			errors.New(text), &RankError{text, 1, errors.New(text)}, &MismatchError{text, 1, [2]int{}, [2]string{text, text}},
		} {
			b := MarshalError(group, 3, err)
			require.LessOrEqual(t, controlHeader+len(b), mesh.MaxMessage)
			_, derr := UnmarshalError(b)
			require.NoError(t, derr)
		}
	})
}
