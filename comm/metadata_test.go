package comm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
)

// everyRank calls f as every rank of a new group of n and returns the errors by rank.
func everyRank(n int, f func(g comm.Group) error) []error {
	errs := make([]error, n)
	var ranks sync.WaitGroup
	for r, g := range comm.Local(n) {
		ranks.Go(func() { errs[r] = f(g) })
	}
	ranks.Wait()
	return errs
}

func worlds(t *testing.T, f func(t *rapid.T, n int)) {
	for _, n := range []int{1, 2, 3, 4, 5, 8} {
		t.Run(fmt.Sprintf("n=%d", n), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { f(t, n) })
		})
	}
}

func drawParts(t *rapid.T, n int) [][]byte {
	return rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 40), n, n).Draw(t, "parts")
}

func TestGatherBytes(t *testing.T) {
	worlds(t, func(t *rapid.T, n int) {
		parts := drawParts(t, n)
		require.NoError(t, errors.Join(everyRank(n, func(g comm.Group) error {
			got, err := comm.GatherBytes(context.Background(), g, parts[g.Rank()])
			if err == nil && !slices.EqualFunc(got, parts, slices.Equal) {
				err = fmt.Errorf("rank %d got %q", g.Rank(), got)
			}
			if err == nil {
				_ = append(got[0], "more"...) // must not reach what comes after
				if n > 1 && !slices.Equal(got[1], parts[1]) {
					err = errors.New("results share room")
				}
			}
			return err
		})...))
	})
}

func TestAllGatherV(t *testing.T) {
	worlds(t, func(t *rapid.T, n int) {
		counts := rapid.SliceOfN(rapid.IntRange(0, 50), n, n).Draw(t, "counts")
		var want []comm.F16
		for r, count := range counts {
			for i := range count {
				want = append(want, comm.F16(100*(r+1)+i))
			}
		}
		require.NoError(t, errors.Join(everyRank(n, func(g comm.Group) error {
			got, at := make([]comm.F16, len(want)), 0
			for _, count := range counts[:g.Rank()] {
				at += count
			}
			copy(got[at:at+counts[g.Rank()]], want[at:])
			w := comm.AllGatherV(g, comm.Of(got).Named("uneven"), counts)
			for range 2 { // the second answer is the first
				if err := w.Wait(context.Background()); err != nil {
					return err
				}
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("rank %d got %v, want %v", g.Rank(), got, want)
			}
			return nil
		})...))
	})
}

// Bad counts on one rank fail the group, and all ranks learn from whom and why.
func TestAllGatherVInvalid(t *testing.T) {
	ten := comm.Of(make([]int32, 10)).Named("h.3")
	for name, c := range map[string]struct {
		dst    comm.Buffer
		counts []int
		why    string
	}{
		"too few":   {ten, []int{10, 0}, "2 counts for 3 ranks, want one per rank"},
		"too many":  {ten, []int{10, 0, 0, 0}, "4 counts for 3 ranks, want one per rank"},
		"negative":  {ten, []int{5, -1, 6}, "count -1 of rank 1 is negative or more than the remaining 5 elements"},
		"too large": {ten, []int{5, 5, 1}, "count 1 of rank 2 is negative or more than the remaining 0 elements"},
		"overflow":  {ten, []int{1<<31 - 1, 1<<31 - 1, 12}, "count 2147483647 of rank 0 is negative or more than the remaining 10 elements"},
		"too small": {ten, []int{5, 3, 1}, "the buffer has 10 elements, the counts add up to 9"},
		"no type":   {comm.Buffer{}, []int{0, 0, 0}, "the buffer has no element type (zero Buffer, or Slice out of range)"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range everyRank(3, func(g comm.Group) error {
				dst, counts := comm.Of(make([]int32, 10)).Named("h.3"), []int{4, 3, 3}
				if g.Rank() == 1 {
					dst, counts = c.dst, c.counts
				}
				if err := comm.AllGatherV(g, dst, counts).Wait(context.Background()); err == nil {
					return nil
				}
				return g.Barrier(context.Background()) // the group has failed for good
			}) {
				require.ErrorIs(t, err, comm.ErrInvalid)
				require.EqualError(t, err, fmt.Sprintf(`comm: rank 1 of group "world": invalid call: all-gather %v with counts %v: %s`, c.dst, c.counts, c.why))
			}
		})
	}
}

