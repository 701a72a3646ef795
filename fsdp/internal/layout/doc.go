// Package layout describes the distribution of a model over the ranks: which parameters are
// scheduled together, which rank has which part of them, and the facts that the scheduler needs.
//
//	Model    the result of a trace: parameters, and the calls of every path through the model
//	Unit     parameters that are scheduled together, and how the configuration cuts them
//	Group    the parameters of a unit of one kind, end to end in one flat buffer
//	Ranks    which ranks share a group, and this one's place among them, as numbers
//
// A [Layout] follows from (model, units, number of ranks) alone, so it can be made without any
// other rank, and without memory for a single parameter. It never changes: another choice of frozen
// parameters is another Layout, which replaces the first. The package has no input or output, no
// context and no goroutine.
package layout
