// Package data feeds a training. It numbers samples, orders them, and gives each rank its own part
// of every batch. The progress of a training is one number, from which any number of ranks can
// resume.
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
// A [Source] is a sequence of numbered samples of any type, each of which can be read at any time.
// There are sources
//
//	of values and functions    Of, Windows, Func
//	of lines and records       OpenLines, OpenDir, OpenJSON, OpenCSV
//	of arrays                  OpenTokens, OpenNpy, OpenSafetensors
//	of other sources           Map, Augment, Range, Concat, Split
//
// and any type with the methods Len and At is one. Nothing is read before it is needed.
//
// For an open [File], a source keeps only the offsets of its samples in memory. Samples with
// several parts are structs that the user defines:
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
// Orders are sources, too. They are computed for each sample separately. No order is stored, so a
// training resumes in the middle of one at once.
//
//	Shuffle, Repeat    some epochs, or epochs without end, each in another order
//	Mix                several sources by weight, each in an order of its own
//	Bucket             batches of like length, which need little padding
//	Pack, PackWhole    documents one after the other, cut into windows, or whole
//	PackLabeled        samples with some targets, one after the other
//	Truncate           samples with some targets, cut; those without a target are left out
//
// Bucket and the packings need the lengths of samples. [Measure] makes a source of lengths, and
// the functions that reorder samples reorder their lengths in the same way.
//
// [Augment] makes random changes of samples. It gives each sample its own random numbers, which do
// not change with the order of workers, the number of ranks, or a resumption.
//
// # Batches
//
// A [Collate] function makes the tensors of a batch. [TokensAndTargets] is for language models,
// [TokensAndPositions] for those whose rows have several documents each, [TokensAndLabels] for
// those that learn only some tokens, such as the answers of conversations. For other models, write
// a function of a few lines:
//
//	func collate(b *data.Batch, samples []digit) error {
//		data.Column(b, samples, func(d digit) int { return d.Label })
//		return data.Stack(b, samples, func(d digit) []float32 { return d.Pixels }, 1, 8, 8)
//	}
//
// [Stack] is for fields of one shape, [Column] for numbers, [Pad] and [Mask] for fields of
// different lengths, [Tensor] for everything else. A batch has its own memory: the program may keep
// it, look one batch ahead, or hold its pass with [fsdp.Sharded.Hold]. Samples are read into the
// memory of earlier ones if the source supports it.
//
// # Steps and ranks
//
// A [Loader] distributes the samples of a step, Config.Batch of them. All ranks together read the
// source from front to back:
//
//	source           0 1 2 3 4 5 6 7 │ 8 9 10 11 12 13 14 15 │ 16 …     Batch: 8
//	2 ranks          0 0 0 0 1 1 1 1 │ 0 0  0  0  1  1  1  1 │ 0
//	3 ranks          0 0 0 1 1 1 2 2 │ 0 0  0  1  1  1  2  2 │ 0
//	2, Micro: 2      0 0 0'0'1 1 1'1'│ 0 0  0' 0' 1  1  1' 1'│ 0        a second batch in the step
//	2, VirtualRanks: 4
//	                 0 0 1 1 0'0'1'1'│ 0 0  1  1  0' 0' 1' 1'│ 0        or inside NoSync, as above
//	3, VirtualRanks: 4
//	                 0 0 1 1 2 2 0'0'│ 0 0  1  1  2  2  0' 0'│ 0        ranks 1 and 2 get nil
//
// So the order and the batches of a training do not depend on the number of ranks or on how much
// fits into memory. With Config.VirtualRanks the micro batches do not either, and with
// fsdp.Config's VirtualRanks the training is the same to the last bit. No sample is left out or
// repeated. At the end of the source some ranks have no batch: [fsdp.Sharded.Join] handles this.
// [Loader.Share] weighs each batch by its targets that count, or by its samples. With Config.Micro
// a step is over when [Loader.StepEnds] returns true, on all ranks alike:
//
//	for batch, err := range m.Join(ctx, loader.Batches(ctx)) {
//		loss, err := m.Forward(ctx, batch...)
//		err = m.Backward(ctx, loader.Share())
//		if loader.StepEnds() {
//			… // clip, opt.Step, m.ZeroGrad
//		}
//	}
//
// A [Position] is the number of samples that all ranks have consumed. Save it with a checkpoint.
// Any number of ranks can resume from it:
//
//	err := m.Save(ctx, dir, opt, &fsdp.SaveOptions{Extra: map[string]any{"data": loader.Position()}})
//	…
//	saved, err := m.Load(ctx, dir, opt, nil)
//	var position data.Position
//	err = saved.Extra("data", &position)
//	err = loader.Resume(position)
//
// # Background
//
// Workers read samples and collate batches while the model computes, within Config.Prefetch bytes.
// [Loader.Stats] returns how long the loop has waited for them. The workers end with the loop.
//
// # Errors
//
// A function that gets bad arguments returns a source with one sample, which is the error. Sources
// made from it have the same error, and [NewLoader] returns it, so calls can be nested. Functions
// that open files return errors. An error or a panic while a sample is read ends the loop. Its
// error has the number of the sample and the rank.
//
// A complete program is examples/digits.
package data
