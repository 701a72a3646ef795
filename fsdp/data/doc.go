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
package data
