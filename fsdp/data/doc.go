// Package data feeds a training: it numbers samples, puts them in an order, and gives each rank its
// own part of every batch. Where a training has come to is one number, and any number of ranks can
// go on from there.
//
//	text, err := data.OpenTokens("train.bin", 16)
//	windows := data.Shuffle(text.Windows(257, 256), seed, epochs)
//	config := data.Config{Group: g, Batch: 32}
//	loader, err := data.NewLoader(windows, data.TokensAndTargets[int](256), config)
//	for batch, err := range m.Join(ctx, loader.Batches(ctx)) {
//		…
//	}
//
// # Sources
//
// A [Source] is numbered samples of any type, each of which can be read at any time. Here are
// sources
//
//	of values and functions    Of, Windows, Func
//	of lines and records       OpenLines, OpenDir, OpenJSON, OpenCSV
//	of arrays                  OpenTokens, OpenNpy, OpenSafetensors
//	of other sources           Map, Augment, Range, Concat, Split
//
// and whatever has the two methods Len and At is one. Nothing is read before it is asked for.
//
// Of an open [File], a source keeps no more in memory than where samples begin. Samples are structs
// of the user where they have parts:
//
//	type digit struct {
//		Pixels []float32 `data:"images"` // of bytes: they become floats
//		Label  int       `data:"labels"`
//	}
//	digits, err := data.OpenNpy[digit]("images.npy", "labels.npy")
//	defer digits.Close()
//
// # Orders
//
// Orders are sources, too. They are computed for each sample alone, so none is ever stored, and a
// training starts in the middle of one at once.
//
//	Shuffle, Repeat    some epochs, or epochs without end, each in another order
//	Mix                several sources by weight, each in an order of its own
//	Bucket             batches of like length, which need little padding
//	Pack, PackWhole    documents one after the other, cut into windows, or whole
//
// Bucket, Pack and PackWhole have to know lengths. These are a source, too: [Measure] makes it, and
// what reorders the samples reorders their lengths.
//
// Random changes of samples are made by [Augment], which gives each sample its own random numbers:
// another order of workers, other ranks, or a resumption do not change them.
//
// # Batches
//
// A [Collate] function makes the tensors of a batch. There is [TokensAndTargets] for language
// models; for others it is a function of a few lines:
//
//	func collate(b *data.Batch, samples []digit) error {
//		data.Column(b, samples, func(d digit) int { return d.Label })
//		return data.Stack(b, samples, func(d digit) []float32 { return d.Pixels }, 1, 8, 8)
//	}
//
// [Stack] is for fields of one shape, [Column] for numbers, [Pad] and [Mask] for fields of
// different lengths, [Tensor] for everything else. A batch has its own memory: the program may keep
// it, look one batch ahead, or put its pass aside by [fsdp.Sharded.Hold]. Samples are read into the
// memory of earlier ones where the source can.
//
// # Steps and ranks
//
// A [Loader] shares the samples of a step out, Config.Batch of them. All ranks together read the
// source from front to back:
//
//	source           0 1 2 3 4 5 6 7 │ 8 9 10 11 12 13 14 15 │ 16 …     Batch: 8
//	2 ranks          0 0 0 0 1 1 1 1 │ 0 0  0  0  1  1  1  1 │ 0
//	3 ranks          0 0 0 1 1 1 2 2 │ 0 0  0  1  1  1  2  2 │ 0
//	2, Micro: 2      0 0 0'0'1 1 1'1'│ 0 0  0' 0' 1  1  1' 1'│ 0        a second batch in the step
//	2, VirtualRanks: 4
//	                 0 0 1 1 0'0'1'1'│ 0 0  1  1  0' 0' 1' 1'│ 0        or inside NoSync, as above
//
// So neither the order nor the batches of a training depend on the number of ranks or on how much
// fits into memory. With Config.VirtualRanks the micro batches do not either, and with fsdp.Config's
// the training is the same to the last bit. No sample is left out or comes twice: at the end of the source some ranks have
// no batch, which is what [fsdp.Sharded.Join] is for. [Loader.Share] weighs each batch by its targets that
// count, or by its samples. With Config.Micro a step is over when [Loader.StepEnds] says
// so, on all ranks alike:
//
//	for batch, err := range m.Join(ctx, loader.Batches(ctx)) {
//		loss, err := m.Forward(ctx, batch...)
//		err = m.Backward(ctx, loader.Share())
//		if loader.StepEnds() {
//			… // clip, opt.Step, m.ZeroGrad
//		}
//	}
//
// A [Position] is how many samples all ranks have consumed. It is saved with a checkpoint, and
// resumed by any number of ranks:
//
//	err := m.Save(ctx, dir, opt, fsdp.Extra("data", loader.Position()))
//	…
//	saved, err := m.Load(ctx, dir, opt)
//	var position data.Position
//	err = saved.Extra("data", &position)
//	err = loader.Resume(position)
//
// # Background
//
// Workers read samples and collate batches while the model computes, within Config.Prefetch bytes.
// [Loader.Stats] says how long the loop has waited for them. They end with the loop.
//
// # Errors
//
// A source that was made with bad arguments is a source with one sample, which is the error. What
// is made of it has the same error, and [NewLoader] returns it. So calls can be nested. What opens
// files returns errors. Errors and panics while samples are read end the loop: they have the number
// of the sample and the rank.
//
// A complete program is examples/digits.
package data
