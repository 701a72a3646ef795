package nccl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
)

// Split implements [comm.Backend]. The part that takes all ranks was done by Run.
func (b *backend) Split(ctx context.Context, seq uint64, color int, ranks []int) (comm.Group, error) {
	b.mu.Lock()
	p := b.parts[seq]
	delete(b.parts, seq)
	b.mu.Unlock()
	child := newBackend(fmt.Sprintf("%s/%d", b.name, color), p.meta, b.dev, b.cfg)
	child.parent, child.communicator = b, p.communicator
	g, err := child.open(ctx, nil)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.children = append(b.children, child)
	b.mu.Unlock()
	return g, nil
}

// Leave implements [comm.Backend].
//
// A communicator is destroyed by all ranks together, once nothing is under way in it.
// If they do not all come it is aborted: then this rank has completed whatever it took
// part in, and given the others time to do so.
func (b *backend) Leave(last uint64) error {
	b.mu.Lock()
	children, parts := slices.Clone(b.children), b.parts
	b.parts = nil
	b.mu.Unlock()
	var errs []error
	for _, c := range slices.Backward(children) {
		errs = append(errs, c.serial.Close())
	}
	for _, p := range parts {
		if p.communicator != nil {
			errs = append(errs, p.communicator.Abort())
		}
		errs = append(errs, p.meta.Close())
	}
	switch {
	case b.torn:
		b.Tell(&comm.RankError{Group: b.name, Rank: b.meta.Rank(), Err: fmt.Errorf("%w in collective #%d", comm.ErrClosed, last+1)})
	case b.farewell():
		errs = append(errs, b.destroy())
	default:
		b.giveUp()
	}
	errs = append(errs, b.meta.Close())
	b.tasks.Wait()
	if b.parent != nil {
		b.parent.forget(b)
	}
	return errors.Join(append(errs, b.release())...)
}

// forget drops a group that was split from this one and is closed.
func (b *backend) forget(child *backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.children = slices.DeleteFunc(b.children, func(c *backend) bool { return c == child })
}

// destroy ends the communicator together with the other ranks.
func (b *backend) destroy() error {
	ctx, cancel := context.WithTimeout(context.Background(), settling)
	defer cancel()
	err := b.communicator.Finalize(ctx)
	if err == nil {
		err = b.communicator.Destroy()
	}
	if err != nil {
		b.giveUp()
	}
	return err
}

// release frees what the rank has of its own.
func (b *backend) release() error {
	if b.stuck {
		return fmt.Errorf("nccl: group %q: a stream does not end %v after NCCL was told to abort: its memory is not freed", b.name, settling)
	}
	errs := []error{b.staging.free()}
	for _, e := range []*Event{b.reached, b.fence} {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	if b.stream != nil {
		errs = append(errs, b.stream.Close())
	}
	return errors.Join(errs...)
}
