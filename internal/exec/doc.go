// Package exec turns a module into a forward and a backward program over Gorgonia's expression
// graph and runs them.
//
// Gorgonia is the tracer and the symbolic differentiator: a module's Build adds nodes to a graph,
// and gorgonia.Backpropagate adds the nodes of the gradients. Gorgonia's own virtual machines are
// not used: they write into bound parameters, keep every value alive and cannot be cut between
// forward and backward. Instead a Unit is
//
//	Spec ──trace──▶ graph ──partition──▶ saved values ──plan──▶ forward and backward Program
//
// and a Program is a list of instructions over addresses that were decided when it was compiled:
//
//	space     filled by                         lives
//	Param     the caller: gathered parameters   in one direction of a call; elsewhere in backward
//	In, Out   the caller: values between calls  as long as some call needs them
//	GradOut   the caller: gradients of outputs
//	GradIn    the program
//	GradParam the program: the flat gradient    until reduced
//	Update    the forward program, in training  until the caller makes them the buffers' values
//	Saved     the forward program               from forward to backward
//	Work      the program                       while it runs; values share offsets in turn
//	Const     the compiler                      as long as the program
//	Block     the program                       while a block of it is worked on: see "Fusion" in fuse.go
//	Host      stock operations on sizes         while it runs, on the Go heap
//
// # Operations
//
// An operation is a Row of one table, which holds everything that is known about it: shapes, host
// kernels, a naive reference, gradient, cost. Package ops has the table. An Op is one use of a row.
// Its kernels write directly into planned memory, and running them allocates nothing. Stock
// operations of Gorgonia run through their own Do, and their results are copied: this works for all
// of them, slowly. The stock operations in native.go have kernels here, because package tensor
// computes them wrongly or because they are used everywhere. Another engine compiles nothing: it
// reads the instructions of a Program (see Program.All) and chooses its kernels by Op.Kind.
//
// # Storage
//
// Gorgonia has no 16-bit type. A unit that computes in bfloat16 (Signature.Half) is traced in
// float32, and each value is then given a Form: bfloat16, float32, or a head in bfloat16 and a tail
// in float32. Some values stay float32: the values marked in Row.Shapes (statistics, gradients of
// parameters, losses), values that depend only on float32 floats, and most single numbers. An
// operation runs by Row.BF16, or by the float32 kernel between conversions. Either way it computes
// in float32 and rounds each result once, to nearest even, and keeps NaN. The form of a value
// depends on the module alone, not on the saved values. A conversion is an instruction like any
// other. It is inserted where an operand has another form than the kernel needs. Parameters, inputs
// and gradients of parameters (Signature.HalfGrad) may have either form in any unit. A GPU may
// store float16 where a Form says bfloat16 (Engine.Float16 of package gpu).
//
// # Saved values
//
// A Policy decides for each value whether it is saved for backward, but three rules always hold. A
// value that depends only on parameters is never saved, because it would keep unsharded weights
// alive. A view is never saved, but its base may be. A random operation draws its numbers from a
// counter, so computing it again gives the same bits.
//
// # Parameters and buffers
//
// Frozen parameters and buffers have no gradient. A Unit lists the parameters that its backward
// reads, so that the others need not be gathered again. A module updates its buffers by naming
// their new values, which the forward computes next to the outputs.
//
// # Sharing, and Gorgonia's defects
//
// A Unit is immutable. Equal modules, and all ranks of a process, share one (see Cache). Gorgonia
// has a number of defects that would corrupt results silently. trace.go and guard.go describe them,
// and how they are avoided.
package exec
