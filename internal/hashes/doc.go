// Package hashes records the results of a rank as hashes, one file for each rank, and finds where
// two runs diverge: the first step, micro-batch, call and parameter.
//
//	gofsdp hashes 1 rank 0 of 2
//	pass 7 step 3 virtual -1                            of no virtual rank
//	param 0 1024 4096 9c2f03aa "blocks.0.fc.weight"     elements 0 to 1024, 4096 bytes: before the pass
//	batch 0 0 2048 51d0c3f7 ""                          tensor 0 of the batch
//	forward 0 0 65536 00c9a1be "blocks.0"               output 0 of the call
//	backward 0 0 65536 77fe0a12 "blocks.0"              gradient of input 0, as far as it is summed up
//	grad 0 1024 4096 e41b90d6 "blocks.0.fc.weight"      after the sum over the ranks
//	end
//
// A hash is the CRC-32 of the bytes. The hash of a parameter can be computed from the hashes of its
// pieces, so runs on different numbers of ranks can be compared too. If a record has lost its end,
// because the rank was killed, it is valid up to the last whole pass.
package hashes
