package nn_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

func embedder() *nn.BERT {
	return &nn.BERT{Vocab: 7, Context: 3, Kinds: -1, Layers: 1, Dim: 4, Heads: 2, Hidden: 5, Task: nn.EmbedSequences, MeanPool: true, Normalize: true}
}

// pairs are rows of an anchor and a positive, of three tokens each.
func pairs(from, to int) (tokens, mask fsdp.Tensor) {
	var x, is []int
	for i := from; i < to; i++ {
		x = append(x, 1+i%6, 2, 3, 4, 1+i%6, 1+i/6)
		is = append(is, 1, 1, 1, 1, 1, i%2)
	}
	shape := []int{2 * (to - from), 3}
	return ints(shape, x...), ints(shape, is...)
}

// TestInfoNCEBits trains on the same rows with four virtual ranks, on one to four ranks: losses and
// gradients have the same bits.
func TestInfoNCEBits(t *testing.T) {
	var wantLoss float64
	var wantGrads map[string]*tensor.Dense
	for ranks := 1; ranks <= 4; ranks++ {
		require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
			s, err := fsdp.Wrap(embedder(), fsdp.Config{Group: g, VirtualRanks: 4, WrapPolicy: fsdp.WrapEach(), Seed: 1})
			if err != nil {
				return err
			}
			defer s.Close()
			var batches [][]fsdp.Tensor
			for v := g.Rank(); v < 4; v += ranks {
				rows := []int{0, 5, 6, 9, 11}[v:] // of the virtual rank
				tokens, mask := pairs(rows[0], rows[1])
				batches = append(batches, []fsdp.Tensor{tokens, mask})
			}
			loss, err := nn.InfoNCE{Symmetric: true}.ForwardBackward(ctx, s, batches...)
			if err != nil {
				return err
			}
			grads, err := s.FullGrads(ctx)
			if err != nil {
				return err
			}
			if ranks == 1 {
				wantLoss, wantGrads = loss, grads
			}
			require.Equal(t, math.Float64bits(wantLoss), math.Float64bits(loss))
			for name, grad := range grads {
				require.Equal(t, wantGrads[name].Data(), grad.Data(), name)
			}
			return nil
		}))
	}
}

// TestInfoNCEJoin trains in a Join whose ranks run out of batches at different times: the losses
// are those of one rank.
func TestInfoNCEJoin(t *testing.T) {
	steps := [][]int{{0, 5, 9}, {9, 10}, {10, 14}} // of ranks: where their rows begin and end
	var want []float64
	for _, ranks := range []int{1, 3} {
		var losses []float64
		require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
			s, err := fsdp.Wrap(embedder(), fsdp.Config{Group: g, Precision: fsdp.Precision{Compute: fsdp.Float64}, Seed: 1})
			if err != nil {
				return err
			}
			defer s.Close()
			var batches [][]fsdp.Tensor
			for _, rows := range steps {
				var batch []fsdp.Tensor
				switch {
				case ranks == 1:
					tokens, mask := pairs(rows[0], rows[len(rows)-1])
					batch = []fsdp.Tensor{tokens, mask}
				case g.Rank() < len(rows)-1:
					tokens, mask := pairs(rows[g.Rank()], rows[g.Rank()+1])
					batch = []fsdp.Tensor{tokens, mask}
				}
				batches = append(batches, batch)
			}
			if ranks > 1 && g.Rank() > 0 {
				batches = batches[:g.Rank()%2]
			}
			for batch, err := range s.Join(ctx, fsdp.Batches(batches...)) {
				if err != nil {
					return err
				}
				loss, err := nn.InfoNCE{}.ForwardBackward(ctx, s, batch)
				if err != nil {
					return err
				}
				norm, err := s.ClipGradNorm(ctx, 1)
				if err != nil {
					return err
				}
				s.ZeroGrad()
				if g.Rank() == 0 {
					losses = append(losses, loss, norm)
				}
			}
			return nil
		}))
		if want == nil {
			want = losses
		}
		require.Len(t, losses, 6)
		require.InDeltaSlice(t, want, losses, 1e-12)
	}
	require.InDelta(t, 0, want[2], 1e-12, "one row has no negatives")
}

