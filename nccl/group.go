package nccl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// GroupConfig configures a [Group]. The zero value is useful. It must be the same on all
// ranks.
type GroupConfig struct {
	// Communicator configures NCCL's communicator. Its Name is also the name of the
	// group, "nccl" if it is empty.
	Communicator Config
	// Timeout is how long a collective may take once every rank has come to it, including
	// the work of other streams that it waits for; 0 means 5 minutes. The group that this
	// one is made over limits how long ranks wait for each other.
	Timeout time.Duration
	// Staging is the number of bytes of pinned host memory, and of device memory, that
	// hold pieces of host buffers on their way through NCCL; 0 means 8 MiB. They are
	// allocated for the first host buffer.
	Staging int
}

const (
	defaultTimeout = 5 * time.Minute
	defaultStaging = 8 << 20
)

// complete checks c and fills in defaults.
func (c GroupConfig) complete() (GroupConfig, error) {
	if c.Communicator.Share { // a part that ends in an abort would end the whole
		return c, errors.New("nccl: GroupConfig sets Communicator.Share, with which the end of a split group would end its parent too: leave it false")
	}
	if c.Timeout < 0 || c.Staging < 0 {
		return c, fmt.Errorf("nccl: GroupConfig has Timeout %v and Staging %d: neither may be negative", c.Timeout, c.Staging)
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Staging == 0 {
		c.Staging = defaultStaging
	}
	if c.Communicator.Name == "" {
		c.Communicator.Name = "nccl"
	}
	return c, nil
}

// Group is a [comm.Group] whose collectives NCCL executes. Buffers are device memory, made by
// [transport.OnDevice], which is read and written in place, or host memory, which is copied through
// pinned memory in pieces. Ranks may differ in this.
//
//	boot, err := comm.FromEnv(ctx)       // any group: it carries what is not data
//	dev, err := nccl.OpenDevice(local)   // LocalRank of comm.ConfigFromEnv
//	g, err := nccl.New(ctx, boot, dev, nccl.GroupConfig{})
//	err = g.Fence(compute)               // collectives come after the kernels in this stream
//	sum, whole := transport.OnDevice[float32](shard, m), transport.OnDevice[float32](grads, n*m)
//	w := g.ReduceScatter(sum, whole, comm.Sum)
//	err = g.WaitOn(ctx, compute, w)      // the stream waits, the host does not
//
// The contract is the contract of package comm, except for sums: NCCL adds floats in its
// own order and in their own type, so sums and averages are right within rounding, and
// differ from the results of other groups in the last bits. An average is the sum of the
// elements multiplied by 1/n, rounded to the element type: for 16-bit floats, n other
// than a power of two makes all of it wrong by up to half a unit in the last place. If a
// rank has NaN, Max and Min are any rank's value. Integers are exact.
//
// All ranks compare their calls before NCCL gets any, so that a mismatch is an error and
// never a hang. It costs an all-gather of 72 bytes per rank for each collective. This
// all-gather, barriers, and news of failures travel over a group split from boot. When
// the group fails, each rank aborts its communicator, and no buffer is touched after an
// operation has returned its error.
//
// Collectives of one group run one after the other. Collectives of different groups of
// one device are launched in an order that may differ between ranks, and NCCL needs one
// order: wait for a collective of one group before you issue the next group's. Do not set
// NCCL_LAUNCH_ORDER_IMPLICIT: with it, different orders are a deadlock.
type Group struct {
	comm.Group // a *transport.Serial
	backend    *backend
}

// New makes a group of the ranks of boot, each with its own device. It is a collective of
// boot. boot remains the caller's: the group fails when boot fails, and must be closed
// before boot and the device. If a rank cannot join, every rank gets an error that names
// it.
func New(ctx context.Context, boot comm.Group, dev *Device, cfg GroupConfig) (*Group, error) {
	cfg, invalid := cfg.complete()
	if over, ok := boot.(*Group); ok {
		boot = over.backend.host // control messages need no NCCL
	}
	host, err := boot.Split(ctx, 0, boot.Rank())
	if err != nil {
		return nil, fmt.Errorf("nccl: group %q: %w", cfg.Communicator.Name, err)
	}
	b := newBackend(cfg.Communicator.Name, host, dev, cfg, nil, nil)
	if invalid == nil && dev == nil {
		invalid = errors.New("nccl: the device is nil")
	}
	return b.open(ctx, invalid)
}

// Communicator returns the communicator of the group, for operations that the caller puts
// in a stream of the device: in the same order on all ranks, and not during a collective
// of the group. It is closed with the group. A caller that waits for such a stream checks
// AsyncError and [transport.Failing] of the group, and aborts the communicator when there
// is a reason to.
func (g *Group) Communicator() *Communicator { return g.backend.launcher.communicator }

// Failing reports failures of the group: see [transport.Failing].
func (g *Group) Failing() <-chan struct{} { return transport.Failing(g.Group) }

// Watch implements [transport.Watcher].
func (g *Group) Watch(f func(transport.Flight)) (stop func()) {
	return g.Group.(*transport.Serial).Watch(f)
}

// Fence makes later launches of collectives wait for the work that the streams, which are
// of the group's device, have so far. A collective is launched at some time after it is
// issued.
func (g *Group) Fence(streams ...*Stream) error {
	if err := g.backend.fence.wait(g.backend.launcher.stream, streams); err != nil {
		return g.backend.wrap("Fence", err)
	}
	return nil
}

// WaitOn makes a stream wait for an operation of the group: work that s gets after WaitOn
// has returned runs when the result is there. It returns once the operation is launched
// on this rank, or complete if a rank has a host buffer in it. If it has failed, WaitOn
// returns the error; if it fails later, Wait does, and s goes on. If ctx ends, only
// WaitOn fails.
func (g *Group) WaitOn(ctx context.Context, s *Stream, w comm.Work) error {
	seq, ok := g.backend.serial.Seq(w)
	if !ok {
		if err := w.Wait(ctx); err != nil {
			return err
		}
		return fmt.Errorf("nccl: group %q: WaitOn got an operation of another group", g.backend.name)
	}
	ready, err := g.backend.progress.order(ctx, seq, s)
	switch {
	case err != nil:
		return g.backend.wrap(fmt.Sprintf("WaitOn of collective #%d", seq), err)
	case !ready:
		return w.Wait(ctx) // the group has failed, perhaps after this one
	}
	return nil
}
