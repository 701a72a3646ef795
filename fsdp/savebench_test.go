package fsdp_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// BenchmarkSaveStall compares how long SaveAsync keeps a training waiting with a copy of as many
// bytes, and with Save. Each time is the sum of runs in turn.
func BenchmarkSaveStall(b *testing.B) {
	m := wrap(b, &nn.GPT{Vocab: 1000, Context: 8, Layers: 6, Dim: 256, Heads: 4}, fsdp.Config{Group: comm.Local(1)[0]})
	defer m.Close()
	opt, err := optim.AdamW{}.New(m.Shards())
	require.NoError(b, err)
	dir := b.TempDir()
	save := func() (v *fsdp.Saving) {
		v, err := m.SaveAsync(b.Context(), dir, opt, fsdp.KeepLast(1))
		require.NoError(b, err)
		require.NoError(b, v.Wait(b.Context()))
		return v
	}
	_, bytes := save().Progress() // which makes the snapshot's memory
	from, to := make([]byte, bytes), make([]byte, bytes)
	for i := range from {
		from[i], to[i] = byte(i), 1 // pages of their own
	}
	var stalled, copied, saved time.Duration
	for b.Loop() {
		stalled += save().Stalled()
		begin := time.Now()
		copy(to, from)
		copied += time.Since(begin)
		begin = time.Now()
		require.NoError(b, m.Save(b.Context(), dir, opt, fsdp.KeepLast(1)))
		saved += time.Since(begin)
	}
	b.SetBytes(bytes)
	b.ReportMetric(float64(stalled)/float64(copied), "stall/copy")
	b.ReportMetric(float64(saved)/float64(stalled), "save/stall")
}
