// Package ranks is what a rank says to the others outside the schedule of a pass: what it is about
// to do and whether it can, that it is still busy, that it has failed.
//
//	Agreement   ranks agree on the next call before its first collective
//	Busy        ranks work for any time, such as on files, without being taken for ones that hang
//	Team        all process groups of a model: its meshes, and the end of all of them at once
//
// # What is exchanged
//
// An agreement is one all-reduce of a few words, whatever the number of ranks. The words are hashes
// of what the ranks are about to do and of what they have done alone ([Past]), as their largest and
// smallest, so that all are equal where these two are; the largest of a value; and who has failed.
// More travels only if something differs, and only from two ranks: the first rank, which the others
// are compared with, and the first that differs from it. So a rank receives O(1) bytes, and the
// error on every rank names the same two.
//
// # Failures
//
// A rank that fails in the middle of collectives leaves others waiting for it in any of the groups
// of a model. [Team.Fail] fails all of them at once, before it waits for anything, and returns a
// [Failure]. Whoever gets one passes it up; the model is of no use after it.
package ranks
