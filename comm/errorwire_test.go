package comm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestErrorsTravel checks what is left of an error on another rank: its type, its text, and the sentinels it wraps.
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
