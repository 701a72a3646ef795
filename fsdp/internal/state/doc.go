// Package state moves the state of a training: parameters, buffers, and the state that an optimizer
// keeps for them. It writes and reads checkpoints and files, makes tensors whole, and fills them
// from one rank.
//
//	Tensor      a tensor of the state, of which ranks have parts; all ranks have the same list
//	Piece       this rank's part of a tensor: an interval of elements, and their memory
//	inventory   the entries that the optimizers of all ranks keep, merged on rank 0
//	matching    whether a file, checkpoint or full state fits, and the meaning of the options
//	collector   ranks to one rank, or to all: StateDict, OptimStateDict, Export, Full, Freeze
//	spread      one rank to all: LoadStateDict, LoadOptimStateDict
//	filling     a file, or several, to the ranks, each reading its parts: Load, Import
//	writer      the ranks to a checkpoint, each writing its parts: Save, SaveAsync
//
// # Plan and run
//
// A change of parameters or of an optimizer takes two steps. A Plan method is a collective that
// checks that all ranks can take part, compares options and names, opens files and takes memory. It
// changes nothing, and its error is an error on every rank. Run then moves the state. Between the
// two the caller ends everything that must not see the change, such as a Forward that waits for its
// Backward. An error of Run leaves a mixture of old and new.
//
// # Whose memory
//
// Pieces are in the memory of the model and of the optimizer, which [Memory] lends for one method.
// A tensor that is made whole is in scratch, or in the caller's memory. A part is copied directly
// between its place and its place in the whole: there are no flat buffers.
package state
