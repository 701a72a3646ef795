//go:build linux && cgo

package gpu

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/optim"
	optimvec "github.com/gofsdp/gofsdp/optim/vec"
)

// TestCopies applies random operations to a shard that has a copy. At the beginning of each pass
// the copy is the rounded shard. If all of the operations are updates or reads, no kernel rounds.
func TestCopies(t *testing.T) {
	cuda := double(t)
	devices := []*Device{open(t, Options{}), open(t, Options{Offload: true})}
	for _, checks := range []gpudouble.Check{gpudouble.Races | gpudouble.Unset, gpudouble.Reverse} {
		cuda.Checks(t, checks)
		rapid.Check(t, func(rt *rapid.T) {
			d := rapid.SampledFrom(devices).Draw(rt, "device")
			l := flat(rt, rapid.SampledFrom([]int{1, 7, 300, alone + 9}).Draw(rt, "elements"), 1, 0)
			l.Read, l.Gather, l.Copied = comm.BFloat16, comm.BFloat16, true
			g, n := local(t, rt, d, l), l.Flat.ShardLen()
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
			m := newModel(rt, room(t, d), n, false, rng)
			require.NoError(rt, g.valueVec.Write(m.host[0]))
			m.vecs[0] = g.valueVec
			s := &shards{d: d, groups: []*group{g}}
			pass := func() (rounded int) {
				require.NoError(rt, d.launchUpdates())
				before := cuda.Calls("cuLaunchKernel")
				require.NoError(rt, s.refresh())
				rounded = cuda.Calls("cuLaunchKernel") - before
				shard, copied := make([]float32, n), make([]half.BFloat16, n)
				require.NoError(rt, g.valueVec.Read(optim.Host{F32: shard}))
				require.NoError(rt, d.download(exec.Bytes(copied), g.copied.Addr()))
				wide := make([]float32, n)
				half.Widen(wide, copied)
				equal(rt, narrowed(shard, comm.BFloat16, 1), wide)
				return rounded
			}
			require.Equal(rt, 1, pass(), "a new shard")
			require.Zero(rt, pass(), "nothing has changed")
			want := 0
			for _, what := range rapid.SliceOfN(rapid.SampledFrom([]string{
				"update", "update", "read", "norm", "follow", "write", "zero", "swap", "swapped", "place", "descend", "scale", "pass",
			}), 1, 12).Draw(rt, "operations") {
				from := rng.IntN(n)
				to := from + 1 + rng.IntN(n-from)
				v := g.valueVec.Slice(from, to).(vector)
				other := m.vecs[2].Slice(from, to).(vector)
				switch what {
				case "update":
					g, first, second := m.vecs[1].Slice(from, to), other, m.vecs[3].Slice(from, to)
					step := optimvec.AdamStep{LR: 0.1, Eps: 1, BiasCorrection1: 1, BiasCorrection2Sqrt: 1}
					state := rng.IntN(5)
					switch state {
					case 0:
						require.NoError(rt, v.Adam(g, first, second, step))
					case 1:
						require.NoError(rt, v.SGD(g, nil, optimvec.SGDStep{LR: 0.1}))
					case 2:
						require.NoError(rt, v.SGD(g, first, optimvec.SGDStep{LR: 0.1, Momentum: 0.5}))
					case 3:
						require.NoError(rt, v.Adam16(g, first, second, optimvec.Rounding{Key: 5}, step))
					case 4:
						require.NoError(rt, v.SGD16(g, first, optimvec.Rounding{Key: 5}, optimvec.SGDStep{LR: 0.1, Momentum: 0.5}))
					}
					continue
				case "read":
					require.NoError(rt, v.Read(optim.Host{F32: make([]float32, to-from)}))
					continue
				case "norm":
					_, err := d.MaxAbs([]optim.Vec{v})
					require.NoError(rt, err)
					continue
				case "follow": // an average of the values
					require.NoError(rt, other.SGD(v, nil, optimvec.SGDStep{LR: 0.1}))
					continue
				case "pass":
					require.Equal(rt, want, pass())
					want = 0
					continue
				case "write":
					require.NoError(rt, v.Write(optim.Host{F32: m.host[1].F32[from:to]}))
				case "zero":
					require.NoError(rt, v.Zero())
				case "swap":
					require.NoError(rt, v.Swap(other))
				case "swapped":
					require.NoError(rt, other.Swap(v))
				case "place": // the caller writes there
					at, w, err := nccl.Placed(v).Place()
					require.NoError(rt, err)
					if v.b.pinned == nil {
						require.NoError(rt, w.Set(at, 0x3F, 4*(to-from)))
					}
				case "descend":
					require.NoError(rt, v.Descend(other, 0.5, 0.1))
				case "scale":
					require.NoError(rt, d.Scale([]optim.Vec{v}, 0.5))
				}
				want = 1
			}
			require.Equal(rt, want, pass())
		})
	}
}
