// Package monitor shows and records how a training goes, with one call in its loop:
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
// Rank 0 shows a line that is updated in place:
//
//	███▉░░░░░░░░░░░   412/2000  loss 2.124  left 1m42s  41.2k tok/s  MFU 61.3%  33.9 MB/rank  lr 0.0028
//
// Where the output is no terminal it shows about twenty such lines in a run, and at least one every
// ten minutes. Close draws the curve of the loss, with the points of [Monitor.Eval] in it, and says
// what the run took. Whatever else is printed meanwhile goes through [Monitor.Screen], an io.Writer
// for loggers too, and stands above the line.
//
// # What ranks exchange
//
// Step is given what its own rank has: the loss of its rows, and how many they are. What is shown and
// recorded is the mean over all ranks, weighted by these counts, so uneven batches count as they
// should, and a rank without a batch, which says 0, not at all. That takes one all-gather of a few
// numbers a step, and of the most bytes that a rank has held, and of rank 0's clock, with them. Every
// rank knows the results ([Monitor.Last], [Monitor.Done], [Monitor.Elapsed]), to the bit, and may
// decide by them. With Config.Every the ranks exchange nothing in between and a row stands for the
// mean of so many steps. Values that are the same on all ranks anyway, such as a learning rate, stay
// as they are; if all are, Config.Agreed saves the exchange.
//
// With Config.Profile it also shows, now and then, which rank or link the others wait for, and with
// Config.Cluster what of time and memory differs from the plan: see package profile.
//
// # What is recorded
//
// A [Row] for each exchange goes to the writers of rank 0, to one file each for the whole job. Norms
// by name and histograms are put beside the values of Step:
//
//	norms, err := m.GradNorms(ctx, fsdp.L2Norm)
//	err = mon.Add("grad_norm/", norms)
//	err = mon.AddHistogram(monitor.Histogram{Name: "lengths", Edges: h.Edges, Counts: h.Counts()})
//
// [Monitor.State] is saved with a checkpoint, and given to the monitor that goes on from there:
//
//	err := m.Save(ctx, dir, opt, fsdp.Extra("monitor", mon.State()))
//	…
//	var state monitor.State
//	c, err := m.Load(ctx, dir, opt)
//	err = c.Extra("monitor", &state)
//	mon, err := monitor.New(monitor.Config{State: state, …})
//
// Then the curve, averages and the time taken go on. Rows of steps after the one that was saved move to
// a directory earlier-1 beside the file, since these steps are done again, and so do whole files without
// a State: nothing that was recorded is lost.
package monitor
