// Package exec turns a module into a forward and a backward program over Gorgonia's expression graph and runs them.
//
// Gorgonia is the tracer and the symbolic differentiator: a module's Build adds nodes to a graph, and
// gorgonia.Backpropagate adds the nodes of the gradients. Gorgonia's own virtual machines are not used: they write into
// bound parameters, keep every value alive and cannot be cut between forward and backward. Instead a Unit is
//
//	Spec ──trace──▶ graph ──partition──▶ saved values ──plan──▶ forward and backward Program
//
// and a Program is a list of instructions over addresses that were decided when it was compiled:
//
//	space     filled by                         lives
//	Param     the caller: gathered parameters   while the call computes; may be another buffer in backward
//	In, Out   the caller: values between calls  as long as some call needs them
//	GradOut   the caller: gradients of outputs
//	GradIn    the program
//	GradParam the program: the flat gradient    until reduced
//	Update    the forward program, in training  until the caller makes them the buffers' values
//	Saved     the forward program               from forward to backward
//	Work      the program                       while it runs; offsets shared by values that never live together
//	Const     the compiler                      as long as the program
//	Host      stock operations on sizes         while it runs, on the Go heap
//
// Running allocates nothing, except for stock Gorgonia operations, which run through their own Do and are copied into
// place: they work everywhere, slowly. Operations of type *Op are fused kernels that write straight into the place
// planned for them.
//
// What backward needs of forward is decided per value (see Policy). Three rules are not a matter of policy: a value that
// depends on parameters only is never saved, because it would keep unsharded weights alive; a view is never saved, its
// base is; a random operation draws its numbers from a counter, so computing it again gives the same bits.
//
// Parameters that are frozen, and buffers, have no gradient. A Unit says which parameters its backward reads at all, so that
// what it does not read need not be gathered again. A module updates its buffers by naming their new values, which the
// forward computes next to the outputs.
//
// A Unit is immutable and shared: identical modules, and all ranks of a process, use one (see Cache). Gorgonia has a
// number of defects that would corrupt results silently; trace.go and guard.go keep clear of them and say how.
package exec
