// Package transport is the contract between process groups and the transports that move their data.
// Programs that use groups need only package comm, which has aliases of the names for users.
//
// # Writing a transport
//
// A [Backend] executes the collectives of one rank, one after the other: it gets each [Call] with its
// number and moves the bytes. [NewSerial] makes a [Group] of a Backend. The [Serial] validates and
// numbers calls, keeps them in order, lets the caller overlap them with computation, and keeps the
// first failure. The Backend delivers bad news of other ranks to [Serial.Failed] and [Serial.Left];
// [MarshalError] and [UnmarshalError] encode it.
//
// A Backend compares the calls of all ranks, by [Signature] for example, and returns a [MismatchError]
// if they differ. It may implement [Beginner], [Confirmer], [DeviceBackend], [Stager] and [Reporter], and
// may have a method Timeout that returns its limit.
//
// # Without Serial
//
// A transport that has its own order of execution, as ranks that share memory have, embeds a [Base] in
// its handle and implements [Issuer]. [Recorder] and [Flights] note what the handle does, for [Report] and
// [Watcher]. [Straggler] finds the rank that a timeout is about, and [SplitError] the rank that a failed
// split is about.
//
// Package commtest tests all of this for any transport.
package transport