// TestInfoNCEErrors checks that all ranks return the error of one of them, and settings that
// differ.
func TestInfoNCEErrors(t *testing.T) {
	tokens, mask := pairs(0, 2)
	good := []fsdp.Tensor{tokens, mask}
	odd := []fsdp.Tensor{ints([]int{3, 1}, 1, 2, 3), ints([]int{3, 1}, 1, 1, 1)}
	none := []fsdp.Tensor{tokens, ints([]int{4, 3}, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1)}
	for _, c := range []struct {
		loss  nn.InfoNCE // of rank 1
		batch []fsdp.Tensor
		want  string
	}{
		{nn.InfoNCE{}, odd, "nn: InfoNCE: rank 1: batch 0 has 3 texts, want a multiple of 2: the texts of a row follow each other in a batch"},
		{nn.InfoNCE{}, none, "nn: InfoNCE: rank 1: the vector of text 2 of batch 0 has length 0, want a positive number: the text has no tokens, or the training diverges"},
		{nn.InfoNCE{Texts: 1}, good, "nn: InfoNCE: rank 1: field Texts is 1, want at least 2: an anchor and its positive"},
		{nn.InfoNCE{Scale: -1}, good, "nn: InfoNCE: rank 1: field Scale is -1, want a positive number"},
		{nn.InfoNCE{Scale: 10, Symmetric: true}, good, "nn: InfoNCE: rank 1 has Texts 2, Scale 10 and Symmetric true, but rank 0 has 2, 20 and false: all ranks need the same settings"},
	} {
		require.NoError(t, comm.Run(t.Context(), 3, func(ctx context.Context, g comm.Group) error {
			s, err := fsdp.Wrap(embedder(), fsdp.Config{Group: g})
			if err != nil {
				return err
			}
			defer s.Close()
			loss, batch := nn.InfoNCE{}, good
			if g.Rank() == 1 {
				loss, batch = c.loss, c.batch
			}
			_, err = loss.ForwardBackward(ctx, s, batch)
			require.EqualError(t, err, c.want)
			return nil
		}))
	}
	s := wrap(t, embedder())
	_, err := nn.InfoNCE{}.Eval(t.Context(), s, nil)
	require.EqualError(t, err, "nn: InfoNCE: no rank has a text")
	_, err = nn.InfoNCE{}.Eval(t.Context(), wrap(t, bert()), good)
	require.ErrorContains(t, err, `nn: InfoNCE: vectors of Task EmbedSequences: fsdp: rank 0: Eval: the model has no program "embed"`)
	dropout, packed := embedder(), embedder()
	dropout.Dropout, packed.Packed = 0.1, true
	_, err = fsdp.Wrap(dropout, fsdp.Config{})
	require.ErrorContains(t, err, "nn: BERT: Dropout is 0.1, but EmbedSequences needs 0: InfoNCE computes the loss in a pass without dropout, and the gradients in another pass")
	_, err = fsdp.Wrap(packed, fsdp.Config{})
	require.ErrorContains(t, err, "nn: BERT: with Packed a row has several documents, but the task makes one result of a row")
	_, err = s.Forward(t.Context(), append(good, floats(4, 3))...)
	require.ErrorContains(t, err, "targets are (4, 3), want floats (4, 4): one for each element of the vectors")
}

// TestInfoNCEPrecision trains in float32 and bfloat16 near float64.
func TestInfoNCEPrecision(t *testing.T) {
	tokens, mask := pairs(0, 9)
	var want [2]float64
	for i, compute := range []fsdp.DType{fsdp.Float64, fsdp.Float32, fsdp.BFloat16} {
		m := embedder()
		m.Dim, m.Hidden = 32, 64
		s, err := fsdp.Wrap(m, fsdp.Config{Precision: fsdp.Precision{Compute: compute}, Seed: 1})
		require.NoError(t, err)
		defer s.Close()
		loss, err := nn.InfoNCE{}.ForwardBackward(t.Context(), s, []fsdp.Tensor{tokens, mask})
		require.NoError(t, err)
		norm, err := s.ClipGradNorm(t.Context(), 1)
		require.NoError(t, err)
		if i == 0 {
			want = [2]float64{loss, norm}
		}
		tolerance := []float64{1e-12, 1e-5, 0.05}[i]
		require.InEpsilon(t, want[0], loss, tolerance)
		require.InEpsilon(t, want[1], norm, tolerance)
	}
}
