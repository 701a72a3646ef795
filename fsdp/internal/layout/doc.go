// Package layout says how a model lies over the ranks: which parameters are scheduled together, which rank has which part of
// them, and what the scheduler needs to know of all that.
//
//	Model    what a trace has found: parameters, and the calls of every way through the model
//	Unit     parameters that are scheduled together, with how they are cut: what the configuration has decided
//	Group    those of a unit that are of one kind, laid end to end in a flat buffer that is cut over ranks
//	Ranks    which ranks share a group, and this one's place among them, as numbers
//
// A [Layout] follows from (model, units, number of ranks) alone, so it can be made without any rank being there, and without
// memory for a single parameter. It never changes: another choice of frozen parameters is another Layout, which takes the place
// of the first. There is no input or output here, no context and no goroutine.
package layout
