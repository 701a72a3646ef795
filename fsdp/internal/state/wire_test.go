package state

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
)

// TestGather gathers bytes of any lengths.
func TestGather(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 40), 1, 5).Draw(t, "parts")
		require.NoError(t, comm.Run(context.Background(), len(parts), func(ctx context.Context, g comm.Group) error {
			all, err := gather(ctx, g, parts[g.Rank()], "parts")
			if err != nil {
				return err
			}
			if g.Rank() != 0 {
				if all != nil {
					return fmt.Errorf("rank %d has got %v", g.Rank(), all)
				}
				return nil
			}
			for r := range parts {
				if string(all[r]) != string(parts[r]) {
					return fmt.Errorf("%v, want %v", all, parts)
				}
			}
			return nil
		}))
	})
}

// manyRanks is one rank of a group that is too large to exist. It counts the bytes that this rank
// sends and receives, and receives zeros.
type manyRanks struct {
	comm.Group
	rank, size int
	bytes      int
}

func (m *manyRanks) Rank() int { return m.rank }
func (m *manyRanks) Size() int { return m.size }

func (m *manyRanks) count(b comm.Buffer) comm.Work {
	m.bytes += len(b.Bytes())
	return done{}
}

func (m *manyRanks) AllReduce(b comm.Buffer, _ comm.Op) comm.Work { return m.count(b) }
func (m *manyRanks) Broadcast(b comm.Buffer, _ int) comm.Work     { return m.count(b) }

func (m *manyRanks) Gather(dst, src comm.Buffer, _ []int, _ int) comm.Work {
	m.count(dst)
	return m.count(src)
}

type done struct{}

func (done) Wait(context.Context) error { return nil }

// TestManyRanks: of the inventories of 16,384 ranks, a rank sends its own and receives one. All of
// them went to every rank once.
func TestManyRanks(t *testing.T) {
	const world = 16384
	shapes := make([][]int, 26)
	for i := range shapes {
		shapes[i] = []int{4096, 1024}
	}
	g := &manyRanks{rank: world / 2, size: world}
	l := plainLayout(t, world, g.rank, shapes...)
	s := &Store{Layout: l, Memory: newMemory(l), Team: plainTeam{t, g}, Compute: comm.Float32}
	opt := adam(t, s)
	own, err := s.pieces(opt)
	require.NoError(t, err)
	require.Len(t, own, 3, "a part of a value, and of two entries")
	list := values(l)
	texts := newInventory(l, list, own, opt, true).encode()
	_, err = gather(t.Context(), g, texts, "inventory")
	require.NoError(t, err)
	require.Less(t, g.bytes, 200)
}
