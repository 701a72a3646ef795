// Package profile says where the time of a training goes while it runs: which rank, or which link, the
// others wait for, and what takes longer or holds more than was predicted.
//
//	prof := profile.New()
//	m, err := fsdp.Wrap(model, fsdp.Config{Group: g, Profile: prof, …})
//	…
//	report, err := prof.Stragglers(ctx) // all ranks, between two passes
//	fmt.Println(report)
//
//	plan, err := m.Plan(batch...)
//	b, err := prof.Beside(plan.Pass, cluster) // this rank's passes beside predicted ones
//	fmt.Println(b)
//
// Package monitor shows both every so often, and "fsdprun -stragglers" prints the first one in the
// end, without a change of the program.
//
// # What is counted
//
// For each operation of a training pass: how often it ran, how long that took in all, and when it
// began. That is a few numbers an operation however long the training is. It takes two looks at the
// clock and no allocation each time: some microseconds a step. The first pass is left out: it fills
// caches. Evaluations are left out, and count as time between operations.
//
// # How a slow rank and a slow link differ
//
// Before each forward and each backward all ranks agree to run it, and none goes on before the last
// has come. So the end of that exchange is the same moment for all, and what follows is timed from
// there on every rank: no clocks have to be compared. A rank that waits for a collective waits first
// for the last of its ranks to issue it, and then for bytes:
//
//	rank 0   agree ▏gather b│ forward a      │ wait b ░░░░░░░▒▒▒▒│ forward b
//	rank 1   agree ▏gather b│ forward a              │ wait b▒▒▒▒│ forward b
//	rank 2   agree ▏ forward before           │gather b│ wait ▒▒▒│ forward b
//	                                          ░ held by rank 2     ▒ transfer
//
// The report adds up who has held whom. The rank that the others wait for most is slow for the
// reason in which it exceeds the others most: calls, transfers, or what is between operations, such
// as batches and optimizers. Where ranks are even, what all wait for is transfers: slow links. Ranks
// of several groups of one's own (Config.GroupOf), and inside JoinCalls, are not told apart as well.
//
// # Predicted beside real
//
// A comparison pairs each operation with the same one as a plan plays it on a cluster, names those that
// are furthest off, and compares the most memory that was held. [Profile.AddTrace] puts the predicted
// pass where the last real one begins in the traces of Config.TraceDir:
//
//	rank 0                       calls    ▏forward blocks.0▕ ▏forward blocks.1▕
//	rank 0, predicted for h100   compute  ▏forward blocks.0▕▏forward blocks.1▕
//
// # On a GPU
//
// As with Config.Trace the host waits for each call there: calls take a little longer, and the
// comparison shows it. Collectives go on meanwhile.
package profile
