// Package safetensors is the file format in which models are exchanged: names, types and shapes of
// tensors in a header of JSON, and behind it their elements, one tensor after the other.
//
//	byte 0      8                             8+N                                     end of the file
//	     ├─ N ──┼─ {"wte.weight": …}  spaces ─┼─ wte.weight ─┼─ ln.weight ─┼─ ln.bias ─┤
//	     uint64   JSON of N bytes             DataStart
//
// A member of the JSON object is a tensor, or text about the file as a whole:
//
//	{"__metadata__": {"format": "pt"},
//	 "wte.weight":   {"dtype": "BF16", "shape": [50257, 768], "data_offsets": [0, 77194752]},
//	 "ln.weight":    {"dtype": "F32",  "shape": [768],        "data_offsets": [77194752, 77197824]}}
//
// Numbers are little-endian, tensors are row-major, and data_offsets count bytes from DataStart. A
// scalar has the shape [], and a tensor without elements is as good as any other. The format is
// that of Hugging Face (https://github.com/huggingface/safetensors, Apache License 2.0); this
// package is written from its description and shares no code with it.
//
// This package is about headers. A [Header] says where every tensor lies, and its user reads and
// writes the data:
//
//	h, err := safetensors.ReadHeader(file, size)
//	t := h.Tensors[0]
//	_, err = file.ReadAt(data, t.Offset) // t.Size bytes, or a part of them
//	err = safetensors.Convert(floats, safetensors.F32, data, t.DType)
//
// and, of a file that is written,
//
//	slices.SortStableFunc(tensors, safetensors.Order)
//	h, err := safetensors.NewHeader(tensors, nil)
//	_, err = file.Write(h.Encode())
//	for _, t := range h.Tensors { … } // t.Size bytes each, one behind the other
//
// # What a header promises
//
// [ReadHeader] takes files from anywhere. It needs no more memory than a small multiple of the
// header, which is at most 100 MB and never longer than the file, and what it returns holds without
// a look at the data:
//
//   - Names and metadata are valid UTF-8, and no name is there twice.
//   - Shapes are at most 64 long, as NumPy's, and the bytes of a tensor are those of its type and
//     shape. None of it overflows.
//   - The tensors cover everything from DataStart to the end of the file: no holes, no overlaps,
//     nothing behind.
//
// Where the description leaves room it takes the strict side. Python's library (0.8) reads, and
// this package refuses: two tensors of one name, of which Python returns the last; members of a
// tensor other than the three; "__metadata__" that is null; space before the JSON, and anything but
// spaces behind it; types smaller than a byte (F4, F6), which Python's library for NumPy cannot
// load either.
//
// [NewHeader] makes nothing that [ReadHeader] would refuse. As Python's library does when it
// writes, it also keeps every tensor at a multiple of the size of its elements, so that it can be
// used in place in a mapped file; files of others need not have that. Data starts at a multiple of
// 64 bytes, a cache line and the widest vector.
package safetensors
