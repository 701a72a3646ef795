package transport

import "context"

// Backend executes the collectives of one rank over some transport, one after the other.
// [NewSerial] makes a [Group] of it, which checks and numbers the calls, keeps them in
// order, and makes the first failure sticky. So a Backend only has to move bytes and to
// deliver bad news.
type Backend interface {
	// Run executes collective seq and returns nil once it is complete on this rank: Dst
	// is whole, and Src is not needed any more. Run is called for one collective at a
	// time, in order, by a goroutine that waits for it or by the group's own. Run
	// compares the calls of all ranks; a difference is a *MismatchError. A *RankError
	// blames a rank; for any other error this rank is blamed. An error that blames
	// another rank, or wraps ErrLost, counts a second later, unless news has brought a
	// better one. Exceptions: a *RankError that wraps ErrDamaged counts at once, and
	// ErrEnded counts later, because it is not a reason by itself. If ctx ends, Run soon returns its cause; without progress for the
	// backend's time limit, it returns ErrTimeout. After an error Run is not called
	// again.
	Run(ctx context.Context, seq uint64, c *Call) error
	// Missing returns the ranks that the current collective still waits for. It may be
	// called at any time.
	Missing() []int
	// Split makes the group of the given ranks (of this group, in the order of the new
	// one) that collective seq has formed under color. All these ranks call it, and it
	// may communicate with them. ctx also ends when this handle is closed.
	Split(ctx context.Context, seq uint64, color int, ranks []int) (Group, error)
	// Tell reports to all other ranks that the group has failed here; on each of them it
	// must cause a call of [Serial.Failed]. It must not block.
	Tell(err error)
	// Stop makes Run return soon, now and in future. It must not block.
	Stop()
	// Leave reports to all other ranks that this one has left after completing collective
	// last; on each of them it must cause a call of [Serial.Left]. It is called once,
	// after everything else, and releases everything.
	Leave(last uint64) error
}

// A Beginner is a Backend that can begin a small collective without waiting.
type Beginner interface {
	Backend
	// Begin does as much of collective seq as possible without waiting. The collective is
	// then run as any other. Begin reports whether it has done everything that others
	// wait for: then Run only has to receive, and may be left to the goroutine that
	// waits. Begin is called like Run, before it, and for some collectives only.
	Begin(seq uint64, c *Call) bool
}

// A Confirmer is a Backend that completes some collectives before it has learnt that
// every rank has made the same call, and before every rank has learnt it of this one. Its
// methods are called like Run, between collectives.
type Confirmer interface {
	Backend
	// Owes reports whether answers about complete collectives are still to be sent.
	Owes() bool
	// Answer sends these answers, without waiting.
	Answer()
	// Confirm returns when the ranks that this one exchanges messages with are known to
	// agree in their complete collectives, with a *MismatchError if they do not, or when
	// ctx ends. It returns ErrEnded if a rank has ended its connections, which reports
	// the reason elsewhere. It is called before Leave.
	Confirm(ctx context.Context) error
}

// DeviceBackend is a Backend that also moves device memory, see [OnDevice]. The groups of
// other backends refuse device memory.
type DeviceBackend interface {
	Backend
	// Reach returns why the backend cannot use a buffer of device memory, or nil. It
	// is called when a collective is issued and must not block.
	Reach(b Buffer) error
}
