// Package metrics measures a model over all ranks: the mean of a loss, accuracy, perplexity,
// histograms, confusion.
//
// Each rank adds its own results. This needs no communication, so ranks may add as often as they
// like, and a rank without a batch adds nothing. A [Set] then adds up the sums of all its metrics
// over the ranks, in one collective:
//
//	loss, top5 := &metrics.Mean{}, &metrics.Accuracy{K: 5}
//	set := metrics.Set{"loss": loss, "top5": top5}
//	for batch, err := range m.Join(ctx, held) {
//		out, err := m.Eval(ctx, batch...) // the loss, the logits
//		if batch == nil {
//			continue
//		}
//		err = loss.AddTensor(out[0], float64(rows))
//		err = top5.Add(out[1], batch[1])
//	}
//	values, err := set.Reduce(ctx, g) // values["top5"], on every rank
//	set.Reset()
//
// # Formulas
//
// For x of weight w, the loss ℓ of n tokens, and rows of logits z with their targets y, over
// everything that any rank has added since the last Reset:
//
//	Mean        Σ w·x / Σ w
//	Perplexity  exp(Σ n·ℓ / Σ n)
//	Accuracy    rows in which fewer than K classes come before y, of all rows; class c comes before y
//	            if z[c] > z[y], or if z[c] = z[y] and c < y
//	Histogram   how many x lie in [edge[i-1], edge[i])
//	Confusion   how many rows with target t have the largest logit at p; precision, recall, F1
//
// A mean of the ranks' means would weigh batches of unequal size wrongly; these metrics do not. All
// of them have the same bits for any number of ranks. Counts are exact: Accuracy, Histogram and
// Confusion, up to 2^53 rows. Mean and Perplexity round w·x and the result, and sum exactly, up to
// 2^29 numbers. The added numbers may depend on the number of ranks, such as the loss of a batch
// that the ranks share: see fsdp.Config.VirtualRanks.
package metrics