// Ranks whose counts differ meet in a mismatch, even if those of one begin with
// those of the other.
func TestAllGatherVMismatch(t *testing.T) {
	for _, odd := range [][]int{{3, 0, 2}, {3, 2, 0}, {2, 1, 0}, {0, 0, 3}, {0, 0, 0}} {
		for _, err := range everyRank(3, func(g comm.Group) error {
			counts := []int{3, 0, 0}
			if g.Rank() == 1 {
				counts = odd
			}
			x := make([]float64, counts[0]+counts[1]+counts[2])
			return comm.AllGatherV(g, comm.Of(x), counts).Wait(context.Background())
		}) {
			var mismatch *comm.MismatchError
			require.ErrorAs(t, err, &mismatch, "%v", odd)
		}
	}
}

// failing is a group whose broadcasts fail, each with its root in the error.
type failing struct {
	comm.Group
	waited *[]int // for the broadcast of which root
}

type failingWork struct {
	failing
	root int
}

func (f failing) Broadcast(_ comm.Buffer, root int) comm.Work { return failingWork{f, root} }

func (w failingWork) Wait(context.Context) error {
	*w.waited = append(*w.waited, w.root)
	return fmt.Errorf("broadcast from %d", w.root)
}

// After a failure the buffer is still in use by the broadcasts that follow.
func TestAllGatherVWaitsForAll(t *testing.T) {
	var waited []int
	g := failing{comm.Local(4)[0], &waited}
	w := comm.AllGatherV(g, comm.Of(make([]byte, 6)), []int{1, 0, 2, 3})
	require.EqualError(t, w.Wait(context.Background()), "broadcast from 0")
	require.Equal(t, []int{0, 2, 3}, waited)
}

// A failure of the group reaches the metadata collectives.
func TestMetadataFails(t *testing.T) {
	ctx, cause := context.Background(), errors.New("no more")
	for name, f := range map[string]func(g comm.Group) error{
		"gather": func(g comm.Group) error { _, err := comm.GatherBytes(ctx, g, []byte("x")); return err },
		"gather v": func(g comm.Group) error {
			return comm.AllGatherV(g, comm.Of(make([]byte, 3)), []int{1, 1, 1}).Wait(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range everyRank(3, func(g comm.Group) error {
				if g.Rank() == 2 {
					g.Abort(cause)
					return cause
				}
				return f(g)
			}) {
				require.ErrorIs(t, err, cause)
			}
		})
	}
}

// Every rank tells all others its name, of any length.
func ExampleGatherBytes() {
	err := comm.Run(context.Background(), 3, func(ctx context.Context, g comm.Group) error {
		host := []string{"a", "long-host", ""}[g.Rank()]
		hosts, err := comm.GatherBytes(ctx, g, []byte(host))
		if g.Rank() == 0 {
			fmt.Printf("%q\n", hosts)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// ["a" "long-host" ""]
	// <nil>
}

// Seven rows over three ranks, as bfloat16: the last rank has fewer.
func ExampleAllGatherV() {
	counts := []int{3, 3, 1}
	err := comm.Run(context.Background(), 3, func(ctx context.Context, g comm.Group) error {
		rows := make([]comm.BF16, 7)
		mine := rows[3*g.Rank():][:counts[g.Rank()]]
		for i := range mine {
			comm.Narrow(mine[i:], []float32{float32(g.Rank()) + float32(i)/10})
		}
		if err := comm.AllGatherV(g, comm.Of(rows).Named("rows"), counts).Wait(ctx); err != nil {
			return err
		}
		if g.Rank() == 2 {
			fmt.Println(rows)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [0 0.100097656 0.20019531 1 1.1015625 1.203125 2]
	// <nil>
}
