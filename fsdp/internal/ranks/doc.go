// Package ranks is the communication of ranks outside the schedule of a pass: a rank reports the
// call that it is about to make and whether it can, that it is still busy, or that it has failed.
//
//	Agreement   ranks agree on the next call before its first collective
//	Busy        ranks work for any time, such as on files, without a timeout in the others
//	Team        all process groups of a model: its meshes, and the end of all of them at once
//
// # Exchanged data
//
// An agreement is one all-reduce of a few words, for any number of ranks. The words are hashes of
// the ranks' next calls and of their local actions ([Past]), as their largest and smallest, so that
// all are equal if these two are; the largest of a value; and the ranks that have failed. More
// travels only if something differs, and only from two ranks: the first rank, with which the others
// are compared, and the first that differs from it. So a rank receives O(1) bytes, and the error on
// every rank names the same two.
//
// # Failures
//
// If a rank fails in the middle of collectives, other ranks may wait for it in any of the groups of
// a model. [Team.Fail] fails all of them at once, before it waits for anything, and returns a
// [Failure]. Callers return it to their callers; the model is unusable after it.
package ranks
