// Package safetensors implements the file format in which models are exchanged: names, types and
// shapes of tensors in a JSON header, followed by their elements, one tensor after the other.
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
// scalar has the shape [], and a tensor may have no elements. The format is Hugging Face's
// (https://github.com/huggingface/safetensors, Apache License 2.0); this package is written from
// its description and shares no code with it.
//
// This package handles headers. A [Header] has the place of every tensor, and its user reads and
// writes the data:
//
//	h, err := safetensors.ReadHeader(file, size)
//	t := h.Tensors[0]
//	_, err = file.ReadAt(data, t.Offset) // t.Size bytes, or a part of them
//	err = safetensors.Convert(floats, safetensors.F32, data, t.DType)
//
// To write a file:
//
//	slices.SortStableFunc(tensors, safetensors.Order)
//	h, err := safetensors.NewHeader(tensors, nil)
//	_, err = file.Write(h.Encode())
//	for _, t := range h.Tensors { … } // t.Size bytes each, one behind the other
//
// # Guarantees of a header
//
// [ReadHeader] accepts files from untrusted sources. It needs a small multiple of the memory of the
// header, which is at most 100 MB and never longer than the file. It guarantees, without reading
// the data:
//
//   - Names and metadata are valid UTF-8, and names are unique.
//   - Shapes have at most 64 dimensions, as in NumPy, and the size of a tensor follows from its
//     type and shape. Nothing overflows.
//   - The tensors cover everything from DataStart to the end of the file: no holes, no overlaps,
//     nothing behind.
//
// If the description is unclear, this package is strict. It refuses the following, which Python's
// library (0.8) reads: two tensors of one name (Python returns the last); tensors with other
// members than the three; a "__metadata__" that is null; space before the JSON, and characters
// other than spaces after it; types smaller than a byte (F4, F6), which Python's library for NumPy
// cannot load either.
//
// [NewHeader] never makes a header that [ReadHeader] refuses. Like Python's library when it writes,
// it also keeps every tensor at a multiple of the size of its elements, so that it can be used in
// place in a mapped file. Files of other programs need not be aligned. Data starts at a multiple of
// 64 bytes, a cache line and the widest vector.
package safetensors
