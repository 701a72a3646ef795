package comm_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// TestWorldIsNotThere shows that a World answers every collective with an error.
func TestWorldIsNotThere(t *testing.T) {
	w := comm.World{Ranks: 5, Place: 3}
	require.Equal(t, [2]int{3, 5}, [2]int{w.Rank(), w.Size()})
	require.Equal(t, "rank 3 of a World of 5", w.String())
	b := comm.Of([]float32{1})
	for _, work := range []comm.Work{
		w.AllGather(b, b), w.ReduceScatter(b, b, comm.Sum), w.AllReduce(b, comm.Sum), w.Broadcast(b, 0), w.Gather(b, b, nil, 0),
	} {
		require.ErrorIs(t, work.Wait(context.Background()), comm.ErrWorld)
	}
	require.ErrorIs(t, w.Barrier(context.Background()), comm.ErrWorld)
	_, err := w.Split(context.Background(), 0, 0)
	require.ErrorIs(t, err, comm.ErrWorld)
	w.Abort(err)
	require.NoError(t, w.Close())
}
