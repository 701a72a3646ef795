// Package profile measures where the time of a training goes while it runs: which rank or link the
// other ranks wait for, and which operations take more time or memory than predicted.
//
//	prof := profile.New()
//	m, err := fsdp.Wrap(model, fsdp.Config{Group: g, Observers: []fsdp.Observer{fsdp.Profile(prof)}, …})
//	…
//	report, err := prof.Stragglers(ctx) // all ranks, between two passes
//	fmt.Println(report)
//
//	plan, err := m.Plan(batch...)
//	b, err := prof.Beside(plan.Pass, cluster) // this rank's passes and predicted ones
//	fmt.Println(b)
//
// Package monitor shows both at intervals, and "fsdprun -stragglers" prints the report at the end,
// without a change of the program.
//
// # Counts
//
// For each operation of a training pass: the number of runs, their total time, and when they began.
// This is a few numbers per operation, however long the training is. Each run takes two clock
// readings and no allocation: some microseconds a step. The first pass is left out, as it fills
// caches. Evaluations are left out, too. They count as time between operations.
//
// # How a slow rank and a slow link differ
//
// Before each forward and each backward all ranks agree to run it, and no rank continues before the
// last has arrived. So the end of that exchange is the same moment for all ranks, and every rank
// measures time from there. No clocks are compared. A rank that waits for a collective first waits
// for the last of its ranks to issue it, and then for bytes:
//
//	rank 0   agree ▏gather b│ forward a      │ wait b ░░░░░░░▒▒▒▒│ forward b
//	rank 1   agree ▏gather b│ forward a              │ wait b▒▒▒▒│ forward b
//	rank 2   agree ▏ forward before           │gather b│ wait ▒▒▒│ forward b
//	                                          ░ held by rank 2     ▒ transfer
//
// The report sums these waits by the rank that causes them. The rank that the others wait for most
// is slow because of the part in which it exceeds the others most: calls, transfers, or the time
// between operations, such as batches and optimizers. If the ranks are even, all wait for
// transfers: slow links. The causes are less certain for ranks of several own groups
// (Config.Unit), and inside JoinCalls.
//
// # Predicted and real passes
//
// A comparison pairs each operation with the same one in a plan that is played on a cluster. It
// names the operations with the largest deviations, and compares the peak memory.
// [Profile.AddTrace] adds the predicted pass to the traces of the model's TraceDir, at the
// beginning of the last real one:
//
//	rank 0                       calls    ▏forward blocks.0▕ ▏forward blocks.1▕
//	rank 0, predicted for h100   compute  ▏forward blocks.0▕▏forward blocks.1▕
//
// # On a GPU
//
// As with a TraceFunc of package fsdp, the host waits for each call on a GPU: calls take a little
// longer, and the comparison shows it. Collectives continue meanwhile.
package profile
