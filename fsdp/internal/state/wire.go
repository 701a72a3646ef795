package state

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
)

// gather returns the bytes of every rank on rank 0, and nil on the others, which send their bytes
// and learn only the greatest length.
func gather(ctx context.Context, g comm.Group, mine []byte, label string) ([][]byte, error) {
	longest := []int64{int64(len(mine))}
	if err := g.AllReduce(comm.Of(longest).Named(label), comm.Max).Wait(ctx); err != nil {
		return nil, err
	}
	const head = 8 // bytes of the length
	size := head + int(longest[0])
	own := binary.LittleEndian.AppendUint64(make([]byte, 0, size), uint64(len(mine)))
	own = append(own, mine...)[:size]
	counts := make([]int, g.Size())
	for r := range counts {
		counts[r] = size
	}
	var all []byte
	if g.Rank() == 0 {
		all = make([]byte, size*g.Size())
	}
	if err := g.Gather(comm.Of(all).Named(label), comm.Of(own).Named(label), counts, 0).Wait(ctx); err != nil {
		return nil, err
	}
	if g.Rank() != 0 {
		return nil, nil
	}
	list := make([][]byte, g.Size())
	for r := range list {
		b := all[r*size:][:size:size]
		n := binary.LittleEndian.Uint64(b)
		if n > uint64(size-head) {
			return nil, fmt.Errorf("rank %d reports %s of %d bytes, at most %d are allowed", r, label, n, size-head)
		}
		list[r] = b[head:][:n:n]
	}
	return list, nil
}
