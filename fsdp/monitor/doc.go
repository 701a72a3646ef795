// Package monitor shows and records the progress of a training, with one call in its loop:
//
//	mon, err := monitor.New(monitor.Config{
//		Group: g, Model: m, Steps: 2000, Unit: "tok", Out: os.Stdout,
//		Writers: []monitor.Writer{monitor.JSONLines("run/log.jsonl"), monitor.TensorBoard("run")},
//	})
//	defer mon.Close()
//	for batch, err := range m.Join(ctx, batches) {
//		loss, err := m.Forward(ctx, batch...)
//		…
//		if err := mon.Step(ctx, tokens, monitor.Values{"loss": loss, "lr": lr}); err != nil {
//			return err
//		}
//	}
//
// Rank 0 shows a line that it updates in place:
//
//	███▉░░░░░░░░░░░   412/2000  loss 2.124  left 1m42s  41.2k tok/s  MFU 61.3%  33.9 MB/rank  lr 0.0028
//
// If the output is not a terminal, rank 0 shows about twenty such lines in a run, and at least one
// every ten minutes. Close draws the smoothed curve of the loss with its range, the curve of
// [Monitor.Eval], and a summary of the run. [SVG] draws the same as a picture, with speed and
// memory. Print other text through [Monitor.Screen], which is an io.Writer for loggers, too. The
// text appears above the line.
//
// # Exchanges
//
// Each rank passes its own data to Step: the loss of its rows, and their number. The monitor shows
// and records the mean over all ranks, weighted by these numbers. So uneven batches count
// correctly, and a rank without a batch, which passes 0, does not count. This takes one all-gather
// of a few numbers a step, which also carries each rank's peak memory and rank 0's clock. Every
// rank gets the same results to the bit ([Monitor.Last], [Monitor.Done], [Monitor.Elapsed]), so it
// may base decisions on them. With Config.Every the ranks exchange nothing in between, and a row is
// the mean of that number of steps. Values that are the same on all ranks, such as a learning rate,
// stay as they are. If all values are, Config.Agreed saves the exchange.
//
// If targets are masked, as in a training on answers, the units are often all tokens of a batch.
// With Config.Model the monitor also shows and records the targets that count, see
// [fsdp.Sharded.Targets].
//
// With Config.Profile the monitor also shows, at intervals, the rank or link that the other ranks
// wait for. With Config.Cluster it shows differences in time and memory from the plan: see package
// profile.
//
// # Records
//
// Each exchange makes a [Row]. The writers of rank 0 get it, and each writes one file for the whole
// job. Norms by name and histograms can be added to the values of Step:
//
//	norms, err := m.GradNorms(ctx, fsdp.L2Norm)
//	err = mon.Add("grad_norm/", norms)
//	err = mon.AddHistogram(monitor.Histogram{Name: "lengths", Edges: h.Edges, Counts: h.Counts()})
//
// Save [Monitor.State] with a checkpoint, and pass it to the monitor that resumes from there:
//
//	err := m.Save(ctx, dir, opt, &fsdp.SaveOptions{Extra: map[string]any{"monitor": mon.State()}})
//	…
//	var state monitor.State
//	c, err := m.Load(ctx, dir, opt, nil)
//	err = c.Extra("monitor", &state)
//	mon, err := monitor.New(monitor.Config{State: state, …})
//
// Then the curve, averages and elapsed time continue. The resumed run repeats the steps after the
// checkpoint. Their old rows move to a directory earlier-1 next to the file. Without a State, whole
// files move there. No recorded data is lost.
package monitor
