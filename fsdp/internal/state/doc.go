// Package state moves the state of a training: parameters, buffers, and what an optimizer keeps for
// them. It writes and reads checkpoints and files, makes tensors whole, and fills them from one
// rank.
//
//	Tensor      a tensor of the state, of which ranks have parts; all ranks list the same ones
//	Piece       what this rank has of a tensor: an interval of elements, and the memory they are in
//	inventory   what the optimizers of all ranks keep, put together on rank 0
//	matching    whether a file, checkpoint or full state fits: the one meaning of the options
//	collector   ranks to one rank, or to all: FullState, FullOptimState, Export, Full, Freeze
//	spread      one rank to all: SetFull, SetFullOptim
//	filling     a file, or several, to the ranks, each reading what it has: Load, Import
//	writer      the ranks to a checkpoint, each writing what it has: Save, SaveAsync
//
// # Plan and run
//
// What changes parameters or an optimizer comes in two steps. A Plan method is a collective that
// asks whether all ranks can, compares options and names, opens files and takes memory. It changes
// nothing, and its error is one on every rank. Run then moves the state. Between the two the caller
// ends what must not see the change, such as a Forward that waits for its Backward. An error of Run
// leaves a mixture of old and new.
//
// # Whose memory
//
// Pieces lie in the memory of the model and of the optimizer, which [Memory] lends for the time of
// one method. A tensor that is made whole lies in scratch, or where the caller wants it. A part
// goes straight from where it lies to its place in the whole, and back: there are no flat buffers.
package state
