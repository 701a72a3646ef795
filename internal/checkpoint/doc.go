// Package checkpoint keeps the state of a training on disk: written by many ranks at once, each its
// own file, and read by any number of other ranks.
//
// A tensor is identified by its [Key], and a part of it by an interval [a:b) of its elements in
// row-major order. Which rank wrote which interval is only a detail of the [Manifest], so 3 ranks
// read a checkpoint of 4 ranks just as 4 ranks do.
//
//	w [6, 4] and its exp_avg, cut over 2 ranks          read by 3
//
//	rank 0  rank-00000-of-00002.safetensors             rank 0  w[0:8]
//	          w[0:12]   exp_avg:w[0:12]                 rank 1  w[8:16]     of both files
//	rank 1  rank-00001-of-00002.safetensors             rank 2  w[16:24]
//	          w[12:24]  exp_avg:w[12:24]
//
// # On disk
//
// The directory of a job holds checkpoints, each a directory. Their names sort in the order of
// saving:
//
//	ckpt/
//	  000006-step-1100/                     whole
//	  000007-step-1200/                     whole, and the latest
//	    manifest.json                       {"format":2,"crc32c":"8f2a6c01","manifest":{…}}
//	    rank-00000-of-00002.safetensors     tensors of one dimension, named as above
//	    rank-00001-of-00002.safetensors
//	  000008-step-1300.tmp-5be1a37c/        being written, or left by a crash
//	  lock                                  held by the job that saves here
//
// With more than 1,000 ranks, the files of each 1,000 are in a directory next to the manifest, such
// as 00012/rank-12345-of-20000.safetensors.
//
// The files of ranks have the format of package safetensors, for every program that reads it. The
// manifest lists their contents:
//
//	{"step":1200,"world":2,"meta":{…},
//	 "files":[{"name":"rank-00000-of-00002.safetensors","size":288,"header":845694699},…],
//	 "tensors":[{"param":"w","owner":-1,"dtype":"F32","shape":[6,4],
//	   "pieces":"ABgAgAP4gK5/AAACAA7WurE="},…]}
//
// Sizes are bytes, and "header" is the CRC-32C of the bytes before a file's data. A checkpoint of
// many ranks has millions of pieces, with a dozen bytes for each: they are varints and CRC-32Cs,
// one for each [ChunkBytes], in base64. [Pieces] describes the encoding. Here they are
//
//	offset  0, len 12, file 0, at 192, sum 7fae80f8    00 18 00 80 03  f8 80 ae 7f
//	offset 12, len 12, file 1, at 192, sum b1bad60e    00 00 02 00     0e d6 ba b1
//
// In format 1, which is still read, they were JSON objects of these fields. The "crc32c" of the
// manifest covers the bytes of its value exactly as in the file. Elements are little-endian, and a
// big-endian machine is refused.
//
// # Saving
//
//	every rank  WriteShard   its pieces, to a file that is then on disk
//	rank 0      Merge        the lists of the ranks to one list of tensors
//	rank 0      Commit       manifest, sync of its directories, rename to the name without .tmp, sync
//
// The rename is the commit. Until then the directory has a name that no reader uses. Everything in
// it is on disk before the rename, so a crash at any point leaves the earlier checkpoints, and the
// new one whole or not at all. A [Store] guarantees this. It also holds the lock, by which only one
// job saves in a directory, and removes old and leftover checkpoints.
//
// # What is checked when
//
//	Merge       ranks agree on type, shape and steps of each tensor; its pieces cover it once
//	Decode      the checksum of the manifest, the version of the format, and all that Merge checks;
//	            pieces lie in their files and have their sums; names of files lead nowhere else
//	OpenReader  the manifest has at most 128 MiB; Decode; the files are there and have their sizes
//	Hold, Read  of each file that is read, once, that header and manifest say the same
//	Read        the sums of the chunks that it reads, before any of it is used
//	Verify      every byte of every file: all sums, and all headers
//
// [List] and [Latest] check as OpenReader does: a checkpoint that was cut short or lost a file does
// not count. A byte that was changed in place is detected when it is read. Checksums detect
// accidents and do not protect against deliberate changes, but the parsers accept any bytes.
//
// # File systems that do not answer
//
// A FIFO, or anything else that is not a file, is damage and is not waited for. Opening and listing
// may also block because the server of a network file system is gone. Then List, Latest, OpenReader
// and the first read of each file return when their context ends, and leave a goroutine behind that
// waits in the system call. It closes the file if the call returns. Reading from an open file, and
// all of saving, last as long as the file system takes: their arguments belong to them meanwhile.
package checkpoint
