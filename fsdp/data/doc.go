// Package data feeds training: it numbers samples, puts them in an order, and gives each rank its
// own part of each batch.
//
// # Sources
//
// A [Source] is numbered samples, of any type, each of which can be read at any time. Sources are
// made of values ([Of]), of a function ([Func]) and of files, and of other sources: [Map], [Concat],
// [Range]. Nothing is read before it is asked for.
//
//	words := data.Map(data.Of(lines), tokenize)
//
// A source that was made with bad arguments is a source with one sample, which is the error: whoever
// reads it sees it, and what is made of it has the same error. So calls can be nested.
//
// # Files
//
// A [File] is a source over an open file, of which it keeps no more in memory than where samples
// begin. There are lines of text ([OpenLines]), JSON lines ([OpenJSON]), records of CSV ([OpenCSV]),
// rows of the arrays of safetensors ([OpenSafetensors]) and of numpy ([OpenNpy]), windows and
// documents of [Tokens], and the files of a directory ([OpenDir]). Samples are structs of the user
// where they have parts:
//
//	type digit struct {
//		Pixels []float32 `data:"images"` // of bytes: they become floats
//		Label  int       `data:"labels"`
//	}
//	digits, err := data.OpenNpy[digit]("images.npy", "labels.npy")
//	defer digits.Close()
package data
