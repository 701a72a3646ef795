// Package simulate runs jobs of many ranks in one process, on a network in memory (internal/simnet)
// and in fake time (testing/synctest), and injects faults. It consists of tests: `go test` runs 500
// faults. `make simulate` runs 100,000, and measures the times of joining, a collective, a
// checkpoint and a rank's death as the number of ranks grows.
//
// All code above the sockets is production code: rendezvous, joining, groups and their failures
// (comm), agreements (fsdp/internal/ranks), saving (internal/checkpoint, on the disk of
// internal/checkpoint/crashfs).
//
// # A job
//
// A seed decides everything in a job: the start time of each rank, the delays of the network, a
// program of 8 to 15 steps, and the faults. A step is a collective of random length, a split with a
// collective in the new group, an agreement that one rank may refuse, or a checkpoint. Every
// resulting value is checked. At least four fifths of the faults are ones that a job must survive;
// most jobs also have one that it cannot survive.
//
//	kill      a process ends                                    known within 3.6 s
//	freeze    a process is stopped for an hour                  the limit of 30 s, and 3.6 s
//	cut off   a host is cut off for good                        20 s, and 3.6 s
//	cut       the connections of two ranks are reset            3.6 s, once met
//	flip      a bit changes between two ranks                   the limit of 30 s, and 3.6 s, once met
//	stall     a process is stopped for up to 3 s                survived
//	isolate   a host is cut off for up to 3 s                   survived
//	slow      a link is slower by up to 100 ms, for 3 s         survived
//
// The ranks must detect each fault within its time, whatever other faults there are. The 3.6 s are
// a sum, see slack: the time that a rank may compute until it calls a group again; the second in
// which the cause of a broken connection may become known; the half second in which ranks report
// their activity; and the delay of slow links. Time in which any rank is stalled or isolated does
// not count: all ranks wait for that rank, and its contribution starts their limit anew. A cut is
// met at once if one of the connections is for control. The next user of a data connection meets
// its cut, as comm promises. The write that a flip changes meets the flip. A fault that no rank
// meets does not count, and a rank that has ended need not detect anything.
//
// # Failures
//
//	hang      a rank is not back after ten minutes
//	lost      a checkpoint that Commit has reported is not whole after a power failure, or
//	          another one is there by half
//	wrong     a value is wrong, or an error names no rank at fault: the rank of
//	          its [comm.RankError] is none that a fault has struck or, while ranks join, its text
//	          names none of these
//	late      a rank has its error after the time above; one that joins, after the limit of joining
//	alarm     there is an error, and no fault that explains it
//	stray     a rank that begins when the others have given up finds no rendezvous, as rank 0 has
//	          removed it, and reports that rank 0 does not answer. Counted separately: it cannot know
//	          better
//
// Ranks that are killed, stopped for good or cut off only have to end. Both ranks of a faulty link
// count as at fault.
//
// # Losses that ranks survive
//
// TestReconnect changes the ranks of jobs whose other ranks connect again (comm.Reconnect): ranks
// are killed, stopped or cut off, come back, leave, or join, alone or several together, rank 0 more
// often than others, also while the others connect. Some jobs have a witness. `make simulate` makes
// 10,000 such events, and counts them by kind. See survival for the invariants.
//
// # Reproducibility
//
// Two runs of a seed have the same faults, and every rank ends in the same step (TestSeed). Each
// arrival has its own instant, see internal/simnet, so most runs end at the same nanosecond with
// the same errors. Go's scheduler decides the order of several goroutines at one instant: in one of
// ten runs times differ by some microseconds, and in one of a hundred runs the other rank of a
// broken link is named.
//
// # Limits
//
// Shared memory, Unix sockets and the poller of Linux are not simulated: ranks are on their own
// hosts, and use the portable pump, as with TLS. Computation takes no time. Connections do not
// share bandwidth. A stopped process still computes, but receives and sends nothing.
package simulate
