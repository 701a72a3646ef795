package data

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// numbers is the source of its own numbers.
func numbers(n int) Source[int] { return Func(n, func(i int) (int, error) { return i, nil }) }

// all reads a source.
func all[T any](t require.TestingT, src Source[T]) (list []T) {
	for i := range src.Len() {
		sample, err := src.At(i)
		require.NoError(t, err)
		list = append(list, sample)
	}
	return list
}

// logged returns the log of the test, up to its end.
func logged(t *testing.T) *bytes.Buffer {
	log, before := new(bytes.Buffer), slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return log
}

// firstError reads sample 0 of a source, which must be an error.
func firstError[T any](t require.TestingT, src Source[T]) string {
	require.Equal(t, 1, src.Len())
	_, err := src.At(0)
	require.Error(t, err)
	return err.Error()
}

// TestSources compares random compositions with the same done to slices.
func TestSources(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Int(), 0, 20).Draw(t, "values")
		src := Of(want)
		for range rapid.IntRange(0, 5).Draw(t, "depth") {
			switch rapid.IntRange(0, 2).Draw(t, "composition") {
			case 0:
				src = Map(src, func(v int) (int, error) { return v + 1, nil })
				next := make([]int, len(want))
				for i, v := range want {
					next[i] = v + 1
				}
				want = next
			case 1:
				lo := rapid.IntRange(0, len(want)).Draw(t, "lo")
				hi := rapid.IntRange(lo, len(want)).Draw(t, "hi")
				src, want = Range(src, lo, hi), want[lo:hi]
			case 2:
				more := rapid.SliceOfN(rapid.Int(), 0, 5).Draw(t, "more")
				src = Concat(Of(more), src, Of([]int{}), Of(more))
				want = append(append(append([]int{}, more...), want...), more...)
			}
		}
		require.Equal(t, append([]int(nil), want...), all(t, src))
		for _, i := range []int{-1, len(want)} {
			_, err := src.At(i)
			require.ErrorContains(t, err, fmt.Sprintf("sample %d does not exist: ", i))
		}
	})
}

// TestConcatKeepsSources checks that the caller may change the slice of the sources.
func TestConcatKeepsSources(t *testing.T) {
	list := []Source[int]{numbers(2), numbers(3)}
	src := Concat(list...)
	list[1] = numbers(1)
	require.Equal(t, []int{0, 1, 0, 1, 2}, all(t, src))
}

// TestEndless composes sources without an end.
func TestEndless(t *testing.T) {
	src := Concat(numbers(3), Range(numbers(Endless), 5, Endless))
	require.Equal(t, Endless, src.Len())
	require.Equal(t, []int{0, 1, 2, 5, 6}, all(t, Range(src, 0, 5)))
}

// TestRefused checks that a bad argument is the only sample, however deep it lies.
func TestRefused(t *testing.T) {
	bad := Range(numbers(3), 2, 4)
	require.Equal(t, "data.Range(Func(3 samples), 2, 4): from 2 to 4 of 3 samples", firstError(t, bad))
	for _, src := range []Source[int]{
		Concat(numbers(1), bad), Range(bad, 5, 7), Map(bad, func(i int) (int, error) { return i, nil }),
	} {
		require.Equal(t, firstError(t, bad), firstError(t, src))
	}
	require.Equal(t, "data.Func(-1 samples): -1 samples", firstError(t, numbers(-1)))
	require.Equal(t, "data.Func(3 samples): the function is nil", firstError(t, Func[int](3, nil)))
	require.Equal(t, "data.Map(Func(3 samples)): the function is nil", firstError(t, Map[int, int](numbers(3), nil)))
	require.Equal(t, "data.Range(nil, 0, 1): the source is nil", firstError(t, Range[int](nil, 0, 1)))
	require.Equal(t, "data.Concat(nil, Func(samples without end), Func(1 samples)): source 0 is nil\nsource 2 comes after an endless one",
		firstError(t, Concat(nil, numbers(Endless), numbers(1))))
	require.ErrorContains(t, errors.New(firstError(t, Concat(numbers(Endless-1), numbers(1)))), "the number of samples overflows int")
}

// TestDescribe checks what sources say of themselves.
func TestDescribe(t *testing.T) {
	src := Map(Concat(Of([]string{"a", "b"}), Range(Of(make([]string, 9)), 1, 3)), func(s string) (int, error) { return len(s), nil })
	require.Equal(t, "Map(Concat(Of(2 × string), Range(Of(9 × string), 1, 3)))", describe(src))

	parts := make([]Source[int], 1000)
	for i := range parts {
		parts[i] = numbers(i)
	}
	long := describe(Concat(parts...))
	require.Less(t, len(long), longest)
	parts[999] = numbers(0)
	require.NotEqual(t, long, describe(Concat(parts...)))
	require.True(t, strings.HasPrefix(long, "Concat(Func(0 samples), "))
}
