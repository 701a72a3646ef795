package state

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/shard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shared is a tensor of all ranks, as lists have it: the value of a parameter if entry is "".
func shared(index int, param, entry string, shape ...int) Tensor {
	return Tensor{Key: checkpoint.Key{Param: param, Entry: entry, Owner: checkpoint.Shared}, Index: index, Shape: shape}
}

// plainLayout has parameters of these shapes, named a, b, c, …, cut over all ranks.
func plainLayout(t *testing.T, world, rank int, shapes ...[]int) *layout.Layout {
	return cutLayout(t, layout.All, world, rank, shapes...)
}

// cutLayout is plainLayout with another cut.
func cutLayout(t *testing.T, cut layout.Cut, world, rank int, shapes ...[]int) *layout.Layout {
	m := &layout.Model{Index: make(map[string]int)}
	u := layout.Unit{Name: "root", Cut: cut}
	for i, shape := range shapes {
		p := layout.Param{Param: shard.Param{Name: string(rune('a' + i)), Shape: shape}}
		m.Index[p.Name] = i
		m.Params, u.Members, u.Kinds = append(m.Params, p), append(u.Members, i), append(u.Kinds, layout.Kind{})
	}
	l, err := layout.New(m, []layout.Unit{u}, layout.Options{
		World: world, Rank: rank, Compute: comm.Float32, Store: comm.Float32, Read: comm.Float32, Gather: comm.Float32, Reduce: comm.Float32,
	})
	require.NoError(t, err)
	return l
}

// plainTeam is a Team of a group, in which nobody can fail.
type plainTeam struct {
	t *testing.T
	g comm.Group
}

func (p plainTeam) Group() comm.Group    { return p.g }
func (p plainTeam) Shard(int) comm.Group { return p.g }

func (p plainTeam) Agree(_ context.Context, _ uint64, err error) error { return err }

func (p plainTeam) Busy(ctx context.Context, _ ranks.Files, work func(context.Context) error) error {
	return work(ctx)
}

func (p plainTeam) Same(context.Context, string, string) error { return nil }

func (p plainTeam) Tell(ctx context.Context, root int, mine []byte) ([]byte, error) {
	n := []int64{int64(len(mine))}
	if err := p.g.Broadcast(comm.Of(n), root).Wait(ctx); err != nil {
		return nil, err
	}
	if p.g.Rank() != root {
		mine = make([]byte, n[0])
	}
	return mine, p.g.Broadcast(comm.Of(mine), root).Wait(ctx)
}

func (p plainTeam) Fail(err error) error {
	p.t.Error(err)
	return err
}
