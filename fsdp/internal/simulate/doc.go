// Package simulate runs jobs of many ranks in one process, on a network in memory (internal/simnet)
// and in fake time (testing/synctest), and breaks them. It consists of tests: `go test` runs 500
// faults, `make simulate` 100,000, and what joining, a collective, a checkpoint and a death take as ranks grow in number.
//
// All code above the sockets is that of every job: rendezvous, joining, groups and their failures
// (comm), agreements (fsdp/internal/ranks), saving (internal/checkpoint, on the disk of
// internal/checkpoint/crashfs).
//
// # A job
//
// A seed decides all of a job: when each of its ranks starts, what delays the network has, a
// program of 8 to 15 steps, and the faults. A step is a collective of random length, a split with a
// collective in the new group, an agreement that one rank may refuse, or a checkpoint. Every value
// that comes of it is checked. Four fifths of the faults and more are such as a job has to survive;
// most jobs have one that it has not.
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
// Each fault has to be known in its time, whatever others there are. The 3.6 s are a sum, see
// slack: what a rank may compute until it calls a group again; the second in which the cause of a
// broken connection may become known; the half second in which ranks tell what they are doing; and
// what slow links add. Time in which any rank is stalled or isolated does not count: all wait for
// that one, and what it contributes then begins their limit anew. A cut is met at once if one of
// the connections is for control; a data connection that is cut, by whoever next uses it, as comm
// promises; a flip, by the write that it changes. What nobody meets is no fault, and a rank that
// has ended owes nothing.
//
// # What is counted
//
//	hang      a rank is not back after ten minutes
//	lost      a checkpoint that Commit has reported is not whole after a power failure, or
//	          another one is there by half
//	wrong     a value is not what it should be, or an error names nobody who was at fault: the rank
//	          of its [comm.RankError] is none that a fault has struck, or, while ranks join, its text
//	          speaks of none
//	late      a rank has its error after the time above; one that joins, after the limit of joining
//	alarm     there is an error, and no fault that is one's to fail by
//	stray     a rank that begins when the others have given up finds no rendezvous, as rank 0 has taken
//	          it away, and says that rank 0 does not answer. Counted apart: it does not know better
//
// Ranks that are killed, stopped for good or cut off themselves only have to end. Of a link both
// ranks are at fault.
//
// # What is the same in every run
//
// Two runs of a seed have the same faults, and every rank ends in the same step (TestSeed). Things
// that arrive have instants of their own, see internal/simnet, so most runs end at the same
// nanosecond with the same errors. What several goroutines do at one instant the scheduler of Go
// decides: in one of ten runs times differ by some microseconds, and in one of a hundred another
// rank of a broken link is named.
//
// # What is left out
//
// Shared memory, Unix sockets and the poller of Linux: ranks are on hosts of their own, and use the
// portable pump, as with TLS. Time that computing takes is none. Bandwidth is not shared by
// connections. A stopped process still computes, but neither hears nor says anything.
package simulate
