package transport

import "context"

// Backend executes the collectives of one rank over some transport, one after
// the other. [NewSerial] makes a [Group] of it, which checks and numbers the
// calls, keeps them in order, and makes the first failure sticky, so that a
// Backend only has to move bytes and to carry bad news.
type Backend interface {
	// Run executes collective seq and returns nil once it is complete on this
	// rank: Dst is whole, and Src is not needed any more. Run is called for one
	// collective at a time, in order, by whichever goroutine waits for it or by
	// one of the group's own. The calls of all ranks are compared here; a
	// difference is a *MismatchError. A *RankError blames a rank; for any other
	// error this rank is blamed. An error that blames another rank, or wraps
	// ErrLost, counts a second later, if no news has told of a better one. If ctx
	// ends, Run soon returns its cause; without progress for the time the backend
	// was given, it returns ErrTimeout. After an error Run is not called again.
	Run(ctx context.Context, seq uint64, c *Call) error
	// Missing returns the ranks that the collective under way still waits for.
	// It may be called at any time.
	Missing() []int
	// Split makes the group of the given ranks (of this group, in the order of
	// the new one) that collective seq has formed under color. It is called by
	// all these ranks and may talk to them. ctx also ends when this handle is closed.
	Split(ctx context.Context, seq uint64, color int, ranks []int) (Group, error)
	// Tell tells all other ranks that the group has failed here; on each of them
	// [Serial.Failed] is to be called. It must not block.
	Tell(err error)
	// Stop makes Run return soon, now and in future. It must not block.
	Stop()
	// Leave tells all other ranks that this one has left, after completing
	// collective last; on each of them [Serial.Left] is to be called. It is
	// called once, after all else, and releases everything.
	Leave(last uint64) error
}

// A Beginner is a Backend that can begin a small collective without waiting.
type Beginner interface {
	Backend
	// Begin does what it can of collective seq without waiting, which is then run as any other, and
	// reports whether that is all that others wait for: then Run has only to receive, and may be left
	// to whoever waits. It is called like Run, before it, and for some collectives only.
	Begin(seq uint64, c *Call) bool
}

// A Confirmer is a Backend that completes some collectives before it knows of every rank that it
// has made the same call, and before every rank knows it of this one. Its methods are called like
// Run, between collectives.
type Confirmer interface {
	Backend
	// Owes reports whether some rank has still to be told of complete collectives.
	Owes() bool
	// Answer tells it, without waiting.
	Answer()
	// Confirm returns when the ranks that this one exchanges messages with are known to agree in what
	// is complete, with a *MismatchError if they do not, or when ctx ends. It returns ErrEnded if a
	// rank has ended its connections, which says elsewhere why. It is called before Leave.
	Confirm(ctx context.Context) error
}

// DeviceBackend is a Backend that also moves device memory, see [OnDevice]. The
// groups of other backends refuse it.
type DeviceBackend interface {
	Backend
	// Reach returns why the backend cannot use a buffer of device memory, or nil. It
	// is called when a collective is issued and must not block.
	Reach(b Buffer) error
}
