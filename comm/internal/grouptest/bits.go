package grouptest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// SameBits runs one collective on both groups and compares the bits.
func SameBits(t testing.TB, gs, local []transport.Group, kind transport.Kind, d transport.DType, op transport.Op, elements int) {
	t.Helper()
	n := len(gs)
	run := func(g transport.Group) ([]byte, error) {
		rng := rand.New(rand.NewPCG(uint64(g.Rank()), 7))
		buffer := func(elements int) transport.Buffer {
			b := transport.HostMemory(unsafe.Pointer(&make([]byte, elements*d.Size()+8)[0]), elements, d)
			for i := range b.Len() {
				x := float32(rng.NormFloat64() * 1e3)
				switch d {
				case transport.Float32:
					transport.View[float32](b)[i] = x
				case transport.Float64:
					transport.View[float64](b)[i] = rng.NormFloat64()
				case transport.BFloat16:
					transport.Narrow(transport.View[transport.BF16](b)[i:i+1], []float32{x})
				case transport.Float16:
					transport.Narrow(transport.View[transport.F16](b)[i:i+1], []float32{x})
				default:
					b.Bytes()[i*d.Size()] = byte(i * (g.Rank() + 3))
				}
			}
			return b
		}
		out, ctx := buffer(elements), context.Background()
		switch kind {
		case transport.KindAllGather:
			return out.Bytes(), g.AllGather(out, buffer(elements/n)).Wait(ctx)
		case transport.KindReduceScatter:
			dst := buffer(elements / n)
			return dst.Bytes(), g.ReduceScatter(dst, out, op).Wait(ctx)
		case transport.KindAllReduce:
			return out.Bytes(), g.AllReduce(out, op).Wait(ctx)
		default:
			return out.Bytes(), g.Broadcast(out, n/2).Wait(ctx)
		}
	}
	results, errs := make([][]byte, 2*n), make([]error, 2*n)
	var ranks sync.WaitGroup
	for i, g := range slices.Concat(gs, local) {
		ranks.Go(func() { results[i], errs[i] = run(g) })
	}
	ranks.Wait()
	require.NoError(t, errors.Join(errs...))
	for r := range gs {
		require.True(t, bytes.Equal(results[n+r], results[r]), "%v %v %v of %d elements on rank %d of %d", kind, d, op, elements, r, n)
	}
}
